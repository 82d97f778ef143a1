"""Repairs a stopped node's copy by an audit's report: replaces blocks that differ from those of a majority.

    report: ranges that differ from the majority's ─► read again in both copies: are they still as the report says?
    ─► blocks that a majority has and this copy lacks       ─► places that hold something else in this copy
    ─► each place filled exactly        (``vlsn.repair.replacing``: old bytes aside, segments renamed over)
    ─► the ranges read again: they must equal the majority's

A majority is more than half of the copies in the report. One of two copies is no majority, so a person must name the
right copy. The repair replaces only blocks that were compared: durable, in every copy's range, and not part of a
rollback.

The repair reads one segment at a time, of this copy and of one other copy. The bytes to write are kept in memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np

from repl.audit.blocks import ROW, Blocks, Rows, frames_of, read_blocks
from repl.audit.digest import (
    RANGE_BITS,
    Checksums,
    Digests,
    RangeDigest,
    Share,
    block_digests,
    compared_bytes,
    shares_of,
    summed,
)
from repl.audit.directory import DirectorySource
from repl.audit.findings import Finding
from repl.audit.majority import most
from repl.audit.mends import is_replaceable
from repl.audit.plan import Part, Survey
from repl.audit.report import AuditReport, SourceReport
from repl.audit.source import Source, Unreadable
from repl.audit.sources import source_of
from vlsn.errors import BadArgument, IntegrityFault
from vlsn.format.block import BlockHeader, decode_header
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES, FrameKind, padded
from vlsn.format.records import RollbackStart
from vlsn.format.rollback_periods import end_of
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import Lsn, lsn
from vlsn.recover.identity import NODE_FILE_NAME
from vlsn.repair.replacing import REPLACED_BYTES_MAX, Replacement, filled, replace_blocks
from vlsn.seams import Disk, Stores
from vlsn.segments.restore_marker import check_no_restore
from vlsn.state import node_file
from vlsn.verify.frames import Bools, Frames

AGAIN: Final = "audit again, and repair from that report"


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes ``start`` to ``end`` (exclusive) of a segment, in which this copy has none of the majority's blocks."""

    part: Part
    start: int
    end: int
    log_end: int
    before: int
    """The last VLSN of the visible block before the place; 0 if there is none."""
    behind: int
    """The first VLSN of the visible block after the place; 0 if there is none."""
    gone: tuple[BlockHeader, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairPlan:
    """The changes that a repair would make, checked to the last byte, but not made yet."""

    node: str
    source: str
    """The copy that the blocks come from, by its name in the report; "" if nothing differs."""
    ranges: tuple[int, ...]
    replacements: tuple[Replacement, ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    """The first and the last VLSN of each replacement."""
    digests: dict[int, RangeDigest] = field(default_factory=dict)
    """The majority's digests of the repaired ranges."""
    left: tuple[Finding, ...] = ()
    """The report's findings about this copy that a repair does not mend. Each finding names the command that mends
    it."""

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.replacements)

    @property
    def blocks(self) -> int:
        return sum(len(each.blocks) for each in self.replacements)


class Repair:
    """Repairs the directory ``path`` from ``report``. The caller holds the directory's lock. If there is no majority,
    ``right`` names the copy that is right, one of the report's sources."""

    def __init__(self, path: str, report: AuditReport, disk: Disk, stores: Stores, *, right: str = "") -> None:
        self._path = os.path.abspath(path)
        self._report = report
        self._disk, self._stores = disk, stores
        self._right = right
        self._bounds = report.compared_from, report.compared_to

    def plan(self) -> RepairPlan:
        """Finds the blocks to replace. Raises ``BadArgument`` if the report is not about this copy or does not show
        which copy is right. Raises ``Unreadable``."""
        check_no_restore(self._disk, self._path)
        mine = self._mine()
        if self._right and self._named() is mine:
            raise BadArgument(f"--right {self._right}: is the copy that is to be repaired")
        source = DirectorySource(self._path, self._path, held=True)
        survey = self._surveyed(source, mine)
        wanted = self._wanted(mine)
        if not wanted:
            return RepairPlan(node=mine.node, source="", ranges=(), left=self._left(mine))
        here = self._copy(source, survey, mine, wanted)
        here.check(mine.digests)
        models = self._models(mine, wanted)
        failures: list[str] = []
        for model in models:
            try:
                other = source_of(model.path or model.source)
                there = self._copy(other, self._surveyed(other, model), model, wanted)
                there.check(wanted)
                return self._planned(here, there, model.source, wanted)
            except Unreadable as error:
                failures.append(str(error))
        raise Unreadable("no copy to repair from can be read: " + "; ".join(failures))

    def carry_out(self, plan: RepairPlan) -> list[str]:
        """Makes the changes of ``plan``, durable on return, and reads the ranges again. Returns the names of the files
        with the old bytes. Raises ``IntegrityFault`` if this copy still differs from the majority afterwards."""
        if not plan.replacements:
            return []
        kept = replace_blocks(self._disk, self._stores, self._path, plan.replacements)
        mine = self._mine()
        source = DirectorySource(self._path, self._path, held=True)
        again = self._copy(source, source.survey(0), mine, plan.digests)
        if again.digests != plan.digests:
            raise IntegrityFault(f"{self._path}: it is not the majority's after the repair; {AGAIN}")
        return kept

    def _copy(self, source: Source, survey: Survey, row: SourceReport, ranges: dict[int, RangeDigest]) -> _Copy:
        return _Copy(source, survey, row, ranges, self._bounds, self._report.checksums)

    def _mine(self) -> SourceReport:
        """Returns the report's part about this copy."""
        record = node_file.read(self._disk, f"{self._path}/{NODE_FILE_NAME}")
        report = self._report
        if record.group != report.group:
            raise BadArgument(f"{self._path}: of group {record.group}, and the report is of group {report.group}")
        if not report.compared_to:
            raise BadArgument("the report compared nothing")
        if report.partial:
            raise BadArgument(
                f"the report is partial, since a copy could not be read: {report.not_audited[0].why}; {AGAIN}"
            )
        found = [each for each in report.sources if each.node == record.node]
        if len(found) > 1:
            found = [each for each in found if os.path.realpath(each.path) == os.path.realpath(self._path)]
        if not found:
            names = ", ".join(each.node for each in report.sources)
            raise BadArgument(f"{self._path}: is node {record.node}, and the report is of {names}")
        return found[0]

    def _surveyed(self, source: Source, row: SourceReport) -> Survey:
        """Surveys a source, and checks that it is the copy that ``row`` of the report describes."""
        survey = source.survey(0)
        found = (survey.group, survey.node, survey.incarnation)
        if found != (self._report.group, row.node, row.incarnation):
            group, node, incarnation = found
            raise BadArgument(
                f"{source.text}: is node {node} of group {group}, incarnation {incarnation}, and the report is of "
                f"node {row.node} of group {self._report.group}, incarnation {row.incarnation}; {AGAIN}"
            )
        return survey

    def _wanted(self, mine: SourceReport) -> dict[int, RangeDigest]:
        """Returns, by range, the digests that this copy should have and does not have."""
        digests = {id(each): each.digests for each in self._report.sources}
        every = sorted(set().union(*digests.values()))
        wanted: dict[int, RangeDigest] = {}
        for at in every:
            votes = [found.get(at) for found in digests.values()]
            right = self._judged(at, votes, digests[id(self._named())].get(at) if self._right else None)
            if right != digests[id(mine)].get(at):
                if right is None:
                    raise BadArgument(f"VLSN {at << RANGE_BITS} on: the copies that agree have nothing there")
                wanted[at] = right
        return wanted

    def _judged(self, at: int, votes: list[RangeDigest | None], named: RangeDigest | None) -> RangeDigest | None:
        if self._right:
            return named
        right, count = most(votes)
        if 2 * count <= len(votes):
            of = f"{count} of {len(votes)} copies agree"
            raise BadArgument(
                f"VLSN {at << RANGE_BITS} to {((at + 1) << RANGE_BITS) - 1}: no majority says what is right ({of}); "
                "--right SOURCE names the copy that is"
            )
        return right

    def _named(self) -> SourceReport:
        found = [each for each in self._report.sources if self._right in (each.source, each.node, each.path)]
        if len(found) != 1:
            names = ", ".join(each.source for each in self._report.sources)
            raise BadArgument(f"--right {self._right}: is not one of the report's copies: {names}")
        return found[0]

    def _models(self, mine: SourceReport, wanted: dict[int, RangeDigest]) -> list[SourceReport]:
        """Returns the copies that have all ``wanted`` digests."""
        if self._right:
            return [self._named()]
        others = [each for each in self._report.sources if each is not mine]
        models = [each for each in others if all(each.digests.get(at) == right for at, right in wanted.items())]
        if not models:
            raise BadArgument("no single copy has all blocks that are missing here: repair one of the others first")
        return models

    def _left(self, mine: SourceReport) -> tuple[Finding, ...]:
        found = (each for each in self._report.findings if each.source == mine.source)
        return tuple(each for each in found if not is_replaceable(each, self._bounds))

    def _planned(self, here: _Copy, there: _Copy, model: str, wanted: dict[int, RangeDigest]) -> RepairPlan:
        missing = there.blocks[~np.isin(there.blocks["digest"], here.blocks["digest"])]
        if int(missing["size"].sum()) > REPLACED_BYTES_MAX:
            raise BadArgument(
                f"{self._path}: {missing['size'].sum()} bytes differ, and at most {REPLACED_BYTES_MAX} are replaced in "
                "place; have the node restored from the others (`vlsnlog restore --help`)"
            )
        places = here.places(there.blocks["digest"], missing["digest"])
        replacements, spans = _assigned(places, missing, there, self._path)
        filled(self._disk, self._path, replacements)
        return RepairPlan(
            node=here.row.node,
            source=model,
            ranges=tuple(sorted(wanted)),
            replacements=tuple(replacements),
            spans=tuple(spans),
            digests=wanted,
            left=self._left(here.row),
        )


class _Copy:
    """The blocks of one copy, in the ranges that the report compared."""

    def __init__(
        self,
        source: Source,
        survey: Survey,
        row: SourceReport,
        ranges: dict[int, RangeDigest],
        bounds: tuple[int, int],
        checksums: Checksums,
    ) -> None:
        self.source = source
        self.row = row
        self._ranges = np.array(sorted(ranges), np.uint64)
        self._bounds = bounds
        self._checksums = checksums
        self._parts = [part for part in survey.parts if self._may_hold(part)]
        pieces = [np.empty(0, ROW)]
        shares: list[Share] = []
        for index, part in enumerate(self._parts):
            _, _, blocks = self._read(part)
            blocks = blocks.only(blocks.visible)
            blocks = blocks.only(self._compared(blocks))
            shares += shares_of(blocks.first, blocks.headers["count"].astype(np.uint64), blocks.digests)
            pieces.append(blocks.rows(0, index))
        self.blocks = np.sort(np.concatenate(pieces), order="first")
        self.digests = summed(shares)

    def check(self, reported: dict[int, RangeDigest]) -> None:
        """Checks that the copy still has the digests in the report. Raises ``BadArgument``."""
        for at in self._ranges.tolist():
            if self.digests.get(at) != reported.get(at):
                raise BadArgument(
                    f"{self.source.text}: VLSN {max(self._bounds[0], at << RANGE_BITS)} on are not what the report "
                    f"says of it: it has changed since; {AGAIN}"
                )

    def block(self, row: Any) -> bytes:
        """Reads the block of a ``ROW``, and checks that its digest is unchanged. Raises ``Unreadable``."""
        part, start = self._parts[int(row["place"])], int(row["offset"]) + FRAME_BYTES
        data = bytes(self.source.read(part, start, start + int(row["size"])))
        compared = compared_bytes(self._checksums, [data])
        if block_digests(self._checksums, np.array([crc(data)], np.uint32), compared)[0] != row["digest"]:
            raise Unreadable(f"{self.source.text}/{part.file}: VLSN {row['first']} has changed while it was read")
        return data

    def places(self, right: Digests, missing: Digests) -> list[Place]:
        """Returns, in the log's order, the byte ranges that contain no complete frame to keep. A visible block is
        removed if it is in the compared ranges and its digest is not in ``right``. An overmarked (rolled-back) block
        is removed if its digest is in ``missing`` and no rollback explains the mark. All other blocks of this copy
        stay."""
        rollbacks: list[tuple[Lsn, RollbackStart]] | None = None
        found: list[Place] = []
        before = 0
        for part in self._parts:
            buf, frames, blocks = self._read(part)
            stays = ~blocks.visible | ~self._compared(blocks) | np.isin(blocks.digests, right)
            stays &= blocks.whole
            marked = blocks.overmarked & blocks.whole & np.isin(blocks.digests, missing)
            for row in np.flatnonzero(marked).tolist():
                at = lsn(part.number, int(blocks.offsets[row]))
                rollbacks = self.source.rollbacks(1) if rollbacks is None else rollbacks
                stays[row] = any(record.first_lsn <= at < end_of(begun, record) for begun, record in rollbacks)
            log_end = _log_end(part, frames)
            for start, end in _between(frames, blocks, stays, log_end):
                low = stays & blocks.visible & (blocks.offsets < start)
                high = stays & blocks.visible & (blocks.offsets >= end)
                inside = blocks.visible & ~stays & (blocks.offsets >= start) & (blocks.offsets < end)
                gone = [decode_header(memoryview(buf), at + FRAME_BYTES) for at in blocks.offsets[inside].tolist()]
                last = int(blocks.last[low][-1]) if low.any() else before
                first = int(blocks.first[high][0]) if high.any() else 0
                found.append(Place(part, start, end, log_end, last, first, tuple(gone)))
            visible = blocks.only(stays & blocks.visible)
            before = int(visible.last[-1]) if len(visible) else before
        return found

    def _compared(self, blocks: Blocks) -> Bools:
        low, high = (np.uint64(bound) for bound in self._bounds)
        right: Bools = np.isin(blocks.first >> np.uint64(RANGE_BITS), self._ranges)
        return right & (blocks.first >= low) & (blocks.last <= high)

    def _read(self, part: Part) -> tuple[memoryview, Frames, Blocks]:
        buf = memoryview(self.source.read(part, 0, part.end))
        frames = frames_of(buf, part, checksums=self._checksums)
        return buf, frames, read_blocks(frames, self._checksums)

    def _may_hold(self, part: Part) -> bool:
        """Returns whether the segment may contain blocks of the ranges, according to the report. The neighbours'
        visible blocks limit the segment, because its own first and last blocks may be damaged."""
        rows = self.row.segments
        at = next((index for index, row in enumerate(rows) if row.number == part.number), None)
        if at is None:
            return False  # the segment was made after the report
        low = max((row.last for row in rows[:at]), default=0) + 1
        high = min((row.first for row in rows[at + 1 :] if row.first), default=self.row.last + 1) - 1
        first = self._ranges << np.uint64(RANGE_BITS)
        return bool(((first <= max(high, 0)) & (first + np.uint64((1 << RANGE_BITS) - 1) >= low)).any())


def _log_end(part: Part, frames: Frames) -> int:
    """Returns the highest offset up to which a record says that the segment was synced. The segment's own bytes may not
    show the end of the log, because of damage."""
    synced = frames.headers["synced"][frames.good]
    return max(frames.end, part.stated, int(synced.max()) if len(synced) else 0)


def _between(frames: Frames, blocks: Blocks, stays: Bools, log_end: int) -> Iterator[tuple[int, int]]:
    """Yields the byte ranges between the frames that stay: intact records, and blocks that stay."""
    records = frames.good & (frames.headers["kind"] != FrameKind.BLOCK)
    kept = np.sort(np.concatenate((frames.offsets[records], blocks.offsets[stays])))
    rows = np.searchsorted(frames.offsets, kept)
    sizes = (frames.headers["length"][rows].astype(np.int64) + FRAME_BYTES + 7) & ~7
    edges = [(0, FIRST_FRAME), *zip(kept.tolist(), (kept + sizes).tolist(), strict=True), (log_end, 0)]
    for (_, start), (end, _) in pairwise(edges):
        if start < end:
            yield start, end


def _assigned(
    places: Sequence[Place], missing: Rows, there: _Copy, path: str
) -> tuple[list[Replacement], list[tuple[int, int]]]:
    """Assigns the missing blocks to the places, both in order. A place without a block is not changed, because its
    damage is outside the compared VLSNs."""
    replacements: list[Replacement] = []
    spans: list[tuple[int, int]] = []
    at = 0
    for place in places:
        taken: list[Any] = []
        room = place.end - place.start
        while at < len(missing) and (not place.behind or missing[at]["first"] < place.behind):
            size = FRAME_BYTES + padded(int(missing[at]["size"]))
            if size > room:
                break
            taken.append(missing[at])
            room, at = room - size, at + 1
        if taken:
            data = tuple(there.block(each) for each in taken)
            replacements.append(Replacement(place.part.number, place.start, place.end, place.log_end, data, place.gone))
            spans.append((int(taken[0]["first"]), int(taken[-1]["last"])))
        elif place.gone:
            raise _unfit(path, place, int(missing[at]["first"]) if at < len(missing) else place.before + 1)
    if at < len(missing):
        vlsn = int(missing[at]["first"])
        raise _unfit(path, next((each for each in places if not each.behind or vlsn < each.behind), None), vlsn)
    return replacements, spans


def _unfit(path: str, place: Place | None, vlsn: int) -> BadArgument:
    where = f"/{place.part.file} offset {place.start} ({place.end - place.start} bytes)" if place else ""
    return BadArgument(
        f"{path}{where}: what belongs there from VLSN {vlsn} on is of another size, and cannot be replaced in place; "
        "have the node restored from the others (`vlsnlog restore --help`)"
    )
