"""The replacer: carries a log over the failure of a write or sync (what and why: ``segment_rewrite``).

    write fails ─► begin ─► standby there? ─► writer: frames, header ─► index told ─► on_replaced
                              └ no: go_on, once there is one

One at a time.  What fails meanwhile, no room for another segment, and two failures in a row to make one end the log.
At home, under the log latch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vlsn.errors import NoSpace
from vlsn.ids import Lsn
from vlsn.segments.current_segment import Group
from vlsn.write.segment_rewrite import Broken, Rewrite

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog

OnReplaced = Callable[[float], None]
"""Called with the seconds that writing again took."""


class Replacer:
    def __init__(self, log: LocalLog, on_replaced: OnReplaced) -> None:
        self._log = log
        self._on_replaced = on_replaced
        self._broken: Broken | None = None
        self._rewriting = False
        self._moved: dict[Lsn, Lsn] | None = None

    @property
    def active(self) -> bool:
        return self._broken is not None

    def begin(self, group: Group, error: BaseException) -> None:
        """The write or sync of ``group`` failed."""
        log = self._log
        if log.failure is not None:
            return
        if self._broken is not None or not isinstance(error, OSError):
            again = " again" if self._broken is not None else ""
            log.fail(f"a write or sync of the log failed{again}: {error}", error)
            return
        log.stats.write_errors += 1
        self._broken = log.placement.abandon(group)
        self.go_on()

    def go_on(self) -> None:
        """Writes again what is broken, if there is a segment for it."""
        broken, placement, log = self._broken, self._log.placement, self._log
        if broken is None or self._rewriting or log.failure is not None:
            return
        try:
            if (refusal := placement.refusal) is not None:
                raise refusal
            if not placement.can_roll:
                return
            new = placement.rewrite(broken)
        except NoSpace as error:
            log.fail(f"a write or sync of the log failed, and {error}", error)
            return
        clock = log.seams.clock.monotonic_s
        began = clock()
        self._rewriting = True
        log.writer.submit(
            lambda: new.write(log.seams.disk, log.directory),
            lambda _: self._rewritten(new, clock() - began),
            lambda error: self.begin(broken.group, error),
        )

    def follow(self, *, on: bool) -> None:
        """Whether what moves is remembered for ``now_at``: for as long as a rollback runs, which knows places."""
        self._moved = {} if on else None

    def now_at(self, at: Lsn) -> Lsn:
        """Where the frame lies that lay at ``at``."""
        return (self._moved or {}).get(at, at)

    def _rewritten(self, new: Rewrite, seconds: float) -> None:
        """The index may change while no flush of it is under way: those are the keeper's jobs."""
        self._log.keeper.submit(lambda: None, lambda _: self._replaced(new, seconds), self._log.store_failed)

    def _replaced(self, new: Rewrite, seconds: float) -> None:
        log = self._log
        with log.latch:
            if log.failure is not None:
                return  # a flush that failed is under way for ever
            if log.index.flushing:
                self._rewritten(new, seconds)
                return
            broken = self._broken
            assert broken is not None
            self._broken, self._rewriting = None, False
            log.placement.replaced(broken, new)
            log.index.relocate(new.firsts, new.lasts, new.lsns)
            if self._moved is not None:
                self._moved = {old: new.moved.get(at, at) for old, at in self._moved.items()} | new.moved
            self._on_replaced(seconds)
