"""A node's directory as a source of an audit. The node may be stopped or running, or the directory may be a copy.

The directory's lock shows whether the node runs. A running node's log is read up to the synced length, which comes from
the log's own bytes and from ``state``. All bytes before that length must be intact. A stopped node's last segment is
read to the end of the file, where a torn tail (a write cut by a crash) is normal. The checkpoint and the idle end in
``state`` limit which bytes can be a torn tail. Files are read, not memory-mapped: a bad sector is then an error, and
does not kill the worker process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from repl.audit.blocks import frames_of
from repl.audit.findings import Finding
from repl.audit.members import group_at
from repl.audit.mends import CONFIG_FILE
from repl.audit.plan import Indexed, Noted, Part, Survey
from repl.audit.report import Sizes
from repl.audit.segment_buffer import segment_buffer
from repl.audit.source import Unreadable
from vlsn.errors import BadBody, Damaged, Restoring
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, BlockHeader, decode_header
from vlsn.format.frame import FRAME_BYTES, OVERMARKED, FrameKind
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackStart
from vlsn.format.segment import FIRST_FRAME, segment_name, sidecar_name
from vlsn.ids import U64_MAX, Lsn, lsn_file
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.real.regular_files import open_regular
from vlsn.recover.recovery import INDEX_NAME, NODE_FILE_NAME, STATE_NAME
from vlsn.recover.versions import check_versions
from vlsn.seams import Buffer, Disk
from vlsn.segments.directory import LOCK_NAME
from vlsn.segments.restore_marker import check_no_restore
from vlsn.state.node_file import NodeRecord, read_slots
from vlsn.verify.index_mappings import Mappings, read_mappings
from vlsn.verify.inspection import Rule
from vlsn.verify.segment_chain import Link, Stated, Stray, log_chain, read_stated, rollback_starts

HEAD_BYTES: Final = 1 << 20
"""The bytes of a segment that are read first; nearly always, these bytes contain the first block."""
PIECE_BYTES: Final = 1 << 20
_KINDS: Final = {".vlog": "segments", ".vidx": "sidecars"}
_ASIDE: Final = re.compile(r"\.(cut|damaged)-|\.old\b")
TAIL_BYTES: Final = 8 << 20
"""The bytes before the end of the log that are searched for the highest durable end (DTVLSN). It is nearly always in
the last block, because later blocks have higher ones."""


@dataclass(frozen=True, slots=True)
class DirectorySource:
    path: str
    """The absolute path, because a task has another working directory."""
    text: str
    held: bool = False
    """True if this process holds the directory's lock, so that no node runs on the directory."""

    @property
    def near(self) -> bool:
        return True

    def disk(self) -> Disk:
        return PosixDisk()

    def stated(self, *, live: bool) -> Stated:
        return read_stated(LmdbStores(), self.path, live=live)

    def mappings(self, first: int = 0, last: int = U64_MAX) -> Mappings:
        return read_mappings(LmdbStores(), self.path, first, last)

    def modified_us(self, part: Part) -> int:
        return os.stat(f"{self.path}/{part.file}").st_mtime_ns // 1000

    def sizes(self) -> Sizes:
        return _sizes(self.path)

    def survey(self, index: int) -> Survey:
        disk = self.disk()
        try:
            check_versions(disk, self.path)
            check_no_restore(disk, self.path)
            live = not self.held and disk.is_locked(f"{self.path}/{LOCK_NAME}")
            stated = self.stated(live=live)
            chain = log_chain(disk, self.path, live=live, stated=stated.ends)
            links = chain.links
            headers = [link.header for link in links if link.header is not None]
            if not headers:
                raise Unreadable(f"{self.text}: no segments (*.vlog) that can be read; name a node's directory")
            own = [header for header in headers if (header.group, header.node) == chain.owner]
            parts = [_part(index, link, stated) for link in links]
            parts[-1] = self._without_zeros(parts[-1])
            parts = [replace(part, modified_us=self.modified_us(part)) for part in parts]
            first, last, dtvlsn = self._bounds(parts)
            findings = [self._header_fault(link) for link in links if link.fault or link.foreign]
            findings += [self._stray(stray) for stray in chain.strays]
            sizes = self.sizes()
            findings += [self._finding(Rule.STATE, STATE_NAME, 0, fault) for fault in stated.faults]
            promised = self._promised(disk, findings)
            missing = [] if live else [(name, last + 1) for name in stated.missing_after(links)]
            if not live:
                mappings = self.mappings()
                parts = [replace(part, buckets=mappings.spans.get(part.number, (0, 0))) for part in parts]
                begin = stated.missing_before(links, min(mappings.by_segment, default=0))
                missing += [begin] if begin is not None else []
                findings += self._index_faults(mappings, links, {name for name, _ in missing})
        except Restoring as error:
            raise Unreadable(f"{self.text}: {error}") from error
        except OSError as error:
            raise Unreadable(f"{self.text}: {error.strerror or error}") from error
        findings += [self._finding(Rule.GAP, name, vlsn, "the segment is missing") for name, vlsn in missing]
        return Survey(
            group=chain.owner[0],
            node=chain.owner[1],
            live=live,
            parts=tuple(parts),
            first=first,
            last=last,
            dtvlsn=max(dtvlsn, stated.dtvlsn),
            findings=tuple(findings),
            incarnation=f"{own[-1].incarnation:016x}" if own else "",
            sizes=sizes,
            stated=_noted(stated, None if live else promised),  # a live node may win an election meanwhile
            configured=disk.exists(f"{self.path}/{CONFIG_FILE}"),
            founding=stated.record.founding if stated.record is not None else "",
        )

    def read(self, part: Part, start: int, end: int, into: bytearray | None = None) -> Buffer:
        buf = into if into is not None and len(into) >= end - start else bytearray(end - start)
        try:
            with open(f"{self.path}/{part.file}", "rb", buffering=0, opener=open_regular) as file:
                file.seek(start)
                view, at = memoryview(buf)[: end - start], 0
                while at < len(view) and (got := file.readinto(view[at : at + PIECE_BYTES])):
                    at += got
        except OSError as error:
            raise Unreadable(f"{self.text}/{part.file}: {error.strerror or error}") from error
        return view[:at]

    def fill(self, part: Part, spans: Sequence[tuple[int, int]], into: bytearray) -> None:
        try:
            with open(f"{self.path}/{part.file}", "rb", buffering=0, opener=open_regular) as file:
                for start, end in spans:
                    if os.preadv(file.fileno(), [memoryview(into)[start:end]], start) != end - start:
                        raise Unreadable(f"{self.text}/{part.file}: it has become shorter while it was read")
        except OSError as error:
            raise Unreadable(f"{self.text}/{part.file}: {error.strerror or error}") from error

    def rollbacks(self, from_number: int) -> list[tuple[Lsn, RollbackStart]]:
        try:
            return list(rollback_starts(self.disk(), self.path, from_number))
        except OSError as error:
            raise Unreadable(f"{self.text}: {error.strerror or error}") from error

    def sidecar(self, part: Part) -> bytes | None:
        if part.newest:
            return None  # the segment was closed after the survey, so its sidecar covers more than the survey has seen
        try:
            with open(f"{self.path}/{sidecar_name(part.number)}", "rb", opener=open_regular) as file:
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Unreadable(f"{self.text}: {error}") from error

    def indexed(self, parts: Sequence[Part]) -> dict[int, Indexed]:
        mine = [part for part in parts if part.buckets[1]]
        if not mine or (not self.held and self.disk().is_locked(f"{self.path}/{LOCK_NAME}")):
            return {}  # the index is in use, or was begun since the survey
        found = self.mappings(min(part.buckets[0] for part in mine), max(part.buckets[1] for part in mine))
        columns = ((part.number, found.by_segment.get(part.number)) for part in mine)
        return {number: Indexed(*each, found.bounds) for number, each in columns if each is not None}

    def _promised(self, disk: Disk, findings: list[Finding]) -> NodeRecord | None:
        """Reads the node file. Every directory that a node has opened has a node file; a copy of the log alone has
        none."""
        try:
            return read_slots(disk, f"{self.path}/{NODE_FILE_NAME}")[0]
        except FileNotFoundError:
            if all(disk.exists(f"{self.path}/{name}") for name in (STATE_NAME, INDEX_NAME)):
                findings.append(self._finding(Rule.NODE_FILE, NODE_FILE_NAME, 0, "the node file is missing"))
            return None
        except Damaged as error:
            findings.append(self._finding(Rule.NODE_FILE, NODE_FILE_NAME, 0, str(error)))
            return None

    def _index_faults(self, found: Mappings, links: Sequence[Link], missing: Set[str]) -> Iterator[Finding]:
        """Yields findings for unreadable parts of the index. Also reports a missing segment if the index points into it
        and no other finding reports it."""
        for fault in found.faults:
            yield self._finding(Rule.INDEX, INDEX_NAME, fault.vlsn or 0, str(fault))
        known = {segment_name(number) for link in links for number in (link.number, *link.missing_before)} | missing
        first = links[0].number if min(known) < segment_name(links[0].number) else 0
        for number in sorted(number for number in found.by_segment if number >= first):
            if segment_name(number) not in known:
                vlsn = int(found.by_segment[number][0][0])
                detail = f"the index points into {segment_name(number)}, which is not there"
                yield self._finding(Rule.INDEX, INDEX_NAME, vlsn, detail)

    def _stray(self, stray: Stray) -> Finding:
        finding = self._finding(Rule.SEGMENT_HEADER, stray.name, stray.vlsn, stray.detail)
        return replace(finding, more={"segment": stray.holds})

    def _header_fault(self, link: Link) -> Finding:
        vlsn = link.prev_last_vlsn + 1
        file = self.disk().open(link.info.path)
        try:
            vlsn = int(decode_header(file.read(FIRST_FRAME + FRAME_BYTES, BLOCK_BYTES)).first_vlsn)
        except BadBody:
            pass  # the log's first block is unreadable, which another finding reports
        finally:
            file.close()
        more = {"of_node": link.header.node} if link.foreign and link.header is not None else {}
        return replace(self._finding(Rule.SEGMENT_HEADER, link.name, vlsn, link.fault or link.foreign), more=more)

    def _finding(self, rule: Rule, file: str, vlsn: int, detail: str) -> Finding:
        return Finding(rule=rule, source=self.text, file=file, offset=0, vlsn=vlsn, detail=detail)

    def _without_zeros(self, part: Part) -> Part:
        """Shortens the last segment by the zeros at its end, so that its file need not be read completely. Nearly all
        last segments end in zeros."""
        if part.closed:
            return part
        buf = self.read(part, 0, part.end, segment_buffer(part.end))
        if len(buf) & ~7 <= FIRST_FRAME:
            return part
        found = scan.walk(buf, base=0, start=FIRST_FRAME, end=len(buf) & ~7, salt=part.salt)
        return part if np.frombuffer(memoryview(buf)[found.end :], np.uint8).any() else replace(part, end=found.end)

    def _bounds(self, parts: Sequence[Part]) -> tuple[int, int, int]:
        """Returns the first and the last visible VLSN and the highest durable end (DTVLSN). Reads only the beginning
        and the end of the log."""
        first = last = dtvlsn = seen = 0
        for part in parts:
            if first := self._first_vlsn(part):
                break
        for part in reversed(parts):
            ends = _ends(self.read(part, 0, part.end, segment_buffer(part.end)), part)
            seen += part.end
            last, dtvlsn = max(last, ends[1]), max(dtvlsn, ends[2])
            if last and seen >= TAIL_BYTES:
                break
        return first, last, dtvlsn

    def _first_vlsn(self, part: Part) -> int:
        for end in sorted({min(HEAD_BYTES, part.end), part.end}):
            if first := _ends(self.read(part, 0, end), replace(part, end=end, stated=min(end, part.stated)))[0]:
                return first
        return 0


