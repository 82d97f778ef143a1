"""Cleaning: the oldest segments go, and the log begins at a later VLSN.

    1  what retention wants gone is found (``retention``); limits and holds say what of it may go, and for age how much
       the clocks are believed (``aging``)
       what destinations still want of that is written to pages, and those are synced (``vlsn/pages``); then the plan
       is made again, and nothing goes that is not in them
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
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from vlsn.state.retention import Fate, Retention
from vlsn.write.cleaning_pass import CleaningParts, CleaningPass, Paging


class CleaningReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report: what went (of a dry run: would go), and what stays although retention wants it gone."""

    dry_run: bool
    retention_bytes: int
    retention_age_s: float
    total_bytes: int
    """The bytes of all segment files before."""
    first: int
    """The first VLSN afterwards; of a dry run, not above it."""
    segments: list[Fate]
    blocked: list[Fate]
    dropped: list[str] = []
    """Holds that were too far behind, each as owner and name."""
    paused: str = ""
    """The reason why nothing was done at all, or nothing for age."""

    @property
    def bytes(self) -> int:
        """Freed."""
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
    """Cleans one log, one pass at a time.  At home only; its reads, transactions and removals are the keeper's."""

    def __init__(self, parts: CleaningParts, retention: Retention) -> None:
        self.retention = retention
        self.last: CleaningReport | None = None
        """The report of the last pass that was no dry run."""
        self._parts = parts
        self._lifecycle = parts.lifecycle
        self._waiting: deque[_Request] = deque()
        self._running = False

    @property
    def segments(self) -> int:
        """Cleaned since the log was opened."""
        return self._parts.cleaned.segments

    @property
    def bytes(self) -> int:
        """Those of ``segments``."""
        return self._parts.cleaned.bytes

    @property
    def drops(self) -> int:
        """Holds that were dropped since the log was opened."""
        return self._parts.cleaned.drops

    @property
    def paging(self) -> Paging:
        """The place of the pager, which keeps what destinations want of what goes."""
        return self._parts.paging

    def run(
        self,
        done: Done = lambda _: None,
        *,
        dry_run: bool = False,
        pause: str = "",
        pause_age: str = "",
        clocks_agree: bool = False,
    ) -> None:
        """Runs a pass after the one under way; who asks for the same meanwhile shares it. ``done`` when its files are
        gone. ``pause`` is why nothing is to go, ``pause_age`` why nothing is to go for its age. ``clocks_agree``:
        others' clocks say the same, so that age is believed (``aging``). When the log closes or fails meanwhile
        ``done`` hears of that in place of what went."""
        retention = self.retention
        paused = pause or (pause_age if retention.age_s else "")
        if pause and not dry_run:
            retention = Retention()
        elif paused and not dry_run:
            retention = replace(retention, age_s=0.0)
        new = _Request([done], dry_run, retention, paused, clocks_agree)
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
            if not self._waiting or self._running:
                return
            self._running = True
            request = self._waiting.popleft()
            asked = CleaningPass(
                self._parts,
                request.retention,
                dry_run=request.dry_run,
                paused=request.paused,
                clocks_agree=request.clocks_agree,
                over=lambda asked: self._over(request, asked),
            )
            asked.begin()

    def _over(self, request: _Request, asked: CleaningPass) -> None:
        """Tells who asked, and goes on with the next one."""
        self._running = False
        first, going = int(self._parts.contents.range.first), asked.plan.going
        if asked.dry_run and going:
            first = max(first, going[-1].last + 1)
        report = CleaningReport(
            dry_run=asked.dry_run,
            retention_bytes=self.retention.bytes,
            retention_age_s=self.retention.age_s,
            total_bytes=asked.total_bytes,
            first=first,
            segments=going,
            blocked=asked.plan.blocked,
            dropped=[str(hold) for hold in asked.plan.drops],
            paused=asked.paused or self._left(),
        )
        if not asked.dry_run:
            self.last = report
        for done in request.done:
            done(report)
        self._next()

    def _left(self) -> str:
        fault = self._parts.background.fault("removal")
        return f"files of segments that were cleaned away are left: {fault.why}" if fault is not None else ""
