"""The checks: each anomaly found in a history made to show it, none in histories that only look odd."""

from __future__ import annotations

from typing import Any

import pytest
from harness.checks import check
from harness.ops import Op, Type, numbered
from harness.values import BROKEN, COMMIT, OWN, key_of, number_of, value_of
from hypothesis import given
from hypothesis import strategies as st

Line = tuple[str, Type, str, dict[str, Any]]


def append(process: str, end: Type, *numbers: int, first: int = 0) -> list[Line]:
    invoked: Line = (process, "invoke", "append", {"numbers": list(numbers)})
    return [invoked, (process, end, "append", {"numbers": list(numbers), **({"first": first} if first else {})})]


def transaction(process: str, end: Type, *numbers: int, first: int = 0) -> list[Line]:
    invoked: Line = (process, "invoke", "append", {"numbers": list(numbers), "txn": True})
    return [invoked, (process, end, "append", {"numbers": list(numbers), **({"first": first} if first else {})})]


def burst(*firsts: int) -> list[Line]:
    """Appends of values 4 … through one client, one behind the other; first VLSN 0: unknown."""
    numbers = range(4, 4 + len(firsts))
    sent: list[Line] = [
        (f"w9.1.{number}", "invoke", "append", {"numbers": [number], "burst": "w9.1"}) for number in numbers
    ]
    for number, first in zip(numbers, firsts, strict=True):
        value = {"numbers": [number], **({"first": first} if first else {})}
        sent.append((f"w9.1.{number}", "ok" if first else "info", "append", value))
    return sent


def begun(process: str, *numbers: int) -> list[Line]:
    return append(process, "info", *numbers)[:1]


def seek(process: str, start: int, *nodes: str) -> Line:
    return (process, "ok", "seek", {"from": start, "nodes": list(nodes or ["n1"])})


def entries(*rows: tuple[int, int, int]) -> dict[str, Any]:
    """(VLSN, term, number)."""
    return {
        "vlsns": [vlsn for vlsn, _, _ in rows],
        "terms": [term for _, term, _ in rows],
        "numbers": [number for _, _, number in rows],
    }


def poll(process: str, *rows: tuple[int, int, int]) -> Line:
    return (process, "ok", "poll", entries(*rows))


def looked(process: str, to: int) -> Line:
    return (process, "ok", "look", {"to": to})


def look(process: str, to: int) -> list[Line]:
    return [(process, "invoke", "look", {"from": 1}), looked(process, to)]


def final(node: str, *rows: tuple[int, int, int], to: int = 0) -> Line:
    return ("final", "ok", "final", {"node": node, "to": to or max(vlsn for vlsn, _, _ in rows), **entries(*rows)})


def cut_final(node: str, *rows: tuple[int, int, int]) -> Line:
    """Returns a node that serves no more than this."""
    return ("final", "info", "final", {"node": node, "to": max((row[0] for row in rows), default=0), **entries(*rows)})


def status(
    node: str, state: str, term: int, *, dtvlsn: int = 0, process: str = "p", incarnation: str = "1", level: int = 0
) -> Line:
    value = {"node": node, "state": state, "term": term, "master": "", "process": process, "level": level}
    return ("watch", "info", "status", {**value, "incarnation": incarnation, "reason": "", "dtvlsn": dtvlsn, "last": 0})


def ended(node: str) -> Line:
    return ("group", "info", "ended", {"node": node, "status": 1})


def rules(*parts: Line | list[Line]) -> set[str]:
    lines: list[Line] = []
    for part in parts:
        lines += part if isinstance(part, list) else [part]
    return set(check(numbered(lines)).counts)


LOG = ((1, 1, OWN), (2, 1, OWN), (3, 1, 1), (4, 1, 2), (5, 1, 3))
"""The log of two appends, acknowledged: values 1 and 2 together, then 3."""
SENDS = [*append("w1", "ok", 1, 2, first=3), *append("w2", "ok", 3, first=5)]


