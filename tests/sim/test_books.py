"""The simulation's own books: what they must find, and what they must let pass."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.loop import run
from tests.sim.books import Promises, may_miss
from tests.sim.group import SimGroup, Violation
from tests.sim.logs import Block
from vlsn.format.records import GroupEntry, Member
from vlsn.state.node_file import NodeRecord


def listed(names: str) -> GroupEntry:
    """``names``: of one letter each; a capital is another incarnation of the same name, one in brackets no elector."""
    members, electable = [], True
    for letter in names:
        if letter in "()":
            electable = letter == ")"
            continue
        members.append(Member(letter.lower(), f"http://{letter}", f"{ord(letter):016x}", electable=electable))
    return GroupEntry(group="sim", members=members)


@pytest.mark.parametrize(
    ("one", "other", "apart"),
    [
        ("abc", "abc", False),
        ("abc", "abcd", False),
        ("abcd", "abcde", False),
        ("abc", "ab", False),
        ("ab", "abc", False),
        ("abc", "abd", True),
        ("abc", "abcde", True),
        ("abcde", "abc", True),
        ("abc", "abC", False),
        ("abc", "aBC", False),
        ("abc", "abCd", False),
        ("abc", "ab(d)", False),
        ("a", "b", True),
    ],
)
def test_majorities_of_two_lists_may_miss_one_another(one: str, other: str, apart: bool) -> None:
    assert may_miss(listed(one), listed(other)) is apart


def test_what_a_vote_floor_remembers_is_not_forgotten() -> None:
    """Its log ends before what it acknowledged, and it neither stands nor votes below that."""
    promises = Promises(term=8)
    promises.acknowledged(8, Block(65, 65, 5, 0))
    had = [Block(1, 36, 1, 0)]
    below = NodeRecord(group="sim", node="n3", incarnation=1, term=8, floor_term=8, floor_vlsn=37)
    assert not promises.forgotten(below, had)
    assert "acknowledged in term 8" in promises.forgotten(replace(below, floor_term=5, floor_vlsn=64), had)


def test_what_all_have_is_on_everybodys_disk() -> None:
    async def main() -> None:
        group = SimGroup(1, 3, lambda _: None)
        await group.start()
        await group.serving()
        since = group.books.listed_so_far()
        _, answer = await group.append(b"on all", acks="all")
        group.books.all_have(answer, since)
        group.net.split(["n3"], ["n1", "n2", "client"])
        _, answer = await group.append(b"on two", to=group.master)
        with pytest.raises(Violation, match=r"\['n3'\] have never synced it"):
            group.books.all_have(answer, since)
        await group.stop()

    run(main())
