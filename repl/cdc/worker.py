"""The worker of one CDC consumer on one open log: its position, its hold on the log, its child, again and again.

    WAITING ─► STARTING ─► RUNNING ─► BACKOFF ─► STARTING …         a failure; the position is the last one stored
                   ▲           │            └──► PARKED            one failure too many, or what it needs is gone
                   └─ PAUSED ◄─┘                                    a person's orders

1. The position is loaded before anything else, and the log is held from there on, whatever the state: running, paused,
   parked for failures.  A consumer too far behind (``hold_bytes_max``) loses its hold; its status names the VLSNs that
   went.
2. Parked consumers stay so until a person resumes, resets or skips; the others go on.  A fault of ours parks one, too.
3. Where there is no position yet it begins as its settings say, and that is stored before the first event is given.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from feeder.source import Mode, Source
from repl.cdc.child_end import END_S
from repl.cdc.child_feed import (
    ChildFeed,
    ConsumerFailed,
    ConsumerRefused,
    ConsumerSlow,
    ConsumerWaits,
    Joined,
    KeepsItsOwn,
)
from repl.cdc.children import Child
from repl.cdc.host import CdcHost, CdcNode
from repl.cdc.messages import Start
from repl.cdc.position_stores import At, PositionLost, Positions
from repl.cdc.record import CdcRecord, CdcState, not_below
from repl.cdc_settings import CdcSettings
from vlsn.errors import (
    BadArgument,
    Damaged,
    LogFailed,
    NotInLog,
    NotMaster,
    OutcomeUnknown,
    StaleTerm,
    Trimmed,
    VlsnLogError,
    WrongVersion,
)
from vlsn.ids import Vlsn
from vlsn.state.holds import Hold, Owner
from vlsn.times import text_of
from vlsn.together import failure_of

T = TypeVar("T")
logger = logging.getLogger("vlsnlog")
BACKOFF_S = (0.1, 30.0)
"""The first and the longest pause after a failure; each is twice the one before."""
LOADS_MAX = 5
"""Tries to load a position, which may wait for a master, past which the pause between two grows no longer (1.6 s)."""
SLOW_MAX = 4
HOLD_PREFIX = "cdc/"


class CdcWorker:
    """One consumer on one open log.  ``run`` lives until it is cancelled; the orders of a person come in between."""

    def __init__(
        self,
        record: CdcRecord,
        *,
        node: CdcNode,
        host: CdcHost,
        positions: Positions,
        joined: Joined,
        event: Callable[..., None],
    ) -> None:
        self.record = record
        self.feed: ChildFeed | None = None
        self.pid = 0
        self._node = node
        self.host = host
        self._log = host.log
        self._reads = host.reads
        self._clock = node.clock
        self._positions = positions
        self._joined = joined
        self.event = event
        self._holds = record.settings.run_on == "node"
        """The log is to be held here from its position on."""
        self._hold: Hold | None = None
        self._stop = asyncio.Event()
        self._orders = asyncio.Lock()
        self._ordered: set[asyncio.Task[Any]] = set()
        """Orders that are carried out."""
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        """Set while no child lives."""
        self._idle.set()
        self._segment = 0
        self._resend: tuple[int, int] | None = None
        self._later = ""
        """Why its position could not be had by now."""
        self._fault = ""
        """How the disk failed that has its position."""
        self._loads = 0
        """Tries to load it, one after another, that failed."""
        self._halted = False
        """An order is being obeyed, for which no child may live."""
        self._closing = False

    @property
    def settings(self) -> CdcSettings:
        return self.record.settings

    # Its life.

    async def run(self) -> None:
        """Runs the consumer for as long as the log is open here, and it is to run here."""
        try:
            while True:
                self._changed.clear()
                self._later = self._fault = ""
                try:
                    waits = not await self._goes_on()
                except Exception as error:  # a fault of ours: the node and the others go on
                    logger.error("the worker of CDC consumer %s", self.settings.name, exc_info=error)
                    self._park(f"internal: {type(error).__name__}: {error}")
                    waits = True
                if waits:
                    await self._changed.wait()
        finally:
            self._release()
            self._set(CdcState.WAITING, "the log is closed, or another node runs it")
            await self._positions.close()

    async def _goes_on(self) -> bool:
        """Takes the next step; returns False where only a person's order helps."""
        if await self._may_run():
            if self.record.child is None:
                await self._one_life()
            else:
                await self._ended(self.record.child)
        elif self._fault and not self.record.parked:
            await self._failed(self._fault, 0)
        elif self._later and not self.record.parked:
            self._loads = min(self._loads + 1, LOADS_MAX)
            await self._back_off(self._later, self._loads)
        else:
            return False
        return True

    async def _may_run(self) -> bool:
        record = self.record
        if not record.next and not self._closing:
            async with self._orders:
                await self._load()
        if self._closing:
            self._set(CdcState.WAITING, "the node is stopping")
        elif record.parked:
            self._set(CdcState.PARKED, record.parked)
        elif record.paused_us:
            self._paused()
        elif self._halted:
            self._set(CdcState.STARTING, "stopped for an order")
        else:
            return bool(record.next)
        return False

    def _paused(self) -> None:
        self._set(CdcState.PAUSED, f"paused since {text_of(self.record.paused_us)}")

    async def _load(self) -> None:
        """Loads the position, or makes the first one; holds the log from there on."""
        try:
            at = await self._positions.load()
            if at is None:
                at = await self._begun()
            self.record.paused_us = self._positions.paused_us()
            self.record.next, self.record.begins = at.next, at.begins
            self.record.moved, self.record.moved_us = bool(at.moved_us), at.moved_us
            self.record.parked_at = self.record.parked_at or at.next
            if self.record.parked and at.next != self.record.parked_at:  # on another node it has gone on since
                self.record.parked, self.record.lost = "", (0, 0)
            trimmed: Trimmed | None = None
            try:
                self._hold_from(at.next)  # also while it is not known whether another one was lost
            except Trimmed as error:
                trimmed = error
            await self._positions.confirm()
            self._loads = 0
            if at.term:
                self._reads.check_place(at.next - 1, at.term)
            if trimmed is not None:
                raise trimmed
        except Trimmed as error:
            self._trimmed(self.record.next, int(error.first))
        except PositionLost as error:
            self.record.next = 0
            self._park(str(error))
        except (Damaged, NotInLog, WrongVersion) as error:
            self.record.next = 0
            self._park(f"its position: {error}")
        except (LogFailed, OSError) as error:
            self.record.next = 0
            self._fault = f"its position: {error}"
        except VlsnLogError as error:
            self.record.next = 0
            self._later = f"its position: {error}"
        except Exception:
            self.record.next = 0
            raise

    async def _begun(self) -> At:
        """Stores the first position, and holds the log from there on meanwhile."""
        begins = self.host.vlsn_of(self.settings.from_)
        at = At(begins, int(self._reads.term_before(Vlsn(begins))), begins=True)
        with suppress(Trimmed):  # a VLSN that the settings name may be gone: then it is parked, and says so
            self._hold_from(at.next)
        await self._positions.begin(at)
        return at

    async def _ended(self, child: Child) -> None:
        """Waits until its last process has ended, or a person's order comes: no two of them live side by side."""
        ended = asyncio.create_task(child.ended())
        changed = asyncio.create_task(self._changed.wait())
        try:
            await asyncio.wait([ended, changed], timeout=END_S, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                self.record.child = None
            else:
                self._set(CdcState.BACKOFF, f"its process {child.pid} was killed, and has not ended yet")
        finally:
            for each in (ended, changed):
                each.cancel()
            await asyncio.wait([ended, changed])

    async def _one_life(self) -> None:
        """Lives one child's life, and judges its end."""
        record, resend = self.record, self._resend
        self._set(CdcState.STARTING, "")
        began = record.next
        try:
            await self._fed(resend)
            if resend is None:
                record.works()
        except KeepsItsOwn as error:
            self._not_resent(str(error))
        except Trimmed as error:
            if resend is not None:  # it has had them once: nothing is lost
                self._not_resent(str(error))
                return
            kept = self.feed.kept if self.feed is not None else 0
            self._trimmed(kept or began, int(error.first))  # uncommitted events are lost, sent or not
        except ConsumerRefused as error:
            mend = f"mend that, and `vlsnlog cdc resume {self.settings.name}`, or the settings, and restart the node"
            self._park(f"refused: {error}; {mend}")
        except ConsumerSlow as error:
            record.slow = min(record.slow + 1, SLOW_MAX)
            if error.began:
                await self._failed(str(error), began)
            else:  # none of its doing: the machine is slow
                await self._waits(str(error))
        except ConsumerWaits as error:
            await self._waits(str(error), error.after_s)
        except ConsumerFailed as error:
            await self._failed(str(error), max(error.vlsn, began))
        except StaleTerm as error:
            record.next, record.moved = 0, False
            await self._back_off(f"another node has gone on with it: {error}")
        except (NotMaster, OutcomeUnknown) as error:
            record.next = 0  # whatever was stored is read again
            await self._back_off(str(error))
        except NotInLog as error:
            self._park(str(error))
        except LogFailed as error:
            record.next = 0  # what its position file holds is read again
            await self._failed(str(error), began)
        except (VlsnLogError, OSError) as error:  # no failure of the consumer, and may last: damage, no memory
            await self._waits(str(error))
        finally:
            self.feed, self.pid = None, 0
            self._idle.set()

    def _not_resent(self, why: str) -> None:
        assert self._resend is not None
        (first, last), self._resend = self._resend, None
        self.event("cdc.not_resent", consumer=self.settings.name, first=first, last=last, why=why)

    async def _waits(self, why: str, after_s: float = 0.0) -> None:
        """Backs off where the consumer has not failed."""
        self.record.waits, self.record.failed = self.record.waits + 1, why
        if self.record.waits == 1:
            self.event("cdc.waits", consumer=self.settings.name, why=why)
        await self._back_off(why, self.record.waits, after_s)

    async def _fed(self, resend: tuple[int, int] | None) -> None:
        record, settings = self.record, self.settings
        self._idle.clear()
        stop = self._stop = asyncio.Event()  # before anything is waited for: an order may come at any moment
        child = record.child = await self._node.children.start(settings.name)
        record.counts.restarts += 1
        self.pid = child.pid
        self.feed = feed = ChildFeed(
            child,
            make_source=self._source,
            reads=self._reads,
            clock=self._clock,
            joined=self._joined,
            counts=record.counts,
            store=self._store if resend is None else _not_stored,
            segment_of=self.host.segment_of,
            ahead_bytes=settings.ahead_bytes,
            start_timeout_s=settings.start_timeout_s * 2**record.slow,
            events_timeout_s=settings.events_timeout_s,
            upto=resend[1] if resend is not None else None,
        )
        start = Start(
            name=settings.name,
            consumer=settings.consumer,
            node=self._node.name,
            group=self._node.group,
            next=resend[0] if resend is not None else record.next,
            options=settings.options,
            memory_bytes_max=settings.memory_bytes_max,
            last=resend[1] if resend is not None else None,
            run_on=settings.run_on,
            term=int(self._log.view.history.term_of(self._log.view.range.last)),
            position_term=int(self._reads.term_before(resend[0] if resend is not None else record.next)),
            moved=record.moved and resend is None,
            moved_us=record.moved_us if record.moved and resend is None else 0,
            begins=record.begins,
        )
        self.event("cdc.starts", consumer=settings.name, next=start.next, mode=Mode.ARCHIVE.value, pid=child.pid)
        await feed.run(start, stop, self._switched)
        if resend is not None and self._resend == resend and not stop.is_set():
            self._resend = None
            self.event("cdc.resent", consumer=settings.name, first=resend[0], last=resend[1])

    def _source(self, next_vlsn: Vlsn, switched: Callable[[Mode], None]) -> Source:
        """Makes the source of a child that is ready. Raises ``Trimmed``, ``NotInLog``."""
        assert self.feed is not None
        self.record.slow, self.record.keeps = 0, self.feed.keeps
        self.host.check_here(next_vlsn)
        self._set(CdcState.RUNNING, "")
        return Source(self._log, next_vlsn, self.host.reading, switched, upto=lambda: self._reads.durable)

    def _switched(self, mode: Mode) -> None:
        counts = self.record.counts
        counts.to_buffer += mode is Mode.BUFFER
        counts.to_archive += mode is Mode.ARCHIVE
        why = "its position is in the ring" if mode is Mode.BUFFER else "the ring had to drop what it needs"
        self.event("cdc.mode", consumer=self.settings.name, mode=mode.value, why=why)

    # Its position.

    async def _store(self, next_vlsn: int, final: bool) -> bool:
        """Stores a position that the consumer has committed, and lets go of the log below it."""
        if next_vlsn < self.record.next:
            return True  # it keeps its own, and began before this one
        segment = self.host.segment_of(next_vlsn - 1)
        if self.settings.commit == "segment" and segment == self._segment and not final:
            return False
        await self._positions.store(At(next_vlsn, int(self._reads.term_before(next_vlsn))))
        self._segment = segment
        record = self.record
        record.works()
        record.next, record.moved, record.moved_us, record.begins = next_vlsn, False, 0, False
        if self._hold is not None:
            with self._log.latch:
                self._hold.advance(Vlsn(next_vlsn))
        return True

    def _hold_from(self, vlsn: int) -> None:
        """Holds the log from ``vlsn`` on, and no more where it did. Raises ``Trimmed``."""
        with self._log.latch:
            self._release()
            if self._holds:
                name = HOLD_PREFIX + self.settings.name
                self._hold = self._log.care.holds.place(Owner.CONSUMER, name, Vlsn(vlsn), on_dropped=self._dropped)

    def _dropped(self, first: Vlsn) -> None:
        self.event("hold.dropped", owner="consumer", consumer=HOLD_PREFIX + self.settings.name, first=first)

    def _release(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            with self._log.latch:
                self._log.care.holds.release(hold)

    # Its failures.

    async def _failed(self, reason: str, at: int) -> None:
        """Counts a failure; backs off, or parks it."""
        record = self.record
        record.failures = record.failures + 1 if at <= record.failed_at else 1
        record.failed_at = at
        record.failed = last = reason.strip().splitlines()[-1] if reason.strip() else reason
        self.event("cdc.failed", consumer=self.settings.name, at=at, failures=record.failures, why=last)
        if record.failures > self.settings.retries_max:
            name, behind = record.settings.name, max(record.next, at) + 1
            self._park(
                f"it failed {record.failures} times at VLSN {at}, the last time with: {last}; mend it and "
                f"`vlsnlog cdc resume {name}`, or go on behind it with `vlsnlog cdc skip {name} --to {behind}`"
            )
        else:
            await self._back_off(last)

    async def _back_off(self, why: str, times: int = 0, after_s: float = 0.0) -> None:
        first, longest = BACKOFF_S
        pause = min(longest, first * 2 ** min(16, max(0, (times or self.record.failures) - 1)))
        pause = max(pause, after_s)
        self._idle.set()
        self._set(CdcState.PAUSED if self.record.paused_us else CdcState.BACKOFF, why)
        try:
            async with asyncio.timeout(pause):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _trimmed(self, next_vlsn: int, first: int) -> None:
        self.record.lost = (int(next_vlsn), first - 1)
        self._park(
            f"VLSNs {next_vlsn} to {first - 1} were cleaned away before it had taken them; go on without them by "
            f"`vlsnlog cdc skip {self.settings.name} --to {first}`"
        )

    def _park(self, why: str) -> None:
        self.record.parked, self.record.parked_at = why, self.record.next
        self._set(CdcState.PARKED, why)
        self.event("cdc.parked", consumer=self.settings.name, why=why)

    def _set(self, state: CdcState, reason: str) -> None:
        self.record.state, self.record.reason = state, reason

    # A person's orders.

    async def carry_out(self, name: str, order: Coroutine[Any, Any, T]) -> T:
        """Carries out an order whole, though its caller may leave; then an event says how it failed. Raises as the
        order, and ``NotMaster`` where the node closes first."""
        task = asyncio.create_task(order, name=f"{name} {self.settings.name}")
        self._ordered.add(task)
        task.add_done_callback(self._ordered.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NotMaster(f"{self.settings.name}: the node closes; ask again where it goes on") from None
            task.add_done_callback(partial(self._failed_alone, name))
            raise

    def _failed_alone(self, name: str, task: asyncio.Future[T]) -> None:
        error = failure_of(task)
        if error is not None:
            self.event("cdc.order_failed", consumer=self.settings.name, order=name, why=str(error))

    async def pause(self) -> None:
        """Stops the consumer where it is until a person resumes it, also past a restart; its hold stays. Raises as the
        store of its position does; then the stored state counts."""
        async with self._orders, self._halting() as record:
            if not record.next:
                await self._load()
            if not record.paused_us:
                await self._store_pause(self._clock.wall_us())
                self.event("cdc.paused", consumer=self.settings.name, next=record.next)
                self._paused()

    async def resume(self) -> None:
        """Resumes the consumer, parked or paused. Raises as ``pause``."""
        async with self._orders:
            record = self.record
            if not record.next and not record.parked:
                await self._load()
            if record.paused_us or not (record.next or record.parked):  # paused, for all that is known
                await self._store_pause(0)
                self.event("cdc.resumed", consumer=self.settings.name, next=record.next)
            record.parked = ""
            record.works()
            if record.state in (CdcState.PAUSED, CdcState.PARKED):
                self._set(CdcState.STARTING, "")
            self._changed.set()

    async def _store_pause(self, since_us: int) -> None:
        try:
            await self._positions.pause(since_us)
        except BaseException:
            self.record.next = 0  # what is stored is read again
            self._changed.set()
            raise
        self.record.paused_us = since_us

    async def move(self, next_vlsn: int, *, forward: bool = False) -> int:
        """Sets its position, and returns the one before; paused or parked it stays so, unless what parked it was that
        the old one is gone.  ``forward``: only past where it has come to, once its child is at rest. Raises
        ``Trimmed``, ``BadArgument``, and as the store of its position."""
        async with self._orders:
            durable = self._reads.durable
            if not 1 <= next_vlsn <= durable + 1:
                raise BadArgument(f"VLSN {next_vlsn} is not in 1–{durable + 1}: what is durable ends at {durable}")
            self.host.check_here(next_vlsn)
            with self._held_for_order(next_vlsn):
                return await self._moved(next_vlsn, forward=forward)

    async def _moved(self, next_vlsn: int, *, forward: bool) -> int:
        async with self._halting() as record:
            if not record.next:
                await self._load()  # a change of the group's position must name the old one
            before = record.next
            if forward and before >= next_vlsn:  # its child has committed that meanwhile
                name = self.settings.name
                raise BadArgument(not_below(name, before, next_vlsn))
            record.next = 0  # until it is known what is stored
            ordered_us = self._clock.wall_us()
            term = int(self._reads.term_before(next_vlsn))
            await self._positions.place(At(next_vlsn, term, moved_us=ordered_us))
            record.next, record.parked, record.lost, self._resend = next_vlsn, "", (0, 0), None
            record.moved, record.moved_us, record.begins = True, ordered_us, False
            record.works()
            self._hold_from(next_vlsn)
            try:
                await self._positions.confirm()
            except VlsnLogError:
                record.next = 0  # for want of a master: it is loaded, and confirmed, before it runs
        self.event("cdc.moved", consumer=self.settings.name, before=before, next=next_vlsn)
        return before

    @contextmanager
    def _held_for_order(self, vlsn: int) -> Iterator[None]:
        """Holds the log from ``vlsn`` on while an order is carried out: no cleaning overtakes it. Raises ``Trimmed``,
        nothing ordered."""
        if not self._holds:
            yield
            return
        with self._log.latch:
            name = f"{HOLD_PREFIX}{self.settings.name} (moving)"
            hold = self._log.care.holds.place(Owner.CONSUMER, name, Vlsn(vlsn), on_dropped=self._dropped)
        try:
            yield
        finally:
            with self._log.latch:
                self._log.care.holds.release(hold)

    async def resend(self, first: int, last: int) -> None:
        """Gives VLSNs ``first`` to ``last`` once more, before it goes on where it was. Raises ``BadArgument``, also
        where it keeps its own position; ``Trimmed``."""
        async with self._orders:
            if self.record.keeps:
                name = self.settings.name
                raise BadArgument(
                    f"{name} keeps its own position, and would begin behind them; it has them again, and all that "
                    f"follow, by `vlsnlog cdc reset {name} --to {first}`"
                )
            durable = self._reads.durable
            if not 1 <= first <= last <= durable:
                raise BadArgument(f"VLSNs {first} to {last} are not in 1–{durable}, what is durable")
            self.host.check_here(first)
            async with self._halting():
                self._resend = (first, last)

    @asynccontextmanager
    async def _halting(self) -> AsyncIterator[CdcRecord]:
        """Stops its child for an order, which has it at rest until it goes on as it may."""
        self._halted = True
        try:
            await self._stopped()
            yield self.record
        finally:
            self._halted = False
            self._changed.set()

    async def close(self) -> None:
        """Stops its child as a pause does, for good."""
        self._closing = True
        for order in self._ordered:
            order.cancel()
        await asyncio.gather(*self._ordered, return_exceptions=True)
        await self._stopped()

    async def _stopped(self) -> None:
        """Returns when no child lives."""
        self._stop.set()
        self._changed.set()
        await self._idle.wait()


async def _not_stored(next_vlsn: int, final: bool) -> bool:
    """Passes over commits while VLSNs are sent once more."""
    return True
