"""Verification of a whole log directory: every checksum, order, flag and mapping.  Writes nothing.

Segments are gone through from the last to the first, each inspected whole (``inspection``), because what
judges a segment lies behind it: the end that the next header names, and the rollback records that its
overmark flags are checked against.  From one segment to the one before only a few values are carried.

    00000003.vlog   … START(4) END …     rollbacks = [4]     after = VLSN 9
    00000002.vlog   7 8 ✗5 ✗6            hidden = 5, 6       8 + 1 = 9
    00000001.vlog   1–4                                      …

Normal after a crash, and no finding: a torn tail, an index behind the log, a rollback whose flags are not all
set yet, a standby that was never taken.  Of a running node (``live``) only the log up to its stated synced end
is read, and not its index; it may begin a rollback meanwhile, so an overmark that is not explained by what was read
is held against the records that have come since.

A segment is held in memory at a time.  It is read, not mapped: a page that the disk does not give is then an error,
not the end of the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from vlsn import nodefile
from vlsn.chain import Link, Stated, log_chain, read_segment, read_stated, rollback_starts
from vlsn.directory import segment_numbers
from vlsn.errors import BadBody, Damaged, LogInUse
from vlsn.frame import FrameKind
from vlsn.ids import Lsn, lsn, lsn_file, lsn_offset
from vlsn.inspection import Fault, Inspected, Mask, Rule, inspect
from vlsn.mappings import Columns, read_mappings
from vlsn.proven import inspect_sealed
from vlsn.records import RollbackEnd, RollbackStart, decode_record
from vlsn.recovery import INDEX_NAME, LOCK_NAME, NODE_FILE_NAME, STATE_NAME
from vlsn.scan import Offsets
from vlsn.seams import Disk, Stores
from vlsn.segment import SegmentHeader, segment_name, sidecar_name
from vlsn.sidecar import SIDECAR_BYTES_MAX, Sidecar, content_crc
from vlsn.verify_report import Finding, TermRun, VerifyReport, kept_aside

Progress = Callable[[int, int], None]
"""Bytes done, bytes in all."""
FINDINGS_MAX = 100
"""Of one rule in one file; a log that is wrong throughout need not say so a million times."""


def verify(
    disk: Disk, stores: Stores, directory: str, *, live: bool = False, progress: Progress | None = None
) -> VerifyReport:
    """Verifies the log in ``directory``.  Raises ``LogInUse`` when a process has it open and ``live`` was not
    asked for, ``FileNotFoundError`` when there is no such directory."""
    if not live and disk.is_locked(f"{directory}/{LOCK_NAME}"):
        raise LogInUse(f"{directory} belongs to a running node; verify what it has synced with --live, or stop it")
    verifier = _Verifier(disk, directory, live)
    stated = read_stated(stores, directory, live=live)
    for fault in stated.faults:
        verifier.add(Rule.STATE, STATE_NAME, 0, 0, fault)
    if not live:
        mappings = read_mappings(stores, directory)
        verifier.mappings = mappings.by_segment
        for damaged in mappings.faults:
            verifier.add(Rule.INDEX, INDEX_NAME, 0, damaged.vlsn, str(damaged))
    verifier.run(stated, progress)
    return verifier.finished()


@dataclass(slots=True)
class _After:
    """The first visible block of what was verified so far; ``lost``: something before it may be missing."""

    first: int
    term: int
    file: str
    offset: int
    lost: bool


class _Verifier:
    def __init__(self, disk: Disk, directory: str, live: bool) -> None:
        self.report = VerifyReport()
        self.mappings: dict[int, Columns] = {}
        self._disk = disk
        self._directory = directory
        self._live = live
        self._buf = bytearray()
        self._counts: Counter[tuple[Rule, str]] = Counter()
        self._rollbacks: list[tuple[Lsn, RollbackStart]] = []
        self._ended: set[int] = set()
        self._last_block_lsn = 0
        self._after: _After | None = None
        self._next_header: SegmentHeader | None = None
        self._missing: list[str] = []
        """Segments between the one at hand and the one verified before."""
        self._unexplained: list[tuple[Link, Offsets, Offsets]] = []
        """Offsets and first VLSNs of overmarked blocks that no rollback record read so far explains."""

    def add(self, rule: Rule, file: str, offset: int, vlsn: int, detail: str) -> None:
        self._counts[rule, file] += 1
        if self._counts[rule, file] <= FINDINGS_MAX:
            self.report.findings.append(Finding(rule, file, offset, int(vlsn), detail))

    def finished(self) -> VerifyReport:
        report = self.report
        for number, (vlsns, offsets) in sorted(self.mappings.items()):
            name = segment_name(number)
            if (Rule.GAP, name) not in self._counts:
                self.add(Rule.INDEX, name, offsets[0], vlsns[0], "the index points into a segment that is not there")
        self._check_node_file()
        report.kept_aside = list(kept_aside(self._disk, self._directory))
        report.term_runs.reverse()
        report.findings.sort(key=lambda each: (each.file, each.offset, each.rule))
        return report

    def run(self, stated: Stated, progress: Progress | None) -> None:
        chain = log_chain(self._disk, self._directory, live=self._live, stated=stated.ends)
        self.report.torn_tail = chain.unsynced_segment
        total, done = sum(link.end or link.size for link in chain.links), 0
        for name in stated.missing_after(chain.links):
            self._missing.append(name)
        self._check_owner(chain.links)
        self._check_beginning(chain.links, stated)
        for link in reversed(chain.links):
            try:
                self._segment(link, stated)
            except FileNotFoundError:
                if self._live and self._is_head(link):
                    break  # cleaned away since it was listed, like all before it
                raise
            self._missing = [segment_name(number) for number in link.missing_before]
            self._next_header = link.header
            done += link.end or link.size
            if progress is not None:
                progress(done, total)
        self._check_unexplained(chain.links[-1].number if chain.links else 0)
        self.report.dtvlsn = max(self.report.dtvlsn, min(stated.dtvlsn, self.report.last))
        if not chain.links:
            for name in self._missing:
                self.add(Rule.GAP, name, 0, 1, "the segment is missing")

    def _check_beginning(self, links: Sequence[Link], stated: Stated) -> None:
        """A log begins later only where it was cleaned: that stands in ``state``, or, where that is older, in the
        index."""
        lost = stated.missing_before(links) if not self._live else 0
        if lost and min(self.mappings, default=0) != links[0].number:
            assert stated.record is not None
            vlsn = stated.record.trimmed_to + 1
            self.add(Rule.GAP, segment_name(lost), 0, vlsn, "the segment is missing, and was not cleaned away")

    def _is_head(self, link: Link) -> bool:
        """Whether no segment is left at or before ``link``."""
        return all(number > link.number for number, _ in segment_numbers(self._disk, self._directory))

    def _check_owner(self, links: Sequence[Link]) -> None:
        """All segments are one node's; whose, the last of them says."""
        headers = [(link, link.header) for link in links if link.header is not None]
        for link, header in headers:
            owner = headers[-1][1]
            if (header.group, header.node) != (owner.group, owner.node):
                detail = (
                    f"it is of node {header.node} of group {header.group}, the log of {owner.node} of {owner.group}"
                )
                self.add(Rule.SEGMENT_HEADER, link.name, 0, header.prev_last_vlsn + 1, detail)

    # One segment.

    def _segment(self, link: Link, stated: Stated) -> None:
        sidecar = self._sidecar(link)
        found = self._proven(link, sidecar) if sidecar is not None else None
        if found is None:
            found = self._inspected(link, stated)
        self._read_records(link, found)
        self._check_checkpoint(link, found, stated)
        lsns = found.block_offsets + (link.number << 32)
        hidden, certain = self._hidden(lsns)
        self._check_flags(link, found, hidden, certain)
        self._check_order(link, found, ~hidden)
        self._check_mappings(link, found, hidden)
        if sidecar is not None and not self._voided(link):
            self._check_sidecar(link, found, sidecar)
        self._count(found, ~hidden, last=link.last)

    def _read_records(self, link: Link, found: Inspected) -> None:
        if len(found.block_offsets):
            self._last_block_lsn = max(self._last_block_lsn, lsn(link.number, int(found.block_offsets[-1])))
        for offset, kind, payload in found.records:
            try:
                record = decode_record(kind, payload)
            except BadBody as error:
                found.faults.append(Fault(Rule.RECORD, offset, str(error)))
                continue
            if isinstance(record, RollbackStart):
                self._rollbacks.append((lsn(link.number, offset), record))
            elif isinstance(record, RollbackEnd):
                self._ended.add(record.start_lsn)

    def _check_checkpoint(self, link: Link, found: Inspected, stated: Stated) -> None:
        at = stated.checkpoint_end
        if at is None or lsn_file(at) != link.number or lsn_offset(at) >= found.end:
            return
        kinds = found.headers["kind"][found.offsets == lsn_offset(at)].tolist()
        if kinds != [FrameKind.CHECKPOINT_END] and lsn_offset(at) not in found.lost:
            found.faults.append(
                Fault(Rule.RECORD, lsn_offset(at), "no CHECKPOINT_END where the state's checkpoint ends")
            )

    def _hidden(self, lsns: Offsets) -> tuple[Mask, Mask]:
        """Which blocks the rollback records abandon, and of which of them the flag must be set by now."""
        hidden = np.zeros(len(lsns), dtype=np.bool_)
        certain = hidden.copy()
        for at, record in self._rollbacks:
            inside = (lsns >= record.first_lsn) & (lsns < record.end_lsn) & (lsns < at)
            hidden |= inside
            if at in self._ended or at < self._last_block_lsn:
                certain |= inside
        return hidden, certain

    def _check_flags(self, link: Link, found: Inspected, hidden: Mask, certain: Mask) -> None:
        strange = found.marked & ~hidden
        if strange.any():
            self._unexplained.append((link, found.block_offsets[strange], found.firsts[strange]))
        for index in np.flatnonzero(certain & ~found.marked).tolist():
            detail = "a rollback record abandons it, but it is not overmarked"
            self.add(Rule.OVERMARK, link.name, int(found.block_offsets[index]), int(found.firsts[index]), detail)

    def _check_unexplained(self, last_number: int) -> None:
        """Flags are set after their ROLLBACK_START was synced: a running node's lies in segment ``last_number``, where
        reading began, or behind it, if it is not there at all."""
        late: list[tuple[Lsn, RollbackStart]] = []
        if self._live and self._unexplained:
            late = list(rollback_starts(self._disk, self._directory, last_number))
        for link, offsets, vlsns in self._unexplained:
            lsns = offsets + lsn(link.number, 0)
            strange = np.ones(len(lsns), dtype=np.bool_)
            for start, record in late:
                strange &= (lsns < record.first_lsn) | (lsns >= record.end_lsn) | (lsns >= start)
            for index in np.flatnonzero(strange).tolist():
                detail = "overmarked, but no rollback record says so"
                self.add(Rule.OVERMARK, link.name, int(offsets[index]), int(vlsns[index]), detail)

    def _check_order(self, link: Link, found: Inspected, visible: Mask) -> None:
        places, firsts, lasts = found.block_offsets[visible], found.firsts[visible], found.lasts[visible]
        terms = found.terms[visible]
        lost = found.lost
        self._name_faults(link, found, places, firsts, lasts)
        if len(places):
            before = np.searchsorted(lost, places)
            excused = before[1:] > before[:-1]
            wrong = np.where(excused, firsts[1:] <= lasts[:-1], firsts[1:] != lasts[:-1] + 1)
            for index in (np.flatnonzero(wrong) + 1).tolist():
                self._out_of_order(link.name, int(places[index]), int(firsts[index]), int(lasts[index - 1]))
            for index in (np.flatnonzero(terms[1:] < terms[:-1]) + 1).tolist():
                self._term_falls(link.name, places[index], firsts[index], terms[index], terms[index - 1])
        self._check_seam(link, found, places, lasts, terms, lost)
        if len(places):
            self._after = _After(
                int(firsts[0]), int(terms[0]), link.name, int(places[0]), bool((lost < places[0]).any())
            )
        elif self._after is not None:
            self._after.lost |= len(lost) > 0

    def _check_seam(
        self, link: Link, found: Inspected, places: Offsets, lasts: Offsets, terms: Offsets, lost: Offsets
    ) -> None:
        """From this segment's last block to the first one behind it, and what the next header says of it."""
        last = int(lasts[-1]) if len(lasts) else link.prev_last_vlsn
        for name in self._missing:
            self.add(Rule.GAP, name, 0, last + 1, "the segment is missing")
        after, header = self._after, self._next_header
        lost_here = bool(self._missing) or bool((lost > places[-1]).any() if len(places) else len(lost))
        if after is not None and len(places):
            excused = lost_here or after.lost
            if after.first <= last or (after.first != last + 1 and not excused):
                self._out_of_order(after.file, after.offset, after.first, last)
            if after.term < terms[-1]:
                self._term_falls(after.file, after.offset, after.first, after.term, terms[-1])
        if after is not None:
            after.lost |= bool(self._missing)
        if header is not None and header.prev_number == link.number and len(found.lasts) and not lost_here:
            said, real = header.prev_last_vlsn, int(found.lasts[-1])
            if said != real and not found.marked[-1]:
                name = segment_name(header.number)
                detail = f"the header says that segment {link.number} ends with VLSN {said}, it ends with {real}"
                self.add(Rule.SEGMENT_HEADER, name, 0, real, detail)

    def _name_faults(self, link: Link, found: Inspected, places: Offsets, firsts: Offsets, lasts: Offsets) -> None:
        """A damaged block whose own header cannot say it has the VLSN after the block before it."""
        for fault in found.faults:
            before = int(np.searchsorted(places, fault.offset))
            known = int(lasts[before - 1]) if before else link.prev_last_vlsn
            self.add(fault.rule, link.name, fault.offset, fault.vlsn or known + 1, fault.detail)
        if link.fault:
            vlsn = int(firsts[0]) if len(firsts) else link.prev_last_vlsn + 1
            self.add(Rule.SEGMENT_HEADER, link.name, 0, vlsn, link.fault)

    def _out_of_order(self, file: str, offset: int, first: int, last: int) -> None:
        self.add(Rule.CONTIGUITY, file, offset, last + 1, f"VLSN {first} follows on {last}")

    def _term_falls(self, file: str, offset: int, vlsn: int, term: int, before: int) -> None:
        self.add(Rule.TERM_ORDER, file, int(offset), vlsn, f"term {term} follows on term {before}")

    # What is derived.

    def _check_mappings(self, link: Link, found: Inspected, hidden: Mask) -> None:
        if link.number not in self.mappings:
            return
        vlsns, offsets = self.mappings.pop(link.number)
        places = found.block_offsets
        at = np.minimum(np.searchsorted(places, offsets), max(len(places) - 1, 0))
        right = np.zeros(len(vlsns), dtype=np.bool_)
        if len(places):
            right = (places[at] == offsets) & (found.firsts[at] == vlsns)
            right &= ~hidden[at] | self._truncation_due(places[at] + (link.number << 32))
        if len(found.lost):
            right |= np.isin(offsets, found.lost)
        for index in np.flatnonzero(~right).tolist():
            detail = "the index points at no visible block that begins with this VLSN"
            self.add(Rule.INDEX, link.name, int(offsets[index]), int(vlsns[index]), detail)

    def _truncation_due(self, lsns: Offsets) -> Mask:
        """Blocks of a rollback after which nothing was logged: the crash may have come before the index was cut."""
        due = np.zeros(len(lsns), dtype=np.bool_)
        for at, record in self._rollbacks:
            if at > self._last_block_lsn:
                due |= (lsns >= record.first_lsn) & (lsns < record.end_lsn)
        return due

    def _proven(self, link: Link, sidecar: Sidecar) -> Inspected | None:
        assert link.end is not None
        file = self._disk.open(link.info.path)
        try:
            return inspect_sealed(file, salt=link.salt, end=link.end, sidecar=sidecar)
        except OSError:
            return None  # frame by frame it is told where the disk gives nothing
        finally:
            file.close()

    def _inspected(self, link: Link, stated: Stated) -> Inspected:
        size, lost = read_segment(self._disk, link, self._buf)
        found = inspect(self._buf, size=size, salt=link.salt, end=link.end, stated=stated.offset_in(link.number))
        for start, end in lost:
            found.faults.append(Fault(Rule.UNREADABLE, start, f"the disk does not give {end - start} bytes"))
        return found

    def _sidecar(self, link: Link) -> Sidecar | None:
        name = sidecar_name(link.number)
        path = f"{self._directory}/{name}"
        if link.end is None or link.last or not self._disk.exists(path):
            return None
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None  # a rollback, or cleaning, took it just now
        try:
            return Sidecar.decode(file.read(0, min(file.size(), SIDECAR_BYTES_MAX + 1)))
        except BadBody as error:
            self.add(Rule.SIDECAR, name, 0, link.prev_last_vlsn + 1, str(error))
            return None
        finally:
            file.close()

    def _voided(self, link: Link) -> bool:
        """Whether a running node has taken the sidecar away since it was read: it does so before it sets a flag."""
        return self._live and not self._disk.exists(f"{self._directory}/{sidecar_name(link.number)}")

    def _check_sidecar(self, link: Link, found: Inspected, sidecar: Sidecar) -> None:
        shown = ~found.marked
        firsts, lasts = found.firsts[shown], found.lasts[shown]
        span = (int(firsts[0]), int(lasts[-1])) if len(firsts) else (0, 0)
        faults = []
        if (sidecar.number, sidecar.salt, sidecar.end) != (link.number, link.salt, link.end):
            faults.append("it is of another segment, or of another end")
        elif not found.by_sidecar and not found.bad.any() and not found.gaps and not link.fault:
            if not np.array_equal(sidecar.offsets, found.offsets):
                faults.append("its offsets are not those of the frames")
            elif content_crc(memoryview(self._buf)[: link.end], sidecar.offsets) != sidecar.crc:
                faults.append("its checksum is not that of the segment, whose frames are all right")
        if not found.bad.any() and not found.gaps and (sidecar.first_vlsn, sidecar.last_vlsn) != span:
            faults.append(f"it says VLSN {sidecar.first_vlsn} to {sidecar.last_vlsn}, there are {span[0]} to {span[1]}")
        for detail in faults:
            self.add(Rule.SIDECAR, sidecar_name(link.number), 0, span[0] or link.prev_last_vlsn + 1, detail)

    def _check_node_file(self) -> None:
        path = f"{self._directory}/{NODE_FILE_NAME}"
        highest = max((run.term for run in self.report.term_runs), default=0)
        try:
            record = nodefile.read(self._disk, path)
        except FileNotFoundError:
            if self.report.segments:
                self.add(Rule.NODE_FILE, NODE_FILE_NAME, 0, 0, "the node file is missing")
        except Damaged as error:
            self.add(Rule.NODE_FILE, NODE_FILE_NAME, 0, 0, str(error))
        else:
            if record.term < highest:
                detail = f"its term is {record.term}, the log has blocks of term {highest}"
                self.add(Rule.NODE_FILE, NODE_FILE_NAME, 0, 0, detail)

    def _count(self, found: Inspected, visible: Mask, *, last: bool) -> None:
        report = self.report
        report.segments += 1
        report.torn_tail |= found.torn and last
        report.frames += len(found.offsets)
        report.bytes += found.end
        if not visible.any():
            return
        firsts, lasts, terms = found.firsts[visible], found.lasts[visible], found.terms[visible]
        report.blocks += len(firsts)
        report.entries += int((lasts - firsts).sum()) + len(firsts)
        report.first = int(firsts[0])
        report.last = report.last or int(lasts[-1])
        report.dtvlsn = max(report.dtvlsn, int(found.dtvlsns[visible].max()))
        starts = [0, *(np.flatnonzero(np.diff(terms)) + 1).tolist()]
        for start, end in reversed(list(zip(starts, [*starts[1:], len(terms)], strict=True))):
            run = TermRun(int(terms[start]), int(firsts[start]), int(lasts[end - 1]))
            if report.term_runs and report.term_runs[-1].term == run.term:
                run = TermRun(run.term, run.first, report.term_runs.pop().last)
            report.term_runs.append(run)
