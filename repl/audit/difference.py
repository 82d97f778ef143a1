"""Finds the first difference in a range of VLSNs whose digests are not equal: the VLSN, and both values.

Each range that differs has its own task, which reads only the frames of that range from every source. The content that
most copies have is the *model*. If two contents are in equally many copies, the first source's content is the model. A
block that is damaged in a copy, or missing at the copy's edge, is a finding already. It is compared here only if the
other copies have a block with another name at that place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from repl.audit.blocks import ROW, Rows, blocks_at
from repl.audit.digest import RANGE_BITS, U64, Checksums, Place
from repl.audit.findings import Finding, shown
from repl.audit.majority import most
from repl.audit.plan import Bounds, Part
from repl.audit.rules import AuditRule
from repl.audit.source import Source
from vlsn.errors import BadBody
from vlsn.format.block import BLOCK_BYTES, BlockHeader, Entry, EntryKind, decode, decode_header, entries
from vlsn.format.frame import FRAME_BYTES, padded
from vlsn.repair.replacing import is_summed_up
from vlsn.verify.frames import Bools
from vlsn.verify.inspection import Rule

_BYTES = {"key", "value"}
RANGES_SHOWN = 16
"""The most ranges that are searched for their first difference. Further ranges that differ are only counted."""


@dataclass(frozen=True, slots=True)
class _Located:
    """One block of one source. The block has ``size`` bytes, after the header of the frame at ``offset``."""

    source: int
    part: Part
    offset: int
    size: int
    first: int

    @classmethod
    def of(cls, row: np.void, task: RangeTask) -> Self:
        part = task.places[int(row["place"])][0]
        return cls(part.source, part, *(int(row[name]) for name in ("offset", "size", "first")))


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A range of VLSNs to search, and the places of its blocks in each source. A source is named by its number in the
    list of sources."""

    range: int
    bounds: Bounds
    checksums: Checksums
    places: tuple[tuple[Part, Place], ...]


def first_differences(task: RangeTask, sources: Sequence[Source]) -> list[Finding]:
    """Returns one finding for each source whose blocks differ from the blocks that most sources have."""
    rows = rows_of(task, sources)
    rows = rows[rows["visible"] & inside(rows, task) & (rows["last"] > task.bounds.after)]
    rows = rows[np.argsort(rows["first"], kind="stable")]  # if two blocks are at one VLSN, the later one counts
    copies = [rows[rows["source"] == index] for index in range(len(sources))]
    vlsns = np.unique(rows["first"])
    digests = np.stack([_covering(copy, vlsns) for copy in copies])
    there = digests != b""
    differ = (there & (digests != digests[there.argmax(axis=0), np.arange(len(vlsns))])).any(axis=0)
    if not differ.any():
        return []
    at = int(differ.argmax())
    having = [copy for copy, has in zip(copies, there[:, at], strict=True) if has]
    here = [copy[np.searchsorted(copy["first"], vlsns[at], "right") - 1] for copy in having]
    right, _ = most(block["digest"] for block in here)
    model = next(block for block in here if block["digest"] == right)
    return [difference(task, model, other, sources) for other in here if other["digest"] != right]


def rows_of(task: RangeTask, sources: Sequence[Source]) -> Rows:
    """Reads the intact blocks of a range in every source, both visible and rolled-back ones."""
    pieces = [np.empty(0, ROW)]
    for index, (part, place) in enumerate(task.places):
        _, blocks = blocks_at(sources[part.source], part, place.start, place.end, task.checksums)
        blocks = blocks.only(blocks.whole & (blocks.first >> np.uint64(RANGE_BITS) == task.range))
        pieces.append(blocks.rows(part.source, index))
    return np.concatenate(pieces)


def inside(rows: Rows, task: RangeTask) -> Bools:
    """Marks the blocks that are within the compared VLSNs."""
    marked: Bools = (rows["first"] >= task.bounds.first) & (rows["last"] <= task.bounds.last)
    return marked


def _covering(copy: Rows, vlsns: U64) -> NDArray[np.bytes_]:
    """Returns, for each of ``vlsns``, the digest of the block that contains it. For a damaged or missing block, which
    is a finding already, the digest is empty."""
    digests = np.zeros(len(vlsns), copy["digest"].dtype)
    if len(copy):
        at = np.searchsorted(copy["first"], vlsns, "right") - 1
        there = (at >= 0) & (vlsns <= copy["last"][at])
        digests[there] = copy["digest"][at[there]]
    return digests


def difference(
    task: RangeTask,
    model_row: np.void,
    other_row: np.void,
    sources: Sequence[Source],
    rule: Rule | AuditRule = AuditRule.DIVERGENCE,
) -> Finding:
    """Returns a finding that describes how one block differs from the model: the first VLSN, and both values."""
    model, other = (_Located.of(row, task) for row in (model_row, other_row))
    try:
        ours, theirs = _entries(model, sources), _entries(other, sources)
    except BadBody as error:  # the checksums are right, but the bytes are not a valid block
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
    """Returns the index of the first byte at which two values differ. If one value is the beginning of the other,
    returns the length of the shorter value."""
    one, two = one or b"", two or b""
    return next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def _is_replaceable(model: _Located, other: _Located, sources: Sequence[Source]) -> bool:
    """Returns whether a repair may write the model's block over the other block. The two blocks must have the same
    size, and no record outside the log may be derived from either block."""
    heads = [_header(each, sources) for each in (model, other)]
    return padded(model.size) == padded(other.size) and not any(head is None or is_summed_up(head) for head in heads)


def _header(block: _Located, sources: Sequence[Source]) -> BlockHeader | None:
    start = block.offset + FRAME_BYTES
    try:
        return decode_header(sources[block.source].read(block.part, start, start + BLOCK_BYTES))
    except BadBody:
        return None


def _entries(block: _Located, sources: Sequence[Source]) -> dict[int, Entry]:
    start = block.offset + FRAME_BYTES
    data = bytes(sources[block.source].read(block.part, start, start + block.size))
    return {int(entry.vlsn): entry for entry in entries(data, decode(data))}


def _said(entry: Entry) -> tuple[object, ...]:
    return entry.term, entry.time, entry.kind, entry.txn, entry.key, entry.value


def _fields(mine: Entry, yours: Entry) -> list[str]:
    return [name for name in Entry.__struct_fields__ if getattr(mine, name) != getattr(yours, name)]


def _place(block: _Located, sources: Sequence[Source]) -> dict[str, Any]:
    return {"source": sources[block.source].text, "file": block.part.file, "offset": block.offset}


def _entry(entry: Entry | None, at: Mapping[str, int]) -> dict[str, Any]:
    if entry is None:
        return {}
    kind = EntryKind(entry.kind).name
    data = shown("key", entry.key, at.get("key", 0)) | shown("value", entry.value, at.get("value", 0))
    return {"term": entry.term, "time": entry.time, "kind": kind} | data
