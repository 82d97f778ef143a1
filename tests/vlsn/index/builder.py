"""Indexes over the model store, with blocks of ten entries and 5 000 bytes: every one of them is mapped."""

from __future__ import annotations

from contextlib import nullcontext

from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.index.index import VlsnIndex
from vlsnlog.testing.fakes.kv import FakeStores

PATH = "index"
BLOCK_ENTRIES = 10
BLOCK_BYTES = 5_000
SEGMENT_BLOCKS = 8


def place(number: int) -> Lsn:
    """Places the block ``number`` (from 0): eight blocks a segment."""
    return lsn(1 + number // SEGMENT_BLOCKS, 4096 + number % SEGMENT_BLOCKS * BLOCK_BYTES)


def span(number: int) -> tuple[Vlsn, Vlsn]:
    return Vlsn(number * BLOCK_ENTRIES + 1), Vlsn((number + 1) * BLOCK_ENTRIES)


def put_block(index: VlsnIndex, first: int, last: int, at: int) -> None:
    index.put_run([first], [last], [at])


def put(index: VlsnIndex, *numbers: int) -> None:
    """Maps blocks; one that lies before the last one is passed over, and so never mapped."""
    for number in numbers:
        put_block(index, *span(number), place(number))


def columns(*numbers: int) -> tuple[list[int], list[int], list[int]]:
    return [span(each)[0] for each in numbers], [span(each)[1] for each in numbers], [place(each) for each in numbers]


def open_index(stores: FakeStores, **settings: int) -> VlsnIndex:
    stores.abandon()
    return VlsnIndex(stores.open(PATH, map_bytes=1 << 20), nullcontext(), **settings)


def flush(index: VlsnIndex, checkpoint_id: int) -> None:
    started = index.start_flush(checkpoint_id)
    started.run()
    index.finish_flush(started)