def _sizes(path: str) -> Sizes:
    """Returns the bytes on the disk, for each kind of file."""
    sizes = dict.fromkeys(("segments", "sidecars", "aside"), 0)
    with os.scandir(path) as there:
        for each in there:
            kind = _KINDS.get(each.name[8:], "aside" if _ASIDE.search(each.name) else "")
            if kind and each.is_file(follow_symlinks=False):
                sizes[kind] += _allocated_by(each)
    return Sizes(**sizes, index=_allocated(f"{path}/{INDEX_NAME}"), state=_allocated(f"{path}/{STATE_NAME}"))


def _allocated(path: str) -> int:
    try:
        with os.scandir(path) as there:
            return sum(map(_allocated_by, there))
    except OSError:
        return 0


def _allocated_by(file: os.DirEntry[str]) -> int:
    try:
        return file.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return 0  # cleaning of a running node has removed the file


def _part(index: int, link: Link, stated: Stated) -> Part:
    header = link.header if not link.fault else None
    end, synced = link.end, stated.offset_in(link.number)
    if end is not None:
        synced = end
    return Part(
        source=index,
        number=link.number,
        file=link.name,
        salt=link.salt,
        end=link.size & ~7 if end is None else end,
        stated=synced,
        prev_number=header.prev_number if header is not None else 0,
        prev_last_vlsn=link.prev_last_vlsn,
        readable=header is not None,
        indexed=lsn_file(stated.scan_from) > link.number,
        newest=link.last,
    )


