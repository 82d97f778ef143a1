"""The names of blocks in one directory. A block's name is its term and first VLSN. Two blocks with the same name must
have the same content, even if a rollback has abandoned one of them.

    00000002.vlog   … 41 ✗42 42'         42 and 42' are of term 3 and differ: two blocks have one name

While segments are read from the last to the first, the names of rolled back blocks are collected. At the end, a segment
is read again if one of its visible blocks may have the name of a rolled back block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vlsn.format import scan
from vlsn.format.segment import segment_name
from vlsn.ids import Lsn, lsn, lsn_file, lsn_offset
from vlsn.seams import Buffer
from vlsn.verify.inspection import Inspected, Mask, Rule
from vlsn.verify.noted_terms import Run
from vlsn.verify.rollbacks import Add

NAMES_MAX: Final = 65_536
"""The most names that are kept. The names of the newest blocks are preferred."""
_NAME: Final = np.dtype([("first", "<u8"), ("term", "<u8"), ("crc", "<u4"), ("lsn", "<u8")])
Names = NDArray[np.void]


def names_of(buf: Buffer, number: int, found: Inspected, which: Mask) -> Names:
    """Returns the names of the blocks in ``which``, each with its header's checksum, which also covers the body."""
    offsets = found.block_offsets[which]
    heads = scan.block_headers(buf, 0, offsets)
    names = np.empty(len(offsets), _NAME)
    names["first"], names["term"], names["crc"] = heads["first_vlsn"], heads["term"], heads["header_crc"]
    names["lsn"] = offsets + lsn(number, 0)
    return names


class GivenUp:
    """The names of blocks that were rolled back."""

    def __init__(self, add: Add) -> None:
        self._add = add
        self._names: Names = np.empty(0, _NAME)
        self._visible: list[Names] = []

    def read(self, names: Names) -> None:
        self._names = np.concatenate((self._names, names))[:NAMES_MAX]

    def segments(self, runs: Sequence[Run], spans: Sequence[Run]) -> Iterator[int]:
        """Yields the segments in ``spans`` (number, first and last VLSN) in which a visible block may have the name of
        a rolled back block. ``runs`` are the terms of the visible log."""
        firsts = [
            self._names["first"][
                (self._names["term"] == term) & (low <= self._names["first"]) & (self._names["first"] <= high)
            ]
            for term, low, high in runs
        ]
        wanted = np.concatenate((np.empty(0, np.uint64), *firsts))
        for number, low, high in spans:
            if ((low <= wanted) & (wanted <= high)).any():
                yield number

    def take(self, visible: Names) -> None:
        """Keeps the visible blocks of a segment that have the same first VLSN as a rolled back block."""
        self._visible.append(visible[np.isin(visible["first"], self._names["first"])])

    def check(self) -> None:
        """Reports each block that has the same name as a different block, among the rolled back blocks and the visible
        blocks that were kept."""
        rows = np.sort(np.concatenate((self._names, *self._visible)), order=["first", "term", "lsn"])
        same = (rows["first"][1:] == rows["first"][:-1]) & (rows["term"][1:] == rows["term"][:-1])
        for row in np.flatnonzero(same & (rows["crc"][1:] != rows["crc"][:-1])).tolist():
            one, other = Lsn(int(rows["lsn"][row])), Lsn(int(rows["lsn"][row + 1]))
            place = f"{segment_name(lsn_file(one))} offset {lsn_offset(one)}"
            detail = f"another block of term {rows['term'][row]} than the one of this VLSN at {place}"
            file = segment_name(lsn_file(other))
            self._add(Rule.NAME_REUSED, file, lsn_offset(other), int(rows["first"][row]), detail)
