"""One child, fed: the log's blocks go to it, positions come back and are stored, until one of the two ends.

    source ─► BLOCKS, at most a window that is not TAKEN ─► child        COMMIT ─► stored ─► COMMITTED

1. From where it stands it reads on in ARCHIVE; BUFFER and back by position (``feeder.source``), for ever.
2. Only durable entries are sent.
3. The newest of the commits that wait is stored; the log's hold follows the stored position. However the child ends,
   its last commit is stored before the next child starts.
4. A child that takes nothing for ``events_timeout_s``, or breaks the order of messages, is ended.
5. ``Patience`` times the waits: a node that was stopped itself (SIGSTOP, a paused machine) does not take its child for
   hung afterwards.
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
"""Seconds from a position's being stored to the store of the next one: each is a sync of this disk, or an entry of the
log, and of those that come meanwhile the newest counts."""
WATCH_S = 0.25
LONG_CALL_S = 2.0
"""Seconds of one call after which a child has the lowest priority, until it is replaced: it may well spin."""
GAP_S = 2 * WATCH_S
"""Seconds between two looks of the watch; a longer pause was the node's own."""


class ConsumerFailed(Exception):
    """A consumer raised, or its process ended or had to be ended; ``vlsn`` is where it stood, 0 where it had not
    begun."""

    def __init__(self, reason: str, vlsn: int = 0) -> None:
        super().__init__(reason)
        self.vlsn = vlsn


class ConsumerSlow(ConsumerFailed):
    """A process was not ready in its time; ``began`` says whether it had come as far as the consumer's own code."""

    def __init__(self, reason: str, began: bool) -> None:
        super().__init__(reason)
        self.began = began


class ConsumerRefused(ConsumerFailed):
    """A consumer refuses its settings: no second try mends that."""


class ConsumerWaits(ConsumerFailed):
    """A consumer cannot go on for now, by no failure of its own: its target is away."""

    def __init__(self, reason: str, vlsn: int = 0, after_s: float = 0.0) -> None:
        super().__init__(reason, vlsn)
        self.after_s = after_s


class KeepsItsOwn(Exception):
    """A consumer that keeps its own position was to receive VLSNs once more: it begins behind them."""


@dataclass(slots=True)
class CaptureCounts:
    """The counters of one consumer since the node's start."""

    entries: int = 0
    """Entries of users, without the log's own."""
    bytes: int = 0
    last: int = 0
    """The VLSN of the one that was taken last; 0 for none."""
    segments: int = 0
    """Segments that something was taken of."""
    segment: int = 0
    """The one that was taken of last; 0 for none."""
    to_buffer: int = 0
    to_archive: int = 0
    commits: int = 0
    restarts: int = 0
    events: Seconds = field(default_factory=Seconds)
    """Seconds that calls of ``on_events`` took, of one message each."""
    stored: Seconds = field(default_factory=Seconds)
    """Seconds from a commit's arrival until its position was stored."""
    captured: Seconds = field(default_factory=Seconds)
    """Seconds from an entry's sealing, by the clock of its block, until the consumer had taken it."""

    def of_segments(self, first: int, last: int) -> None:
        """Counts the segments from which something was taken, but not twice the one in which it goes on; 0: not
        known."""
        if first and last:
            self.segments += last - first + (first != self.segment)
            self.segment = last


