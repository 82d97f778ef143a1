"""Membership: which lists follow on one another: majorities that decide meet. Raft's dissertation §4."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.majority import majority
from repl.group import membership
from repl.group.founding import electable_incarnations
from repl.group.membership import (
    NOBODY,
    Add,
    Move,
    Prefer,
    Promote,
    Remove,
    check_change,
    check_level,
    counting,
    listed_as,
    read_change,
    with_url,
)
from vlsn.errors import BadArgument, BadBody, GroupBusy, InsufficientReplicas
from vlsn.format.records import GroupEntry, Member
from vlsn.ids import Incarnation, Vlsn
from vlsn.levels import HTTPS_URLS


def member(name: str, incarnation: int, *, electable: bool = True) -> Member:
    return Member(name, f"http://{name}:1", f"{incarnation:016x}", electable)


A, B, C = member("n1", 0xA), member("n2", 0xB), member("n3", 0xC)
GROUP = GroupEntry("g", [A, B, C])
EVERYONE = frozenset(map(Incarnation, (0xA, 0xB, 0xC)))


def groups(*entries: tuple[int, GroupEntry]) -> list[tuple[Vlsn, GroupEntry]]:
    return [(Vlsn(at), entry) for at, entry in entries]


def names(group: GroupEntry, *, electable: bool = False) -> list[str]:
    return [each.name for each in group.members if each.electable or not electable]


def test_a_member_joins_as_a_secondary_and_becomes_electable() -> None:
    joined = membership.with_member(GROUP, Add(name="n4", url="http://n4:1/", priority=3), f"{0xD:016x}")
    assert names(joined) == ["n1", "n2", "n3", "n4"] and names(joined, electable=True) == ["n1", "n2", "n3"]
    assert joined.members[3] == Member("n4", "http://n4:1", f"{0xD:016x}", electable=False, priority=3, joining=True)
    whole = membership.with_electable(joined, "n4", caught_up=True)
    assert names(whole, electable=True) == ["n1", "n2", "n3", "n4"] and not whole.members[3].joining
    waits = membership.with_electable(membership.with_electable(joined, "n4", caught_up=False), "n4", caught_up=False)
    assert waits == joined


def test_a_secondary_stays_one_until_it_is_promoted() -> None:
    joined = membership.with_member(GROUP, Add(name="n4", url="http://n4:1", secondary=True), f"{0xD:016x}")
    assert not joined.members[3].joining and not joined.members[3].electable


@pytest.mark.parametrize(
    ("name", "url", "incarnation"),
    [("n3", "http://n9:1", 0xD), ("n4", "http://n3:1/", 0xD), ("n4", "http://n4:1", 0xC), ("n4", "ftp://n4", 0xD)],
)
def test_who_is_a_member_already_does_not_join(name: str, url: str, incarnation: int) -> None:
    with pytest.raises(BadArgument):
        membership.with_member(GROUP, Add(name=name, url=url), f"{incarnation:016x}")


def test_the_last_electable_member_stays() -> None:
    alone = GroupEntry("g", [A, member("n2", 0xB, electable=False)])
    with pytest.raises(BadArgument, match="last electable"):
        membership.without_member(alone, "n1")
    assert names(membership.without_member(alone, "n2")) == ["n1"]
    with pytest.raises(BadArgument, match="no member n9"):
        membership.without_member(GROUP, "n9")
    with pytest.raises(BadArgument, match="electable already"):
        membership.with_electable(GROUP, "n1", caught_up=True)
    assert membership.with_priority(GROUP, "n2", 0).members[1].priority == 0


def test_a_listed_incarnation_is_told_from_another_under_its_name() -> None:
    assert listed_as(GROUP, "n3", 0xC) is C
    assert listed_as(GROUP, "n3", 0xD) is None and listed_as(GROUP, "n4", 0xD) is None


def test_a_name_that_passes_on_counts_for_the_size_alone_until_that_is_durable() -> None:
    """Dissertation §4.1 lets one voter come or go at a time; here one goes and one comes."""
    after = membership.with_incarnation(GROUP, "n3", Incarnation(0xD))
    log = groups((2, GROUP), (90, after))
    assert electable_incarnations(counting(log, 89)) == [0xA, 0xB, int(NOBODY, 16)]
    assert electable_incarnations(counting(log, 90)) == [0xA, 0xB, 0xD]
    assert counting(log[:1], 0) == GROUP and counting([], 0) is None


def test_a_change_waits_for_the_term_and_for_the_change_before_it() -> None:
    """Single-server changes had a fault as first published: an undurable change of an older term may be taken up again.
    Beside one that never met it, nothing is appended before the term's own first block is durable."""
    log = groups((2, GROUP), (90, membership.without_member(GROUP, "n3")))
    proposed = membership.without_member(GROUP, "n2")
    for durable, start in ((89, 50), (0, 95), (94, 95), (90, 0)):
        with pytest.raises(GroupBusy):
            check_change(log, proposed, durable=Vlsn(durable), term_start=Vlsn(start), live=EVERYONE)
    check_change(log, proposed, durable=Vlsn(95), term_start=Vlsn(95), live=EVERYONE)


