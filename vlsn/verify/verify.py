"""Verifies a whole log directory: every checksum, order, flag and mapping. A verification writes nothing.

Segments are inspected one by one (``inspection``), from the last to the first. A segment is checked against facts in
later segments: the next header states where the segment ends, and later rollback records explain its overmarks (the
flags of abandoned blocks). Only a few values are carried from one segment to the segment before it.

    00000003.vlog   … START(4) END …     rollbacks = [4]     after = VLSN 9
    00000002.vlog   7 8 ✗5 ✗6            hidden = 5, 6       8 + 1 = 9
    00000001.vlog   1–4                                      …

Some things are normal after a crash, and are not reported: a torn tail, an index that misses the newest blocks, a
rollback with missing flags, a prepared segment that was never used. If only one slot of the node file is unreadable,
the report has a note and no finding. In a running node's directory (``live``), the log is read only up to the end that
its files state to be synced, and the index is not read. The node may begin a rollback meanwhile, so an unexplained flag
is compared with newer rollback records.

Only one segment is in memory at a time, or a few windows of a sealed segment (``by_sidecar``). Segments are read, not
mapped. So a place that the disk cannot read raises an error instead of ending the process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np

from vlsn.errors import BadBody, Damaged, LogInUse, WrongVersion
from vlsn.format.frame import FrameKind
from vlsn.format.segment import SegmentHeader, segment_name, sidecar_name
from vlsn.format.sidecar import SIDECAR_BYTES_MAX, Sidecar, content_crc
from vlsn.ids import lsn_file, lsn_offset
from vlsn.levels import named
from vlsn.recover.recovery import INDEX_NAME, NODE_FILE_NAME, STATE_NAME
from vlsn.recover.versions import check_versions
from vlsn.seams import Disk, Reading, Stores, in_turn
from vlsn.segments.bad_sectors import is_unread
from vlsn.segments.directory import LOCK_NAME, segment_numbers
from vlsn.segments.restore_marker import check_no_restore
from vlsn.state import node_file
from vlsn.verify.by_sidecar import Columns, inspect_sealed
from vlsn.verify.durable_claims import Placed
from vlsn.verify.facts import Facts, Visible, facts_of, read_records, visible_of
from vlsn.verify.index_mappings import Bounds, read_mappings
from vlsn.verify.index_mappings import Columns as Mappings
from vlsn.verify.inspection import Fault, Inspected, Mask, Rule, inspected
from vlsn.verify.joined import Joined, claimed
from vlsn.verify.names import GivenUp, names_of
from vlsn.verify.noted_terms import Run, check_noted, check_term
from vlsn.verify.pages import page_faults
from vlsn.verify.producer_order import NOTHING_HEARD
from vlsn.verify.report import Finding, TermRun, VerifyReport, kept_aside
from vlsn.verify.rollbacks import Rollbacks
from vlsn.verify.segment_chain import Chain, Link, Stated, log_chain, read_stated

Progress = Callable[[int, int], None]
"""The type of a function that is called with the number of bytes done and the number of bytes in all."""
FINDINGS_MAX = 100
"""The most findings of one rule in one file. A log that is wrong throughout need not report more."""


def verify(
    disk: Disk,
    stores: Stores,
    directory: str,
    *,
    live: bool = False,
    progress: Progress | None = None,
    reading: Reading = in_turn,
) -> VerifyReport:
    """Verifies the log in ``directory``. ``reading`` says how sealed segments are read: ``threads.ReadAhead`` reads
    ahead on a thread of its own. Raises ``LogInUse`` if a process has the log open and ``live`` is false, ``Restoring``
    during a network restore, ``WrongVersion``, or ``FileNotFoundError`` if there is no such directory."""
    if not live and disk.is_locked(f"{directory}/{LOCK_NAME}"):
        raise LogInUse(f"{directory} belongs to a running node; verify what it has synced with --live, or stop it")
    check_versions(disk, directory)
    check_no_restore(disk, directory)
    verifier = _Verifier(disk, directory, live, reading)
    stated = read_stated(stores, directory, live=live)
    for fault in stated.faults:
        verifier.add(Rule.STATE, STATE_NAME, 0, 0, fault)
    if not live:
        mappings = read_mappings(stores, directory)
        verifier.mappings = mappings.by_segment
        verifier.bounds = mappings.bounds
        for damaged in mappings.faults:
            verifier.add(Rule.INDEX, INDEX_NAME, 0, damaged.vlsn, str(damaged))
        for file, offset, vlsn, why in page_faults(disk, directory, stated):
            verifier.add(Rule.PAGE, file, offset, vlsn, why)
    verifier.run(stated, progress)
    return verifier.finished()


class _Verifier:
    def __init__(self, disk: Disk, directory: str, live: bool, reading: Reading) -> None:
        self.report = VerifyReport()
        self.mappings: dict[int, Mappings] = {}
        self.bounds: Bounds | None = None
        self._disk = disk
        self._directory = directory
        self._live = live
        self._reading = reading
        self._buf = bytearray()
        self._columns = Columns()
        self._counts: Counter[tuple[Rule, str]] = Counter()
        self._rollbacks = Rollbacks(self.add)
        self._joined = Joined()
        self._facts: list[Facts] = []
        self._next_header: SegmentHeader | None = None
        self._odd_terms: set[int] = set()
        """The terms of blocks at which terms decrease, before and after the decrease."""
        self._given_up = GivenUp(self.add)
        self._links: dict[int, tuple[Link, int, int]] = {}
        """The segments that have visible blocks, each with its first and last VLSN."""
        self._whole = True
        """True while no block was found to be lost anywhere."""
        self._ends_whole = False
        """True if no block was lost in the last segment."""

    def add(self, rule: Rule, file: str, offset: int, vlsn: int, detail: str) -> None:
        self._counts[rule, file] += 1
        if self._counts[rule, file] <= FINDINGS_MAX:
            self.report.findings.append(Finding(rule, file, int(offset), int(vlsn), detail))

    def _name(self, file: str, faults: Iterable[Fault]) -> None:
        for each in faults:
            if each.rule is Rule.TERM_ORDER:
                self._odd_terms |= {each.more["term"], each.more["before"]}
            self.add(each.rule, each.file or file, each.offset, each.vlsn, each.detail)

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
        self._joined = Joined(stated.missing_after(chain.links))
        self._check_files(chain)
        self._check_beginning(chain.links, stated)
        for link in reversed(chain.links):
            try:
                self._segment(link, stated)
            except FileNotFoundError:
                if self._live and self._is_head(link):
                    break  # this segment, and all segments before it, were cleaned away after they were listed
                raise
            done += link.end or link.size
            if progress is not None:
                progress(done, total)
        last_number = chain.links[-1].number if chain.links else 0
        self._rollbacks.check_records(gaps=any(rule is Rule.GAP for rule, _ in self._counts))
        self._rollbacks.check_unexplained(self._disk, self._directory, last_number, live=self._live)
        said, unheld = claimed(reversed(self._facts))
        self._name("", unheld)
        self._check_end(stated, said, chain.links)
        self._check_names(stated)
        self.report.dtvlsn = max(self.report.dtvlsn, min(stated.dtvlsn, self.report.last))
        if not chain.links:
            for name in self._joined.missing:
                self.add(Rule.GAP, name, 0, 1, "the segment is missing")

    def _check_beginning(self, links: Sequence[Link], stated: Stated) -> None:
        """If a log does not begin at VLSN 1, checks that it was cleaned. ``state`` shows a cleaning, or the index does
        if ``state`` is older."""
        lost = stated.missing_before(links, min(self.mappings, default=0)) if not self._live else None
        if lost is not None:
            name, vlsn = lost
            self.add(Rule.GAP, name, 0, vlsn, "the segment is missing, and was not cleaned away")
            for number in [number for number in self.mappings if number < links[0].number]:
                self.mappings.pop(number)  # the mappings of missing segments are not checked

    def _is_head(self, link: Link) -> bool:
        """Returns whether ``link`` is the first segment that is left of the log."""
        return all(number > link.number for number, _ in segment_numbers(self._disk, self._directory))

    def _check_files(self, chain: Chain) -> None:
        """Checks that all segments belong to the same node, and that each file has its own segment's name."""
        for link in chain.links:
            if link.foreign:
                self.add(Rule.SEGMENT_HEADER, link.name, 0, link.prev_last_vlsn + 1, link.foreign)
        for stray in chain.strays:
            self.add(Rule.SEGMENT_HEADER, stray.name, 0, stray.vlsn, stray.detail)

    # Checks of one segment.

    def _segment(self, link: Link, stated: Stated) -> None:
        sidecar = self._sidecar(link)
        found = self._proven(link, sidecar) if sidecar is not None else None
        if found is None:
            found, _ = inspected(self._disk, link, stated, self._buf)
        records, unread = read_records(found.records)
        found.faults += unread
        self._rollbacks.read(link, found, records)
        self._check_checkpoint(link, found, stated)
        hidden = self._rollbacks.hidden(link, found)
        visible = visible_of(found, hidden)
        self._name_faults(link, found, visible)
        self._join(link, found, visible, records)
        gone = hidden | found.marked
        if gone.any() and not found.by_sidecar:
            self._given_up.read(names_of(self._buf, link.number, found, gone))
        if len(visible):
            self._links[link.number] = link, int(visible.firsts[0]), int(visible.lasts[-1])
        self._whole &= not len(found.lost) and not link.missing_before
        self._ends_whole |= link.last and not len(found.lost)
        self._check_mappings(link, found, hidden, stated)
        self._check_bounds(link, found, hidden)
        if sidecar is not None and not self._voided(link):
            self._check_sidecar(link, found, sidecar)
        self._count(found, visible, self._facts[-1].terms, last=link.last)

    def _join(self, link: Link, found: Inspected, visible: Visible, records: Sequence[Placed]) -> None:
        """Checks a segment's visible blocks, and how they continue in the segments after it."""
        submissions = found.submissions
        if len(visible) < len(found.block_offsets):
            submissions = submissions[np.isin(submissions["offset"], visible.places)]
        facts = facts_of(
            link.number,
            link.name,
            prev_number=link.header.prev_number if link.header is not None and link.info.active else 0,
            before=link.prev_last_vlsn,
            blocks=visible_of(found, np.zeros(len(found.marked), dtype=np.bool_)),
            visible=visible,
            lost=found.lost,
            records=records,
            submissions=submissions,
        )
        self._name(link.name, facts.faults if facts.damaged else (*facts.repeated, *facts.faults))
        self._name("", self._joined.take(facts))
        self._check_stated_end(link, found, facts)
        self._facts.append(replace(facts, heard=NOTHING_HEARD, faults=(), repeated=()))

    def _check_stated_end(self, link: Link, found: Inspected, facts: Facts) -> None:
        """Checks that this segment ends with the VLSN that the next segment's header states."""
        header, self._next_header = self._next_header, link.header
        lost = self._joined.missing or (facts.last.damaged if facts.last is not None else facts.damaged)
        if header is None or header.prev_number != link.number or not len(found.lasts) or lost:
            return
        said, real = header.prev_last_vlsn, int(found.lasts[-1])
        if said != real and not found.marked[-1]:
            detail = f"the header says that segment {link.number} ends with VLSN {said}, it ends with {real}"
            self.add(Rule.SEGMENT_HEADER, segment_name(header.number), 0, real, detail)

    def _check_checkpoint(self, link: Link, found: Inspected, stated: Stated) -> None:
        at = stated.checkpoint_end
        if at is None or lsn_file(at) != link.number or lsn_offset(at) >= found.end:
            return
        ends = {offset for offset, kind, _ in found.records if kind == FrameKind.CHECKPOINT_END}
        if lsn_offset(at) not in ends and lsn_offset(at) not in found.lost:
            found.faults.append(
                Fault(Rule.RECORD, lsn_offset(at), "no CHECKPOINT_END where the state's checkpoint ends")
            )

    def _name_faults(self, link: Link, found: Inspected, visible: Visible) -> None:
        """Sets the VLSN of each damaged block whose header cannot be read: the VLSN after the block before it."""
        for fault in found.faults:
            before = int(np.searchsorted(visible.places, fault.offset))
            known = int(visible.lasts[before - 1]) if before else link.prev_last_vlsn
            self.add(fault.rule, link.name, fault.offset, fault.vlsn or known + 1, fault.detail)
        if link.last and link.header is not None and link.info.size < link.header.size:
            vlsn = int(visible.lasts[-1]) + 1 if len(visible) else link.prev_last_vlsn + 1
            detail = f"the file has {link.info.size} of its {link.header.size} bytes: it was cut short"
            self.add(Rule.SEGMENT_HEADER, link.name, link.info.size, vlsn, detail)
        if link.fault:
            vlsn = int(visible.firsts[0]) if len(visible) else link.prev_last_vlsn + 1
            self.add(Rule.SEGMENT_HEADER, link.name, 0, vlsn, link.fault)

    # Checks of the whole log.

    def _check_end(self, stated: Stated, said: int, links: Sequence[Link]) -> None:
        """Checks that the log of a stopped node has everything that the log states to be durable. ``_check_end`` also
        checks the terms in ``state``."""
        if self._live or not self._ends_whole or any(rule is Rule.GAP for rule, _ in self._counts):
            return
        durable, last = max(said, stated.dtvlsn), self.report.last
        if last < durable and not self._owes(last):
            detail = f"the log ends at VLSN {last}, and said that {durable} was durable"
            self.add(Rule.SHORTER, links[-1].name, 0, last + 1, detail)
        if stated.record is not None and self._whole and not self._odd_terms:
            for fault in check_noted(stated.record.term_runs, self._runs(), stated.record.vlsn):
                at = fault.vlsn
                self._odd_terms |= {run.term for run in self.report.term_runs if run.first <= at <= run.last}
                self._name(STATE_NAME, (fault,))

    def _owes(self, last: int) -> bool:
        """Returns whether the node has noted that it misses entries: its vote floor is past its log's end."""
        try:
            record, _ = node_file.read_slots(self._disk, f"{self._directory}/{NODE_FILE_NAME}")
        except (OSError, Damaged):
            return False  # another check reports faults of the node file
        return record.floor_vlsn > last

    def _runs(self) -> list[tuple[int, int, int]]:
        return [(run.term, run.first, run.last) for run in reversed(self.report.term_runs)]

    def _check_names(self, stated: Stated) -> None:
        """Compares blocks that were rolled back with visible blocks of the same name (term and first VLSN). The
        segments with such visible blocks are read again."""
        spans = [(number, first, last) for number, (_, first, last) in self._links.items()]
        for number in self._given_up.segments(self._runs(), spans):
            link = self._links[number][0]
            try:
                found, _ = inspected(self._disk, link, stated, self._buf)
            except FileNotFoundError:
                continue  # the segment was cleaned away meanwhile
            self._given_up.take(names_of(self._buf, number, found, ~found.marked))
        self._given_up.check()

    # Checks of derived data.

    def _check_mappings(self, link: Link, found: Inspected, hidden: Mask, stated: Stated) -> None:
        if link.number not in self.mappings:
            return
        vlsns, offsets = self.mappings.pop(link.number)
        places = found.block_offsets
        at = np.minimum(np.searchsorted(places, offsets), max(len(places) - 1, 0))
        # Some mappings may be past the segment's end: those of blocks that were written again in the next segment, or
        # were not synced yet when the index was flushed.
        right = offsets >= (link.end if link.end is not None else found.end)
        right &= lsn_file(stated.scan_from) <= link.number  # the next opening of the log corrects such mappings
        if len(places):
            there = (places[at] == offsets) & (found.firsts[at] == vlsns)
            there &= ~hidden[at] | self._rollbacks.truncation_due(places[at] + (link.number << 32))
            right |= there
        if len(found.lost):
            right |= np.isin(offsets, found.lost)
        for start, end in found.gaps:
            right |= (offsets >= start) & (offsets < end)
        for index in np.flatnonzero(~right).tolist():
            detail = "the index points at no visible block that begins with this VLSN"
            self.add(Rule.INDEX, link.name, int(offsets[index]), int(vlsns[index]), detail)

    def _check_bounds(self, link: Link, found: Inspected, hidden: Mask) -> None:
        """Checks that no block was sealed later than the time index says. A search by time would miss a block that was
        sealed later than its step's bound."""
        if self.bounds is None:
            return
        late = self.bounds.passed(found.firsts, found.lasts, found.clocks) & ~hidden
        for index in np.flatnonzero(late).tolist():
            detail = "it was sealed later than the time index says of its step"
            self.add(Rule.INDEX, link.name, int(found.block_offsets[index]), int(found.firsts[index]), detail)

    def _proven(self, link: Link, sidecar: Sidecar) -> Inspected | None:
        assert link.end is not None
        with closing(self._disk.open(link.info.path)) as file:
            try:
                return inspect_sealed(
                    file, salt=link.salt, end=link.end, sidecar=sidecar, reading=self._reading, columns=self._columns
                )
            except OSError:
                return None  # the check of each frame then finds the place that the disk cannot read

    def _sidecar(self, link: Link) -> Sidecar | None:
        name = sidecar_name(link.number)
        path = f"{self._directory}/{name}"
        if link.end is None or link.last or not self._disk.exists(path):
            return None
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return None  # a rollback or a cleaning has just removed the sidecar
        try:
            return Sidecar.decode(file.read(0, min(file.size(), SIDECAR_BYTES_MAX + 1)))
        except WrongVersion as error:
            raise named(error, path) from None
        except BadBody as error:
            self.add(Rule.SIDECAR, name, 0, link.prev_last_vlsn + 1, str(error))
            return None
        finally:
            file.close()

    def _voided(self, link: Link) -> bool:
        """Returns whether a running node has removed the sidecar after it was read. A node removes a sidecar before it
        sets a rollback's flag in the segment."""
        return self._live and not self._disk.exists(f"{self._directory}/{sidecar_name(link.number)}")

    def _check_sidecar(self, link: Link, found: Inspected, sidecar: Sidecar) -> None:
        shown = np.flatnonzero(~found.marked)
        span = (int(found.firsts[shown[0]]), int(found.lasts[shown[-1]])) if len(shown) else (0, 0)
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
            record, faults = node_file.read_slots(self._disk, path)
        except FileNotFoundError:
            if self.report.segments:
                self.add(Rule.NODE_FILE, NODE_FILE_NAME, 0, 0, "the node file is missing")
        except Damaged as error:
            self.add(Rule.NODE_FILE, NODE_FILE_NAME, 0, 0, str(error))
        except OSError as error:
            if not is_unread(error):
                raise
            self.add(Rule.NODE_FILE, NODE_FILE_NAME, 0, 0, f"the disk cannot read it: {error}")
        else:
            for number, fault in faults.items():
                what = f"{NODE_FILE_NAME}: slot {number} of 2 cannot be read ({fault})"
                self.report.notes.append(f"{what}; the other one is whole, and the next start writes both")
            if highest not in self._odd_terms:
                self._name(NODE_FILE_NAME, check_term(record.term, highest))

    def _count(self, found: Inspected, visible: Visible, terms: Sequence[Run], *, last: bool) -> None:
        report = self.report
        report.segments += 1
        report.torn_tail |= found.torn and last
        report.frames += len(found.offsets)
        report.bytes += found.end
        if not len(visible):
            return
        firsts, lasts = visible.firsts, visible.lasts
        report.blocks += len(firsts)
        report.entries += int((lasts - firsts).sum()) + len(firsts)
        report.first = int(firsts[0])
        report.last = report.last or int(lasts[-1])
        report.dtvlsn = max(report.dtvlsn, int(visible.dtvlsns.max()))
        for run in (TermRun(*each) for each in reversed(terms)):
            if report.term_runs and report.term_runs[-1].term == run.term:
                run = TermRun(run.term, run.first, report.term_runs.pop().last)
            report.term_runs.append(run)
