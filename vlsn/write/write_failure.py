"""The replacer: carries a log over the failure of a write or sync (what and why: ``segment_rewrite``).

    write fails ─► begin ─► standby there? ─► writer: frames, header ─► index told ─► on_replaced
                              └ no: go_on, once there is one

One at a time.  What fails meanwhile, no room for another segment, and two failures in a row to make one end the log.
At home, under the log latch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from vlsn.errors import NoSpace
from vlsn.ids import Lsn
from vlsn.seams import Clock, Worker
from vlsn.segments.current_segment import Group
from vlsn.state.options import LogStats
from vlsn.write.lifecycle import Lifecycle
from vlsn.write.log_contents import LogContents
from vlsn.write.segment_rewrite import Broken, Rewrite
from vlsn.write.segment_roll import Placement

OnReplaced = Callable[[Group, float], None]
"""A call with the group and the seconds that writing again took."""


class Replacer:
    def __init__(
        self,
        contents: LogContents,
        placement: Placement,
        lifecycle: Lifecycle,
        *,
        writer: Worker,
        keeper: Worker,
        clock: Clock,
        stats: LogStats,
    ) -> None:
        self._contents = contents
        self._placement = placement
        self._lifecycle = lifecycle
        self._writer = writer
        self._keeper = keeper
        self._clock = clock
        self._stats = stats
        self._broken: Broken | None = None
        self._on_replaced: OnReplaced = lambda _group, _seconds: None
        self._rewriting = False
        self._moved: dict[Lsn, Lsn] | None = None

    @property
    def active(self) -> bool:
        return self._broken is not None

    def begin(self, group: Group, error: BaseException, on_replaced: OnReplaced) -> None:
        """Begins to write ``group`` again, whose write or sync failed."""
        lifecycle = self._lifecycle
        if lifecycle.failure is not None:
            return
        if self._broken is not None or not isinstance(error, OSError):
            again = " again" if self._broken is not None else ""
            lifecycle.fail(f"a write or sync of the log failed{again}: {error}", error)
            return
        self._stats.write_errors += 1
        self._on_replaced = on_replaced
        self._broken = self._placement.abandon(group)
        self.go_on()

    def go_on(self) -> None:
        """Writes again what is broken, if there is a segment for it."""
        broken, placement, lifecycle = self._broken, self._placement, self._lifecycle
        if broken is None or self._rewriting or lifecycle.failure is not None:
            return
        try:
            if (refusal := placement.refusal) is not None:
                raise refusal
            if not placement.can_roll:
                return
            new = placement.rewrite(broken)
        except NoSpace as error:
            lifecycle.fail(f"a write or sync of the log failed, and {error}", error)
            return
        self._rewriting = True
        self._writer.submit(
            partial(new.write, self._contents.disk, self._contents.directory),
            partial(self._rewritten, broken, new, self._clock.monotonic_s()),
            partial(self.begin, broken.group, on_replaced=self._on_replaced),
        )

    def follow(self, *, on: bool) -> None:
        """Remembers for ``now_at`` what moves, for as long as a rollback runs, which knows places."""
        self._moved = {} if on else None

    def now_at(self, at: Lsn) -> Lsn:
        """Returns where the frame lies that lay at ``at``."""
        return (self._moved or {}).get(at, at)

    def _rewritten(self, broken: Broken, new: Rewrite, began_s: float, _: None) -> None:
        self._wait_for_flush(broken, new, self._clock.monotonic_s() - began_s)

    def _wait_for_flush(self, broken: Broken, new: Rewrite, seconds: float) -> None:
        """Waits for the keeper, whose jobs flushes are: the index may change while none is under way."""
        self._keeper.submit(lambda: None, lambda _: self._replaced(broken, new, seconds), self._lifecycle.store_failed)

    def _replaced(self, broken: Broken, new: Rewrite, seconds: float) -> None:
        index, lifecycle = self._contents.index, self._lifecycle
        with lifecycle.latch:
            if lifecycle.failure is not None:
                return  # a flush that failed is under way for ever
            if index.flushing:
                self._wait_for_flush(broken, new, seconds)
                return
            self._broken, self._rewriting = None, False
            self._placement.replaced(broken, new)
            index.relocate(new.firsts, new.lasts, new.lsns)
            if self._moved is not None:
                self._moved = {old: new.moved.get(at, at) for old, at in self._moved.items()} | new.moved
            self._on_replaced(broken.group, seconds)
