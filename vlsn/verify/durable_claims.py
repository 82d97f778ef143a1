"""The rules for statements of durability in a log. A statement of durability is a DTVLSN (durable end). DTVLSNs never
decrease and never exceed the log's end, and entries up to a stated DTVLSN are never rolled back.

    VLSN     11  12  13  14 │ ROLLBACK_START(matchpoint 11)        block 14 says: durable up to 12
    DTVLSN    9   9  11  12 │                                      wrong: 12 is rolled back though durable

A stated DTVLSN stays true for ever, even if its block is rolled back. So the DTVLSNs of rolled back blocks are checked,
too. The DTVLSNs of consecutive visible blocks never decrease, since a master starts with the highest DTVLSN in its log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackStart
from vlsn.format.scan import Offsets
from vlsn.format.segment import segment_name
from vlsn.ids import U32_MAX, Lsn, lsn_file, lsn_offset
from vlsn.verify.inspection import Fault, Rule

Placed = tuple[int, object]
"""A local record (checkpoint, rollback), after its offset in the segment."""


@dataclass(frozen=True, slots=True)
class Claims:
    """The DTVLSNs (durable ends) that one segment states. ``first`` is that of the first visible block (0: there is
    none). ``highest`` is the highest of all visible blocks. ``between`` has one value for each part of the segment
    between two ROLLBACK_STARTs: the highest DTVLSN of all valid blocks and checkpoints in that part."""

    first: int
    highest: int
    between: tuple[int, ...]


def claims_of(offsets: Offsets, dtvlsns: Offsets, shown: Offsets, records: Sequence[Placed]) -> Claims:
    """Collects the DTVLSNs of one segment. ``offsets`` and ``dtvlsns`` describe its valid blocks. ``shown`` are the
    DTVLSNs of its visible blocks."""
    stated = [(at, record.dtvlsn) for at, record in records if isinstance(record, CheckpointStart | CheckpointEnd)]
    places = np.concatenate((offsets, np.array([at for at, _ in stated], np.int64)))
    said = np.concatenate((dtvlsns, np.array([dtvlsn for _, dtvlsn in stated], np.int64)))
    cuts = [0, *(at for at, _ in starts_in(records)), U32_MAX]
    return Claims(
        first=int(shown[0]) if len(shown) else 0,
        highest=int(shown.max(initial=0)),
        between=tuple(int(said[(low < places) & (places < high)].max(initial=0)) for low, high in pairwise(cuts)),
    )


def starts_in(records: Iterable[Placed]) -> list[tuple[int, RollbackStart]]:
    return [(at, record) for at, record in records if isinstance(record, RollbackStart)]


def falls(offsets: Offsets, firsts: Offsets, dtvlsns: Offsets) -> Iterator[Fault]:
    """Yields a fault for each visible block of a segment whose DTVLSN is lower than that of a block before it."""
    if not (dtvlsns[1:] < dtvlsns[:-1]).any():
        return
    highest = np.maximum.accumulate(dtvlsns)
    for row in np.flatnonzero(dtvlsns[1:] < highest[:-1]).tolist():
        yield fallen(int(offsets[row + 1]), int(firsts[row + 1]), int(dtvlsns[row + 1]), int(highest[row]))


def ahead(offsets: Offsets, lasts: Offsets, records: Iterable[Placed], before: int) -> Iterator[Fault]:
    """Yields a fault for each checkpoint whose DTVLSN is higher than the last VLSN logged before the checkpoint. The
    segment must be undamaged. ``offsets`` and ``lasts`` describe the segment's blocks, and ``before`` is the last VLSN
    before it."""
    stated = [(at, record) for at, record in records if isinstance(record, CheckpointStart | CheckpointEnd)]
    if not stated:
        return
    highest = np.maximum.accumulate(lasts)
    for at, record in stated:
        row = int(np.searchsorted(offsets, at))
        end = max(before, int(highest[row - 1]) if row else 0)
        if record.dtvlsn > end:
            detail = f"a checkpoint says durable up to VLSN {record.dtvlsn}, and the log ends at {end} there"
            yield Fault(Rule.DTVLSN, at, detail, end + 1, {"dtvlsn": record.dtvlsn, "end": end})


def fallen(offset: int, vlsn: int, said: int, before: int, file: str = "") -> Fault:
    detail = f"the block says durable up to VLSN {said}, a block before it said {before}"
    return Fault(Rule.DTVLSN, offset, detail, vlsn, {"dtvlsn": said, "before": before}, file)


def given_up(file: str, at: int, record: RollbackStart, durable: int) -> Fault:
    begun = Lsn(record.first_lsn)
    return Fault(
        Rule.OVERMARKED_DURABLE,
        lsn_offset(begun),
        f"the rollback at {file} offset {at} went back to VLSN {record.matchpoint}; {durable} was durable",
        record.matchpoint + 1,
        {"durable": durable, "matchpoint": record.matchpoint, "rollback_file": file, "rollback_offset": at},
        segment_name(lsn_file(begun)),
    )
