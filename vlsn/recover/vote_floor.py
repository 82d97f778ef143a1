"""The vote floor: a limit on the votes of a node that may have lost acknowledged entries. Pure.

Before its log gets shorter, a node writes (term, VLSN) of the end of the part that it leaves out. It gives no vote to a
log below that end, and does not stand, until its own log is that long again. Raft §5.4.1 needs of a majority that it
has every acknowledged entry; a member that forgot one without saying so would count twice.

    log … 40 │ cut: a readable block 41–44 of term 3, then rubbish      floor (3, 44)
    log … 40 │ cut: rubbish only; the stored term is 5                  floor (5, 41)
    the same, 400 bytes of it, and `state` lost                          floor (5, 140)

While `state` is there, only the last group of blocks can have been acknowledged and then rotted, within a second.
Without it nothing says how far the log had been synced, at whatever time: then a floor is as high as what cannot be
read could have been.

A floor is met once the log is at or past it, or has all that the master of the stored term has. The part left out is
then there again, or is not part of the group's log, as a rollback by a syncup.

Block headers are looked for in the cut at every 8 bytes, each readable by its own checksum.  A client's value
may hold what looks like one, so those that cannot be of this log are passed over: of a term above the stored
one or below the log's last, or further on than the bytes left out could hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlsn.ids import U32_MAX
from vlsn.state.node_file import NodeRecord

ENTRY_BYTES_MIN = 4
"""No entry takes less of a block: its value's offset."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """A block's name in the cut bytes: term, first and last VLSN, and where the block ends."""

    term: int
    first: int
    last: int
    end: int = U32_MAX


def floor_of(
    left_out: Sequence[BlockName],
    *,
    size: int,
    stored_term: int,
    last_term: int,
    last_vlsn: int,
    state_lost: bool = False,
) -> tuple[int, int]:
    """Computes the floor for ``size`` bytes left out behind a log. ``last_term`` and ``last_vlsn`` are its highest;
    ``stored_term`` is 0 where the node file is lost."""
    term = max(stored_term, last_term)
    for name in reversed(left_out):
        known = last_term <= name.term <= stored_term if stored_term else name.term >= last_term
        if known and name.last <= last_vlsn + size // ENTRY_BYTES_MIN:
            unread = max(0, size - name.end) // ENTRY_BYTES_MIN if state_lost else 0
            return (max(term, name.term), name.last + unread) if unread else (name.term, name.last)
    return term, last_vlsn + (max(1, size // ENTRY_BYTES_MIN) if state_lost else 1)


def with_floor(record: NodeRecord, floor: tuple[int, int], *, last_visible: int) -> NodeRecord:
    """Returns ``record`` with that floor, unless its own is higher or the log has reached it. A higher floor that the
    log has not reached stays."""
    term, vlsn = floor
    if vlsn <= last_visible or (term, vlsn) <= (record.floor_term, record.floor_vlsn):
        return record
    return replace(record, floor_term=term, floor_vlsn=vlsn)


def is_below_floor(record: NodeRecord, end: tuple[int, int]) -> bool:
    """Says a log that ends at ``end`` may lack what was acknowledged with ``record``."""
    return end < (record.floor_term, record.floor_vlsn)


def with_floor_met(record: NodeRecord, end: tuple[int, int]) -> NodeRecord:
    """Returns ``record`` of a log that ends at ``end``, and has all that the master of the stored term has."""
    if not is_below_floor(record, end):
        return record
    return replace(record, floor_term=end[0], floor_vlsn=end[1])
