"""The GROUP entry that a log which has lost its own may take."""

from __future__ import annotations

import pytest

from repl.group.founding import KnownGroup
from repl.group.lost_group import counts, known_group
from tests.vlsn.logs import Machine, Undurable
from vlsn.format.block import EntryKind
from vlsn.format.records import GroupEntry, Member
from vlsn.ids import Vlsn
from vlsn.state.history import History

GROUP = GroupEntry(group="g", members=[Member(name="n1", url="http://n1:1", incarnation="0" * 15 + "1")])


@pytest.mark.parametrize(
    ("vlsn", "upto", "taken"),
    [
        (2, 95, True),
        (2, 59, True),
        (59, 59, True),
        (2, 58, False),  # another one may lie at 59, which it does not have yet
        (60, 95, False),  # that lies in this log, or nowhere in its history
        (90, 95, False),
    ],
)
def test_the_newest_entry_before_where_the_log_begins_is_taken(vlsn: int, upto: int, taken: bool) -> None:
    assert counts(KnownGroup(vlsn=vlsn, upto=upto, entry=GROUP), first=60) is taken


def test_a_log_lacks_its_group_where_that_lies_before_it_and_no_record_has_it() -> None:
    history = History()
    assert not history.lacks_group(Vlsn(0), Vlsn(0))  # empty
    assert not history.lacks_group(Vlsn(1), Vlsn(0))  # it has not been read that far
    assert history.lacks_group(Vlsn(60), Vlsn(95))
    history.groups.append((Vlsn(97), GROUP))
    assert history.lacks_group(Vlsn(60), Vlsn(95))  # that one may still be rolled back
    history.groups.insert(0, (Vlsn(2), GROUP))
    assert [vlsn for vlsn, _ in history.groups] == [2, 97]
    assert not history.lacks_group(Vlsn(60), Vlsn(95))


def test_what_may_be_rolled_back_is_not_told_of_the_group() -> None:
    opened = Undurable(Machine(), durable=2)
    log = opened.log
    for _ in range(2):
        log.append_entries([EntryKind.GROUP], [GROUP.encode()], lambda _: None)
    assert log.view.history.group_vlsn == 3 and log.view.dtvlsn == 2
    told = known_group(log)
    assert told is not None and (told.vlsn, told.upto) == (2, 2)
