"""The first difference in a range of VLSNs whose digests are not equal: which VLSN, and both values.

Runs in a task of its own for each such range, and reads of every source just the frames of that range.
A copy speaks for the others' when more copies are like it than like any other; where none are more, the
first source does.  Blocks that a copy has damaged, or lacks at an edge, were named before: they are passed over,
unless the other copies' blocks there are named differently.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from repl.audit.blocks import read_blocks
from repl.audit.digest import RANGE_BITS, Checksums, Place
from repl.audit.findings import Finding, shown
from repl.audit.frames import read_frames
from repl.audit.plan import Bounds, Part
from repl.audit.rules import AuditRule
from repl.audit.source import Source
from vlsn.errors import BadBody
from vlsn.format.block import BLOCK_BYTES, BlockHeader, Entry, EntryKind, decode, decode_header, entries
from vlsn.format.frame import FRAME_BYTES
from vlsn.ids import padded
from vlsn.repair.replacing import is_summed_up
from vlsn.verify.inspection import Rule

_BYTES = {"key", "value"}
RANGES_SHOWN = 16
"""Ranges that are looked into; the rest are counted."""


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range to look into, and where each source (by index) keeps its blocks."""

    range: int
    bounds: Bounds
    checksums: Checksums
    places: tuple[tuple[Part, Place], ...]


@dataclass(frozen=True, slots=True)
class Located:
    """One block of one source, ``size`` bytes behind the header of the frame at ``offset``."""

    source: int
    part: Part
    offset: int
    size: int
    first: int
    last: int
    digest: bytes


def first_differences(task: RangeTask, sources: Sequence[Source]) -> list[Finding]:
    """Returns one finding for each source whose blocks are other than the ones most sources have."""
    copies: list[list[Located]] = [[] for _ in sources]
    for part, place in task.places:
        copies[part.source] += _blocks(sources[part.source], part, place, task)
    for blocks in copies:
        blocks.sort(key=_first)
    for vlsn in sorted({block.first for blocks in copies for block in blocks}):
        here = [block for blocks in copies if (block := _covering(blocks, vlsn)) is not None]
        votes = Counter(block.digest for block in here)
        if len(votes) > 1:
            most = votes.most_common(1)[0][0]
            model = next(block for block in here if block.digest == most)
            return [difference(model, other, sources) for other in here if other.digest != most]
    return []


def _blocks(source: Source, part: Part, place: Place, task: RangeTask) -> Iterator[Located]:
    """Yields the visible, whole blocks of the range that are compared."""
    buf = source.read(part, place.start, place.end)
    frames = read_frames(buf, replace(part, end=place.end, stated=place.end), place.start, task.checksums)
    blocks = read_blocks(buf, frames, base=place.start)
    blocks = blocks.only(
        blocks.visible
        & (blocks.first >> RANGE_BITS == task.range)
        & (blocks.first >= task.bounds.first)
        & (blocks.last <= task.bounds.last)
        & (blocks.last > task.bounds.after)
    )
    sizes = blocks.headers["body_bytes"].astype(int) + BLOCK_BYTES
    columns = (blocks.offsets, sizes, blocks.first, blocks.last, blocks.digests)
    for row in zip(*(column.tolist() for column in columns), strict=True):
        yield Located(part.source, part, *row)


def _covering(blocks: list[Located], vlsn: int) -> Located | None:
    """Returns the block that holds ``vlsn``; none where it is damaged or missing, which is a finding of its own."""
    at = bisect_right(blocks, vlsn, key=_first) - 1
    return blocks[at] if at >= 0 and vlsn <= blocks[at].last else None


def _first(block: Located) -> int:
    return block.first


def difference(
    model: Located, other: Located, sources: Sequence[Source], rule: Rule | AuditRule = AuditRule.DIVERGENCE
) -> Finding:
    """Says how ``other`` differs from ``model``: the first VLSN, and both values."""
    try:
        ours, theirs = _entries(model, sources), _entries(other, sources)
    except BadBody as error:  # right by its checksums, and yet no block
        ours, theirs, detail = {}, {}, f"the copies of this block differ, and one of them is none: {error}"
    both = sorted(ours.keys() & theirs.keys())
    vlsn = next((vlsn for vlsn in both if _said(ours[vlsn]) != _said(theirs[vlsn])), max(model.first, other.first))
    at: dict[str, int] = {}
    if both:
        fields = _fields(ours[vlsn], theirs[vlsn])
        at = {name: _first_byte(getattr(ours[vlsn], name), getattr(theirs[vlsn], name)) for name in _BYTES & {*fields}}
        words = [f"{name} from byte {at[name]} on" if name in at else name for name in fields]
        detail = f"two copies of VLSN {vlsn} differ in {', '.join(words) or 'nothing but their block'}"
    place = {**_entry(theirs.get(vlsn), at), **{f"{name}_differs_at": byte for name, byte in at.items()}}
    place["in_place"] = _is_replaceable(model, other, sources)
    return Finding(
        rule=rule,
        source=sources[other.source].text,
        file=other.part.file,
        offset=other.offset,
        vlsn=vlsn,
        detail=detail,
        more=place | {"other": _place(model, sources) | _entry(ours.get(vlsn), at)},
    )


def _first_byte(one: bytes | None, two: bytes | None) -> int:
    """Returns the first byte at which they differ; the shorter one's end where it is the other's beginning."""
    one, two = one or b"", two or b""
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _is_replaceable(model: Located, other: Located, sources: Sequence[Source]) -> bool:
    """Says whether a repair may put the one in the other's place: it has its size, and neither is summed up outside of
    the log."""
    heads = [_header(each, sources) for each in (model, other)]
    return padded(model.size) == padded(other.size) and not any(head is None or is_summed_up(head) for head in heads)


def _header(block: Located, sources: Sequence[Source]) -> BlockHeader | None:
    start = block.offset + FRAME_BYTES
    try:
        return decode_header(sources[block.source].read(block.part, start, start + BLOCK_BYTES))
    except BadBody:
        return None


def _entries(block: Located, sources: Sequence[Source]) -> dict[int, Entry]:
    start = block.offset + FRAME_BYTES
    data = bytes(sources[block.source].read(block.part, start, start + block.size))
    return {int(entry.vlsn): entry for entry in entries(data, decode(data))}


def _said(entry: Entry) -> tuple[object, ...]:
    return entry.term, entry.time, entry.kind, entry.txn, entry.key, entry.value


def _fields(mine: Entry, yours: Entry) -> list[str]:
    return [name for name in Entry.__struct_fields__ if getattr(mine, name) != getattr(yours, name)]


def _place(block: Located, sources: Sequence[Source]) -> dict[str, Any]:
    return {"source": sources[block.source].text, "file": block.part.file, "offset": block.offset}


def _entry(entry: Entry | None, at: Mapping[str, int]) -> dict[str, Any]:
    if entry is None:
        return {}
    kind = EntryKind(entry.kind).name
    data = shown("key", entry.key, at.get("key", 0)) | shown("value", entry.value, at.get("value", 0))
    return {"term": entry.term, "time": entry.time, "kind": kind} | data
