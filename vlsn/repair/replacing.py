"""Replaces blocks of a stopped log, at an operator's request, with the blocks that a majority of the copies has.

    1  each place is filled in memory by whole blocks of the others', framed as they were; what does not fit exactly is
       refused, and nothing was written
    2  where whole blocks go that differed, the index is set aside: the next open builds it anew
    3  segment by segment: the old bytes aside, a copy with the blocks in place renamed over it      (``mended_copy``)
                                                                                     ◄ commit point of each segment

If the repair is stopped before a rename, that segment is unchanged. The segments renamed before are repaired, and a
second audit shows which remain. Whenever index and segment do not match, the index has been set aside.

Some blocks have entries that are summed up outside of the log (producers, transactions, members, terms). Such a block
is not replaced by a different one, since ``state`` would keep the sums of the old block. A node with such a block is
restored.

The caller holds the directory's lock. The calls block.
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
"""The most places that one repair replaces. For each place, the old bytes are kept in a file."""
REPLACED_BYTES_MAX = 256 << 20
"""The most bytes of blocks that one repair writes and holds in memory."""
_SUMMED_UP = BlockFlag.PRODUCERS | BlockFlag.TXNS | BlockFlag.KINDS


@dataclass(frozen=True, slots=True)
class Replacement:
    """The ``blocks`` to write in bytes ``start`` to ``end`` (exclusive) of segment ``number``, whose log ends at
    ``log_end``."""

    number: int
    start: int
    end: int
    log_end: int
    blocks: tuple[bytes, ...]
    gone: tuple[BlockHeader, ...] = ()
    """The whole blocks that are replaced; empty if all the bytes are damaged."""

    @property
    def file(self) -> str:
        return segment_name(self.number)

    @property
    def bytes(self) -> int:
        return self.end - self.start


def replace_blocks(disk: Disk, stores: Stores, directory: str, replacements: Sequence[Replacement]) -> list[str]:
    """Makes the replacements that ``filled`` checks; durable on return. Returns the names of the files that keep the
    old bytes. Raises as ``filled`` does, ``NoSpace``, and ``OSError``."""
    segments = filled(disk, directory, replacements)
    if any(each.gone for each in replacements):
        stores.set_aside(f"{directory}/{INDEX_NAME}")
    kept = []
    for fillings in segments:
        kept += mend(disk, directory, fillings, free_bytes_min=FREE_BYTES_MIN, kept_max=1 << 31)
    return kept


def filled(disk: Disk, directory: str, replacements: Sequence[Replacement]) -> list[list[Filling]]:
    """Fills each place in memory. Returns a list for each segment. Raises ``BadArgument`` if the blocks do not fit or
    must not be put there, and ``Restoring``."""
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
    """Formats the place of a replacement that begins with ``vlsn``."""
    return f"{each.file} offset {each.start} (VLSN {vlsn})"


def is_summed_up(header: BlockHeader) -> bool:
    """Says whether the block has entries that are summed up outside of the log."""
    return bool(header.flags & _SUMMED_UP) or header.kind != EntryKind.DATA


def _check_not_summed_up(header: BlockHeader) -> None:
    if is_summed_up(header):
        raise BadBody(f"block {header.name} has entries that state/ sums up, and is not the one that is there")