def test_a_run_that_keeps_every_promise_shows_nothing() -> None:
    pages = [seek("r1", 1), poll("r1", *LOG[:4]), poll("r1", *LOG[4:]), seek("r1", 4), poll("r1", *LOG[3:])]
    leads = [status("n1", "MASTER", 1, dtvlsn=3), status("n1", "MASTER", 1, dtvlsn=5), status("n2", "MASTER", 2)]
    assert rules(SENDS, pages, leads, final("n1", *LOG), final("n2", *LOG)) == set()


def test_an_append_whose_end_is_unknown_may_be_there_or_not() -> None:
    there = (*LOG, (6, 1, 4), (7, 2, OWN), (8, 2, 5), (9, 2, 6))
    for log in (there, LOG):
        unknown = [*append("w1", "info", 4), *begun("w2", 5, 6), *append("w3", "fail", 7)]
        assert rules(SENDS, unknown, final("n1", *log), final("n2", *log)) == set()


def test_an_unknown_append_may_come_before_what_was_acknowledged_earlier_or_later() -> None:
    log = ((1, 1, OWN), (2, 1, 2), (3, 1, 1), (4, 1, 3))
    sends = [*begun("w2", 2), *append("w1", "ok", 1, first=3), *append("w3", "ok", 3, first=4)]
    assert rules(sends, ("w2", "info", "append", {"numbers": [2]}), final("n1", *log)) == set()


def test_appends_under_way_together_may_come_in_either_order() -> None:
    log = ((1, 1, OWN), (2, 1, 2), (3, 1, 1))
    one, two = append("w1", "ok", 1, first=3), append("w2", "ok", 2, first=2)
    assert rules([one[0], two[0], one[1], two[1]], final("n1", *log)) == set()


def test_a_linearizable_read_may_miss_what_was_not_told_before_it_began() -> None:
    begins: Line = ("l1", "invoke", "look", {"from": 1})
    sees = [seek("l1", 1), poll("l1", *LOG[:4]), poll("l1", *LOG[4:])]
    assert rules(SENDS[:2], SENDS[2], begins, SENDS[3], sees, looked("l1", 4), final("n1", *LOG)) == set()


def test_of_a_burst_the_acknowledged_appends_rise() -> None:
    log = (*LOG, (6, 1, 4), (7, 2, OWN), (8, 2, 6))
    assert rules(SENDS, burst(6, 0, 8), final("n1", *log)) == set()
    assert "nonmonotonic-send" in rules(SENDS, burst(8, 0, 6), final("n1", *log))


TRANSACTION = ((6, 1, 4), (7, 1, 5), (8, 1, 6), (9, 1, COMMIT))
"""The log's next entries: a transaction of three values."""
COMMITTED = transaction("w3", "ok", 4, 5, 6, first=6)


