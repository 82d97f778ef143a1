"""One cleaning, step by step (what and why: ``cleaning``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from msgspec.structs import replace

from vlsn.errors import Damaged
from vlsn.ids import Lsn, Vlsn, lsn_file
from vlsn.recover.log_start import Removal, first_block
from vlsn.seams import Worker
from vlsn.segments.background import Background
from vlsn.state.consumers import ConsumerHolds
from vlsn.state.destinations import Destinations
from vlsn.state.holds import Holds, Owner
from vlsn.state.retention import Limit, Plan, Retention, plan
from vlsn.state.state_store import StateStore
from vlsn.write.checkpoint_schedule import RECOVERY, Checkpointer
from vlsn.write.lifecycle import Lifecycle
from vlsn.write.log_contents import LogContents
from vlsn.write.segment_roll import Placement
from vlsn.write.segment_survey import Survey, Surveyed, bytes_from

COMING: Final = "a destination that is being made, or moved"
"""Its order may be durable without this node knowing: what it begins at is kept until that is known."""


class Pager(Protocol):
    """Keeps what destinations still want of the log that goes (``vlsn/pages``).  At home only."""

    def page(self, upto: Vlsn, done: Callable[[Vlsn, str], None]) -> None:
        """Pages what they want up to ``upto``, a block's last. ``done`` gets the VLSN up to which that is so, synced,
        and why no further."""
        ...

    def uncovered(self, first: Vlsn) -> str:
        """Returns why the log may not begin at ``first``: what lies before it is not all in pages. Empty where it
        may."""
        ...


@dataclass(slots=True)
class Paging:
    """The pager of one log, where it has destinations."""

    pager: Pager | None = None


@dataclass(slots=True)
class Cleaned:
    """The work of one log's cleanings since it was opened."""

    segments: int = 0
    bytes: int = 0
    drops: int = 0
    removal: Removal | None = None
    """The newest, which does what an older one has left."""


@dataclass(frozen=True, slots=True)
class CleaningParts:
    """The parts that the cleanings of one log are made with."""

    contents: LogContents
    state: StateStore
    holds: Holds
    consumers: ConsumerHolds
    destinations: Destinations
    checkpointer: Checkpointer
    placement: Placement
    survey: Survey
    background: Background
    lifecycle: Lifecycle
    keeper: Worker
    cleaned: Cleaned = field(default_factory=Cleaned)
    paging: Paging = field(default_factory=Paging)


