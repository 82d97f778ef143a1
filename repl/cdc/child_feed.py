"""The feed of one child process: sends blocks of the log to a consumer, and stores the positions that the consumer
commits.

    source ─► BLOCKS, at most a window that is not TAKEN ─► child        COMMIT ─► stored ─► COMMITTED

1. The feed starts at the consumer's position in ARCHIVE mode (it reads segments). Later the feed changes between BUFFER
   mode (it reads recent blocks in memory) and ARCHIVE mode (``feeder.source``).
2. Only durable entries are sent.
3. If several commits wait, only the newest is stored. The hold that keeps the log from cleaning follows the stored
   position. However the child ends, its last commit is stored before the next child starts.
4. A child that takes nothing for ``events_timeout_s``, or breaks the order of messages, is killed.
5. Class ``Patience`` measures how long a child has taken. A node that was itself stopped for a while (SIGSTOP, a paused
   machine) does not afterwards treat its child as hung.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

from feeder.source import Mode, Source
from repl.cdc import messages
from repl.cdc.child_end import STOP_S, how_it_ended, stop_child
from repl.cdc.children import Child
from repl.cdc.messages import WINDOW_BYTES, Commit, Committed, Failed, Hello, Ready, Start, Stopped, Taken
from vlsn.errors import BadBody, ChannelClosed
from vlsn.format.feed_messages import FEED_BYTES
from vlsn.histogram import Seconds
from vlsn.ids import Vlsn
from vlsn.seams import Buffer, Clock
from vlsn.together import failure_of

STORE_PERIOD_S = 0.02
"""The shortest time in seconds between two stores of a position. Each store is a sync of this node's disk or an
entry in the log. If several commits arrive in this time, only the newest is stored."""
WATCH_S = 0.25
LONG_CALL_S = 2.0
"""If a consumer's call takes longer than this many seconds, its process gets the lowest priority until the process is
replaced. A long call may be an endless loop."""
GAP_S = 2 * WATCH_S
"""A longer gap in seconds between two calls of ``look`` counts only as this much, because the node itself was
stopped then."""


class ConsumerFailed(Exception):
    """A consumer raised an exception, or its process ended or was killed. ``vlsn`` is the VLSN that the consumer had
    reached, or 0 if it had not begun."""

    def __init__(self, reason: str, vlsn: int = 0) -> None:
        super().__init__(reason)
        self.vlsn = vlsn


class ConsumerSlow(ConsumerFailed):
    """A process was not ready in time. ``began`` is true if the consumer's own code had started to run."""

    def __init__(self, reason: str, began: bool) -> None:
        super().__init__(reason)
        self.began = began


class ConsumerRefused(ConsumerFailed):
    """A consumer refuses its settings, so a second try would fail as well."""


class ConsumerWaits(ConsumerFailed):
    """A consumer cannot continue now, because its target is not available; this does not count as a failure."""

    def __init__(self, reason: str, vlsn: int = 0, after_s: float = 0.0) -> None:
        super().__init__(reason, vlsn)
        self.after_s = after_s


class KeepsItsOwn(Exception):
    """A consumer with its own position was asked to receive earlier VLSNs again, but it starts after these VLSNs."""


@dataclass(slots=True)
class CaptureCounts:
    """The counters of one consumer since the node's start."""

    entries: int = 0
    """The number of users' entries taken, without the log's own entries."""
    bytes: int = 0
    last: int = 0
    """The VLSN of the last entry that was taken; 0 for none."""
    segments: int = 0
    """The number of segments from which an entry was taken."""
    segment: int = 0
    """The number of the segment that contains the last entry taken; 0 for none."""
    to_buffer: int = 0
    to_archive: int = 0
    commits: int = 0
    restarts: int = 0
    events: Seconds = field(default_factory=Seconds)
    """Seconds that the calls of ``on_events`` took for each message."""
    stored: Seconds = field(default_factory=Seconds)
    """For each commit, the seconds from its arrival until its position was stored."""
    captured: Seconds = field(default_factory=Seconds)
    """For each block, the seconds from its sealing (by the block's clock) until the consumer had taken it."""

    def of_segments(self, first: int, last: int) -> None:
        """Counts the segments ``first`` to ``last``; a segment that was counted before is not counted again. 0 means
        that a number is not known."""
        if first and last:
            self.segments += last - first + (first != self.segment)
            self.segment = last


