"""Cleaning: the oldest segments go, and the log begins at a later VLSN.

    1  what retention wants gone is found (``retention``); limits and holds say what of it may go, and for age how much
       the clocks are believed (``aging``)
    2  holds that lie too far behind are dropped, and no new one may be placed below what goes
    3  the first visible block that stays is looked up in the first segment that stays
    4  the state record says where the log begins now                                   synced   ◄ commit point
    5  the index's head is truncated there, and its range replaced                      synced
    6  files go, the oldest segment first: sidecar and cut bytes, the segment, the directory synced

Stopped before 4 nothing happened; after it the next open finishes the rest (``log_start``).  The directory is synced
after each segment, so what is left never has a hole.  Checkpoints and rollbacks wait during 4 and 5.  A segment
before the checkpoint's is closed: the keeper does all of it in order.  A file that cannot be removed ends its pass, not
the log: it is no log any more, and is tried again (``background``) until it has gone, or the next open does it.

    range 1–950, segments 1 (1–300), 2 (301–600), 3 (601–…)     wanted: 1     →  range 301–950, segments 2, 3
Source: JE's ``FileProtector`` and head truncation; the files went first once (SR 20702).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import msgspec

from vlsn.errors import Damaged
from vlsn.format.block import decode_header
from vlsn.format.segment import SegmentHeader
from vlsn.ids import Lsn, Vlsn, lsn_file
from vlsn.limits import STATE_FREE_BYTES_MIN
from vlsn.recover.log_start import Removal, first_block
from vlsn.seams import Clock, Disk, Worker
from vlsn.segments.background import Background
from vlsn.segments.reader import LogReader, SegmentFile
from vlsn.state.aging import Allowance, Seen, shown_old
from vlsn.state.holds import Holds, Owner
from vlsn.state.options import LogOptions
from vlsn.state.retention import Fate, Limit, Plan, Retention, Segment, plan, wanted
from vlsn.state.state_store import StateStore
from vlsn.write.checkpoint import RECOVERY, Checkpointer
from vlsn.write.free_space import Space
from vlsn.write.lifecycle import Lifecycle
from vlsn.write.log_contents import LogContents
from vlsn.write.placement import Placement

ALLOWANCE = "age allowance"
"""The limit of what goes because this log's clock alone says that it is old."""
_EMPTY_SINCE_US = 1
"""A segment without an entry is older than any."""


class CleaningReport(msgspec.Struct, frozen=True, kw_only=True):
    """What went (of a dry run: would go), and what stays although retention wants it gone."""

    dry_run: bool
    retention_bytes: int
    retention_age_s: float
    total_bytes: int
    """Of all segment files before."""
    first: int
    """The first VLSN afterwards; of a dry run, not above it."""
    segments: list[Fate]
    blocked: list[Fate]
    dropped: list[str] = []
    """Holds that were too far behind, each as owner and name."""
    paused: str = ""
    """Why nothing was done at all, or nothing for age."""

    @property
    def bytes(self) -> int:
        """Freed."""
        return sum(fate.bytes for fate in self.segments)


Done = Callable[[CleaningReport], None]


@dataclass(slots=True)
class _Pass:
    done: list[Done]
    dry_run: bool
    retention: Retention
    paused: str = ""
    clocks_agree: bool = False


@dataclass(frozen=True, slots=True)
class Belief:
    """How far the clock is believed: segments up to ``seen`` are old, and ``allowed`` more may go on its word alone."""

    seen: int
    allowed: int


@dataclass(slots=True)
class Aged:
    """What is wanted gone for its age, oldest first; the first ``shown`` of it are old by more than the clock, and the
    first ``believed`` may go."""

    segments: list[Segment]
    shown: int
    believed: int

    def limits(self) -> list[Limit]:
        left = self.segments[self.believed :]
        return [Limit(ALLOWANCE, number=left[0].number)] if left else []


@dataclass(slots=True)
class _Looked:
    segments: list[Segment]
    wanted: list[tuple[Segment, str]]
    aged: Aged
    total_bytes: int
    cramped: bool