def test_whole_transactions_show_nothing() -> None:
    log = (*LOG, *TRANSACTION, (10, 2, OWN), (11, 2, 7), (12, 2, COMMIT))
    gone = [*transaction("w4", "fail", 8, 9), *transaction("w5", "info", 10, 11), *transaction("w6", "info", 7)]
    begun = transaction("w7", "info", 12, 13)[:1]
    whole = [seek("r1", 1), poll("r1", *log[:9]), poll("r1", *log[9:])]
    inside = [seek("r2", 7), poll("r2", *log[6:])]  # who begins to read inside one is shown the rest of it
    assert rules(SENDS, COMMITTED, gone, begun, whole, inside, final("n1", *log), final("n2", *log)) == set()


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        # Half of one: at its end, its beginning, in the middle, apart, in another order, without its COMMIT.
        ("half-transaction", [final("n1", *LOG, *TRANSACTION[:2])]),
        ("half-transaction", [final("n1", *LOG, (6, 1, 5), (7, 1, 6), (8, 1, COMMIT))]),
        ("half-transaction", [final("n1", *LOG, (6, 1, 4), (7, 1, 6), (8, 1, COMMIT))]),
        ("half-transaction", [final("n1", *LOG, *TRANSACTION[:2], (8, 2, OWN), (9, 2, 6), (10, 2, COMMIT))]),
        ("half-transaction", [final("n1", *LOG, (6, 1, 4), (7, 1, 6), (8, 1, 5), (9, 1, COMMIT))]),
        ("half-transaction", [final("n1", *LOG, *TRANSACTION[:3], (9, 2, OWN))]),
        ("half-transaction", [final("n1", *LOG, *TRANSACTION[:3])]),
        # A reader is shown half of one, though the logs have all of it.
        ("half-transaction", [seek("r1", 6), poll("r1", *TRANSACTION[:2]), poll("r1", *TRANSACTION[2:]), "whole"]),
        ("half-transaction", [seek("r1", 6), poll("r1", (6, 1, 4), (7, 1, OWN)), "whole"]),
        # An aborted one is shown, by a reader or in the end.
        (
            "aborted-read",
            [transaction("w4", "fail", 7, 8), seek("r1", 10), poll("r1", (10, 1, 7), (11, 1, 8)), "whole"],
        ),
        (
            "aborted-read",
            [transaction("w4", "fail", 7), final("n1", *LOG, *TRANSACTION, (10, 1, 7), (11, 1, COMMIT))],
        ),
        # One that was acknowledged is lost, above what is read or below it; on one node alone.
        ("unseen", [final("n1", *LOG)]),
        ("lost-write", [final("n1", *LOG, *((vlsn, 2, OWN) for vlsn in range(6, 10)))]),
        ("missing", [final("n2", *LOG), "whole"]),
        # One is logged twice: its commit was asked for again.
        (
            "duplicate",
            [final("n1", *LOG, *TRANSACTION, *((vlsn + 4, term, number) for vlsn, term, number in TRANSACTION))],
        ),
        # Its values are under another key, or another's.
        ("broken-value", [final("n1", *LOG, *TRANSACTION[:2], (8, 1, BROKEN), (9, 1, COMMIT))]),
    ],
)
def test_each_anomaly_of_a_transaction_is_found(rule: str, parts: list[Line | list[Line] | str]) -> None:
    whole = final("n1", *LOG, *TRANSACTION)
    assert rule in rules(SENDS, COMMITTED, *(whole if isinstance(part, str) else part for part in parts))


def test_a_value_of_a_transaction_is_known_under_its_own_key_only() -> None:
    for number in (1, 8, 12_345):
        assert number_of(value_of(number), key_of(number)) == number_of(value_of(number)) == number
        assert number_of(value_of(number), key_of(number + 1)) == BROKEN


def test_a_node_whose_disk_was_struck_may_end_and_be_damaged() -> None:
    struck: Line = ("nemesis", "info", "disk", {"id": 1, "phase": "begin", "nodes": ["n2"], "way": "flip"})
    assert rules(SENDS, struck, ended("n2"), status("n2", "DAMAGED", 1), final("n1", *LOG)) == set()


def test_a_node_that_does_not_serve_its_log_to_the_end_is_judged_as_far_as_it_does() -> None:
    behind = [*append("w3", "ok", 4, first=6), seek("r1", 1), poll("r1", *LOG), seek("r2", 1)]
    assert rules(SENDS, behind, cut_final("n1"), cut_final("n2", *LOG[:3]), cut_final("n3", *LOG)) == set()
    other = (*LOG[:2], (3, 1, 2))
    assert {"logs-differ", "missing"} <= rules(SENDS, cut_final("n1", *other), final("n2", *LOG))


