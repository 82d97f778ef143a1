"""Replaces blocks of a stopped log with the blocks that a majority of the copies has. An operator requests this repair.

    1  each place is filled in memory with the other copies' blocks, in frames as before; if the blocks do not fit
       exactly, the repair is refused, and nothing was written
    2  if undamaged blocks are replaced by different ones, the index is set aside: the next open builds it anew
    3  for each segment: old bytes kept in a file, a copy with the new blocks renamed over it        (``mended_copy``)
                                                                                     ◄ commit point of each segment

If the repair is stopped before a rename, that segment is unchanged. The segments renamed before the stop are repaired,
and a second audit shows the segments that remain. If an index and a segment do not match at any moment, the index was
set aside before.

From some blocks, ``state`` holds derived tables (producers, transactions, members, terms). A block with entries in
these tables is never replaced by a different one, since ``state`` would keep the values derived from the old block.
Instead, the node must be restored.

The caller must hold the directory's lock. The functions block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from vlsn.errors import BadArgument, BadBody, Damaged
from vlsn.format import block as block_format
from vlsn.format.block import BlockFlag, BlockHeader, EntryKind
from vlsn.format.segment import segment_name
from vlsn.limits import FREE_BYTES_MIN
from vlsn.recover.identity import NODE_FILE_NAME
from vlsn.recover.recovery import INDEX_NAME
from vlsn.repair.mended_copy import mend
from vlsn.repair.mending import Filling, place_between
from vlsn.seams import Disk, Stores
from vlsn.segments.restore_marker import check_no_restore
from vlsn.state import node_file

REPLACEMENTS_MAX = 1_024
"""The most places that one repair replaces. The old bytes of each place are kept in a file."""
REPLACED_BYTES_MAX = 256 << 20
"""The most bytes of blocks that one repair writes and holds in memory."""
_SUMMED_UP = BlockFlag.PRODUCERS | BlockFlag.TXNS | BlockFlag.KINDS


@dataclass(frozen=True, slots=True)
class Replacement:
    """One replacement: ``blocks`` are written in bytes ``start`` to ``end`` (exclusive) of segment ``number``. The log
    in segment ``number`` ends at offset ``log_end``."""

    number: int
    start: int
    end: int
    log_end: int
    blocks: tuple[bytes, ...]
    gone: tuple[BlockHeader, ...] = ()
    """The headers of the undamaged blocks that are replaced; empty if all the old bytes are damaged."""

    @property
    def file(self) -> str:
        return segment_name(self.number)

    @property
    def bytes(self) -> int:
        return self.end - self.start


def replace_blocks(disk: Disk, stores: Stores, directory: str, replacements: Sequence[Replacement]) -> list[str]:
    """Makes the replacements, after ``filled`` has checked them. The replacements are durable on return. Returns the
    names of the files that keep the old bytes. Raises the errors of ``filled``, ``NoSpace`` and ``OSError``."""
    segments = filled(disk, directory, replacements)
    if any(each.gone for each in replacements):
        stores.set_aside(f"{directory}/{INDEX_NAME}")
    kept = []
    for fillings in segments:
        kept += mend(disk, directory, fillings, free_bytes_min=FREE_BYTES_MIN, kept_max=1 << 31)
    return kept


def filled(disk: Disk, directory: str, replacements: Sequence[Replacement]) -> list[list[Filling]]:
    """Fills each place in memory with its new blocks. Returns the fillings of each segment. Raises ``BadArgument`` if
    the blocks do not fit a place or must not be written there. Raises ``Restoring`` during a network restore."""
    check_no_restore(disk, directory)
    if len(replacements) > REPLACEMENTS_MAX or sum(each.bytes for each in replacements) > REPLACED_BYTES_MAX:
        raise BadArgument(
            f"{directory}: more than {REPLACEMENTS_MAX} places or {REPLACED_BYTES_MAX >> 20} MiB would be replaced; "
            "have the node restored from the others (`vlsnlog restore --help`)"
        )
    term = node_file.read(disk, f"{directory}/{NODE_FILE_NAME}").term
    segments = []
    by_number = sorted(replacements, key=lambda each: (each.number, each.start))
    for _, run in groupby(by_number, key=attrgetter("number")):
        fillings: list[Filling] = []
        for each in run:
            fillings.append(_filled(disk, directory, each, fillings, term))
        segments.append(fillings)
    return segments


def _filled(disk: Disk, directory: str, each: Replacement, before: Sequence[Filling], term: int) -> Filling:
    try:
        wound = place_between(disk, directory, each.number, each.start, each.end, each.log_end, filled=before)
        filling = Filling(wound, term_max=term, believed=False)
        for block in each.blocks:
            filling.add(block)
            if each.gone:
                _check_not_summed_up(block_format.decode_header(block))
        for header in each.gone:
            _check_not_summed_up(header)
        while not filling.whole:
            if not filling.add_record():
                raise BadBody(f"{wound.end - each.start} bytes are more than the blocks that belong there")
    except (BadBody, Damaged) as error:
        vlsn = block_format.decode_header(each.blocks[0]).first_vlsn if each.blocks else 0
        raise BadArgument(
            f"{directory}/{_place(each, vlsn)} cannot be replaced in place: {error}; have the node restored "
            "from the others (`vlsnlog restore --help`)"
        ) from error
    return filling


def _place(each: Replacement, vlsn: int) -> str:
    """Formats the place of a replacement, whose first VLSN is ``vlsn``."""
    return f"{each.file} offset {each.start} (VLSN {vlsn})"


def is_summed_up(header: BlockHeader) -> bool:
    """Returns whether the block has entries from which ``state`` holds derived tables."""
    return bool(header.flags & _SUMMED_UP) or header.kind != EntryKind.DATA


def _check_not_summed_up(header: BlockHeader) -> None:
    if is_summed_up(header):
        raise BadBody(f"block {header.name} has entries that state/ sums up, and is not the one that is there")
