"""The checks of destinations: they read pages as the product writes them, and notice every missing message."""

from __future__ import annotations

from base64 import b64encode
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.sim.destinations import LATE_S, UNSAID_S, Destinations, Folded, page_table
from tests.sim.logs import block_of
from tests.sim.page_files import Paged, paged
from tests.vlsn.logs import DIRECTORY, Machine
from tests.vlsn.pages.paging import PAGE_BYTES, Destination, Pager
from tests.vlsn.pages.test_paging import ALL, A, B, filled, some_destinations
from vlsn.format.vlsn_set import VlsnSet


def read(machine: Machine, uuid: str) -> Paged:
    """Reads the pages of a destination as the simulation does."""
    files = machine.disk.medium(f"{DIRECTORY}/pages/{uuid}")
    contents = machine.stores.contents[f"{DIRECTORY}/state"]
    return paged(files, page_table(contents), uuid)


def test_pages_read_by_offsets_alone_are_what_was_wanted() -> None:
    machine, rng = Machine(1), Random(1)
    opened, held = filled(machine, rng)
    destinations = some_destinations(rng, opened.log.view.range.last)
    pager = Pager(opened)
    pager.page(destinations, opened.log.view.range.last)
    for destination in destinations:
        wanted = {
            vlsn: entry.value
            for vlsn, entry in held.items()
            if destination.has(entry) and vlsn not in destination.acked
        }
        found = read(machine, destination.uuid)
        assert not found.fault
        assert found.pages == len(pager.manager.stores[destination.uuid].pages)
        blocks = [block_of(data) for data in found.blocks]
        vlsns = {*found.values, *(vlsn for block in blocks for vlsn in range(block.first, block.last + 1))}
        assert wanted.keys() <= vlsns
        assert all(held[vlsn].value == value for vlsn, value in found.values.items())
    assert read(machine, ALL).blocks, "nothing lies there verbatim"
    assert read(machine, A).values, "nothing was selected"
    assert not read(machine, B).missing


