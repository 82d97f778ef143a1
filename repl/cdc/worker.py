"""The worker of one CDC consumer on one open log: it holds the position, and runs one child process after another.

    WAITING ─► STARTING ─► RUNNING ─► BACKOFF ─► STARTING …         a failure; the position is the last one stored
                   ▲           │            └──► PARKED            one failure too many, or what it needs is gone
                   └─ PAUSED ◄─┘                                    a person's orders

1. The position is loaded first. Cleaning keeps the log from there on in every state: running, paused, or parked. A
   consumer too far behind (``hold_bytes_max``) loses this hold; its status then names the VLSNs cleaned away.
2. A parked consumer stays parked until a person resumes, resets or skips it; the other consumers continue. An internal
   error also parks the consumer.
3. A consumer without a position begins where its settings say. That position is stored before the first event is
   delivered.
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
from repl.shared import undisturbed
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
"""The first and the longest pause after a failure, in seconds. Each pause is twice as long as the preceding one."""
LOADS_MAX = 5
"""After this many failed loads of the position, the pause between loads stays the same (1.6 s). A load may wait for
a master."""
SLOW_MAX = 4
HOLD_PREFIX = "cdc/"


class CdcWorker:
    """One consumer on one open log. ``run`` lasts until it is cancelled. A person's orders are executed while it
    runs."""

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
        """True if the hold on this node's log must follow the position."""
        self._hold: Hold | None = None
        self._stop = asyncio.Event()
        self._orders = asyncio.Lock()
        self._ordered: set[asyncio.Task[Any]] = set()
        """The tasks of orders that are being executed."""
        self._changed = asyncio.Event()
        self._idle = asyncio.Event()
        """Set while no child process runs."""
        self._idle.set()
        self._segment = 0
        self._resend: tuple[int, int] | None = None
        self._later = ""
        """Why the position could not be loaded, if another try may succeed; "" otherwise."""
        self._fault = ""
        """How the disk with the position file failed; "" if it did not."""
        self._loads = 0
        """The number of failed loads in a row."""
        self._halted = False
        """True while an order is executed during which no child may run."""
        self._closing = False

    @property
    def settings(self) -> CdcSettings:
        return self.record.settings

    # The worker's life.

    async def run(self) -> None:
        """Runs the consumer while the log is open and the consumer should run on this node."""
        try:
            while True:
                self._changed.clear()
                self._later = self._fault = ""
                try:
                    waits = not await self._goes_on()
                except Exception as error:
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
        """Loads the position, or runs the next child. Returns False if the consumer can continue only after a person's
        order."""
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
        """Loads the position, or creates the first one. Cleaning keeps the log from that position on."""
        try:
            at = await self._positions.load()
            if at is None:
                at = await self._begun()
            self.record.paused_us = self._positions.paused_us()
            self.record.next, self.record.begins = at.next, at.begins
            self.record.moved, self.record.moved_us = bool(at.moved_us), at.moved_us
            self.record.parked_at = self.record.parked_at or at.next
            if self.record.parked and at.next != self.record.parked_at:
                self.record.parked, self.record.lost = "", (0, 0)
            trimmed: Trimmed | None = None
            try:
                # the log is kept even before it is certain that no other position file was lost
                self._hold_from(at.next)
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
        """Stores the first position. While it is being stored, cleaning keeps the log from that position on."""
        begins = self.host.vlsn_of(self.settings.from_)
        at = At(begins, int(self._reads.term_before(Vlsn(begins))), begins=True)
        # a VLSN in the settings may have been cleaned away; in that case the consumer is parked with that reason
        with suppress(Trimmed):
            self._hold_from(at.next)
        await self._positions.begin(at)
        return at

    async def _ended(self, child: Child) -> None:
        """Waits until the last process has ended, or until a person's order arrives. Two processes of one consumer
        must not run at the same time."""
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
        """Runs one child process from its start to its end, and handles the way in which it ended."""
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
            if resend is not None:  # a resend: the consumer has received these events before, so nothing is lost
                self._not_resent(str(error))
                return
            kept = self.feed.kept if self.feed is not None else 0
            # the consumer has not committed these events, so they are lost to it, even if they were sent
            self._trimmed(kept or began, int(error.first))
        except ConsumerRefused as error:
            mend = f"mend that, and `vlsnlog cdc resume {self.settings.name}`, or the settings, and restart the node"
            self._park(f"refused: {error}; {mend}")
        except ConsumerSlow as error:
            record.slow = min(record.slow + 1, SLOW_MAX)
            if error.began:
                await self._failed(str(error), began)
            else:  # the machine is slow: this is no failure of the consumer
                await self._waits(str(error))
        except ConsumerWaits as error:
            await self._waits(str(error), error.after_s)
        except ConsumerFailed as error:
            await self._failed(str(error), max(error.vlsn, began))
        except StaleTerm as error:
            record.next, record.moved = 0, False
            await self._back_off(f"another node has continued with it: {error}")
        except (NotMaster, OutcomeUnknown) as error:
            record.next = 0  # 0: the stored position is read again
            await self._back_off(str(error))
        except NotInLog as error:
            self._park(str(error))
        except LogFailed as error:
            record.next = 0  # 0: the position file is read again
            await self._failed(str(error), began)
        except (VlsnLogError, OSError) as error:  # damage or lack of memory may last, and is no failure of the consumer
            await self._waits(str(error))
        finally:
            self.feed, self.pid = None, 0
            self._idle.set()

    def _not_resent(self, why: str) -> None:
        assert self._resend is not None
        (first, last), self._resend = self._resend, None
        self.event("cdc.not_resent", consumer=self.settings.name, first=first, last=last, why=why)

    async def _waits(self, why: str, after_s: float = 0.0) -> None:
        """Pauses after an error that does not count as a failure of the consumer."""
        self.record.waits, self.record.failed = self.record.waits + 1, why
        if self.record.waits == 1:
            self.event("cdc.waits", consumer=self.settings.name, why=why)
        await self._back_off(why, self.record.waits, after_s)

    async def _fed(self, resend: tuple[int, int] | None) -> None:
        record, settings = self.record, self.settings
        self._idle.clear()
        stop = self._stop = asyncio.Event()  # set before any await, because an order may arrive at any moment
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
        """Makes the source for a child that is ready. Raises ``Trimmed``, ``NotInLog``."""
        assert self.feed is not None
        self.record.slow, self.record.keeps = 0, self.feed.keeps
        self.host.check_here(next_vlsn)
        self._set(CdcState.RUNNING, "")
        return Source(self._log, next_vlsn, self.host.reading, switched, upto=lambda: self._reads.durable)

    def _switched(self, mode: Mode) -> None:
        counts = self.record.counts
        counts.to_buffer += mode is Mode.BUFFER
        counts.to_archive += mode is Mode.ARCHIVE
        why = "its position is in the ring" if mode is Mode.BUFFER else "the ring had to drop blocks that it needs"
        self.event("cdc.mode", consumer=self.settings.name, mode=mode.value, why=why)

    # The stored position.

    async def _store(self, next_vlsn: int, final: bool) -> bool:
        """Stores a position that the consumer has committed, and moves the hold on the log there."""
        if next_vlsn < self.record.next:
            return True  # an earlier position than the stored one, of a consumer that keeps its own
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
        """Holds the log from ``vlsn`` on, and releases the earlier hold. Raises ``Trimmed``."""
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

    # Failures.

    async def _failed(self, reason: str, at: int) -> None:
        """Counts a failure. Pauses, or parks the consumer after too many failures."""
        record = self.record
        record.failures = record.failures + 1 if at <= record.failed_at else 1
        record.failed_at = at
        record.failed = last = reason.strip().splitlines()[-1] if reason.strip() else reason
        self.event("cdc.failed", consumer=self.settings.name, at=at, failures=record.failures, why=last)
        if record.failures > self.settings.retries_max:
            name, behind = record.settings.name, max(record.next, at) + 1
            self._park(
                f"it failed {record.failures} times at VLSN {at}, the last time with: {last}; mend it and "
                f"`vlsnlog cdc resume {name}`, or skip it with `vlsnlog cdc skip {name} --to {behind}`"
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
            f"VLSNs {next_vlsn} to {first - 1} were cleaned away before it had taken them; skip them with "
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
        """Executes an order completely, even if its caller leaves; in that case an event reports a failure. Raises
        the errors of the order, and ``NotMaster`` if the node closes first."""
        task = asyncio.create_task(order, name=f"{name} {self.settings.name}")
        self._ordered.add(task)
        task.add_done_callback(self._ordered.discard)
        try:
            return await undisturbed(task)
        except asyncio.CancelledError:
            if task.cancelled():
                raise NotMaster(f"{self.settings.name}: the node is closing; ask the node that runs it next") from None
            task.add_done_callback(partial(self._failed_alone, name))
            raise

    def _failed_alone(self, name: str, task: asyncio.Future[T]) -> None:
        if (error := failure_of(task)) is not None:
            self.event("cdc.order_failed", consumer=self.settings.name, order=name, why=str(error))

    async def pause(self) -> None:
        """Stops the consumer until a person resumes it, also across restarts. Cleaning still keeps the log from its
        position on. Raises the errors of storing the position; after an error the stored state is read again."""
        async with self._orders, self._halting() as record:
            if not record.next:
                await self._load()
            if not record.paused_us:
                await self._store_pause(self._clock.wall_us())
                self.event("cdc.paused", consumer=self.settings.name, next=record.next)
                self._paused()

    async def resume(self) -> None:
        """Resumes a parked or paused consumer. Raises as ``pause``."""
        async with self._orders:
            record = self.record
            if not record.next and not record.parked:
                await self._load()
            if record.paused_us or not (record.next or record.parked):
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
            self.record.next = 0  # 0: the stored state is read again
            self._changed.set()
            raise
        self.record.paused_us = since_us

    async def move(self, next_vlsn: int, *, forward: bool = False) -> int:
        """Sets the position and returns the former position. A paused or parked consumer stays paused or parked. Only a
        consumer that was parked for a lost position runs again. With ``forward`` the new position must be later than
        the position that the child has reached. Raises ``Trimmed``, ``BadArgument``, and the errors of storing the
        position."""
        async with self._orders:
            durable = self._reads.durable
            if not 1 <= next_vlsn <= durable + 1:
                raise BadArgument(f"VLSN {next_vlsn} is not in 1–{durable + 1}: the log is durable to {durable}")
            self.host.check_here(next_vlsn)
            with self._held_for_order(next_vlsn):
                return await self._moved(next_vlsn, forward=forward)

    async def _moved(self, next_vlsn: int, *, forward: bool) -> int:
        async with self._halting() as record:
            if not record.next:
                await self._load()  # a change of a position in the group's log must name the position that it replaces
            before = record.next
            if forward and before >= next_vlsn:  # the child has committed that position or a later one meanwhile
                name = self.settings.name
                raise BadArgument(not_below(name, before, next_vlsn))
            record.next = 0  # 0: the position is not known until the new one is stored
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
                record.next = 0  # there is no master now: the position is loaded and confirmed before the consumer runs
        self.event("cdc.moved", consumer=self.settings.name, before=before, next=next_vlsn)
        return before

    @contextmanager
    def _held_for_order(self, vlsn: int) -> Iterator[None]:
        """Keeps the log from ``vlsn`` on while an order is executed, so that cleaning does not remove these entries.
        Raises ``Trimmed`` before anything is changed."""
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
        """Delivers VLSNs ``first`` to ``last`` once more, then continues at the stored position. Raises ``Trimmed``,
        and ``BadArgument``, also for a consumer that keeps its own position."""
        async with self._orders:
            if self.record.keeps:
                name = self.settings.name
                raise BadArgument(
                    f"{name} keeps its own position, so it would not receive them; it receives them and all that "
                    f"follow after `vlsnlog cdc move {name} --to {first}`"
                )
            durable = self._reads.durable
            if not 1 <= first <= last <= durable:
                raise BadArgument(f"VLSNs {first} to {last} are not in 1–{durable}: the log is durable to {durable}")
            self.host.check_here(first)
            async with self._halting():
                self._resend = (first, last)

    @asynccontextmanager
    async def _halting(self) -> AsyncIterator[CdcRecord]:
        """Stops the child for the time of an order. After the order the consumer runs again, unless it is paused or
        parked."""
        self._halted = True
        try:
            await self._stopped()
            yield self.record
        finally:
            self._halted = False
            self._changed.set()

    async def close(self) -> None:
        """Stops the child as ``pause`` does, and starts no other."""
        self._closing = True
        for order in self._ordered:
            order.cancel()
        await asyncio.gather(*self._ordered, return_exceptions=True)
        await self._stopped()

    async def _stopped(self) -> None:
        """Returns when no child runs."""
        self._stop.set()
        self._changed.set()
        await self._idle.wait()


async def _not_stored(next_vlsn: int, final: bool) -> bool:
    """Stores nothing: commits are ignored while VLSNs are sent once more."""
    return True
