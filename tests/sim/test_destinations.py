"""The oracle of destinations: it reads pages as the product writes them, and misses nothing that a disk lacks."""

from __future__ import annotations

from random import Random

from tests.sim.destinations import page_table
from tests.sim.logs import block_of
from tests.sim.page_files import Paged, paged
from tests.vlsn.logs import DIRECTORY, Machine
from tests.vlsn.pages.paging import PAGE_BYTES, Destination, Pager
from tests.vlsn.pages.test_paging import ALL, A, B, filled, some_destinations


def read(machine: Machine, uuid: str) -> Paged:
    """Reads the pages of a destination as the simulation does."""
    files = machine.disk.medium(f"{DIRECTORY}/pages/{uuid}")
    contents = machine.stores.contents[f"{DIRECTORY}/state"]
    return paged(files, page_table(contents), uuid)


def test_pages_read_by_offsets_alone_are_what_was_wanted() -> None:
    machine, rng = Machine(1), Random(1)
    opened, held = filled(machine, rng)
    destinations = some_destinations(rng, opened.log.range.last)
    pager = Pager(opened)
    pager.page(destinations, opened.log.range.last)
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
    pager.page([Destination(ALL)], opened.log.range.last)
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


def test_a_row_that_has_rotted_says_nothing() -> None:
    machine, rng = Machine(3), Random(3)
    opened, _ = filled(machine, rng)
    pager = Pager(opened, page_bytes=PAGE_BYTES)
    pager.page([Destination(ALL)], opened.log.range.last)
    before = read(machine, ALL)
    key = b"g" + bytes.fromhex(ALL)
    machine.stores.corrupt(f"{DIRECTORY}/state", key + (1).to_bytes(4, "big"), bit=55)
    rotten = read(machine, ALL)
    assert rotten.pages == before.pages and rotten.fault and len(rotten.blocks) < len(before.blocks)
    machine.stores.corrupt(f"{DIRECTORY}/state", key, bit=7)
    assert (before.since, read(machine, ALL).since) == (1, 0)