def test_what_cannot_become_durable_is_refused_before_it_is_logged() -> None:
    log = groups((2, GROUP))

    def check(proposed: GroupEntry, *live: int) -> None:
        there = frozenset(map(Incarnation, live))
        check_change(log, proposed, durable=Vlsn(9), term_start=Vlsn(1), live=there)

    check(membership.without_member(GROUP, "n3"), 0xA, 0xB)
    with pytest.raises(InsufficientReplicas):
        check(membership.without_member(GROUP, "n3"), 0xA, 0xC)
    readmitted = membership.with_incarnation(GROUP, "n3", Incarnation(0xD))
    check(readmitted, 0xA, 0xB, 0xD)
    with pytest.raises(InsufficientReplicas):
        check(readmitted, 0xA, 0xC, 0xD)  # the wiped node's own ack never admits it


@given(st.data())
def test_majorities_of_lists_that_follow_on_one_another_meet(data: st.DataObject) -> None:
    """Deciders by two lists that follow on one another share a node. One decides by the list before (its old store
    perhaps back from the dead); the other makes the next list durable, or decides by that list then."""
    size = data.draw(st.integers(1, 5))
    old = GroupEntry(
        "g", [member(f"n{at}", at, electable=at < 2 or data.draw(st.booleans())) for at in range(1, size + 1)]
    )
    name = data.draw(st.sampled_from(names(old)))
    kind = data.draw(st.sampled_from(["remove", "readmit", "promote", "add"]))
    try:
        if kind == "remove":
            new = membership.without_member(old, name)
        elif kind == "readmit":
            new = membership.with_incarnation(old, name, Incarnation(99))
        elif kind == "promote":
            new = membership.with_electable(old, name, caught_up=True)
        else:
            new = membership.with_member(old, Add(name="n9", url="http://n9:1"), f"{9:016x}")
    except BadArgument:
        return
    before = counting(groups((2, old)), 2)
    during = counting(groups((2, old), (7, new)), 6)
    after = counting(groups((2, old), (7, new)), 7)
    for first, second in ((before, during), (during, after), (during, during)):
        for one in _deciding(first):
            for other in _deciding(second):
                assert one & other, (first, second)


def _deciding(group: GroupEntry | None) -> list[set[int]]:
    """Returns every least set of nodes that is a majority."""
    electable = electable_incarnations(group)
    real = [one for one in electable if one]
    return [set(each) for each in combinations(real, majority(len(electable)))]


def test_a_change_is_read() -> None:
    assert read_change({"change": "add", "name": "n4", "url": "http://n4:1"}) == Add(name="n4", url="http://n4:1")
    assert read_change({"change": "remove", "name": "n4"}) == Remove(name="n4")
    assert read_change({"change": "promote", "name": "n4"}) == Promote(name="n4")
    assert read_change({"change": "priority", "name": "n4", "priority": 0}) == Prefer(name="n4", priority=0)
    assert read_change({"change": "move", "name": "n4", "url": "https://n4:1"}) == Move(name="n4", url="https://n4:1")


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        {"change": "destroy", "name": "n4"},
        {"change": "remove"},
        {"change": "remove", "name": "n 4"},
        {"change": "remove", "name": "n4", "more": 1},
        {"change": "add", "name": "n4"},
        {"change": "add", "name": "n4", "url": "http://n4:1", "priority": 11},
        {"change": "priority", "name": "n4", "priority": -1},
        {"change": "priority", "name": "n4", "priority": True},
    ],
)
def test_a_change_that_is_none_is_refused(body: object) -> None:
    with pytest.raises(BadBody):
        read_change(body)


def test_a_member_moves_as_the_same_store_to_a_url_of_its_own() -> None:
    moved = with_url(GROUP, Move(name="n1", url="https://n1:7701/"), GROUP.members[0].incarnation)
    assert [each.url for each in moved.members] == ["https://n1:7701", *(each.url for each in GROUP.members[1:])]
    assert [each.incarnation for each in moved.members] == [each.incarnation for each in GROUP.members]
    with pytest.raises(BadArgument, match="another store"):
        with_url(GROUP, Move(name="n1", url="https://n1:7701"), GROUP.members[1].incarnation)
    with pytest.raises(BadArgument, match="is the member n2"):
        with_url(GROUP, Move(name="n1", url=GROUP.members[1].url), GROUP.members[0].incarnation)
    with pytest.raises(BadArgument, match="no member n9"):
        with_url(GROUP, Move(name="n9", url="https://n1:7701"), GROUP.members[0].incarnation)


def test_an_https_url_needs_the_level_that_all_members_read_it_at() -> None:
    for change in (Move(name="n1", url="https://n1:1"), Add(name="n9", url="https://n9:1")):
        check_level(change, HTTPS_URLS)
        with pytest.raises(BadArgument, match="group upgrade"):
            check_level(change, HTTPS_URLS - 1)
    check_level(Move(name="n1", url="http://n1:1"), 1)
