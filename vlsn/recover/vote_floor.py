"""The vote floor: a limit on the votes of a node that may have lost acknowledged entries. The functions have no side
effects.

If a part of a node's log must be left out, the node first stores the (term, VLSN) at the end of that part as its vote
floor. Until its own log reaches the floor again, the node does not vote for a log below the floor, and is no candidate.
Raft §5.4.1 assumes that each voter still has every entry that it acknowledged. If a voter lost an acknowledged entry
unnoticed, its vote would be counted wrongly.

    log … 40 │ cut: a readable block 41–44 of term 3, then rubbish      floor (3, 44)
    log … 40 │ cut: rubbish only; the stored term is 5                  floor (5, 41)
    the same, 400 bytes of it, and `state` lost                          floor (5, 140)

If ``state`` is intact, only the last group of blocks can have been acknowledged and then rotted, within a second. If
``state`` is lost, it is unknown how far the log was ever synced. So without ``state`` the vote floor is as high as the
unreadable bytes could have reached.

A floor is met once the log reaches the floor, or once the log has everything that the master of the stored term has. A
log that reaches the floor has the missing part again. If the log has all of the master's entries but does not reach the
floor, the missing part does not belong to the group's log, as after a rollback by a syncup.

The bytes left out are searched for block headers with a valid checksum, at every 8 bytes. A client's value may contain
bytes that look like a block header. So headers that cannot be of this log are ignored. A header cannot be of this log
if its term is above the stored term or below the log's last term, or if the bytes left out are too few for its VLSNs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from vlsn.ids import U32_MAX
from vlsn.state.node_file import NodeRecord

ENTRY_BYTES_MIN = 4
"""The fewest bytes that an entry needs in a block: the offset of its value."""


@dataclass(frozen=True, slots=True)
class BlockName:
    """A block found in the bytes left out: its term, its first and last VLSN, and the place where it ends."""

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
    """Computes the vote floor if ``size`` bytes after the log's end are left out. ``last_term`` and ``last_vlsn`` are
    the highest term and VLSN in the log. ``stored_term`` is 0 if the node file is lost."""
    term = max(stored_term, last_term)
    for name in reversed(left_out):
        known = last_term <= name.term <= stored_term if stored_term else name.term >= last_term
        if known and name.last <= last_vlsn + size // ENTRY_BYTES_MIN:
            unread = max(0, size - name.end) // ENTRY_BYTES_MIN if state_lost else 0
            return (max(term, name.term), name.last + unread) if unread else (name.term, name.last)
    return term, last_vlsn + (max(1, size // ENTRY_BYTES_MIN) if state_lost else 1)


def with_floor(record: NodeRecord, floor: tuple[int, int], *, last_visible: int) -> NodeRecord:
    """Returns ``record`` with ``floor`` as its vote floor. If the log has reached ``floor``, or the record has a higher
    floor that the log has not reached, the record does not change."""
    term, vlsn = floor
    if vlsn <= last_visible or (term, vlsn) <= (record.floor_term, record.floor_vlsn):
        return record
    return replace(record, floor_term=term, floor_vlsn=vlsn)


def is_below_floor(record: NodeRecord, end: tuple[int, int]) -> bool:
    """Returns whether a log that ends at ``end`` may miss entries that the node of ``record`` has acknowledged."""
    return end < (record.floor_term, record.floor_vlsn)


def with_floor_met(record: NodeRecord, end: tuple[int, int]) -> NodeRecord:
    """Returns ``record`` with its vote floor lowered to ``end``, if the floor is higher. ``end`` is the end of a log
    that has everything that the master of the stored term has."""
    if not is_below_floor(record, end):
        return record
    return replace(record, floor_term=end[0], floor_vlsn=end[1])
