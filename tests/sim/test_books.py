"""The simulation's own record: faults that it must find, and cases that it must accept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fakes.loop import virtual
from tests.sim.books import Promises, may_miss
from tests.sim.group import SimGroup, Violation
from tests.sim.logs import Block
from tests.sim.transactions import PAGE_ENTRIES, Sent, Transactions
from vlsn.format.block import BlockHeader, EntryKind, decode_header
from vlsn.format.records import GroupEntry, Member
from vlsn.format.seal import seal
from vlsn.format.submission import Submission, Transaction, Values
from vlsn.state.node_file import NodeRecord


def listed(names: str) -> GroupEntry:
    """Makes a list of members named by one letter; a capital is another incarnation, brackets mean no elector."""
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


def test_what_a_restore_has_brought_back_is_not_forgotten() -> None:
    """Its log ends in a later term, which a majority has: a block that it lacks below that never was durable."""
    promises = Promises(term=8, votes={8: "n1"})
    acknowledged = Block(61, 65, 5, 0)
    promises.acknowledged(8, acknowledged)
    image = NodeRecord(group="sim", node="n3", incarnation=1, term=8, voted_for="n1", vote_term=8)
    early, late = Block(1, 60, 5, 0), Block(61, 63, 7, 0)
    assert "acknowledged in term 8" in promises.forgotten(image, [early])
    assert "acknowledged in term 8" in promises.forgotten(image, [early], end=(5, 60))
    assert not promises.forgotten(image, [early, acknowledged], end=(5, 65))
    assert not promises.forgotten(image, [early, late], end=(7, 63))
    no_vote = replace(image, voted_for="", vote_term=0)
    assert "its vote for n1" in promises.forgotten(no_vote, [early, acknowledged], end=(5, 65))


@virtual
async def test_what_all_have_is_on_everybodys_disk() -> None:
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


def of_transactions(**rows: int) -> tuple[bytes, BlockHeader]:
    """A block of VLSN 10, which is no transaction's, and of one of 11 to 14; ``rows`` have another kind."""
    given: list[Submission] = [Values([b"alone"]), Transaction((Values([b"one", b"{}"]), Values([b"three"])))]
    (sealed,) = seal(given, term=1, first_vlsn=10, dtvlsn=9, clock_us=0)
    data, header = bytearray(sealed.data), decode_header(sealed.data)
    for row, kind in rows.items():
        data[header.layout.kinds + int(row[1:])] = kind
    return bytes(data), header


@virtual
async def test_half_of_a_transaction_is_found_in_a_block_in_a_page_and_in_the_end() -> None:
    watch = SimGroup(1, 3, lambda _: None).watch
    books = watch.transactions
    for half in of_transactions(_4=EntryKind.DATA), of_transactions(_2=EntryKind.COMMIT):
        with pytest.raises(Violation, match=r"half of transaction|where 11 goes on|where 13 goes on"):
            books.durable(*half)
    books = watch.transactions = Transactions(watch)
    books.durable(*of_transactions())
    assert books.ends == {11: 14} and books.inside == {11, 12, 13}
    for ends, durable in ((10, 14), (14, 14), (13, 10)):
        headers = {"Vlsnlog-Next": str(ends + 1), "Vlsnlog-Durable": str(durable)}
        if ends in books.inside:
            books.shown("a reader", PAGE_ENTRIES, headers)
            with pytest.raises(Violation, match="up to VLSN 13, and not its end"):
                books.shown("a reader", 3, headers)
        else:
            books.shown("a reader", 3, headers)
    with pytest.raises(Violation, match="a durable end within a transaction: 12"):
        books.shown("a reader", 3, {"Vlsnlog-Next": "11", "Vlsnlog-Durable": "12"})
    places = watch.ledger.places
    places.update({b"one": 11, b"{}": 12, b"three": 13})
    books.sent = [Sent([b"one", b"{}", b"three"], first=11), Sent([b"never"], nowhere="gone"), Sent([b"unknown"])]
    books.check()
    for sent, said in (
        (Sent([b"one", b"{}"]), "its COMMIT is 14"),
        (Sent([b"{}", b"one"]), "is at VLSNs"),
        (Sent([b"one", b"lost"]), "is at VLSNs"),
        (Sent([b"lost"], first=11), "was acknowledged at 11"),
        (Sent([b"one", b"{}", b"three"], first=21), "was acknowledged at 21"),
        (Sent([b"one", b"{}", b"three"], nowhere="gone"), "nothing of it was to be logged: gone"),
    ):
        books.sent = [sent]
        with pytest.raises(Violation, match=said):
            books.check()