def _noted(stated: Stated, promised: NodeRecord | None) -> Noted:
    record = stated.record
    term, floor = (None, 0) if promised is None else (promised.term, promised.floor_vlsn)
    if record is None:
        return Noted(dtvlsn=stated.dtvlsn, term=term, floor=floor)
    group = None if record.group is None else group_at(record.group_vlsn, record.group)
    return Noted(stated.dtvlsn, record.vlsn, tuple(record.term_runs), group, term, floor)


def _ends(buf: Buffer, part: Part) -> tuple[int, int, int]:
    """Returns three numbers of a segment, 0 for none: the first and the last visible VLSN, and the highest durable end
    (DTVLSN) in its blocks. Reads only lengths and a few headers, unless damage must be skipped."""
    end = min(part.end, len(buf) & ~7)
    if end <= FIRST_FRAME:
        return 0, 0, 0
    found = scan.walk(buf, base=0, start=FIRST_FRAME, end=end, salt=part.salt)
    offsets, headers = found.offsets, found.headers
    if found.reason in (scan.Stop.BAD, scan.Stop.SHORT):
        frames = frames_of(buf, part)
        offsets, headers = frames.offsets[frames.good], frames.headers[frames.good]
    visible = offsets[(headers["kind"] == FrameKind.BLOCK) & (headers["flag"] != OVERMARKED)]
    upwards = (block for offset in visible.tolist() if (block := _block(buf, offset)))
    downwards = (block for offset in visible[::-1].tolist() if (block := _block(buf, offset)))
    first, last = next(upwards, None), next(downwards, None)
    if first is None or last is None:
        return 0, 0, _checkpoint_dtvlsn(buf, part, offsets, headers)
    known = scan.block_headers(buf, 0, visible)["dtvlsn"]
    while known.any() and _block(buf, int(visible[known.argmax()])) is None:
        known[known.argmax()] = 0
    dtvlsn = max(int(known.max()), _checkpoint_dtvlsn(buf, part, offsets, headers))
    return int(first.first_vlsn), int(last.last_vlsn), dtvlsn


def _block(buf: Buffer, offset: int) -> BlockHeader | None:
    try:
        return decode_header(memoryview(buf), offset + FRAME_BYTES)
    except BadBody:
        return None


def _checkpoint_dtvlsn(buf: Buffer, part: Part, offsets: scan.Offsets, headers: scan.Headers) -> int:
    view = memoryview(buf)
    highest = 0
    for record, kind in ((CheckpointStart, FrameKind.CHECKPOINT_START), (CheckpointEnd, FrameKind.CHECKPOINT_END)):
        for offset in offsets[headers["kind"] == kind].tolist():
            if not scan.is_frame(buf, 0, offset, part.salt):
                continue
            try:
                start = offset + FRAME_BYTES
                highest = max(highest, record.decode(view[start : start + record.LAYOUT.size]).dtvlsn)
            except BadBody:
                continue  # the segment's own check reports this damaged record
    return highest
