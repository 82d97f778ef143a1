"""Cleaning removes the log's oldest segments, so that the log begins at a later VLSN. ``state/retention`` selects them.

    1  the segments that retention wants removed are found (``retention``); limits and holds say which of them may be
       removed; for removal by age, how far the clocks are believed (``aging``);
       their entries that destinations still want are written to page files and synced (``vlsn/pages``);
       then the plan is made again, and only segments whose wanted entries are in pages are removed
    2  holds that are too far behind are dropped, and no new hold may be placed on the removed part
    3  the first visible block that stays is looked up in the first segment that stays
    4  the state record stores the log's new begin                                  synced   ◄ commit point
    5  the index's head is truncated there, and its range replaced                  synced
    6  files are removed, the oldest segment first: sidecar and cut bytes, the segment, the directory synced

After a crash before step 4 nothing has happened. After a crash after step 4 the next open finishes the other steps
(``log_start``). The directory is synced after each removed segment, so the remaining log never has a hole. Checkpoints
and rollbacks wait during steps 4 and 5. Segments before the checkpoint are closed by then, because the keeper (the
log's background thread) does its jobs in order. A file that cannot be removed ends only the pass of cleaning that met
it. A file that could not be removed is no longer part of the log. Its removal is tried again (``background``) until it
succeeds, at the latest when the log is opened next.

    range 1–950, segments 1 (1–300), 2 (301–600), 3 (601–…)     wanted: 1     →  range 301–950, segments 2, 3
Source: JE's ``FileProtector`` and head truncation; in JE the files once went first (SR 20702).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

import msgspec

from vlsn.errors import Damaged
from vlsn.ids import Lsn, Vlsn, lsn_file
from vlsn.recover.log_start import Removal, first_block
from vlsn.state.consumers import ConsumerHolds
from vlsn.state.destinations import Destinations
from vlsn.state.holds import Holds, Owner
from vlsn.state.retention import Fate, Limit, Plan, Retention, plan
from vlsn.state.state_store import StateStore
from vlsn.write.checkpointer import RECOVERY, Checkpointer
from vlsn.write.log_life import LogLife
from vlsn.write.log_view import LogView
from vlsn.write.placement import Placement
from vlsn.write.survey import Survey, Surveyed, bytes_from

COMING: Final = "a destination that is being made, or moved"
"""The reason to keep the log for a destination whose order is not known here yet. The order may be durable before this
node has read it, so the log from the order's first VLSN on is kept until then."""


class Pager(Protocol):
    """Writes the entries of the removed log that destinations still want to page files (``vlsn/pages``). It is used on
    the owner's thread only."""

    def page(self, upto: Vlsn, done: Callable[[Vlsn, str], None]) -> None:
        """Writes the wanted entries up to ``upto``, the last VLSN of a block, to pages. ``done`` receives the VLSN up
        to which the entries are in pages and synced, and the reason why the pager got no further."""
        ...

    def uncovered(self, first: Vlsn) -> str:
        """Returns the reason why the log may not begin at ``first``: some wanted entry before ``first`` is in no page.
        Returns an empty string if the log may begin at ``first``."""
        ...


class CleaningReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a pass of cleaning. The report lists the segments that were removed (after a dry run: that would be
    removed), and the segments that stay although retention wants them removed."""

    dry_run: bool
    retention_bytes: int
    retention_age_s: float
    total_bytes: int
    """The bytes of all segment files before the pass."""
    first: int
    """The first VLSN of the log after the pass. For a dry run it is the highest VLSN that could be the first."""
    segments: list[Fate]
    blocked: list[Fate]
    dropped: list[str] = []
    """The owner and name of each hold that was dropped because it was too far behind."""
    paused: str = ""
    """The reason why the pass removed nothing at all, or removed nothing by age."""

    @property
    def bytes(self) -> int:
        """The number of bytes that the removed segments had."""
        return sum(fate.bytes for fate in self.segments)


Done = Callable[[CleaningReport], None]


@dataclass(slots=True)
class _Request:
    done: list[Done]
    dry_run: bool
    retention: Retention
    paused: str
    clocks_agree: bool


class Cleaner:
    """Cleans one log, one pass at a time. The cleaner is used on the owner's thread only. Its reads, transactions and
    removals of files run on the keeper's thread (the log's background thread)."""

    def __init__(
        self,
        view: LogView,
        life: LogLife,
        state: StateStore,
        holds: Holds,
        consumers: ConsumerHolds,
        destinations: Destinations,
        checkpointer: Checkpointer,
        placement: Placement,
        survey: Survey,
        retention: Retention,
    ) -> None:
        self.view = view
        self.life = life
        self.state = state
        self.holds = holds
        self.consumers = consumers
        self.destinations = destinations
        self.checkpointer = checkpointer
        self.placement = placement
        self.survey = survey
        self.retention = retention
        self.pager: Pager | None = None
        """The pager that saves entries for destinations; None if the log has no destinations."""
        self.last: CleaningReport | None = None
        """The report of the last pass that was not a dry run."""
        self.segments = 0
        """The number of segments cleaned since the log was opened."""
        self.bytes = 0
        """The bytes of the segments that were cleaned since the log was opened."""
        self.drops = 0
        """The number of holds dropped since the log was opened."""
        self.removal: Removal | None = None
        """The newest removal of files, which includes all files that an older removal has left."""
        self._waiting: deque[_Request] = deque()
        self._running = False

    def run(
        self,
        done: Done = lambda _: None,
        *,
        dry_run: bool = False,
        pause: str = "",
        pause_age: str = "",
        clocks_agree: bool = False,
    ) -> None:
        """Runs a pass of cleaning after the current pass. Equal requests in the meantime share one pass. ``done`` is
        called when the files are removed. ``pause`` is a reason to remove nothing, ``pause_age`` a reason to remove
        nothing by age. ``clocks_agree`` means that the other members' clocks agree, so the age of entries is believed
        (``aging``). If the log closes or fails meanwhile, the report says so."""
        retention = self.retention
        paused = pause or (pause_age if retention.age_s else "")
        if pause and not dry_run:
            retention = Retention()
        elif paused and not dry_run:
            retention = replace(retention, age_s=0.0)
        new = _Request([done], dry_run, retention, paused, clocks_agree)
        with self.life.latch:
            for waiting in self._waiting:
                if replace(waiting, done=new.done) == new:
                    waiting.done.append(done)
                    return
            self._waiting.append(new)
            if not self._running:
                self._next()

    def _next(self) -> None:
        with self.life.latch:
            if not self._waiting or self._running:
                return
            self._running = True
            request = self._waiting.popleft()
            CleaningPass(self, request).begin()

    def over(self, request: _Request, asked: CleaningPass) -> None:
        """Reports to the callers that their pass is finished, and starts the next pass."""
        self._running = False
        first, going = int(self.view.range.first), asked.plan.going
        if request.dry_run and going:
            first = max(first, going[-1].last + 1)
        report = CleaningReport(
            dry_run=request.dry_run,
            retention_bytes=self.retention.bytes,
            retention_age_s=self.retention.age_s,
            total_bytes=asked.total_bytes,
            first=first,
            segments=going,
            blocked=asked.plan.blocked,
            dropped=[str(hold) for hold in asked.plan.drops],
            paused=asked.paused or self._left(),
        )
        if not request.dry_run:
            self.last = report
        for done in request.done:
            done(report)
        self._next()

    def _left(self) -> str:
        fault = self.life.background.fault("removal")
        return f"files of segments that were cleaned away are not removed yet: {fault.why}" if fault is not None else ""


class CleaningPass:
    """One pass of cleaning, step by step. ``plan`` has the segments to remove, ``paused`` the reason why no more
    segments are removed."""

    def __init__(self, cleaner: Cleaner, request: _Request) -> None:
        self.paused = request.paused
        self.total_bytes = 0
        self.plan = Plan([], [], [])
        self._cleaner = cleaner
        self._request = request
        self._view = cleaner.view
        self._life = cleaner.life
        self._over = False
        self._number = 0
        """The number of the first segment that stays in the log."""
        self._paged_to: Vlsn | None = None
        """The VLSN up to which pages have all entries that destinations want; None before the pager has answered."""

    # 1

    def begin(self) -> None:
        """Begins the pass, under the log's latch."""
        if self._is_over():
            return
        if not self._request.retention and not self._request.dry_run:
            self._end()
            return
        survey = self._cleaner.survey.job(self._request.retention, clocks_agree=self._request.clocks_agree)
        self._life.keeper.submit(survey, self._decide, self._unreadable)

    def _decide(self, surveyed: Surveyed) -> None:
        cleaner = self._cleaner
        with self._life.latch:
            if self._is_over():
                return
            self.total_bytes = surveyed.total_bytes
            if surveyed.cramped and not self._request.dry_run:
                self.paused = "the disk has no room for the transactions of a cleaning"
                self._end()
                return
            cleaner.consumers.place(self._view.dtvlsn)
            self._view.fold_acks()
            if cleaner.pager is None:
                cleaner.destinations.place()
            chosen = plan(
                surveyed.wanted,
                [*self._unknown(), *self._limits(), *surveyed.aged.limits()],
                cleaner.holds,
                hold_bytes_max=self._request.retention.hold_bytes_max,
                bytes_from=lambda vlsn: bytes_from(surveyed.segments, surveyed.total_bytes, vlsn),
            )
            self.plan = chosen
            if self._request.dry_run or not chosen.going:
                self._end()
                return
            if not self._may_go(surveyed):
                return
            chosen = self.plan
            if not chosen.going:
                self._end()
                return
            self._number = min(number for number in self._view.segments() if number > chosen.going[-1].number)
            cleaner.survey.took(surveyed, chosen)
            self._drop_holds()
            cleaner.checkpointer.hold(self._find_first)

    def _may_go(self, surveyed: Surveyed) -> bool:
        """First has the pager write the entries that destinations want to pages. Segments whose entries could not be
        paged are kept. Returns False while the pager works. When the pager is finished, the plan is made again, because
        a hold may have been placed meanwhile."""
        pager, chosen, paged_to = self._cleaner.pager, self.plan, self._paged_to
        if pager is None:
            return True
        if paged_to is None:
            pager.page(Vlsn(chosen.going[-1].last), lambda vlsn, why: self._paged(surveyed, vlsn, why))
            return False
        going = [fate for fate in chosen.going if fate.last <= paged_to]
        kept = [
            msgspec.structs.replace(fate, blocked_by=["pages of destinations"]) for fate in chosen.going[len(going) :]
        ]
        self.plan = Plan(going, [*kept, *chosen.blocked], chosen.drops if going else [])
        return True

    def _paged(self, surveyed: Surveyed, vlsn: Vlsn, why: str) -> None:
        with self._life.latch:
            self._paged_to = vlsn
            self.paused = self.paused or why
        self._decide(surveyed)

    def _limits(self) -> list[Limit]:
        coming = self._view.history.acks.coming
        view, last = self._view, self._cleaner.checkpointer.last
        recovery = f"{Owner.CHECKPOINT} {RECOVERY}"
        return [
            Limit("durable end", view.dtvlsn),
            Limit("synced end", view.range.last_sync),
            Limit(recovery, number=max(1, lsn_file(last.scan_lsn)))
            if last is not None
            else Limit(recovery, vlsn=Vlsn(0)),
            *([Limit(COMING, coming)] if coming is not None else []),
        ]

    def _unknown(self) -> list[Limit]:
        """Returns limits that keep every segment while this node does not know the consumers' positions."""
        lacking = self._view.history.small.lacks_to > 0
        return [Limit("consumers whose positions are not known yet", Vlsn(0))] if lacking else []

    # 2

    def _drop_holds(self) -> None:
        holds = self._cleaner.holds
        holds.floor = Vlsn(max(holds.floor, self.plan.going[-1].last))
        for hold in self.plan.drops:
            self._cleaner.drops += 1
            holds.drop(hold, Vlsn(holds.floor + 1))

    # 3

    def _find_first(self) -> None:
        """Finds the first block that stays in the log. No checkpoint runs or starts meanwhile."""
        view = self._view
        ends = {each: end for each, end in view.segments().items() if each >= self._number}
        self._life.keeper.submit(lambda: first_block(view.disk, view.directory, ends), self._commit, self._not_found)

    def _not_found(self, error: BaseException) -> None:
        self._let_go()
        self._unreadable(error)

    def _let_go(self) -> None:
        cleaner = self._cleaner
        with self._life.latch:
            cleaner.holds.floor = Vlsn(max(0, self._view.range.first - 1))
        cleaner.checkpointer.release()

    # 4: the commit point; 5

    def _commit(self, found: tuple[Vlsn, Lsn]) -> None:
        if self._is_over():
            return
        pager = self._cleaner.pager
        why = pager.uncovered(found[0]) if pager is not None else ""
        with self._life.latch:
            coming = self._view.history.acks.coming
        why = why or (COMING if coming is not None and coming < found[0] else "")
        if why:  # a destination was created meanwhile
            self._let_go()
            with self._life.latch:
                self.paused = why
                self._end_without()
            return
        self._life.keeper.submit(lambda: self._truncate(*found), self._truncated, self._failed)

    def _truncate(self, first: Vlsn, at: Lsn) -> None:
        """Does steps 4 and 5 on the keeper's thread: the state record and the index now begin at ``first``."""
        cleaner = self._cleaner
        cleaner.state.begin_at(first, self._number)
        self._view.index.truncate_head(first, at)

    def _truncated(self, _: None) -> None:
        cleaner = self._cleaner
        with self._life.latch:
            self._view.forget_before(self._number)
            cleaner.placement.forget_before(self._number)
            cleaner.survey.forget_before(self._number)
            cleaner.holds.floor = Vlsn(self._view.range.first - 1)
        cleaner.segments += len(self.plan.going)
        cleaner.bytes += sum(fate.bytes for fate in self.plan.going)
        cleaner.checkpointer.release()
        removal = Removal(self._view.disk, self._view.directory, self._number)
        cleaner.removal = removal
        self._remove(removal)

    # 6

    def _remove(self, removal: Removal) -> None:
        """Removes the files in one job for each segment, so that the keeper's thread can do other work in between. The
        pass ends at the first failure."""
        self._life.background.do("removal", "", removal, lambda done: self._removed(removal, done), self._not_removed)

    def _removed(self, removal: Removal, done: bool) -> None:
        cleaner = self._cleaner
        if done or self._life.over or cleaner.removal is not removal:  # a later removal also includes these files
            self._removal_over()
        else:
            self._remove(removal)

    def _not_removed(self, _: BaseException) -> None:
        fault = self._life.background.fault("removal")
        if fault is None or fault.failures > 1:
            self._removal_over()

    def _removal_over(self) -> None:
        with self._life.latch:
            if not self._over and not self._is_over():
                self._end()

    # The end of a pass.

    def _is_over(self) -> bool:
        """Returns whether the log has closed or failed. After that the pass ends, and the next open finishes its
        work."""
        life = self._life
        if not life.over:
            return False
        self.paused = "the log was closed" if life.closed else str(life.failure)
        self._end_without()
        return True

    def _unreadable(self, error: BaseException) -> None:
        """Ends the pass, because a segment is unreadable: cleaning does not remove damage."""
        if not isinstance(error, Damaged | OSError):
            self._failed(error)
            return
        with self._life.latch:
            self.paused = str(error)
            self._end_without()

    def _failed(self, error: BaseException) -> None:
        """Fails the whole log, because a transaction of the store failed."""
        self._life.fail(f"a cleaning failed: {error}", error)
        self._is_over()

    def _end_without(self) -> None:
        """Ends the pass with a report that nothing of its plan was done."""
        self.total_bytes, self.plan = 0, Plan([], [], [])
        self._end()

    def _end(self) -> None:
        self._over = True
        self._cleaner.over(self._request, self)