def test_terms_and_durable_ends_may_begin_anew_with_an_incarnation_or_a_process() -> None:
    lines = [status("n1", "REPLICA", 4, dtvlsn=9), status("n1", "REPLICA", 4, dtvlsn=2, process="q")]
    restores = [status("n1", "RESTORING", 0, process="q"), status("n1", "UNKNOWN", 0, process="q", incarnation="0")]
    assert rules(lines, restores, status("n1", "REPLICA", 0, process="r", incarnation="2")) == set()


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        ("aborted-read", [append("w3", "fail", 4), final("n1", *LOG, (6, 1, 4))]),
        ("aborted-read", [append("w3", "fail", 4), seek("r1", 6), poll("r1", (6, 1, 4)), final("n1", *LOG)]),
        ("inconsistent-offset", [seek("r1", 5), poll("r1", (5, 1, 4)), append("w3", "info", 4), final("n1", *LOG)]),
        ("inconsistent-offset", [seek("r1", 5), poll("r1", (5, 2, 3)), final("n1", *LOG)]),
        ("inconsistent-offset", [append("w3", "ok", 4, first=5), final("n1", *LOG)]),
        ("inconsistent-offset", [append("w3", "ok", 4, first=6), append("w4", "ok", 5, first=6)]),
        ("lost-write", [append("w3", "ok", 4, first=6), final("n1", *LOG, (6, 2, OWN))]),
        ("unseen", [append("w3", "ok", 4, first=6), final("n1", *LOG)]),
        ("unseen", [seek("r1", 1), poll("r1", *LOG[:3]), final("n1", *LOG)]),
        ("duplicate", [append("w3", "info", 4), final("n1", *LOG, (6, 1, 4), (7, 1, 4))]),
        ("duplicate", [final("n1", *LOG, (6, 1, 3))]),
        ("poll-skip", [seek("r1", 1), poll("r1", *LOG[:3], LOG[4]), final("n1", *LOG)]),
        ("poll-skip", [seek("r1", 1), poll("r1", *LOG[:3]), poll("r1", LOG[4]), final("n1", *LOG)]),
        ("poll-skip", [seek("r1", 2), poll("r1", *LOG[2:]), final("n1", *LOG)]),
        ("nonmonotonic-poll", [seek("r1", 1), poll("r1", *LOG), poll("r1", LOG[4]), final("n1", *LOG)]),
        ("nonmonotonic-poll", [seek("r1", 4), poll("r1", *LOG[3:], LOG[3]), final("n1", *LOG)]),
        ("nonmonotonic-send", [append("w3", "ok", 4, first=2), final("n1", *LOG)]),
        ("nonmonotonic-send", burst(7, 6)),
        ("torn-append", [append("w3", "info", 4, 5), final("n1", *LOG, (6, 1, 4))]),
        ("torn-append", [append("w3", "info", 4, 5), final("n1", *LOG, (6, 1, 5), (7, 1, 4))]),
        ("torn-append", [append("w3", "info", 4, 5), final("n1", *LOG, (6, 1, 4), (7, 2, OWN), (8, 2, 5))]),
        ("phantom-read", [final("n1", *LOG, (6, 1, 99))]),
        ("broken-value", [final("n1", *LOG, (6, 1, BROKEN))]),
        ("lost-read", [append("w3", "info", 4), seek("r1", 5), poll("r1", (5, 1, 4)), final("n1", *LOG)]),
        ("lost-read", [append("w3", "info", 4), seek("r1", 5), poll("r1", LOG[4], (6, 1, 4)), final("n1", *LOG, to=6)]),
        ("stale-read", [look("l1", 4), final("n1", *LOG)]),
        ("stale-read", [look("l2", 6), look("l1", 5), final("n1", *LOG, (6, 2, OWN))]),
        ("log-gap", [final("n1", *LOG[:3], LOG[4])]),
        ("log-gap", [final("n1", *LOG[1:])]),
        ("log-gap", [final("n1", *LOG, to=7)]),
        ("term-falls", [append("w3", "info", 4), final("n1", *LOG, (6, 2, OWN), (7, 1, 4))]),
        ("missing", [final("n1", *LOG), final("n2", *LOG[:4])]),
        ("missing", [append("w3", "info", 4), final("n1", *LOG[:4], (5, 1, 4))]),
        ("logs-differ", [append("w3", "info", 4), final("n1", *LOG, (6, 1, 4)), final("n2", *LOG, (6, 2, OWN))]),
        ("logs-differ", [append("w3", "info", 4), final("n1", *LOG, (6, 1, 4)), final("n2", *LOG)]),
        ("two-masters", [status("n1", "MASTER", 3), status("n2", "MASTER", 3), final("n1", *LOG)]),
        ("status-falls", [status("n1", "REPLICA", 3), status("n1", "REPLICA", 2, process="q"), final("n1", *LOG)]),
        (
            "status-falls",
            [status("n1", "MASTER", 3, dtvlsn=9), status("n1", "REPLICA", 4, dtvlsn=8), final("n1", *LOG)],
        ),
        (
            "status-falls",
            [status("n1", "MASTER", 3, level=4), status("n1", "REPLICA", 3, level=3), final("n1", *LOG)],
        ),
        ("node-ended", [ended("n2"), final("n1", *LOG)]),
        ("node-halted", [status("n2", "HALTED", 3), final("n1", *LOG)]),
        ("node-halted", [status("n2", "DAMAGED", 3), final("n1", *LOG)]),
    ],
)
def test_each_anomaly_is_found(rule: str, parts: list[Line | list[Line]]) -> None:
    assert rule in rules(SENDS, *parts)