def test_a_page_that_is_not_on_the_medium_is_none() -> None:
    """Bytes that the cache alone has count for nothing; nor does what the page table does not tell of."""
    machine, rng = Machine(2), Random(2)
    opened, _ = filled(machine, rng)
    pager = Pager(opened, page_bytes=PAGE_BYTES)
    pager.page([Destination(ALL)], opened.log.view.range.last)
    before = read(machine, ALL)
    assert before.pages > 1 and not before.fault
    first = next(path for path in machine.disk.files(f"{DIRECTORY}/pages/{ALL}") if path.endswith(".page"))
    data = machine.disk.content(first)
    machine.disk.flip_bit(first, len(data) // 2)
    machine.disk.settle()
    assert read(machine, ALL).fault
    machine.disk.remove(first)
    machine.disk.settle()
    lacking = read(machine, ALL)
    assert lacking.fault and len(lacking.blocks) < len(before.blocks)
    machine.stores.contents[f"{DIRECTORY}/state"].values.clear()
    assert read(machine, ALL) == Paged()


def test_a_page_that_was_struck_excuses_its_own_messages_until_the_node_has_had_the_time_to_read_it() -> None:
    machine, rng = Machine(4), Random(4)
    opened, _ = filled(machine, rng)
    pager = Pager(opened, page_bytes=PAGE_BYTES)
    pager.page([Destination(ALL)], opened.log.view.range.last)
    name, clock = DIRECTORY.strip("/"), SimpleNamespace(s=0.0)
    node, loop = SimpleNamespace(log=opened.log), SimpleNamespace(time=lambda: clock.s)
    group = SimpleNamespace(names=[name], machines={name: machine}, nodes={name: node}, loop=loop)
    books = Destinations(cast(Any, SimpleNamespace(group=group)))
    folded = Folded(ALL)
    first, second, *_ = sorted(path for path in machine.disk.files(f"{DIRECTORY}/pages/{ALL}") if path[-5:] == ".page")

    def vlsns(found: Paged) -> set[int]:
        blocks = [block_of(data) for data in found.blocks]
        return {*found.values, *(vlsn for block in blocks for vlsn in range(block.first, block.last + 1))}

    def lacks() -> list[int]:
        found = read(machine, ALL)
        return books._unmet(name, folded, found, sorted(whole - vlsns(found)))

    whole = vlsns(read(machine, ALL))
    data = machine.disk.content(first)
    machine.disk.write_content(first, data[: len(data) // 2])
    assert len(lacks()) > 1, "no person's disk has struck it"
    machine.disk.write_content(first, data)
    books.strikes(name, first)
    machine.disk.write_content(first, data[: len(data) // 2])
    assert lacks() == []
    machine.disk.lose_file(second)
    behind = lacks()
    assert behind and not {*behind} & vlsns(read(machine, ALL))
    machine.disk.lose_file(first)
    assert lacks() == behind, "the other page's are not excused"
    clock.s = UNSAID_S + 1.0
    assert len(lacks()) > len(behind), "it has had the time to say so"
    node.log = object()
    assert lacks() == behind, "it has started again"


def test_a_node_that_cannot_know_of_a_move_may_clean_as_before() -> None:
    machine, rng = Machine(6), Random(6)
    opened, _ = filled(machine, rng)
    name, last = DIRECTORY.strip("/"), opened.log.view.range.last
    group = SimpleNamespace(
        names=[name],
        machines={name: machine},
        nodes={name: SimpleNamespace(log=opened.log)},
        loop=SimpleNamespace(time=lambda: 0.0),
    )
    books = Destinations(cast(Any, SimpleNamespace(group=group)))
    assert books.last(name) == last
    moved = Folded(ALL, since=last + 1, firsts={name: 1})
    assert books._unexcused(name, moved, Paged(), [2, 3]) == []
    assert moved.firsts == {name: opened.log.view.range.first}
    moved.since, moved.firsts[name] = last, 3  # it has cleaned VLSNs 1 and 2 before it knew of the move
    assert books._unexcused(name, moved, Paged(), [2, 3]) == [3]


class Held:
    """The part of a watch that the record of destinations uses."""

    group = SimpleNamespace(names=[])

    def hold(self, is_so: bool, said: str) -> None:
        assert is_so, said


def test_a_note_that_covers_what_a_move_back_has_made_owed_again_is_seen() -> None:
    def note(**note: Any) -> dict[str, Any]:
        return {name: b64encode(VlsnSet.of(each).pack()).decode() for name, each in note.items()}

    books = Destinations(cast(Any, Held()))
    books.keys = dict.fromkeys(range(1, 21), b"k")
    books._note(21, A, {"begin": 1})
    books._set("orders", {"uuid": A, "prefix": "k"})
    books.sent["orders"] = dict.fromkeys(range(1, 10), 5.0)
    books._note(22, A, note(done=range(1, 6)))
    books._note(23, A, note(done=[10], dead=[10]))
    with pytest.raises(AssertionError, match="acknowledged by nobody"):
        books._note(24, A, note(done=[11]))
    books._note(25, A, {"begin": 1})
    moved = books.of[A]
    assert (moved.since, moved.floor, moved.done) == (25, 0, set()), "all is owed again"
    moved.told_s = 100.0
    with pytest.raises(AssertionError, match=r"VLSNs \[1, 2, 3\]"):
        books._note(26, A, note(done=range(1, 4)))
    books.sent["orders"] |= dict.fromkeys(range(1, 4), 101.0 - LATE_S)
    books._note(27, A, note(done=range(1, 4)))
    assert moved.floor == 3


def test_a_row_that_has_rotted_says_nothing() -> None:
    machine, rng = Machine(3), Random(3)
    opened, _ = filled(machine, rng)
    pager = Pager(opened, page_bytes=PAGE_BYTES)
    pager.page([Destination(ALL)], opened.log.view.range.last)
    before = read(machine, ALL)
    key = b"g" + bytes.fromhex(ALL)
    machine.stores.corrupt(f"{DIRECTORY}/state", key + (1).to_bytes(4, "big"), bit=55)
    rotten = read(machine, ALL)
    assert rotten.pages == before.pages and rotten.fault and len(rotten.blocks) < len(before.blocks)
    machine.stores.corrupt(f"{DIRECTORY}/state", key, bit=7)
    assert (before.since, read(machine, ALL).since) == (1, 0)