class Cleaner:
    """Cleans one log, one pass at a time.  At home only; its reads, transactions and removals are the keeper's."""

    def __init__(
        self,
        options: LogOptions,
        contents: LogContents,
        holds: Holds,
        checkpointer: Checkpointer,
        placement: Placement,
        space: Space,
        background: Background,
        lifecycle: Lifecycle,
        *,
        state: StateStore,
        keeper: Worker,
        clock: Clock,
    ) -> None:
        self.retention = options.retention
        self.segments = 0
        """Cleaned since the log was opened, and their bytes."""
        self.bytes = 0
        self.drops = 0
        self.last: CleaningReport | None = None
        """Of the last pass that was no dry run."""
        self._segment_bytes = options.segment_bytes
        self._contents = contents
        self._holds = holds
        self._checkpointer = checkpointer
        self._placement = placement
        self._space = space
        self._background = background
        self._lifecycle = lifecycle
        self._state = state
        self._keeper = keeper
        self._clock = clock
        self._catalogue = Catalogue(contents.disk, contents.directory)
        self._seen = Seen()
        self._allowance = Allowance()
        self._waiting: deque[_Pass] = deque()
        self._running = False
        self._removal: Removal | None = None

    def run(
        self,
        done: Done = lambda _: None,
        *,
        dry_run: bool = False,
        pause: str = "",
        pause_age: str = "",
        clocks_agree: bool = False,
    ) -> None:
        """One pass, after the one under way; who asks for the same meanwhile shares it.  ``done`` when its files are
        gone.  ``pause`` is why nothing is to go, ``pause_age`` why nothing is to go for its age.  ``clocks_agree``:
        others' clocks say the same, so that age is believed (``aging``).  When the log closes or fails meanwhile
        ``done`` hears of that in place of what went."""
        retention = self.retention
        paused = pause or (pause_age if retention.age_s else "")
        if pause and not dry_run:
            retention = Retention()
        elif paused and not dry_run:
            retention = replace(retention, age_s=0.0)
        new = _Pass([done], dry_run, retention, paused, clocks_agree)
        with self._lifecycle.latch:
            for waiting in self._waiting:
                if replace(waiting, done=new.done) == new:
                    waiting.done.append(done)
                    return
            self._waiting.append(new)
            if not self._running:
                self._next()

    def _next(self) -> None:
        with self._lifecycle.latch:
            while self._waiting:
                asked = self._waiting.popleft()
                if self._over(asked):
                    continue
                if not asked.retention and not asked.dry_run:
                    self._tell(asked, 0, Plan([], [], []))
                    continue
                self._running = True
                self._start(asked)
                return

    def _over(self, asked: _Pass) -> bool:
        """Whether the log has closed or failed: the pass ends where it is, and the next open does the rest."""
        lifecycle = self._lifecycle
        if not lifecycle.over:
            return False
        self._running = False
        asked.paused = "the log was closed" if lifecycle.closed else str(lifecycle.failure)
        self._tell(asked, 0, Plan([], [], []))
        return True

    def _start(self, asked: _Pass) -> None:
        numbers = list(self._contents.segments())
        ahead = sum(self._segment_bytes for number in self._placement.active_files() if number not in numbers)
        belief = self._belief(asked, numbers)
        self._keeper.submit(
            lambda: self._look(asked.retention, numbers, ahead, belief),
            lambda looked: self._decide(asked, looked),
            lambda error: self._given_up(asked, error),
        )

    def _belief(self, asked: _Pass, numbers: list[int]) -> Belief | None:
        """None where age is believed, or not asked for."""
        age_s, now_s = asked.retention.age_s, self._clock.monotonic_s()
        if not age_s:
            return None
        self._seen.note(max(numbers[:-1], default=0), age_s, now_s)
        if asked.clocks_agree:
            return None
        return Belief(self._seen.upto(age_s, now_s), self._allowance.left(len(numbers) - 1, age_s, now_s))

    def _look(self, retention: Retention, numbers: list[int], ahead: int, belief: Belief | None) -> _Looked:
        """On the keeper's thread."""
        segments, last_bytes = self._catalogue.segments(numbers)
        total = sum(segment.bytes for segment in segments) + last_bytes + ahead
        reader = self._contents.reader()
        try:
            found = wanted(
                segments,
                retention,
                total_bytes=total,
                sealed_us=lambda segment: self._sealed_us(reader, segment),
                now_us=self._clock.wall_us(),
            )
            aged = believed(segments, found, lambda segment: self._sealed_us(reader, segment), retention.age_s, belief)
        finally:
            reader.close()
        try:
            cramped = self._contents.disk.free_bytes(self._contents.directory) < STATE_FREE_BYTES_MIN
        except OSError:  # which ``Space`` tells of
            cramped = self._space.cramped
        return _Looked(segments, found, aged, total, cramped)

    def _sealed_us(self, reader: LogReader, segment: Segment) -> int:
        """When the last entry up to this segment's end was sealed, by the master's clock; 0 if that cannot be told."""
        if segment.last < self._contents.range.first:
            return _EMPTY_SINCE_US
        mapping = self._contents.index.at_or_before(segment.last)
        if mapping is None:
            return 0
        return sealed_us(reader, segment.last, mapping[1], self._contents.range.last_sync)

    def _decide(self, asked: _Pass, looked: _Looked) -> None:
        with self._lifecycle.latch:
            if self._over(asked):
                self._next()
                return
            if looked.cramped and not asked.dry_run:
                asked.paused = "the disk has no room for the transactions of a cleaning"
                self._ended(asked, looked.total_bytes, Plan([], [], []))
                return
            chosen = plan(
                looked.wanted,
                [*self._limits(), *looked.aged.limits()],
                self._holds,
                hold_bytes_max=asked.retention.hold_bytes_max,
                bytes_from=lambda vlsn: bytes_from(looked.segments, looked.total_bytes, vlsn),
            )
            if asked.dry_run or not chosen.going:
                self._ended(asked, looked.total_bytes, chosen)
                return
            first_number = min(number for number in self._contents.segments() if number > chosen.going[-1].number)
            self._allowance.took(max(0, sum(fate.reason == "age" for fate in chosen.going) - looked.aged.shown))
            self._holds.floor = Vlsn(max(self._holds.floor, chosen.going[-1].last))
            for hold in chosen.drops:
                self.drops += 1
                self._holds.drop(hold, Vlsn(self._holds.floor + 1))
            self._checkpointer.hold(lambda: self._find_first(asked, looked, chosen, first_number))

    def _limits(self) -> list[Limit]:
        last = self._checkpointer.last
        recovery = f"{Owner.CHECKPOINT} {RECOVERY}"
        return [
            Limit("durable end", self._contents.dtvlsn),
            Limit("synced end", self._contents.range.last_sync),
            Limit(recovery, number=max(1, lsn_file(last.scan_lsn)))
            if last is not None
            else Limit(recovery, vlsn=Vlsn(0)),
        ]

    def _find_first(self, asked: _Pass, looked: _Looked, chosen: Plan, number: int) -> None:
        ends = {each: end for each, end in self._contents.segments().items() if each >= number}

        def commit(found: tuple[Vlsn, Lsn]) -> None:
            if self._over(asked):
                self._next()
                return
            self._keeper.submit(
                lambda: self._truncate(*found, number),
                lambda _: self._truncated(asked, looked, chosen, number),
                lambda error: self._failed(asked, error),
            )

        def given_up(error: BaseException) -> None:
            with self._lifecycle.latch:
                self._holds.floor = Vlsn(max(0, self._contents.range.first - 1))
            self._checkpointer.release()
            self._given_up(asked, error)

        self._keeper.submit(lambda: first_block(self._contents.disk, self._contents.directory, ends), commit, given_up)

    def _truncate(self, first: Vlsn, at: Lsn, number: int) -> None:
        """On the keeper's thread: steps 4 and 5."""
        record = self._state.record()
        assert record is not None and record.vlsn >= first - 1, (record, first)
        self._state.save(record=msgspec.structs.replace(record, trimmed_to=Vlsn(first - 1), first_segment=number))
        self._contents.index.truncate_head(first, at)

    def _truncated(self, asked: _Pass, looked: _Looked, chosen: Plan, number: int) -> None:
        with self._lifecycle.latch:
            self._contents.forget_before(number)
            self._placement.forget_before(number)
            self._catalogue.forget_before(number)
            self._holds.floor = Vlsn(self._contents.range.first - 1)
        self.segments += len(chosen.going)
        self.bytes += sum(fate.bytes for fate in chosen.going)
        self._checkpointer.release()
        self._remove(asked, looked, chosen, Removal(self._contents.disk, self._contents.directory, number))

    def _remove(self, asked: _Pass, looked: _Looked, chosen: Plan, removal: Removal) -> None:
        """Step 6, a job a segment: the keeper has other work in between.  The pass is over at the first failure."""
        told = False
        self._removal = removal

        def removed(done: bool) -> None:
            if done or self._lifecycle.over or self._removal is not removal:  # a later one does it
                over()
            else:
                step()

        def over() -> None:
            nonlocal told
            with self._lifecycle.latch:
                told, before = True, told
                if before:
                    return
                if self._over(asked):
                    self._next()
                else:
                    self._ended(asked, looked.total_bytes, chosen)

        def failed(_: BaseException) -> None:
            fault = self._background.fault("removal")
            if fault is None or fault.failures > 1:
                over()

        def step() -> None:
            self._background.do("removal", "", removal, removed, failed)

        step()

    def _given_up(self, asked: _Pass, error: BaseException) -> None:
        """A segment's header or first block does not read back: damage is not cleaning's to judge."""
        if not isinstance(error, Damaged | OSError):
            self._failed(asked, error)
            return
        with self._lifecycle.latch:
            asked.paused = str(error)
            self._ended(asked, 0, Plan([], [], []))

    def _failed(self, asked: _Pass, error: BaseException) -> None:
        """A transaction failed, and with it the log."""
        self._lifecycle.fail(f"a cleaning failed: {error}", error)
        if self._over(asked):
            self._next()

    def _ended(self, asked: _Pass, total_bytes: int, chosen: Plan) -> None:
        self._running = False
        self._tell(asked, total_bytes, chosen)
        self._next()

    def _tell(self, asked: _Pass, total_bytes: int, chosen: Plan) -> None:
        first = int(self._contents.range.first)
        if asked.dry_run and chosen.going:
            first = max(first, chosen.going[-1].last + 1)
        report = CleaningReport(
            dry_run=asked.dry_run,
            retention_bytes=self.retention.bytes,
            retention_age_s=self.retention.age_s,
            total_bytes=total_bytes,
            first=first,
            segments=chosen.going,
            blocked=chosen.blocked,
            dropped=[str(hold) for hold in chosen.drops],
            paused=asked.paused or self._left(),
        )
        if not asked.dry_run:
            self.last = report
        for done in asked.done:
            done(report)

    def _left(self) -> str:
        fault = self._background.fault("removal")
        return f"files of segments that were cleaned away are left: {fault.why}" if fault is not None else ""


