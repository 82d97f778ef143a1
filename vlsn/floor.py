"""The vote floor: what a node that may have lost acknowledged entries owes to its group.  Pure.

Before its log gets shorter a node writes (term, VLSN) of the end of what it leaves out; below that it neither
votes for a log nor stands, until its own log is there again.  Raft §5.4.1 needs of a majority that it has
every acknowledged entry; a member that forgot one without saying so would count twice.

    log … 40 │ cut: a readable block 41–44 of term 3, then rubbish      floor (3, 44)
    log … 40 │ cut: rubbish only; the stored term is 5                  floor (5, 41)

Block headers are looked for in the cut at every 8 bytes, each readable by its own checksum.  A client's value
may hold what looks like one, so those that cannot be of this log are passed over: of a term above the stored
one or below the log's last, or further on than the bytes left out could hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlsn.nodefile import NodeRecord

ENTRY_BYTES_MIN = 4
"""No entry takes less of a block: its value's offset."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """Term, first and last VLSN that a block header in the cut bytes says."""

    term: int
    first: int
    last: int


def floor_of(
    left_out: Sequence[BlockName], *, size: int, stored_term: int, last_term: int, last_vlsn: int
) -> tuple[int, int]:
    """The floor for ``size`` bytes left out behind a log whose highest term and VLSN are ``last_term`` and
    ``last_vlsn``; 0 for ``stored_term`` where the node file is lost."""
    for name in reversed(left_out):
        known = last_term <= name.term <= stored_term if stored_term else name.term >= last_term
        if known and name.last <= last_vlsn + size // ENTRY_BYTES_MIN:
            return name.term, name.last
    return max(stored_term, last_term), last_vlsn + 1


def with_floor(record: NodeRecord, floor: tuple[int, int], *, last_visible: int) -> NodeRecord:
    """``record`` with that floor, unless its own is higher (one not yet reached is never lowered) or the log has
    reached it."""
    term, vlsn = floor
    if vlsn <= last_visible or (term, vlsn) <= (record.floor_term, record.floor_vlsn):
        return record
    return replace(record, floor_term=term, floor_vlsn=vlsn)