class Patience:
    """Measures how long this node has waited for something. Only seconds in which the node itself ran are counted. The
    owner calls ``look`` every ``WATCH_S``. A longer gap between two calls counts as ``GAP_S``, because the node was
    stopped."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.again()

    def again(self) -> None:
        """Starts again at 0 seconds."""
        self._looked_s = self._clock.monotonic_s()
        self.seconds = 0.0

    def look(self) -> float:
        now = self._clock.monotonic_s()
        self.seconds += min(now - self._looked_s, GAP_S)
        self._looked_s = now
        return self.seconds


class Joined:
    """The BLOCKS message that was made last. Consumers at the same position are sent the same bytes."""

    def __init__(self) -> None:
        self._span = (0, 0)
        self._message = b""

    def of(self, blocks: Sequence[Buffer], first: int, next_vlsn: int) -> bytes:
        """Joins the blocks from VLSN ``first`` to ``next_vlsn`` (exclusive) of one log."""
        if self._span != (first, next_vlsn):
            self._message, self._span = messages.blocks(next_vlsn, next_vlsn - 1, blocks), (first, next_vlsn)
        return self._message


class Readable(Protocol):
    """The VLSN up to which a consumer may read the log."""

    @property
    def durable(self) -> Vlsn: ...

    async def until(self, vlsn: int) -> None: ...

    def check_place(self, vlsn: int, term: int) -> None: ...


class ChildFeed:
    """The feed of one child, from START until the child ends. Method ``run`` does the whole work."""

    def __init__(
        self,
        child: Child,
        *,
        make_source: Callable[[Vlsn, Callable[[Mode], None]], Source],
        reads: Readable,
        clock: Clock,
        joined: Joined,
        counts: CaptureCounts,
        store: Callable[[int, bool], Awaitable[bool]],
        segment_of: Callable[[int], int],
        ahead_bytes: int,
        start_timeout_s: float,
        events_timeout_s: float,
        upto: int | None,
    ) -> None:
        """``store`` stores a position (the next VLSN) and returns whether it did. If ``store`` postpones a position,
        a later position is passed to it later; the last call must store its position. ``segment_of`` returns the
        number of the segment that contains an entry, or 0 if that is not known. ``upto`` is the last VLSN to send;
        None means no end."""
        self._child = child
        self._make_source = make_source
        self._reads = reads
        self._clock = clock
        self._joined = joined
        self._counts = counts
        self._store = store
        self._segment_of = segment_of
        self._ahead_bytes = ahead_bytes
        self._start_timeout_s = start_timeout_s
        self._timeout_s = events_timeout_s
        self._upto = upto
        self.source: Source | None = None
        self.keeps = False
        """True if the consumer has said that it keeps its own position."""
        self.next = 0
        """The VLSN after the last entry that the consumer has taken."""
        self.kept = 0
        """The last position that the consumer has committed, or its first VLSN; 0 before the consumer is ready."""
        self.time_us = 0
        """The time of the last block that the consumer has taken; 0 for none."""
        self.in_flight = 0
        """Bytes of BLOCKS messages that were sent and not taken yet."""
        self._silent = Patience(clock)
        self._hello = False
        self._room = asyncio.Event()
        self._commit: tuple[Commit, float] | None = None
        self._commit_came = asyncio.Event()
        self._over = False
        """True once the child can send no more commits."""
        self._over_came = asyncio.Event()

    async def run(self, start: Start, stop: asyncio.Event, switched: Callable[[Mode], None]) -> None:
        """Feeds the child until ``stop`` is set, or until the consumer has taken everything up to ``upto``. Then stops
        the consumer and stores its last commit. Raises ``ConsumerFailed``, ``Trimmed``, ``Damaged``, the errors of
        ``store``, and with ``upto`` also ``KeepsItsOwn``. After an error the child process is killed."""
        try:
            await self._run(start, stop, switched)
        finally:
            self._child.kill()
            if self.source is not None:
                self.source.close()

    async def _run(self, start: Start, stop: asyncio.Event, switched: Callable[[Mode], None]) -> None:
        ready = await self._started(start, stop)
        if ready is None:
            return
        if not isinstance(ready, Ready):
            raise ConsumerFailed(f"it sent {type(ready).__name__}, not READY")
        self.keeps = ready.next is not None
        if self.keeps and self._upto is not None:
            raise KeepsItsOwn("it keeps its own position")
        self.next = self.kept = ready.next if ready.next is not None else start.next
        if ready.term and self.next > 1:
            self._reads.check_place(self.next - 1, ready.term)
        self.source = source = self._make_source(Vlsn(self.next), switched)
        parts = [
            asyncio.create_task(self._feed(source), name="cdc-feed"),
            asyncio.create_task(self._hear(), name="cdc-hear"),
            asyncio.create_task(self._keep(), name="cdc-keep"),
            asyncio.create_task(self._watch(), name="cdc-watch"),
            asyncio.create_task(_waited(stop), name="cdc-stop"),
        ]
        feed, hear, keep, *_ = parts
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            failure = next((error for part in parts if part.done() and (error := failure_of(part))), None)
            feed.cancel()
            if failure is None:
                await stop_child(self._child, hear)
            self._child.kill()
            if not keep.done():
                await self._all_stored(keep)
            failure = failure_of(keep) or failure
            if failure is not None:
                raise failure
        finally:
            for part in parts:
                part.cancel()
            await asyncio.wait(parts)
            for part in parts:
                failure_of(part)

    async def _started(self, start: Start, stop: asyncio.Event) -> messages.ToNode | None:
        """Starts the consumer and returns its first message after HELLO. Returns None if ``stop`` is set before a
        message comes."""
        opening = asyncio.create_task(self._opening(start), name="cdc-start")
        waited, limit, stopping = Patience(self._clock), self._start_timeout_s, False
        try:
            while not opening.done():
                await asyncio.wait([opening], timeout=WATCH_S)
                if opening.done() or waited.look() <= limit:
                    if stop.is_set() and not stopping:
                        stopping, limit = True, min(limit, waited.seconds + STOP_S)
                elif stopping:
                    return None
                else:
                    what = "its start" if self._hello else "the start of its process"
                    raise ConsumerSlow(f"{what} took longer than {limit:g} s (start_timeout_s)", self._hello)
            return opening.result()
        except ChannelClosed:
            raise ConsumerFailed(await how_it_ended(self._child)) from None
        finally:
            opening.cancel()
            await asyncio.wait([opening])
            failure_of(opening)

    async def _opening(self, start: Start) -> messages.ToNode:
        await self._child.send(messages.encode(start))
        order = await self._order()
        if isinstance(order, Hello):
            self._hello = True
            order = await self._order()
        return order

    async def _feed(self, source: Source) -> None:
        """Sends durable blocks. Returns when the consumer has taken everything up to ``upto``."""
        while True:
            while self.in_flight >= min(self._ahead_bytes, WINDOW_BYTES):
                self._room.clear()
                await self._room.wait()
            first, durable = source.next_vlsn, self._reads.durable
            if self._upto is not None and first > self._upto:
                while self.in_flight:
                    self._room.clear()
                    await self._room.wait()
                return
            blocks = source.from_ring(FEED_BYTES)
            if not blocks and source.mode is Mode.ARCHIVE and first <= durable:
                blocks = await source.from_archive()
            if not blocks:
                await self._reads.until(max(first, durable + 1))
                continue
            message = self._joined.of(blocks, first, source.next_vlsn)
            if not self.in_flight:
                self._silent.again()
            self.in_flight += len(message)
            try:
                await self._child.send(message)
            except ChannelClosed:
                raise ConsumerFailed(await how_it_ended(self._child), self.next) from None

    async def _hear(self) -> None:
        """Receives the child's messages. Returns when the consumer has stopped."""
        while True:
            try:
                order = await self._order()
            except ChannelClosed:
                raise ConsumerFailed(await how_it_ended(self._child), self.next) from None
            self._silent.again()
            if isinstance(order, Taken):
                self._taken(order)
            elif isinstance(order, Commit):
                self._committed(order)
            elif isinstance(order, Stopped):
                return
            else:
                raise ConsumerFailed(f"it sent {type(order).__name__} while it was fed", self.next)

    def _taken(self, taken: Taken) -> None:
        assert self.source is not None
        if not self.next <= taken.next <= self.source.next_vlsn or not 0 <= taken.bytes <= self.in_flight:
            raise ConsumerFailed(f"it has taken what it was not sent: {taken}", self.next)
        if not taken.bytes:  # an empty TAKEN message reports only that the consumer is working
            return
        if not 0 <= taken.events <= taken.next - self.next or not 0 <= taken.last < taken.next:
            raise ConsumerFailed(f"it has taken what it was not sent: {taken}", self.next)
        counts = self._counts
        counts.entries += taken.events
        counts.last = taken.last or counts.last
        counts.of_segments(self._segment_of(self.next), self._segment_of(taken.next - 1))
        counts.bytes += taken.bytes
        counts.events.add(taken.seconds)
        counts.captured.add(max(0.0, (self._clock.wall_us() - taken.time) / 1e6))
        self.in_flight -= taken.bytes
        self.next, self.time_us = taken.next, taken.time
        self._room.set()
        if taken.commit is not None:
            self._committed(taken.commit)

    def _committed(self, commit: Commit) -> None:
        assert self.source is not None
        if not 1 <= commit.next <= self.source.next_vlsn:
            raise ConsumerFailed(f"it commits what it was not sent: {commit}", self.next)
        self._commit, self.kept = (commit, self._clock.monotonic_s()), commit.next
        self._commit_came.set()

    async def _keep(self) -> None:
        """Stores committed positions and reports them to the child. The last committed position is stored before this
        method returns."""
        while not self._over:
            await self._commit_came.wait()
            self._commit_came.clear()
            if not self._over and await self._stored(final=False):
                with suppress(TimeoutError):
                    async with asyncio.timeout(STORE_PERIOD_S):
                        await self._over_came.wait()
        await self._stored(final=True)

    async def _stored(self, *, final: bool) -> bool:
        """Stores the newest commit, unless ``store`` postpones it. Returns whether the commit was stored."""
        if self._commit is None:
            return False
        commit, came_s = self._commit
        if not await self._store(commit.next, final):
            return False
        self._counts.commits += 1
        self._counts.stored.add(self._clock.monotonic_s() - came_s)
        if self._commit is not None and self._commit[0] is commit:
            self._commit = None
        with suppress(ChannelClosed):  # `_hear` reports how the child ended
            await self._child.send(messages.encode(Committed(commit.number)))
        return True

    async def _all_stored(self, keep: asyncio.Task[None]) -> None:
        """Waits until the running store and the store of the last commit have ended. The next child begins at that
        commit, and no late write may set the position back."""
        self._over = True
        self._over_came.set()
        self._commit_came.set()
        await asyncio.wait([keep])

    async def _watch(self) -> None:
        """Kills a child process that has taken no events for too long. A child whose call takes long first gets the
        lowest priority."""
        demoted = False
        while True:
            await asyncio.sleep(WATCH_S)
            if self._silent.look() > LONG_CALL_S and self.in_flight and not demoted:
                self._child.demote()
                demoted = True
            if self._silent.seconds > self._timeout_s and self.in_flight:
                raise ConsumerFailed(
                    f"on_events has not returned for {self._timeout_s:g} s (events_timeout_s)", self.next
                )

    async def _order(self) -> messages.ToNode:
        """Returns the child's next message. Raises ``ChannelClosed``, ``ConsumerFailed``."""
        try:
            order = messages.of_child(await self._child.receive())
        except BadBody as error:
            raise ConsumerFailed(str(error), self.next) from None
        if isinstance(order, Failed):
            if order.kind == "unavailable":
                raise ConsumerWaits(order.reason, order.vlsn, order.after_s)
            raise (ConsumerRefused if order.kind == "refused" else ConsumerFailed)(order.reason, order.vlsn)
        return order


async def _waited(event: asyncio.Event) -> None:
    await event.wait()