class Catalogue:
    """What the header pages of a log's segments say; each is read once, for an ACTIVE one never changes."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._headers: dict[int, SegmentHeader] = {}

    def segments(self, numbers: Iterable[int]) -> tuple[list[Segment], int]:
        """All of ``numbers`` (ascending) but the last, and the bytes of that one.  Raises ``Damaged``."""
        headers = [self._header(number) for number in numbers]
        found = []
        for header, following in pairwise(headers):
            if following.prev_number != header.number:
                raise Damaged(f"segment {following.number} follows on {following.prev_number}, not on {header.number}")
            found.append(Segment(header.number, header.size, Vlsn(following.prev_last_vlsn)))
        return found, headers[-1].size if headers else 0

    def forget_before(self, number: int) -> None:
        for each in [each for each in self._headers if each < number]:
            del self._headers[each]

    def _header(self, number: int) -> SegmentHeader:
        header = self._headers.get(number)
        if header is None:
            file = SegmentFile(self._disk, self._directory, number)
            file.close()
            header = self._headers[number] = file.header
        return header


def believed(
    segments: list[Segment],
    wanted: list[tuple[Segment, str]],
    sealed: Callable[[Segment], int],
    age_s: float,
    belief: Belief | None,
) -> Aged:
    """How much of what is ``wanted`` for its age may go; all of it without a ``belief`` to bound it."""
    aged = [segment for segment, reason in wanted if reason == "age"]
    if belief is None:
        return Aged(aged, len(aged), len(aged))
    shown = sum(segment.number <= belief.seen for segment in aged)
    if len(aged) > shown + belief.allowed:
        shown = min(max(shown, shown_old(segments[segments.index(aged[0]) :], sealed, age_s)), len(aged))
    return Aged(aged, shown, shown + belief.allowed)


def bytes_from(segments: list[Segment], total_bytes: int, vlsn: Vlsn) -> int:
    """How much of ``total_bytes`` lies in the segment of ``vlsn`` and after it."""
    return total_bytes - sum(segment.bytes for segment in segments if segment.last < vlsn)


def sealed_us(reader: LogReader, vlsn: Vlsn, start: Lsn, upto: Vlsn) -> int:
    """The clock of the block that holds ``vlsn``, µs since the epoch; 0 when it cannot be read."""
    try:
        run = reader.blocks(vlsn, start=start, upto_vlsn=upto, bytes_max=1)
    except Damaged:
        return 0
    return decode_header(run.data[0]).clock_us if run.data else 0