def test_an_anomaly_says_where_and_when() -> None:
    history = numbered([*SENDS, *append("w3", "fail", 4), final("n2", *LOG, (6, 1, 4))])
    found = check(history)
    (first,) = found.examples["aborted-read"]
    assert (first.where, first.vlsn, first.number) == ("final read of n2", 6, 4)
    assert "aborted-read (final read of n2 at VLSN 6, value 4" in str(first)


def test_all_anomalies_are_counted_and_the_first_few_kept() -> None:
    lost = [line for number in range(10, 60) for line in append("w3", "ok", number, first=number)]
    found = check(numbered([*SENDS, *lost, final("n1", *LOG, (99, 1, OWN))]))
    assert found.counts["lost-write"] == 50
    assert len(found.examples["lost-write"]) == 10


@given(st.data())
def test_any_log_of_appends_side_by_side_is_sound_whatever_became_of_the_unknown_ones(data: st.DataObject) -> None:
    """Appends one after the other, each acknowledged, failed or unknown, over changes of term."""
    lines: list[Line] = []
    log = [(1, 1, OWN)]
    number, term = 0, 1
    for turn in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            term += 1
            log.append((len(log) + 1, term, OWN))
        numbers = list(range(number + 1, number + 1 + data.draw(st.integers(1, 3))))
        number = numbers[-1]
        end: Type = data.draw(st.sampled_from(("ok", "fail", "info")))
        first = len(log) + 1
        if end == "ok" or (end == "info" and data.draw(st.booleans())):
            log += [(len(log) + 1 + at, term, each) for at, each in enumerate(numbers)]
        lines += append(f"w{turn % 3}", end, *numbers, first=first if end == "ok" else 0)
    cut = data.draw(st.integers(1, len(log)))
    lines += [seek("r1", 1), poll("r1", *log[:cut]), *([poll("r1", *log[cut:])] if cut < len(log) else [])]
    assert check(numbered([*lines, final("n1", *log), final("n2", *log)])).counts == {}
    sound = {vlsn: each for vlsn, _, each in log if each}
    if sound:  # and any single value changed is found
        vlsn = data.draw(st.sampled_from(sorted(sound)))
        changed = [(at, term, number + 1 if at == vlsn else each) for at, term, each in log]
        assert check(numbered([*lines, final("n1", *log), final("n2", *changed)])).counts["logs-differ"] == 1


def test_a_value_is_known_again_only_when_it_is_whole() -> None:
    for number in (1, 8, 77, 123_456, 1 << 60):
        value = value_of(number)
        assert number_of(value) == number
        for broken in (value[:-1], value + b"x", value[:15] + b"?" + value[16:], value.replace(b"0", b"1", 1), b""):
            assert number_of(broken) == BROKEN
    assert len({value_of(number) for number in range(1, 2000)}) == 1999
    assert max(len(value_of(number)) for number in range(1, 2000)) > 900


def test_a_history_reads_back_as_it_was_written(tmp_path: Any) -> None:
    from harness.ops import Recorder, read_history

    recorder = Recorder(tmp_path / "history.jsonl")
    recorder.record("w1", "invoke", "append", {"numbers": [recorder.next_number()]})
    recorder.record("w1", "info", "append", {"numbers": [1]}, "outcome-unknown: sent")
    recorder.close()
    history = read_history(tmp_path / "history.jsonl")
    assert history == recorder.ops
    assert [op.index for op in history] == [0, 1]
    assert isinstance(history[0], Op) and history[0].time <= history[1].time
    assert recorder.counts == {"ok": 0, "fail": 0, "info": 1}
