"""The checks of destinations: each anomaly found in a history made to show it, none in histories that only look odd."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from harness.checks import check
from harness.ops import Type, numbered
from harness.values import COMMIT, DEAD, OWN, key_of
from hypothesis import given
from hypothesis import strategies as st

Line = tuple[str, Type, str, dict[str, Any]]

KEYED = [number for number in range(1, 80) if key_of(number) == b"key 3"]
"""Values of one key."""
A, B, C = KEYED[:3]
OTHER = 4
"""A value of another key."""
LOG = ((1, 1, OWN), (2, 1, A), (3, 1, OTHER), (4, 1, B), (5, 1, C))


def sent(*rows: tuple[int, int]) -> list[Line]:
    """Appends, each (number, VLSN), acknowledged."""
    lines: list[Line] = []
    for number, vlsn in rows:
        lines.append(("w1", "invoke", "append", {"numbers": [number], "keyed": True}))
        lines.append(("w1", "ok", "append", {"numbers": [number], "first": vlsn}))
    return lines


def made(name: str = "d", prefix: str = "key 3", attempts_max: int = 3) -> Line:
    value = {"name": name, "prefix": prefix, "from": 1, "attempts_max": attempts_max}
    return ("make", "ok", "destination", value)


def asks(process: str = "c1", name: str = "d") -> Line:
    return (process, "invoke", "deliver", {"destination": name})


def hears(*rows: tuple[int, int], process: str = "c1", name: str = "d", attempt: int = 1) -> Line:
    """A page of messages, each (VLSN, number)."""
    vlsns, numbers = [vlsn for vlsn, _ in rows], [number for _, number in rows]
    value = {"destination": name, "vlsns": vlsns, "numbers": numbers, "attempts": [attempt] * len(rows)}
    return (process, "ok", "deliver", value)


def given_(*rows: tuple[int, int], **more: Any) -> list[Line]:
    return [asks(more.get("process", "c1"), more.get("name", "d")), hears(*rows, **more)]


def said(word: str, end: Type, *vlsns: int, process: str = "c1", name: str = "d", wait: bool = True) -> list[Line]:
    value = {"destination": name, "vlsns": list(vlsns)} | ({} if wait else {"wait": False})
    return [(process, "invoke", word, value), (process, end, word, value)]


def acked(*vlsns: int, **more: Any) -> list[Line]:
    return said("ack", "ok", *vlsns, **more)


def read(*rows: tuple[int, int, int], dead: list[tuple[int, str, int, int]] | None = None) -> list[Line]:
    """A reader is shown these: (VLSN, term, number); dead letters as (their VLSN, destination, VLSN, attempts)."""
    columns = {name: [row[at] for row in rows] for at, name in enumerate(("vlsns", "terms", "numbers"))}
    return [
        ("r1", "ok", "seek", {"from": rows[0][0], "nodes": ["n1"]}),
        ("r1", "ok", "poll", {**columns, **({"dead": dead} if dead else {})}),
    ]


def final(*rows: tuple[int, int, int], first: int = 1, dead: list[tuple[int, str, int, int]] | None = None) -> Line:
    columns = {name: [row[at] for row in rows] for at, name in enumerate(("vlsns", "terms", "numbers"))}
    more: dict[str, Any] = {"dead": dead} if dead else {}
    return ("final", "ok", "final", {"node": "n1", "to": rows[-1][0], "first": first, **columns, **more})


def drained(to: int, name: str = "d") -> Line:
    return ("d-d", "ok", "drained", {"destination": name, "to": to})


def flat(*parts: Any) -> list[Line]:
    """Flattens lines, and lists of them."""
    return [line for part in parts for line in ([part] if isinstance(part, tuple) else flat(*part))]


def rules(*parts: Any) -> set[str]:
    return set(check(numbered(flat(*parts))).counts)


START = [made(), *sent((A, 2), (OTHER, 3), (B, 4), (C, 5))]
FIRST, SECOND, THIRD = (2, A), (4, B), (5, C)
END = [final(*LOG), drained(5)]


def test_all_given_in_order_and_acknowledged_shows_nothing() -> None:
    one_by_one = [given_(FIRST), acked(2), given_(SECOND), acked(4), given_(THIRD), acked(5)]
    assert rules(START, *one_by_one, *END) == set()
    assert rules(START, given_(FIRST, SECOND, THIRD), acked(5, 2, 4), *END) == set()


def test_an_acknowledgement_lets_later_ones_go_until_it_is_refused() -> None:
    refused = [given_(FIRST), asks("c2"), said("ack", "fail", 2), hears(SECOND, process="c2")]
    assert rules(START, *refused, acked(2), acked(4, process="c2"), given_(THIRD), acked(5), *END) == set()


def test_what_was_not_acknowledged_for_sure_may_come_again() -> None:
    again = given_(FIRST, SECOND, THIRD, process="c2", attempt=2)
    unknown = [given_(FIRST, SECOND, THIRD), said("ack", "info", 2, 4, 5)]
    assert rules(START, *unknown, again, acked(2, 4, 5, process="c2"), *END) == set()
    at_once = [given_(FIRST, SECOND, THIRD), acked(2, 4, 5, wait=False)]
    assert rules(START, *at_once, again, *END) == set()
    asked_before = [given_(FIRST), asks("c2"), acked(2), hears(FIRST, process="c2", attempt=2)]
    assert rules(START, *asked_before, given_(SECOND, THIRD), acked(4, 5), *END) == set()
    refused = [given_(FIRST, SECOND, THIRD), said("nack", "ok", 2), given_(FIRST, attempt=2), acked(2, 4, 5)]
    assert rules(START, *refused, *END) == set()


def test_a_late_acknowledgement_of_who_had_it_before_settles_it() -> None:
    late = [given_(FIRST), given_(FIRST, process="c2", attempt=2), acked(2), given_(SECOND, THIRD, process="c2")]
    assert rules(START, *late, acked(4, 5, process="c2"), *END) == set()


LETTER = [(6, "d", 4, 3)]
DEAD_LOG = (*LOG, (6, 2, DEAD))
GIVEN_UP = [given_(FIRST), acked(2), given_(SECOND), given_(SECOND, attempt=2), given_(SECOND, attempt=3)]


def test_what_was_given_up_has_its_dead_letter_and_lets_the_next_of_its_key_go() -> None:
    whole = [final(*DEAD_LOG, dead=LETTER), drained(6)]
    assert rules(START, *GIVEN_UP, given_(THIRD), acked(5), read(*DEAD_LOG, dead=LETTER), *whole) == set()


def test_a_message_that_was_cleaned_away_since_is_judged_by_what_readers_were_shown() -> None:
    cleaned = final((4, 1, B), (5, 1, C), first=4)
    told = given_(FIRST, SECOND, THIRD)
    assert rules(START, told, acked(2, 4, 5), read(*LOG), cleaned, drained(5)) == set()
    assert "false-delivery" in rules(START, given_((2, B), SECOND, THIRD), acked(2, 4, 5), read(*LOG), cleaned)


TRANSACTION: list[Line] = [
    ("w2", "invoke", "append", {"numbers": [KEYED[3], KEYED[4]], "txn": True}),
    ("w2", "ok", "append", {"numbers": [KEYED[3], KEYED[4]], "first": 6}),
]
TXN_LOG = (*LOG, (6, 1, KEYED[3]), (7, 1, KEYED[4]), (8, 1, COMMIT))
ALL = [given_(FIRST, SECOND, THIRD), acked(2, 4, 5)]


@pytest.mark.parametrize(
    ("rule", "parts"),
    [
        # Nobody was ever given it; the last one, one in the middle, though later ones came.
        ("lost-message", [given_(FIRST, SECOND), acked(2, 4), *END]),
        ("lost-message", [given_(FIRST, THIRD), acked(2, 5), *END]),
        ("lost-message", [*END]),
        ("unsettled-message", [given_(FIRST, SECOND, THIRD), acked(2, 4), *END]),
        ("unsettled-message", [given_(FIRST, SECOND, THIRD), said("ack", "fail", 5), acked(2, 4), *END]),
        # Half a transaction.
        (
            "half-delivered",
            [TRANSACTION, ALL, given_((6, KEYED[3])), acked(6), final(*TXN_LOG), drained(8)],
        ),
        (
            "half-delivered",
            [TRANSACTION, ALL, given_((7, KEYED[4])), acked(7), final(*TXN_LOG), drained(8)],
        ),
        # Messages that the log does not have: another value, one that failed, past its end, of another prefix.
        ("false-delivery", [given_((2, B)), *END]),
        (
            "false-delivery",
            [
                ("w3", "invoke", "append", {"numbers": [KEYED[5]]}),
                ("w3", "fail", "append", {"numbers": [KEYED[5]]}),
                given_((6, KEYED[5])),
                *END,
            ],
        ),
        ("false-delivery", [ALL, given_((9, KEYED[6])), *END]),
        ("false-delivery", [ALL, given_((3, OTHER)), *END]),
        # Again, though it was acknowledged durably, or is dead.
        ("redelivered", [ALL, given_(FIRST, process="c2", attempt=2), *END]),
        (
            "redelivered",
            [GIVEN_UP, read(*DEAD_LOG, dead=LETTER), given_(SECOND, process="c2"), final(*DEAD_LOG, dead=LETTER)],
        ),
        # The order in a key.
        ("out-of-order", [given_(SECOND), given_(FIRST, process="c2"), *END]),
        ("out-of-order", [given_(FIRST), given_(SECOND, process="c2"), *END]),
        ("out-of-order", [given_(SECOND, FIRST), *END]),
        ("out-of-order", [given_(FIRST), said("nack", "ok", 2), given_(SECOND), *END]),
        ("out-of-order", [given_(FIRST), said("ack", "fail", 2), given_(SECOND), *END]),
        # Attempts.
        ("wrong-attempt", [given_(FIRST, attempt=0), *END]),
        ("wrong-attempt", [given_(FIRST, attempt=4), *END]),
        # Dead letters.
        ("dead-twice", [GIVEN_UP, final(*DEAD_LOG, (7, 2, DEAD), dead=[*LETTER, (7, "d", 4, 3)])]),
        ("false-dead-letter", [GIVEN_UP, final(*DEAD_LOG, dead=[(6, "d", 4, 2)])]),
        ("false-dead-letter", [ALL, final(*DEAD_LOG, dead=[(6, "d", 3, 3)])]),
        ("false-dead-letter", [ALL, final(*DEAD_LOG, dead=[(6, "d", 9, 3)])]),
        (
            "dead-though-acknowledged",
            [ALL, sent((OTHER + 7, 6)), final(*LOG, (6, 1, OTHER + 7), (7, 2, DEAD), dead=[(7, "d", 4, 3)])],
        ),
    ],
)
def test_each_anomaly_of_a_destination_is_found(rule: str, parts: list[Any]) -> None:
    assert rule in rules(START, parts)


def test_a_dead_letter_may_lie_behind_what_was_acknowledged_meanwhile() -> None:
    """A dead letter and an acknowledgement may be under way together: which one came later is not known."""
    dead = [(6, "d", 4, 3)]
    late = [GIVEN_UP, acked(4), sent((OTHER + 7, 7)), given_(THIRD), acked(5)]
    log = (*LOG, (6, 2, DEAD), (7, 2, OTHER + 7))
    assert rules(START, *late, final(*log, dead=dead), drained(7)) == set()


@given(st.data())
def test_any_order_of_pages_and_acknowledgements_by_one_cursor_is_sound(data: st.DataObject) -> None:
    """As it should be: a page is cut from the unsettled messages, in order; each message is settled or comes again."""
    keys = data.draw(st.lists(st.sampled_from([*KEYED[:6], OTHER, OTHER + 7]), min_size=1, max_size=8, unique=True))
    log = [(1, 1, OWN), *((vlsn, 1, number) for vlsn, number in enumerate(keys, 2))]
    lines = [made(prefix="key"), *sent(*((number, vlsn) for vlsn, _, number in log[1:]))]
    left = [(vlsn, number) for vlsn, _, number in log[1:]]
    first_page: list[Line] = []
    while left:
        page = left[: data.draw(st.integers(1, len(left)))]
        done = data.draw(st.lists(st.sampled_from(page), min_size=1, unique=True))
        first_page = first_page or given_(*page)
        lines += [*given_(*page), *acked(*(vlsn for vlsn, _ in done))]
        left = [each for each in left if each not in done]
    lines += [final(*log), drained(log[-1][0])]
    assert rules(lines) == set()
    vlsn = data.draw(st.sampled_from([vlsn for vlsn, _, _ in log[1:]]))
    lost = [line for line in lines if line[2] not in ("deliver", "ack") or vlsn not in line[3].get("vlsns", ())]
    assert "lost-message" in rules(lost)  # without the pages that had it it is found
    assert "redelivered" in rules(lines, first_page)


def test_dead_letters_are_read_from_what_a_node_serves(tmp_path: Path) -> None:
    """A dead letter's key names its destination; its value names the message and its attempts."""
    from harness.ops import Recorder
    from harness.workloads.reading import read_all

    from repl.web.types import Response

    lines = [
        b'{"vlsn":9,"term":2,"kind":"DATA","key":"dead d",'
        b'"value":"{\\"vlsn\\":4,\\"attempts\\":3,\\"reason\\":\\"r\\"}"}',
        b'{"vlsn":10,"term":2,"kind":"COMMIT","value":""}',
    ]

    class Node:
        async def request(self, method: str, url: str, **_: Any) -> Any:
            if "from=1&" in url:
                body = b'{"type":"trimmed","title":"t","status":410,"detail":"gone","first":9}'
                return Response(410, {}, body)
            return Response(200, {"Vlsnlog-Next": "11"}, b"\n".join(lines))

    recorder = Recorder(tmp_path / "history.jsonl")
    assert asyncio.run(read_all("n1", "http://n1", 10, Node(), recorder))  # type: ignore[arg-type]
    recorder.close()
    value = recorder.ops[0].value
    assert (value["first"], value["numbers"], value["dead"]) == (9, [DEAD, COMMIT], [(9, "d", 4, 3)])