class Patience:
    """Seconds that something was waited for, of those in which this node itself ran: it is to be looked at every
    ``WATCH_S``, and a longer gap between two looks is the node's own."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.again()

    def again(self) -> None:
        """Begins from nothing."""
        self._looked_s = self._clock.monotonic_s()
        self.seconds = 0.0

    def look(self) -> float:
        now = self._clock.monotonic_s()
        self.seconds += min(now - self._looked_s, GAP_S)
        self._looked_s = now
        return self.seconds


class Joined:
    """The last BLOCKS message that was made: consumers that stand side by side are sent the same bytes."""

    def __init__(self) -> None:
        self._span = (0, 0)
        self._message = b""

    def of(self, blocks: Sequence[Buffer], first: int, next_vlsn: int) -> bytes:
        """Joins blocks ``first`` to ``next_vlsn`` (exclusive) of one log."""
        if self._span != (first, next_vlsn):
            self._message, self._span = messages.blocks(next_vlsn, next_vlsn - 1, blocks), (first, next_vlsn)
        return self._message


class Readable(Protocol):
    """How far a consumer may see."""

    @property
    def durable(self) -> Vlsn: ...

    async def until(self, vlsn: int) -> None: ...

    def check_place(self, vlsn: int, term: int) -> None: ...


class ChildFeed:
    """One child from START to its end.  ``run`` is all of it."""

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
        """``store`` stores the position with that next VLSN, and says whether it did. A position that it puts off comes
        again with a later one; the last call must store.  ``segment_of`` finds the number of the segment of an entry, 0
        where it cannot.  ``upto``: the last VLSN to be sent, None without end."""
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
        """It keeps its own position, and has said so."""
        self.next = 0
        """Behind the last VLSN that the consumer has taken."""
        self.kept = 0
        """Behind the last VLSN that it has committed, or where it began; 0 before it is ready."""
        self.time_us = 0
        """The time of the last block that it has taken; 0 for none."""
        self.in_flight = 0
        """Bytes of BLOCKS that were sent and are not taken."""
        self._silent = Patience(clock)
        self._hello = False
        self._room = asyncio.Event()
        self._commit: tuple[Commit, float] | None = None
        self._commit_came = asyncio.Event()
        self._over = False
        """No more commits come."""
        self._over_came = asyncio.Event()

    async def run(self, start: Start, stop: asyncio.Event, switched: Callable[[Mode], None]) -> None:
        """Feeds it until ``stop``, or until everything up to ``upto`` is taken; then the consumer is stopped, and its
        last commit is stored. Raises ``ConsumerFailed``; ``KeepsItsOwn`` where ``upto`` is set; ``Trimmed``,
        ``Damaged`` and what ``store`` raises, the child ended without more ado."""
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
            raise ConsumerFailed(f"it sent {type(ready).__name__} where READY was due")
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
        """Starts the consumer; returns what it says then, None where it is to stop before it has said so."""
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
        """Sends what is durable; returns when everything up to ``upto`` is taken."""
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
        """Takes the child's messages; returns when the consumer has stopped."""
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
        if not taken.bytes:  # it says only that it is at work
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
        """Stores positions as they are committed, and reports that to the child; the last one at the end."""
        while not self._over:
            await self._commit_came.wait()
            self._commit_came.clear()
            if not self._over and await self._stored(final=False):
                with suppress(TimeoutError):
                    async with asyncio.timeout(STORE_PERIOD_S):
                        await self._over_came.wait()
        await self._stored(final=True)

    async def _stored(self, *, final: bool) -> bool:
        """Stores the newest commit, unless that is put off; says whether it did."""
        if self._commit is None:
            return False
        commit, came_s = self._commit
        if not await self._store(commit.next, final):
            return False
        self._counts.commits += 1
        self._counts.stored.add(self._clock.monotonic_s() - came_s)
        if self._commit is not None and self._commit[0] is commit:
            self._commit = None
        with suppress(ChannelClosed):  # the reader of its messages says how it ended
            await self._child.send(messages.encode(Committed(commit.number)))
        return True

    async def _all_stored(self, keep: asyncio.Task[None]) -> None:
        """Waits for the store under way, and for that of the last commit: the next child begins there, and no late
        write takes the position back."""
        self._over = True
        self._over_came.set()
        self._commit_came.set()
        await asyncio.wait([keep])

    async def _watch(self) -> None:
        """Ends a child that takes nothing; before that it gets the lowest priority."""
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
