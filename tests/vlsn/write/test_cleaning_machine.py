"""Appends, rolls, checkpoints, rollbacks, holds, cleanings and crashes in any order, against a dictionary."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.vlsn.logs import SMALL, Machine, Opened
from vlsn.errors import NotMaster, VlsnLogError
from vlsn.ids import Vlsn
from vlsn.state.holds import Hold, Owner
from vlsn.write.cleaner import CleaningReport

KEEPING = replace(SMALL, retention_bytes=1, hold_bytes_max=6 * SMALL.segment_bytes)
"""Options by which whatever may go, goes."""
PARTS = st.sampled_from([0.0, 0.5, 0.9, 1.0, 1.0])


class Cleaned(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(seed=1)
        self.held: dict[int, bytes] = {}
        """Every DATA entry ever synced and not rolled back."""
        self.ends: list[int] = []
        self.durable = 0
        self.first = 1
        self.hold: Hold | None = None
        self.told: list[int] = []
        self._open()

    def _open(self) -> None:
        self.opened = Opened(self.machine, KEEPING, take_term=False)
        self.opened.synced = self._synced  # type: ignore[method-assign,assignment]
        self.log = self.opened.log
        assert self.log.view.dtvlsn <= self.durable
        self.hold = None
        self.opened.take_term()

    def _synced(self, last: Vlsn) -> None:
        self.ends.append(last)
        while self.opened.waiting and self.opened.waiting[0].last <= last:
            self.opened.waiting.pop(0).synced = True

    @rule(count=st.integers(1, 20), size=st.sampled_from([10, 4000, 9000]))
    def append(self, count: int, size: int) -> None:
        for _ in range(count):
            value = f"{self.log.view.range.last}:".encode().ljust(size, b".")
            pending = self.opened.append(value)
            assert pending.synced
            self.held[pending.first] = value

    @rule(segments=st.integers(1, 4), clean=st.booleans())
    def grow(self, segments: int, clean: bool) -> None:
        """Grows, as a log does most of its life."""
        for _ in range(segments):
            self.append(4, 9000)
            self.roll()
        self.make_durable(1.0)
        if clean:
            self.clean(checkpoint=True)

    @rule()
    def roll(self) -> None:
        self.log.cycle.rotate("request", lambda _: None)

    @rule()
    def checkpoint(self) -> None:
        self.log.care.checkpointer.run()

    @rule(part=PARTS)
    def make_durable(self, part: float) -> None:
        below = [end for end in self.ends if end <= self.log.view.range.last]
        self.durable = max(self.durable, below[int(part * (len(below) - 1))])
        self.log.view.raise_dtvlsn(Vlsn(self.durable))

    @rule(part=PARTS)
    def place_hold(self, part: float) -> None:
        span = self.log.view.range
        at = Vlsn(span.first + int(part * (span.last - span.first)))
        self.hold = self.log.care.holds.place(Owner.CONSUMER, "c", at, on_dropped=self.told.append)

    @precondition(lambda self: self.hold is not None)
    @rule(step=st.integers(1, 40))
    def advance_hold(self, step: int) -> None:
        assert self.hold is not None
        self.hold.advance(Vlsn(min(self.hold.vlsn + step, self.log.view.range.last)))

    @rule(checkpoint=st.booleans())
    def clean(self, checkpoint: bool) -> None:
        if checkpoint:
            self.log.care.checkpointer.run()
        hold = self.hold
        kept = hold.vlsn if hold is not None and hold.live else None
        reports: list[CleaningReport] = []
        self.log.care.cleaner.run(reports.append)
        (report,) = reports
        first = self.log.view.range.first
        assert self.first <= first <= max(self.log.view.dtvlsn, 1)
        if kept is not None and hold is not None and hold.live:
            assert first <= kept
        if report.dropped:
            assert hold is not None and not hold.live
            assert self.told[-1] >= first
        self.first = first
        event(f"segments gone: {len(report.segments)}")

    @rule(part=PARTS)
    def roll_back(self, part: float) -> None:
        ends = [end for end in self.ends if max(self.durable, self.first) <= end <= self.log.view.range.last]
        if not ends:
            return
        matchpoint = Vlsn(ends[int(part * (len(ends) - 1))])
        self.log.stop_sealing(NotMaster("a rollback"))
        ended: list[VlsnLogError | None] = []
        self.log.rollback(matchpoint, lambda: ended.append(None), ended.append)
        assert ended == [None]
        self.held = {vlsn: value for vlsn, value in self.held.items() if vlsn <= matchpoint}
        self.ends = [end for end in self.ends if end <= matchpoint]
        self.opened.take_term()

    @rule(power=st.booleans(), lost=st.sampled_from(["", "", "index"]))
    def crash(self, power: bool, lost: str) -> None:
        self.machine.kill()
        if power:
            self.machine.disk.power_cut(self.machine.rng, tear=True)
        if lost:
            self.machine.stores.set_aside(f"/log/{lost}")
        self._open()

    @rule()
    def stop_cleanly(self) -> None:
        self.opened.close()
        self._open()

    @invariant()
    def reads_back_whole(self) -> None:
        span = self.log.view.range
        assert span.first == self.first
        assert self.opened.entries() == {vlsn: value for vlsn, value in self.held.items() if vlsn >= self.first}
        runs = self.log.view.history.term_runs
        assert (runs[0].first, runs[-1].last) == (span.first, span.last)
        assert self.opened.failure is None


_examples = settings.get_profile(settings.get_current_profile_name()).max_examples
Cleaned.TestCase.settings = settings(max_examples=max(20, _examples // 4), stateful_step_count=40, deadline=None)
TestCleaned = Cleaned.TestCase
