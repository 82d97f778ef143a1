"""The judgement: each rule on a history made for it, and on logs that keep all rules."""

from __future__ import annotations

import pytest
from harness.history import VALUE_BYTES, History, LogRead, Violation, differing, number_of, value_of
from hypothesis import given
from hypothesis import strategies as st


def _history(*, ok: dict[int, int], refused: tuple[int, ...] = (), unknown: tuple[int, ...] = ()) -> History:
    """Appends 1 … with their outcomes; ``ok`` gives VLSNs."""
    history = History()
    for _ in range(len(ok) + len(refused) + len(unknown)):
        history.sent()
    for number, vlsn in ok.items():
        history.ok(number, vlsn)
    for number in refused:
        history.refused(number)
    for number in unknown:
        history.unknown(number)
    assert history.open == 0
    return history


def _log(*entries: tuple[int, int], from_vlsn: int = 1) -> LogRead:
    """(VLSN, number) pairs."""
    log = LogRead(from_vlsn)
    log.add((vlsn, value_of(number)) for vlsn, number in entries)
    return log


def test_a_value_is_known_again_only_when_it_is_whole() -> None:
    value = value_of(77)
    assert len(value) == VALUE_BYTES
    assert number_of(value) == 77
    for broken in (value[:-1], value + "x", value[:40] + "#" + value[41:], "", "no number at all"):
        assert number_of(broken) is None


def test_a_log_that_keeps_every_promise_has_no_violation() -> None:
    history = _history(ok={1: 3, 2: 4}, refused=(3,), unknown=(4, 5))
    assert history.judge("n1", _log((3, 1), (4, 2), (6, 5))) == []
    assert history.last_acknowledged == 4


@pytest.mark.parametrize(
    ("log", "rule", "vlsn"),
    [
        (_log((3, 1)), "acknowledged-but-lost", 4),
        (_log(), "acknowledged-but-lost", 3),
        (_log((3, 1), (4, 4)), "another-value-at-its-vlsn", 4),
        (_log((3, 1), (4, 2), (5, 3)), "refused-but-there", 5),
        (_log((3, 1), (4, 2), (5, 4), (6, 4)), "there-twice", 6),
        (_log((3, 1), (4, 2), (5, 99)), "never-sent", 5),
        (_log((3, 1), (4, 2), (4, 4)), "vlsn-not-rising", 4),
    ],
)
def test_each_broken_promise_is_found_and_placed(log: LogRead, rule: str, vlsn: int) -> None:
    found = _history(ok={1: 3, 2: 4}, refused=(3,), unknown=(4, 5)).judge("n2", log)
    assert any(each.rule == rule and each.vlsn == vlsn and each.node == "n2" for each in found), found


def test_a_value_that_is_not_whole_is_a_violation() -> None:
    log = _log((3, 1))
    log.add([(4, value_of(2)[:-1])])
    found = _history(ok={1: 3}, unknown=(2,)).judge("n1", log)
    assert found == [Violation("value-not-whole", "n1", 4, 0)]


def test_appends_below_the_part_that_was_read_are_left_out() -> None:
    history = _history(ok={1: 3, 2: 9})
    assert history.judge("n1", _log((9, 2), from_vlsn=5)) == []


@given(
    outcomes=st.lists(st.sampled_from(["ok", "refused", "there", "gone"]), min_size=1, max_size=60),
    data=st.data(),
)
def test_losing_any_acknowledged_append_is_found(outcomes: list[str], data: st.DataObject) -> None:
    history, entries, vlsn = History(), [], 2
    for outcome in outcomes:
        number = history.sent()
        if outcome in ("ok", "there"):
            vlsn += 1
            entries.append((vlsn, number))
        match outcome:
            case "ok":
                history.ok(number, vlsn)
            case "refused":
                history.refused(number)
            case _:
                history.unknown(number)
    assert history.judge("n1", _log(*entries)) == []
    acknowledged = [at for at, (_, number) in enumerate(entries) if outcomes[number - 1] == "ok"]
    if acknowledged:
        lost = data.draw(st.sampled_from(acknowledged))
        found = history.judge("n1", _log(*entries[:lost], *entries[lost + 1 :]))
        assert [each.rule for each in found] == ["acknowledged-but-lost"]
        assert found[0].vlsn == entries[lost][0]


def test_logs_that_differ_or_end_elsewhere_are_told_apart() -> None:
    first = ("n1", _log((3, 1), (4, 2)))
    assert differing([first, ("n2", _log((3, 1), (4, 2)))]) == []
    assert differing([first, ("n2", _log((3, 1), (4, 5)))])[0].rule == "differs-from-first"
    assert differing([first, ("n3", _log((3, 1)))]) == [Violation("length-differs-from-first", "n3", 4, 0)]
