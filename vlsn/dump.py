"""The dump of a log directory: one row a frame, as it lies in the files.

    {"file": "00000001.vlog", "offset": 4096, "lsn": 4294971392, "kind": "BLOCK", "term": 1,
     "first": 1, "last": 2, "count": 2, "overmarked": false, "damaged": false}

Local records have no term and no VLSNs (0).  Bytes that had been synced and hold no whole frame are one row
of kind ``UNREADABLE``, damaged, with the VLSN that should be there and count 0.  A row of ``all`` false is
a visible block or damage; ``all`` shows both lives of an overmarked VLSN and the local records too.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from vlsn.chain import Link, Stated, log_chain, read_segment, read_stated
from vlsn.frame import OVERMARKED, FrameKind
from vlsn.ids import Lsn, lsn
from vlsn.inspection import Inspected, inspect
from vlsn.recovery import LOCK_NAME
from vlsn.seams import Disk, Stores

UNREADABLE = "UNREADABLE"


class DumpRow(msgspec.Struct, frozen=True, gc=False):
    """One frame; its fields in this order are the JSON object."""

    file: str
    offset: int
    lsn: Lsn
    kind: str
    term: int
    first: int
    last: int
    count: int
    overmarked: bool
    damaged: bool


def dump_rows(
    disk: Disk, stores: Stores, directory: str, *, from_vlsn: int = 1, to_vlsn: int | None = None, all: bool = False
) -> Iterator[DumpRow]:
    """The frames in log order; with VLSN bounds (inclusive) those of blocks that touch them, and what lies
    between such.  Of a running node (its directory is locked) only up to what is stated to be synced.  A
    segment is in memory at a time.  Raises ``FileNotFoundError``."""
    live = disk.is_locked(f"{directory}/{LOCK_NAME}")
    stated = Stated() if live else read_stated(stores, directory)
    chain = log_chain(disk, directory, live=live, stated=stated.ends)
    buf = bytearray()
    before = 0
    for position, link in enumerate(chain.links):
        following = chain.links[position + 1] if not link.last else None
        if not all and following is not None and 0 < following.prev_last_vlsn < from_vlsn:
            before = following.prev_last_vlsn  # no visible block of this segment lies above it
            continue
        size = read_segment(disk, link, buf)
        stated_end = stated.offset_in(link.number)
        found = inspect(buf, size=size, salt=link.salt, end=link.end, stated=stated_end)
        for row in _rows(link, found, before or link.prev_last_vlsn):
            if row.kind == FrameKind.BLOCK.name and not row.overmarked:
                before = row.last
            touches = (row.last or before) >= from_vlsn and (to_vlsn is None or (row.first or before) <= to_vlsn)
            shown = all or row.damaged or (row.kind == FrameKind.BLOCK.name and not row.overmarked)
            if touches and shown:
                yield row


def _rows(link: Link, found: Inspected, before: int) -> Iterator[DumpRow]:
    """Every frame and gap of one segment; ``before`` is the last VLSN that lies before it."""
    place_of = {offset: index for index, offset in enumerate(found.block_offsets.tolist())}
    terms, counts = found.heads["term"].tolist(), found.heads["count"].tolist()
    firsts, lasts = found.firsts.tolist(), found.lasts.tolist()
    faulty = {fault.offset for fault in found.faults}
    gaps = {start for start, _ in found.gaps}
    offsets = np.concatenate((found.offsets, np.array(sorted(gaps), dtype=np.int64)))
    kinds = [FrameKind(kind).name for kind in found.headers["kind"].tolist()] + [UNREADABLE] * len(gaps)
    marks = [*(found.headers["flag"] == OVERMARKED).tolist(), *[False] * len(gaps)]
    for index in np.argsort(offsets, kind="stable").tolist():
        offset, kind, marked = int(offsets[index]), kinds[index], marks[index]
        at = lsn(link.number, offset)
        damaged = offset in faulty
        block = place_of.get(offset)
        if block is not None and kind != UNREADABLE:
            before = lasts[block] if not marked else before
            first, last = firsts[block], lasts[block]
            yield DumpRow(link.name, offset, at, kind, terms[block], first, last, counts[block], marked, damaged)
        elif kind in (FrameKind.BLOCK.name, UNREADABLE):
            yield DumpRow(link.name, offset, at, kind, 0, before + 1, before + 1, 0, marked, True)
        else:
            yield DumpRow(link.name, offset, at, kind, 0, 0, 0, 0, marked, damaged)
