"""Positions that are asked for, against a log: what is none is refused, and what a commit sets is what it says."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from repl.api import ConsumerChange
from repl.names import positions
from repl.names.positions import check_kept, puts_of, set_by
from tests.vlsn.logs import Machine, Opened
from vlsn.errors import BadArgument, TooLarge, Trimmed
from vlsn.format.block import EntryKind
from vlsn.ids import NUMBER_MAX, Vlsn
from vlsn.write.local_log import LocalLog

BY = "00000000000000aa"


@pytest.fixture
def log() -> LocalLog:
    """A log of three entries behind its TERM."""
    opened = Opened(Machine(1))
    for value in (b"a", b"b", b"c"):
        opened.append(value)
    return opened.log


def asked(log: LocalLog, name: str, next: int, **more: Any) -> Any:
    """Returns the position that is put, as JSON has it."""
    (value,) = puts_of(log, {name: ConsumerChange(next, **more)}).values.values()
    assert value is not None
    return msgspec.json.decode(value)


def commit(log: LocalLog, name: str, next: int, **more: Any) -> int:
    """Logs it, and returns the VLSN of its COMMIT."""
    at: list[int] = []
    log.append_entries([EntryKind.COMMIT], [puts_of(log, {name: ConsumerChange(next, **more)}).entry()], at.append)
    return at[0]


def test_a_position_lies_in_the_log_or_right_behind_it(log: LocalLog) -> None:
    end = int(log.view.allocated) + 1
    assert asked(log, "billing", 1) == {"next": 1}
    assert asked(log, "billing", end) == {"next": end}
    assert asked(log, "billing", 2, by=BY) == {"next": 2, "by": BY}
    with pytest.raises(BadArgument, match=f"is not in 1–{end}: the log ends at VLSN {end - 1}"):
        puts_of(log, {"billing": ConsumerChange(end + 1)})
    for next in (0, -1):
        with pytest.raises(BadArgument, match=f"next: {next} of term 0 is no position"):
            puts_of(log, {"billing": ConsumerChange(next)})
    for by in ("aa", BY.upper(), BY + "0", BY + "\n"):
        with pytest.raises(BadArgument, match="is not 16 hex digits"):
            puts_of(log, {"billing": ConsumerChange(1, by=by)})


def test_a_commit_sent_again_sets_the_same_whatever_was_cleaned_away_meanwhile() -> None:
    """Once it said a term, which nobody knew any more when it was sent again: it was refused as another commit."""
    machine = Machine(2)
    opened = Opened(machine)
    for value in (b"a", b"b", b"c"):
        opened.append(value)
    log, end = opened.log, int(opened.log.view.range.last)
    before = puts_of(log, {"billing": ConsumerChange(end, at=0)}).entry()
    log.view.history.truncate_head(Vlsn(end))
    assert not log.view.history.term_of(Vlsn(end - 1))
    assert puts_of(log, {"billing": ConsumerChange(end, at=0)}).entry() == before


def test_a_position_in_another_groups_log_may_be_any(log: LocalLog) -> None:
    assert asked(log, "orders/billing", NUMBER_MAX, term=0) == {"next": NUMBER_MAX}
    assert asked(log, "orders/billing", 7, term=NUMBER_MAX) == {"next": 7, "term": NUMBER_MAX}
    for next, term in ((0, 1), (NUMBER_MAX + 1, 1), (1, -1), (1, NUMBER_MAX + 1)):
        with pytest.raises(BadArgument, match=f"next: {next} of term {term} is no position"):
            puts_of(log, {"orders/billing": ConsumerChange(next, term=term)})


def test_what_a_change_starts_from_is_expected_also_where_that_is_nothing(log: LocalLog) -> None:
    changes = {"a": ConsumerChange(1, at=0), "b": ConsumerChange(1, at=9), "c": ConsumerChange(1)}
    assert puts_of(log, changes).expects == {"consumer/a": 0, "consumer/b": 9}


def test_so_many_consumers_hold_a_log(log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have a position already may change it, and those of other groups' logs hold nothing here."""
    monkeypatch.setattr(positions, "CONSUMERS_MAX", 2)
    for name in ("a", "b", "orders/a"):
        commit(log, name, 1)
    with pytest.raises(TooLarge, match="2 consumers have positions already"):
        puts_of(log, {"c": ConsumerChange(1)})
    assert commit(log, "b", 2) < commit(log, "orders/b", 1)


def test_a_commit_that_was_sent_before_is_known_by_its_name_and_what_it_set(log: LocalLog) -> None:
    at = commit(log, "billing", 2, by=BY)
    found = set_by(log, "billing", ConsumerChange(2, at=0, by=BY))
    assert found is not None and (found.at, found.position.next) == (at, 2)
    assert set_by(log, "billing", ConsumerChange(3, by=BY)) is None
    assert set_by(log, "billing", ConsumerChange(2, by=BY[::-1])) is None
    assert set_by(log, "other", ConsumerChange(2, by=BY)) is None
    commit(log, "nameless", 2)
    assert set_by(log, "nameless", ConsumerChange(2)) is None, "it has no name to be known by"


def test_what_was_cleaned_away_or_is_about_to_be_is_no_place_to_read_on_from(log: LocalLog) -> None:
    log.care.holds.floor = Vlsn(2)  # as a cleaning has it, which takes away what is up to there
    check_kept(log, "billing", ConsumerChange(3))
    check_kept(log, "orders/billing", ConsumerChange(2))
    with pytest.raises(Trimmed, match="the first still here is 3") as told:
        check_kept(log, "billing", ConsumerChange(2))
    assert told.value.first == 3
