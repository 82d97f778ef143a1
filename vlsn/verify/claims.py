"""Claims of one directory: what is durable never falls, lies past no end, is not given up, and is there.

    VLSN     11  12  13  14 │ ROLLBACK_START(matchpoint 11)        block 14 says: durable up to 12
    DTVLSN    9   9  11  12 │                                      12 is overmarked though durable

A DTVLSN is true for ever, whoever said it: blocks that were rolled back count, too.  Segments come from the last to the
first, and what is said rises from the first to the last, so a few numbers of each are kept to the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vlsn.errors import BadBody
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackStart, decode_record
from vlsn.format.segment import segment_name
from vlsn.ids import U32_MAX, Lsn, lsn_file, lsn_offset
from vlsn.verify.inspection import Inspected, Rule
from vlsn.verify.order import Visible
from vlsn.verify.rollbacks import Add
from vlsn.verify.segment_chain import Link


@dataclass(frozen=True, slots=True)
class _Segment:
    """``first``: offset, VLSN and DTVLSN of its first visible block; the ``highest`` of visible ones. ``between``: the
    highest that anything said up to each ROLLBACK_START from the one before, then behind the last."""

    file: str
    first: tuple[int, int, int] | None
    highest: int
    starts: tuple[tuple[int, RollbackStart], ...]
    between: tuple[int, ...]


class Claims:
    def __init__(self, add: Add) -> None:
        self._add = add
        self._segments: list[_Segment] = []

    def check(self, link: Link, found: Inspected, visible: Visible) -> None:
        """Checks one segment, and keeps what is to be compared with others."""
        self._check_falls(link, visible)
        records = list(_records(found))
        stated = [(at, record) for at, record in records if isinstance(record, CheckpointStart | CheckpointEnd)]
        if stated and not len(found.lost):
            self._check_ahead(link, found, stated)
        starts = tuple((at, record) for at, record in records if isinstance(record, RollbackStart))
        offsets = np.concatenate((found.block_offsets, np.array([at for at, _ in stated], np.int64)))
        said = np.concatenate((found.dtvlsns, np.array([record.dtvlsn for _, record in stated], np.int64)))
        cuts = [0, *(at for at, _ in starts), U32_MAX]
        some = len(visible) > 0
        self._segments.append(
            _Segment(
                link.name,
                (int(visible.places[0]), int(visible.firsts[0]), int(visible.dtvlsns[0])) if some else None,
                int(visible.dtvlsns.max()) if some else 0,
                starts,
                tuple(int(said[(low < offsets) & (offsets < high)].max(initial=0)) for low, high in pairwise(cuts)),
            )
        )

    def finish(self) -> int:
        """Checks the segments with one another. Returns what must be there by all that was said."""
        said = shown = 0
        for segment in reversed(self._segments):
            if segment.first is not None and segment.first[2] < shown:
                offset, vlsn, dtvlsn = segment.first
                self._fallen(segment.file, offset, vlsn, dtvlsn, shown)
            shown = max(shown, segment.highest)
            for (at, record), before in zip(segment.starts, segment.between[:-1], strict=True):
                said = max(said, before)
                if record.matchpoint < said:
                    self._given_up(segment.file, at, record, said)
                    said = record.matchpoint  # named once
            said = max(said, segment.between[-1])
        return said

    def _check_falls(self, link: Link, visible: Visible) -> None:
        said = visible.dtvlsns
        if not (said[1:] < said[:-1]).any():
            return
        highest = np.maximum.accumulate(said)
        for row in np.flatnonzero(said[1:] < highest[:-1]).tolist():
            place, vlsn = int(visible.places[row + 1]), int(visible.firsts[row + 1])
            self._fallen(link.name, place, vlsn, int(said[row + 1]), int(highest[row]))

    def _check_ahead(
        self, link: Link, found: Inspected, stated: list[tuple[int, CheckpointStart | CheckpointEnd]]
    ) -> None:
        highest = np.maximum.accumulate(found.lasts)
        for at, record in stated:
            row = int(np.searchsorted(found.block_offsets, at))
            end = max(link.prev_last_vlsn, int(highest[row - 1]) if row else 0)
            if record.dtvlsn > end:
                detail = f"a checkpoint says durable up to VLSN {record.dtvlsn}, and the log ends at {end} there"
                self._add(Rule.DTVLSN, link.name, at, end + 1, detail)

    def _fallen(self, file: str, offset: int, vlsn: int, said: int, before: int) -> None:
        detail = f"it says durable up to VLSN {said}, a block before it said {before}"
        self._add(Rule.DTVLSN, file, offset, vlsn, detail)

    def _given_up(self, file: str, at: int, record: RollbackStart, durable: int) -> None:
        begun = Lsn(record.first_lsn)
        detail = f"the rollback at {file} offset {at} went back to VLSN {record.matchpoint}; {durable} was durable"
        file, offset = segment_name(lsn_file(begun)), lsn_offset(begun)
        self._add(Rule.OVERMARKED_DURABLE, file, offset, record.matchpoint + 1, detail)


def _records(found: Inspected) -> Iterator[tuple[int, object]]:
    for offset, kind, payload in found.records:
        try:
            yield offset, decode_record(kind, payload)
        except BadBody:
            continue  # named where the rollbacks are read