class CleaningPass:
    """Calls ``over`` once, when nothing is left to do: ``plan`` says what went, ``paused`` why no more."""

    def __init__(
        self,
        parts: CleaningParts,
        retention: Retention,
        *,
        dry_run: bool,
        paused: str,
        clocks_agree: bool,
        over: Callable[[CleaningPass], None],
    ) -> None:
        self.retention = retention
        self.dry_run = dry_run
        self.paused = paused
        self.total_bytes = 0
        self.plan = Plan([], [], [])
        self._parts = parts
        self._clocks_agree = clocks_agree
        self._over = over
        self._told = False
        self._number = 0
        """The first segment that stays."""
        self._paged_to: Vlsn | None = None
        """The VLSN up to which pages hold what destinations want; None before that was asked."""

    # 1

    def begin(self) -> None:
        """Begins the pass, under the latch."""
        if self._is_over():
            return
        if not self.retention and not self.dry_run:
            self._end()
            return
        survey = self._parts.survey.job(self.retention, clocks_agree=self._clocks_agree)
        self._parts.keeper.submit(survey, self._decide, self._unreadable)

    def _decide(self, surveyed: Surveyed) -> None:
        parts = self._parts
        with parts.lifecycle.latch:
            if self._is_over():
                return
            self.total_bytes = surveyed.total_bytes
            if surveyed.cramped and not self.dry_run:
                self.paused = "the disk has no room for the transactions of a cleaning"
                self._end()
                return
            parts.consumers.place(parts.contents.dtvlsn)
            parts.contents.fold_acks()
            if parts.paging.pager is None:
                parts.destinations.place()
            chosen = plan(
                surveyed.wanted,
                [*self._unknown(), *self._limits(), *surveyed.aged.limits()],
                parts.holds,
                hold_bytes_max=self.retention.hold_bytes_max,
                bytes_from=lambda vlsn: bytes_from(surveyed.segments, surveyed.total_bytes, vlsn),
            )
            self.plan = chosen
            if self.dry_run or not chosen.going:
                self._end()
                return
            if not self._may_go(surveyed):
                return
            chosen = self.plan
            if not chosen.going:
                self._end()
                return
            self._number = min(number for number in parts.contents.segments() if number > chosen.going[-1].number)
            parts.survey.took(surveyed, chosen)
            self._drop_holds()
            parts.checkpointer.hold(self._find_first)

    def _may_go(self, surveyed: Surveyed) -> bool:
        """Has what destinations want of what goes paged first, and then leaves out what could not be. False while that
        is under way: the plan is made again then, since holds may have come."""
        pager, chosen, paged_to = self._parts.paging.pager, self.plan, self._paged_to
        if pager is None:
            return True
        if paged_to is None:
            pager.page(Vlsn(chosen.going[-1].last), lambda vlsn, why: self._paged(surveyed, vlsn, why))
            return False
        going = [fate for fate in chosen.going if fate.last <= paged_to]
        kept = [replace(fate, blocked_by=["pages of destinations"]) for fate in chosen.going[len(going) :]]
        self.plan = Plan(going, [*kept, *chosen.blocked], chosen.drops if going else [])
        return True

    def _paged(self, surveyed: Surveyed, vlsn: Vlsn, why: str) -> None:
        with self._parts.lifecycle.latch:
            self._paged_to = vlsn
            self.paused = self.paused or why
        self._decide(surveyed)

    def _limits(self) -> list[Limit]:
        coming = self._parts.contents.history.acks.coming
        contents, last = self._parts.contents, self._parts.checkpointer.last
        recovery = f"{Owner.CHECKPOINT} {RECOVERY}"
        return [
            Limit("durable end", contents.dtvlsn),
            Limit("synced end", contents.range.last_sync),
            Limit(recovery, number=max(1, lsn_file(last.scan_lsn)))
            if last is not None
            else Limit(recovery, vlsn=Vlsn(0)),
            *([Limit(COMING, coming)] if coming is not None else []),
        ]

    def _unknown(self) -> list[Limit]:
        """Keeps everything while this node does not know what consumers need."""
        lacking = self._parts.contents.history.small.lacks_to > 0
        return [Limit("consumers that are not known yet", Vlsn(0))] if lacking else []

    # 2

    def _drop_holds(self) -> None:
        holds = self._parts.holds
        holds.floor = Vlsn(max(holds.floor, self.plan.going[-1].last))
        for hold in self.plan.drops:
            self._parts.cleaned.drops += 1
            holds.drop(hold, Vlsn(holds.floor + 1))

    # 3

    def _find_first(self) -> None:
        """Finds the first block that stays; no checkpoint runs, and none starts."""
        contents = self._parts.contents
        ends = {each: end for each, end in contents.segments().items() if each >= self._number}
        self._parts.keeper.submit(
            lambda: first_block(contents.disk, contents.directory, ends), self._commit, self._not_found
        )

    def _not_found(self, error: BaseException) -> None:
        self._let_go()
        self._unreadable(error)

    def _let_go(self) -> None:
        parts = self._parts
        with parts.lifecycle.latch:
            parts.holds.floor = Vlsn(max(0, parts.contents.range.first - 1))
        parts.checkpointer.release()

    # 4: the commit point; 5

    def _commit(self, found: tuple[Vlsn, Lsn]) -> None:
        if self._is_over():
            return
        pager = self._parts.paging.pager
        why = pager.uncovered(found[0]) if pager is not None else ""
        with self._parts.lifecycle.latch:
            coming = self._parts.contents.history.acks.coming
        why = why or (COMING if coming is not None and coming < found[0] else "")
        if why:  # a destination has come meanwhile
            self._let_go()
            with self._parts.lifecycle.latch:
                self.paused = why
                self._end_without()
            return
        self._parts.keeper.submit(lambda: self._truncate(*found), self._truncated, self._failed)

    def _truncate(self, first: Vlsn, at: Lsn) -> None:
        """Truncates on the keeper's thread: steps 4 and 5."""
        parts = self._parts
        parts.state.begin_at(first, self._number)
        parts.contents.index.truncate_head(first, at)

    def _truncated(self, _: None) -> None:
        parts = self._parts
        with parts.lifecycle.latch:
            parts.contents.forget_before(self._number)
            parts.placement.forget_before(self._number)
            parts.survey.forget_before(self._number)
            parts.holds.floor = Vlsn(parts.contents.range.first - 1)
        parts.cleaned.segments += len(self.plan.going)
        parts.cleaned.bytes += sum(fate.bytes for fate in self.plan.going)
        parts.checkpointer.release()
        removal = Removal(parts.contents.disk, parts.contents.directory, self._number)
        parts.cleaned.removal = removal
        self._remove(removal)

    # 6

    def _remove(self, removal: Removal) -> None:
        """Removes files, a job a segment: the keeper has other work in between. The pass is over at the first
        failure."""
        self._parts.background.do("removal", "", removal, lambda done: self._removed(removal, done), self._not_removed)

    def _removed(self, removal: Removal, done: bool) -> None:
        parts = self._parts
        if done or parts.lifecycle.over or parts.cleaned.removal is not removal:  # a later one does it
            self._removal_over()
        else:
            self._remove(removal)

    def _not_removed(self, _: BaseException) -> None:
        fault = self._parts.background.fault("removal")
        if fault is None or fault.failures > 1:
            self._removal_over()

    def _removal_over(self) -> None:
        with self._parts.lifecycle.latch:
            if not self._told and not self._is_over():
                self._end()

    # Its end.

    def _is_over(self) -> bool:
        """Says whether the log has closed or failed: the pass ends there, and the next open does the rest."""
        lifecycle = self._parts.lifecycle
        if not lifecycle.over:
            return False
        self.paused = "the log was closed" if lifecycle.closed else str(lifecycle.failure)
        self._end_without()
        return True

    def _unreadable(self, error: BaseException) -> None:
        """Ends the pass at a segment that does not read back: damage is not cleaning's to judge."""
        if not isinstance(error, Damaged | OSError):
            self._failed(error)
            return
        with self._parts.lifecycle.latch:
            self.paused = str(error)
            self._end_without()

    def _failed(self, error: BaseException) -> None:
        """Fails the log, since a transaction failed."""
        self._parts.lifecycle.fail(f"a cleaning failed: {error}", error)
        self._is_over()

    def _end_without(self) -> None:
        """Ends without telling what was planned as done."""
        self.total_bytes, self.plan = 0, Plan([], [], [])
        self._end()

    def _end(self) -> None:
        self._told = True
        self._over(self)
