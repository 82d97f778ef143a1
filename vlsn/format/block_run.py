"""A run of blocks from another node. All blocks of a run are checked before any of them is written.

Both checksums of every block must be right, and the blocks must be consecutive. The terms of the blocks must be between
the last term of this node's log and the feed's term. Entries of the log's own (TERM, GROUP …) must be readable. Many
small blocks are checked by column, and a few large blocks one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from crc32c import crc32c

from vlsn.errors import BadBody
from vlsn.format.block import (
    BLOCK_BYTES,
    BlockHeader,
    EntryKind,
    check_contents,
    check_producers,
    decode,
    decode_header,
    producers,
)
from vlsn.format.block_heads import BLOCK_DTYPE, heads_good
from vlsn.format.columns import PRODUCERS
from vlsn.format.own_entries import OwnEntries, own_entries
from vlsn.format.producer_columns import Produced
from vlsn.format.records import CommitEntry, GroupEntry, TermEntry
from vlsn.seams import Buffer

_FEW = 16


@dataclass(frozen=True, slots=True)
class BlockRun:
    """Verified, consecutive blocks from another node. Each column has as many values as there are ``blocks``."""

    blocks: Sequence[Buffer]
    firsts: list[int]
    lasts: list[int]
    terms: list[int]
    kinds: list[int]
    clocks: list[int]
    """The time at which each block was sealed."""
    bytes: int
    produced: dict[int, list[Produced]] = field(default_factory=dict)
    """The submissions of producers, by the index of their block, ascending. Blocks without producer columns are left
    out."""
    own: dict[int, OwnEntries] = field(default_factory=dict)
    """The log's own entries, by the index of their block, ascending. Blocks with only DATA entries are left out. The
    entries are read here, so that the log need not read them again after it has placed the blocks."""

    level: int = 0
    """The highest level (version of the formats) that an entry in the blocks sets for the group; 0 for none."""

    @property
    def first_vlsn(self) -> int:
        return self.firsts[0]

    @property
    def last_vlsn(self) -> int:
        return self.lasts[-1]


def run_of(
    data: bytes, starts: list[int], sizes: list[int], *, expected_first: int, term_min: int, term_max: int
) -> BlockRun:
    """Checks the blocks in ``data`` at ``starts``, and returns them as a run. There must be at least one block. The
    first block must begin with VLSN ``expected_first``, and the terms must be from ``term_min`` to ``term_max``. The
    run contains views into ``data``. Raises ``BadBody`` if a check fails."""
    count = len(starts)
    view = memoryview(data)
    blocks = [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    headers: list[BlockHeader] = []
    if count == 1:  # most messages have a single block
        header = _checked(blocks[0])
        headers = [header]
        run = BlockRun(
            blocks, [header.first_vlsn], [header.last_vlsn], [header.term], [header.kind], [header.clock_us], sizes[0]
        )
        special = [0] if header.kind or header.flags & PRODUCERS else []
    elif count <= _FEW:
        headers = [_checked(block) for block in blocks]
        run = BlockRun(
            blocks,
            [header.first_vlsn for header in headers],
            [header.last_vlsn for header in headers],
            [header.term for header in headers],
            [header.kind for header in headers],
            [header.clock_us for header in headers],
            sum(sizes),
        )
        special = [index for index, header in enumerate(headers) if header.kind or header.flags & PRODUCERS]
    else:
        run, special = _check_many(data, blocks, starts, sizes)
    previous, term = expected_first - 1, run.terms[0]
    if run.firsts[0] != expected_first:
        raise BadBody(f"blocks from VLSN {run.firsts[0]}, not {expected_first}")
    if count <= _FEW:
        for first, last, now in zip(run.firsts, run.lasts, run.terms, strict=True):
            if first != previous + 1 or now < term:
                raise BadBody(f"block ({now}, {first}) after VLSN {previous} of term {term}")
            previous, term = last, now
    if run.terms[0] < term_min or run.terms[-1] > term_max:
        raise BadBody(
            f"blocks of terms {run.terms[0]} to {run.terms[-1]} on a feed of term {term_max}, after {term_min}"
        )
    level = 0
    for index in special:
        level = max(level, _read(run, index, headers[index] if headers else decode_header(blocks[index])))
    return replace(run, level=level) if level else run


def _read(run: BlockRun, index: int, header: BlockHeader) -> int:
    """Reads the submissions of producers and the log's own entries in a block with correct checksums. Returns the level
    that the entries set, or 0 for none. Raises ``BadBody`` if the block cannot be read, or cannot follow the block
    before it."""
    block, level = run.blocks[index], 0
    if header.kind == EntryKind.DATA:
        check_producers(block, header)
    else:
        check_contents(block, header)
        run.own[index] = own = own_entries(block, header)
        for entry in own.entries:
            match entry.kind:
                case EntryKind.COMMIT:
                    level = max(level, CommitEntry.decode(entry.value).set.level or 0)
                case EntryKind.TERM:
                    TermEntry.decode(entry.value)
                case EntryKind.GROUP:
                    GroupEntry.decode(entry.value)
    if header.flags & PRODUCERS:
        run.produced[index] = producers(block, header)
    return level


def _checked(block: memoryview) -> BlockHeader:
    """Checks that the header and the body of a block are as a master sealed them, byte for byte. The content of the
    columns is not checked, since the master did so before it sealed the block."""
    header = decode_header(block)
    if len(block) != header.size or crc32c(block[BLOCK_BYTES:]) != header.body_crc:
        raise BadBody(f"block {header.name}: body crc")
    return header


def _check_many(
    message: bytes, blocks: Sequence[memoryview], starts: list[int], sizes: list[int]
) -> tuple[BlockRun, list[int]]:
    """Checks many blocks: headers by column, and checksums in a tight loop (about 0.6 µs for each block). Also returns
    the indices of the blocks that have more than plain DATA entries."""
    at = np.array(starts, dtype=np.int64)
    rows = np.frombuffer(message, dtype=np.uint8)[at[:, None] + np.arange(BLOCK_BYTES)]
    heads = rows.tobytes()
    headers: Any = rows.view(BLOCK_DTYPE).reshape(-1)
    body_crcs = [crc32c(block[BLOCK_BYTES:]) for block in blocks]
    header_crcs = [crc32c(heads[here : here + BLOCK_BYTES - 4]) for here in range(0, len(heads), BLOCK_BYTES)]
    counts = headers["count"].astype(np.int64)
    firsts = headers["first_vlsn"].astype(np.int64)
    lasts = firsts + counts - 1
    terms = headers["term"].astype(np.int64)
    good = (headers["body_crc"] == np.array(body_crcs, dtype=np.uint32)) & (
        headers["header_crc"] == np.array(header_crcs, dtype=np.uint32)
    )
    good &= heads_good(headers) & (headers["body_bytes"] == np.array(sizes, dtype=np.int64) - BLOCK_BYTES)
    good[1:] &= (firsts[1:] == lasts[:-1] + 1) & (terms[1:] >= terms[:-1])
    if not good.all():
        bad = int(good.argmin())
        decode(blocks[bad])  # raises the exact fault, if the block itself is wrong
        raise BadBody(f"block {bad} of {len(blocks)} (VLSN {int(firsts[bad])}) does not follow, or is damaged")
    special = np.flatnonzero((headers["flags"] & PRODUCERS) | headers["kind"]).tolist()
    kinds, clocks = headers["kind"].tolist(), headers["clock_us"].tolist()
    return BlockRun(blocks, firsts.tolist(), lasts.tolist(), terms.tolist(), kinds, clocks, sum(sizes)), special
