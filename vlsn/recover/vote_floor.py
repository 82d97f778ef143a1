"""The vote floor: it limits the votes of a node that may have lost acknowledged entries. These functions have no side
effects.

Before its log becomes shorter, a node writes down the (term, VLSN) at the end of the part that it leaves out. Until its
own log is that long again, the node does not vote for a log below that end, and is no candidate. Raft §5.4.1 needs a
majority in which every member has every acknowledged entry. A member that lost one unnoticed would be counted wrongly.

    log … 40 │ cut: a readable block 41–44 of term 3, then rubbish      floor (3, 44)
    log … 40 │ cut: rubbish only; the stored term is 5                  floor (5, 41)
    the same, 400 bytes of it, and `state` lost                          floor (5, 140)

While ``state`` is intact, only the last group of blocks can have been acknowledged and then rotted, within a second.
Without ``state`` it is unknown how far the log had ever been synced. So the floor is as high as the unreadable bytes
could have reached.

A floor is met once the log reaches it, or once the log has everything that the master of the stored term has. In the
first case the part left out is there again. In the second case it is not part of the group's log, as after a rollback
by a syncup.

Block headers are searched for in the cut bytes at every 8 bytes, each valid by its own checksum. A client's value may
contain something like a block header. So headers that cannot be of this log are ignored: those of a term above the
stored one or below the log's last, and those with VLSNs that the bytes left out could not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlsn.ids import U32_MAX
from vlsn.state.node_file import NodeRecord

ENTRY_BYTES_MIN = 4
"""The fewest bytes that an entry takes in a block: the offset of its value."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """A block in the cut bytes: its term, its first and last VLSN, and the place where it ends."""

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
    """Computes the floor if ``size`` bytes after the log's end are left out. ``last_term`` and ``last_vlsn`` are the
    highest in the log. ``stored_term`` is 0 if the node file is lost."""
    term = max(stored_term, last_term)
    for name in reversed(left_out):
        known = last_term <= name.term <= stored_term if stored_term else name.term >= last_term
        if known and name.last <= last_vlsn + size // ENTRY_BYTES_MIN:
            unread = max(0, size - name.end) // ENTRY_BYTES_MIN if state_lost else 0
            return (max(term, name.term), name.last + unread) if unread else (name.term, name.last)
    return term, last_vlsn + (max(1, size // ENTRY_BYTES_MIN) if state_lost else 1)


def with_floor(record: NodeRecord, floor: tuple[int, int], *, last_visible: int) -> NodeRecord:
    """Returns ``record`` with ``floor``, unless its own floor is higher or the log has reached ``floor``. A higher
    floor that the log has not reached is kept."""
    term, vlsn = floor
    if vlsn <= last_visible or (term, vlsn) <= (record.floor_term, record.floor_vlsn):
        return record
    return replace(record, floor_term=term, floor_vlsn=vlsn)


def is_below_floor(record: NodeRecord, end: tuple[int, int]) -> bool:
    """Says whether a log that ends at ``end`` may lack entries that the node of ``record`` acknowledged."""
    return end < (record.floor_term, record.floor_vlsn)


def with_floor_met(record: NodeRecord, end: tuple[int, int]) -> NodeRecord:
    """Returns ``record`` with its floor met, for a log that ends at ``end`` and has everything that the master of the
    stored term has."""
    if not is_below_floor(record, end):
        return record
    return replace(record, floor_term=end[0], floor_vlsn=end[1])
