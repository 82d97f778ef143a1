"""The delivery of one destination, by the master: a cursor over its messages, and those that are out.

    acknowledged 1–40 · out 41 42 44 (A's batch) · at 50           43, 46: keys of which an earlier message is out

1. Messages are read from ``at`` on, in VLSN order: from the log, and where that was cleaned from pages.  What is
   acknowledged, about to be, or out, is passed over.
2. A message that is out comes back when nobody acknowledges it in time, or ``nack`` gives it back: ``at`` goes back to
   it, so it is the next one.  After the last attempt it is dead instead (``dead_letters``).
3. Order in a key: while a message of a key is out, later ones of that key wait; those of one answer go out together, in
   their order.  One that comes back recalls the later ones of its key that are out.
   One that comes back with a delay lies in the flight as nobody's until that is over (``delays``), so they wait for it.
4. An acknowledgement of a message covers the VLSNs between the message before it and itself, which are none of this
   destination's, so that acknowledgements in order are one interval.
5. Before an answer goes out a majority confirms that this node leads: one that was unseated hands out nothing that was
   acknowledged elsewhere meanwhile.

What is out, and a first attempt, lie in the memory of this lead: the next master delivers what is not acknowledged.
On the loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from repl.destinations.delays import Delays
from repl.destinations.delivered import Answer, Dead, Delivered, DeliveryCounts, Found, Pace, Source
from repl.destinations.flight import NOBODY, Flight, Removed
from repl.destinations.gauges import WINDOWS, Incoming, Oldest
from repl.destinations.handed import Holder
from repl.destinations.limits import (
    ASKERS_MAX,
    BLOCKED,
    BLOCKED_MAX,
    BLOCKED_S,
    LOOK_S,
    SKIPPED_NOTED,
    TRIES_MAX,
    WINDOW_BYTES,
    WINDOWS_KEPT,
)
from repl.destinations.message_batch import MessageColumns
from repl.destinations.notes import Notes
from repl.destinations.window import NO_KEY, Hashes, Window
from repl.web.limits import MESSAGE_BYTES, READ_BYTES_MAX
from vlsn.errors import BadArgument, Damaged, NotFound, QueueFull, Trimmed, VlsnLogError, anew
from vlsn.format.messages import MessageFilter
from vlsn.format.rows import Mask
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.limits import ACK_INTERVALS_MAX, REDELIVERY_DELAY_S_MAX
from vlsn.pages.source import PageSource
from vlsn.state.acks import Acked
from vlsn.state.destinations import DestinationSettings
from vlsn.write.ring import Ring

LATE: Final = "not acknowledged in time"
PAGED_MESSAGES: Final = 10_000
"""Messages that are read of pages at once."""


@dataclass(frozen=True, slots=True)
class DeliveryParts:
    """The parts that a delivery is made with."""

    source: Source
    pages: Callable[[], PageSource | None]
    table: Callable[[str], Acked | None]
    """The acknowledgements of a uuid, as far as they are folded."""
    notes: Notes
    confirm: Callable[[], Awaitable[object]]
    """Returns once a majority has confirmed that this node leads."""
    bury: Callable[[Delivery, list[Dead]], None]
    freed: Callable[[], None]
    """Hears that messages were acknowledged: there may be room for others."""
    event: Callable[..., None]


class Delivery:
    """One destination.  ``close`` when the lead has ended, or the destination is gone."""

    def __init__(self, parts: DeliveryParts, name: str, settings: DestinationSettings, acked: Acked) -> None:
        self._parts = parts
        self.name = name
        self.uuid = settings.uuid
        self._workers = 0
        self._numbered = 0
        """The answers so far."""
        self.counts = DeliveryCounts()
        self.pace = Pace()
        self.incoming = Incoming()
        self.blocked_by = ""
        """The reason why messages are not delivered, for status."""
        self._lock = asyncio.Lock()
        self._askers: deque[asyncio.Future[None]] = deque()
        self._closed: VlsnLogError | None = None
        self._use(settings)
        self._reset(acked)

    def _use(self, settings: DestinationSettings) -> None:
        self.settings = settings
        self.wanted = MessageFilter(self.name, settings.prefix.encode(), settings.dead_letter.encode())
        self._windows: list[Window] = []
        """The messages that were looked at last: by who goes on with its keys, and by the others, far ahead of it."""
        self._window_used = False

    def _reset(self, acked: Acked) -> None:
        """Begins anew where the table says, with nothing out."""
        self.since = acked.since
        self._windows = []  # one of pages of before a move lacks what was acknowledged then
        self._at = int(acked.floor) + 1
        self._flight = Flight()
        self._delays = Delays()
        self._barren_until = 0.0
        """The loop's time until which nobody looks again but who has keys: all that was met waits for its key."""
        self._answers: dict[int, Answer] = {}
        """The answers of which some are out, by number, the one first that comes back first."""
        self._tries: dict[int, int] = {}
        """Attempts by VLSN, of messages that came back."""
        self._waiting_keys = np.empty(0, np.uint64)
        """The keys of which messages were passed over, because earlier ones are out …"""
        self._waiting_from = np.empty(0, np.int64)
        """… and the VLSN from which on they are to be looked at again."""
        self.oldest = Oldest()
        self._acking = VlsnSet()
        """Acknowledged, and not folded yet."""
        self._skipped: list[VlsnSet] = []

    def follow(self, settings: DestinationSettings) -> None:
        """Goes by these settings, and by the table as it is. Raises ``NotFound``."""
        if settings is not self.settings:
            self._use(settings)
            latest = asyncio.get_running_loop().time() + settings.ack_timeout_s
            for answer in self._answers.values():  # they stay in the order in which they come back
                answer.deadline = min(answer.deadline, latest)
            self.wake()
        acked = self._acked()
        if acked.since != self.since:
            self._parts.notes.forget(self)
            self._reset(acked)

    def _acked(self) -> Acked:
        acked = self._parts.table(self.uuid)
        if acked is None:
            raise NotFound(f"destination {self.name} is gone")
        return acked

    @property
    def out(self) -> int:
        """The messages that are delivered, and not acknowledged yet."""
        return len(self._flight) - self._delays.messages

    @property
    def delayed(self) -> int:
        """The messages that came back, and are delivered again once their delay is over."""
        return self._delays.messages

    @property
    def intervals_left(self) -> int:
        """The intervals of acknowledged VLSNs that may be added to the table: what is out has its own."""
        acked = self._parts.table(self.uuid)
        return ACK_INTERVALS_MAX - (acked.done.intervals if acked else 0) - self._acking.intervals - len(self._flight)

    @property
    def waiting(self) -> int:
        """The askers that wait for messages."""
        return len(self._askers)

    @property
    def is_barren(self) -> bool:
        """Says whether somebody has just looked, and met nothing but messages that wait for their keys."""
        return asyncio.get_running_loop().time() < self._barren_until

    @property
    def at(self) -> int:
        """The VLSN that is looked at next."""
        return self._at

    def close(self, error: VlsnLogError) -> None:
        self._closed = error
        for asker in self._askers:
            if not asker.done():
                asker.set_result(None)

    # Delivery.

    def worker(self) -> Worker:
        """Makes a worker that stays: messages of a key may follow earlier ones that it has."""
        self._workers += 1
        return Worker(self, -self._workers)

    async def messages(self, most: int, wait_s: float, room: Holder) -> Delivered:
        """Takes up to ``most`` messages, each to one asker; waits up to ``wait_s`` for the first. Raises ``QueueFull``,
        ``NotFound``, ``NotMaster``, ``Damaged``."""
        delivered, answer = await self.hand_out(most, wait_s, room)
        if answer:
            try:
                await self.confirm()
            except BaseException:
                self.recall([answer])
                raise
        return delivered

    async def hand_out(self, most: int, wait_s: float, room: Holder, *, owner: int = 0) -> tuple[Delivered, int]:
        """Takes messages as ``messages``, and returns the answer's number, 0 for none. Who asked sends them after
        ``confirm``, or recalls them, and gives the room back. ``owner``: a worker's name, 0 for somebody who asks this
        once."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            self._check()
            if self.is_barren and self._barren_until < deadline and not self._flight.has_keys_of(owner):
                await self._wait(self._barren_until)  # another one has just looked, for all of them
                continue
            async with self._lock:
                if await room.wait(max(deadline, loop.time() + LOOK_S)):
                    delivered, answer = await self._take(most, deadline, owner)
                else:
                    self.blocked_by = "workers that do not take what they are sent"
                    delivered, answer = self._nothing()
                if answer:
                    room.take(answer, delivered.columns.bytes + MESSAGE_BYTES * len(delivered.columns))
            now = loop.time()
            if answer or now >= deadline:
                return delivered, answer
            more = len(self._waiting_keys) > 0 and self._at <= self._parts.source.durable
            await self._wait(min(deadline, now + BLOCKED_S) if more else deadline)

    async def confirm(self) -> None:
        """Returns once a majority has confirmed the lead; others take what comes behind meanwhile. Raises."""
        await self._parts.confirm()
        self._check()

    def recall(self, answers: Iterable[int]) -> None:
        """Takes answers back that nobody has seen."""
        for answer in answers:
            self._recall(self._flight.vlsns_of(answer))
        self.wake()

    def unread(self, vlsns: Vlsns, owner: int) -> None:
        """Takes messages back that a worker has, and has not looked at."""
        self._recall(self._flight.owned(vlsns, owner))
        self.wake()

    def wake(self) -> None:
        """Wakes whoever has waited longest: there may be a message for him."""
        while self._askers:
            asker = self._askers.popleft()
            if not asker.done():
                asker.set_result(None)
                return

    async def _wait(self, deadline: float) -> None:
        if len(self._askers) >= ASKERS_MAX:
            raise QueueFull(f"{ASKERS_MAX} askers already wait for messages of {self.name}")
        loop = asyncio.get_running_loop()
        told: asyncio.Future[None] = loop.create_future()
        self._askers.append(told)
        timer = loop.call_at(deadline, _tell, told)
        try:
            await told
        except asyncio.CancelledError:
            if told.done() and not told.cancelled():
                self.wake()  # it was this one's turn
            raise
        finally:
            timer.cancel()
            if told in self._askers:
                self._askers.remove(told)

    def _check(self) -> None:
        if self._closed is not None:
            raise anew(self._closed)

    async def _take(self, most: int, deadline: float, owner: int) -> tuple[Delivered, int]:
        """Hands messages out, under the lock, and returns the answer's number; 0 for none."""
        if self.settings.paused:
            self.blocked_by = "paused"
            return self._nothing()
        if 0 < self.settings.max_out <= self.out:
            self.blocked_by = f"max_out: {self.out} messages are out"
            return self._nothing()
        acked, room = self._acked(), self.intervals_left
        self.blocked_by = "" if room > 0 else "a gap in what is acknowledged"
        if room <= 0:
            # The first message alone can be delivered: whatever becomes of it, no interval is added.
            self._rewind(int(acked.floor) + 1)
            most = 1
        if len(self._waiting_keys) and self._flight.has_keys_of(owner):
            own = ~np.isin(self._waiting_keys, self._flight.keys_of_others(owner)[0])
            if own.any():  # it was another one that passed them over; for all others they wait as before
                barren_until = self._barren_until
                self._rewind(int(self._waiting_from[own].min()))
                self._barren_until = barren_until
        found = Found(owner)
        loop, most = asyncio.get_running_loop(), min(most, max(room, 1))
        if self.settings.max_out:
            most = min(most, self.settings.max_out - self.out)
        until = max(deadline, loop.time() + LOOK_S)
        try:
            while found.count < most and found.bytes < READ_BYTES_MAX and self._at <= self._parts.source.durable:
                limit = most - found.count
                if loop.time() >= until or found.blocked >= max(BLOCKED, 2 * most):
                    break
                if len(self._waiting_from) and self._at - int(self._waiting_from.min()) > BLOCKED_MAX:
                    self.blocked_by = "order in a key: an earlier message is out"
                    break
                if not await self._look(found, limit, first_only=room <= 0):
                    break
        except BaseException:
            if found.count:
                self._rewind(int(found.before[0][0]) + 1)  # who asked is gone, or a read failed: nobody has these
            raise
        if not found.count:
            if found.blocked:
                self._barren_until = loop.time() + BLOCKED_S
            return self._nothing()
        handed = self._hand_out(found)
        if self._at <= self._parts.source.durable and not self.is_barren:
            self.wake()
        return handed

    def _nothing(self) -> tuple[Delivered, int]:
        return Delivered(MessageColumns(), {}, self.uuid), 0

    async def _look(self, found: Found, limit: int, *, first_only: bool) -> bool:
        """Looks at what comes next; False where there is nothing more to be had now."""
        at, since = self._at, self.since
        window = await self._window_at(at)
        self._check()
        if self.since != since:
            found.clear()  # of before a move
            return True
        if self._at != at:
            if found.count:  # something came back meanwhile, and may be earlier than these, and of one of their keys
                self._rewind(int(found.before[0][0]) + 1)
                found.clear()
            return True
        if window is None:
            return False
        acked = self._acked()
        start = int(np.searchsorted(window.vlsns, at))
        end = start + window.fitting(slice(start, start + limit), READ_BYTES_MAX - found.bytes)
        whole = end == len(window.vlsns)
        if end == start:
            self._at = window.end
            self._skip(VlsnSet.between(at, window.end - 1))
            return True
        vlsns = window.vlsns[start:end]
        last = int(vlsns[-1])
        self._at = window.end if whole else last + 1
        if whole:
            self._skip(VlsnSet.between(last + 1, window.end - 1))
        before = np.concatenate((np.array([at - 1], np.int64), vlsns[:-1]))
        free = ~self._passed_over(acked, vlsns, before)
        if first_only and not (free[0] and before[0] == acked.floor):
            return False
        keys = window.key_hashes(slice(start, end))
        if keys is not None:
            ordered = free & ~self._waits(vlsns, before, keys, free, found.owner)
            found.blocked += int(np.count_nonzero(free)) - int(np.count_nonzero(ordered))
            free = ordered
        if self._wait_anew(acked, vlsns, before, keys, free):
            self._rewind(at)  # later ones of their keys wait, too
            return True
        chosen = self._living(acked, vlsns, np.flatnonzero(free))
        if len(chosen) == len(vlsns):
            found.add(window.columns(slice(start, end)), before, keys)
        elif len(chosen):
            found.add(window.columns(start + chosen), before[chosen], None if keys is None else keys[chosen])
        return not first_only

    def _passed_over(self, acked: Acked, vlsns: Vlsns, before: Vlsns) -> npt.NDArray[np.bool_]:
        """Marks what is not to be delivered; notes what lies between those that are done."""
        if vlsns[0] > max(acked.done.last, self._acking.last, self._flight.last):
            return np.zeros(len(vlsns), np.bool_)  # all of it is new
        done = acked.done.has(vlsns) | self._acking.has(vlsns)
        if done.any():
            gaps = done & (before + 1 < vlsns)
            if gaps.any():
                self._skip(VlsnSet.covering(before[gaps] + 1, vlsns[gaps] - 1))
        return done | self._flight.has(vlsns)

    def _waits(self, vlsns: Vlsns, before: Vlsns, keys: Hashes, free: Mask, owner: int) -> Mask:
        """Marks messages of whose keys earlier ones are out, and notes from where on to look for these keys again."""
        others, behind = self._flight.keys_of_others(owner)
        waits: Mask = np.isin(keys, others) & free
        if waits.any():
            waits[waits] = vlsns[waits] > behind[np.searchsorted(others, keys[waits])]
        if waits.any():
            rows = np.flatnonzero(waits)
            fresh, first = np.unique(keys[rows], return_index=True)
            new = ~np.isin(fresh, self._waiting_keys)
            self._waiting_keys = np.concatenate((self._waiting_keys, fresh[new]))
            self._waiting_from = np.concatenate((self._waiting_from, before[rows[first[new]]] + 1))
        return waits

    def _wait_anew(self, acked: Acked, vlsns: Vlsns, before: Vlsns, keys: Hashes | None, free: Mask) -> bool:
        """Lets those of which only the table knows that they were tried again wait as if they had come back just now: a
        lead before this one knew since when they wait. Says whether there are any."""
        if not self.settings.redelivery_delay_s or not len(acked.tries.vlsns):
            return False
        rows = np.flatnonzero(free & np.isin(vlsns, acked.tries.vlsns))
        rows = rows[[vlsn not in self._tries for vlsn in vlsns[rows].tolist()]] if len(rows) else rows
        tried = {vlsn: acked.tries.of(vlsn) for vlsn in vlsns[rows].tolist()}
        self._tries |= tried
        hashes = np.full(len(rows), NO_KEY, np.uint64) if keys is None else keys[rows]
        return self._put_off(Removed(vlsns[rows], before[rows], rows, hashes), [*tried.values()], None)

    def _put_off(self, back: Removed, attempts: list[int], delay_s: float | None) -> bool:
        """Lets messages that came back after so many attempts each, and are not dead, wait for ``delay_s``, or as long
        as the settings say. Says whether any has to."""
        settings, now = self.settings, asyncio.get_running_loop().time()
        rows: dict[float, list[int]] = {}
        for row, attempt in enumerate(attempts):
            delay = settings.redelivery_delay(attempt) if delay_s is None else delay_s
            if delay > 0 and attempt < settings.attempts_max:
                rows.setdefault(delay, []).append(row)
        for delay, some in rows.items():
            self._numbered += 1
            self._flight.add(back.vlsns[some], back.before[some], back.keys[some], answer=self._numbered, owner=NOBODY)
            self._delays.add(self._numbered, len(some), now + delay)
        return bool(rows)

    def _living(self, acked: Acked, vlsns: Vlsns, chosen: Vlsns) -> Vlsns:
        """Leaves out messages that had their last attempt already, and buries them."""
        if not self._tries and not len(acked.tries.vlsns):
            return chosen
        dead, left = [], []
        for row in chosen.tolist():
            tried = self._tried(acked, vlsn := int(vlsns[row]))
            if tried >= self.settings.attempts_max:
                dead.append(Dead(vlsn, tried, LATE))
            else:
                left.append(row)
        if dead:
            self._bury(dead)
        return np.array(left, np.int64)

    def _tried(self, acked: Acked, vlsn: int) -> int:
        tried = self._tries.get(vlsn)
        return acked.tries.of(vlsn) if tried is None else tried

    def _hand_out(self, found: Found) -> tuple[Delivered, int]:
        columns, acked = MessageColumns.joined(found.parts), self._acked()
        vlsns = columns.vlsns
        attempts: dict[int, int] = {}
        if self._tries or len(acked.tries.vlsns):
            for vlsn in vlsns.tolist():
                if tried := self._tried(acked, vlsn):
                    attempts[vlsn] = tried + 1
        self._numbered += 1
        number = self._numbered
        before = found.before[0] if len(found.before) == 1 else np.concatenate(found.before)
        self._flight.add(vlsns, before, found.all_keys(), answer=number, owner=found.owner or number)
        deadline = asyncio.get_running_loop().time() + self.settings.ack_timeout_s
        self._answers[number] = Answer(deadline, len(vlsns), attempts)
        self.counts.delivered += len(vlsns)
        if attempts:
            self.counts.again += len(attempts)
            noted: dict[int, list[int]] = {}
            for vlsn, attempt in attempts.items():
                noted.setdefault(attempt, []).append(vlsn)
            self._parts.notes.tried(self, noted)
        return Delivered(columns, attempts, self.uuid), number

    async def _window_at(self, at: int) -> Window | None:
        """Returns a window with ``at`` in it, None where that is not to be had now."""
        window = next((each for each in self._windows if each.first <= at < each.end), None)
        if window is None:
            since = self.since
            window = await self._read(at)
            if self.since != since:
                return None  # one of pages of before a move, and none to go on with
        if window is not None:
            kept = [each for each in self._windows if each is not window]
            self._windows = [window, *kept[: WINDOWS_KEPT - 1]]
        self._window_used = True
        return window if window is not None and at < window.end else None

    async def _read(self, at: int) -> Window | None:
        """Reads the messages from ``at`` on."""
        parts = self._parts
        try:
            blocks = await parts.source.blocks(at, bytes_max=WINDOW_BYTES)
        except Trimmed as trimmed:
            pages = parts.pages()
            if pages is None:
                self._lost(at, int(trimmed.first) - 1)
                return Window.of_messages(MessageColumns(), at, int(trimmed.first))
            run = await pages.messages(self.uuid, at, since=self.since, limit=PAGED_MESSAGES, bytes_max=WINDOW_BYTES)
            if run.lacks is not None and not run.entries:
                self.blocked_by = f"VLSNs {run.lacks[0]}–{run.lacks[1]}, which this node has to fetch"
                return None
            entries = [entry for entry in run.entries if self.wanted.has(entry.key, entry.value)]
            return Window.of_messages(MessageColumns.of(entries), at, max(int(run.next_vlsn), at))
        if not blocks.data:
            if at <= blocks.durable:
                raise Damaged(f"VLSN {at} is durable, but cannot be read here", vlsn=at)
            return None
        return Window.of_blocks(blocks.data, self.wanted)

    def _lost(self, first: int, last: int) -> None:
        self.counts.lost += 1
        self._parts.event("destination.lost", destination=self.name, first=first, last=last)

    def _skip(self, vlsns: VlsnSet) -> None:
        if vlsns:
            self._skipped.append(vlsns)

    async def peek(self, most: int) -> Delivered:
        """Shows messages from the first on that is not acknowledged, out or not, and takes none; as many bytes as an
        answer has. Raises as ``messages``."""
        acked, loop = self._acked(), asyncio.get_running_loop()
        at, found, attempts = int(acked.floor) + 1, list[MessageColumns](), dict[int, int]()
        until, left, room = loop.time() + LOOK_S, most, READ_BYTES_MAX
        while left and room > 0 and at <= self._parts.source.durable and loop.time() < until:
            window = await self._read(at)
            if window is None or window.end <= at:
                break
            rows = np.flatnonzero(~self.is_done(window.vlsns) & (window.vlsns >= at))[:left]
            fits = window.fitting(rows, room)
            part = window.columns(rows[:fits])
            found.append(part)
            if fits < len(rows):
                break
            at, left, room = window.end, left - fits, room - part.bytes
        columns = MessageColumns.joined([part for part in found if len(part)])
        out, answers = self._flight.answers_of(columns.vlsns)
        for vlsn, answer in zip(columns.vlsns[out].tolist(), answers.tolist(), strict=True):
            held = self._answers.get(answer)
            attempts[vlsn] = self._tried(acked, vlsn) if held is None else held.attempts.get(vlsn, 1)
        for vlsn in columns.vlsns[~out].tolist():
            attempts[vlsn] = self._tried(acked, vlsn)
        return Delivered(columns, attempts, self.uuid)

    def look_at_incoming(self, now: float, ring: Ring) -> int:
        """Looks how much comes; returns how many entries it has looked at for that."""
        return self.incoming.look(now, ring, self.wanted)

    async def look_at_oldest(self) -> None:
        """Looks which message has waited longest, a part of the way where it is far. Raises as ``messages``."""
        oldest, durable = self.oldest, self._parts.source.durable
        if oldest.vlsn and not self.is_done(np.array([oldest.vlsn]))[0]:
            return
        oldest.vlsn, oldest.time_us = 0, 0
        at = max(self.floor + 1, oldest.looked_to)
        for _ in range(WINDOWS):
            window = await self._read(at) if at <= durable else None
            if oldest is not self.oldest or window is None or window.end <= at:
                return
            rows = np.flatnonzero(~self.is_done(window.vlsns) & (window.vlsns >= at))
            if len(rows):
                oldest.vlsn, oldest.time_us = int(window.vlsns[rows[0]]), int(window.times[rows[0]])
                oldest.looked_to = oldest.vlsn
                return
            at = oldest.looked_to = window.end

    # What comes back.

    def ack(self, vlsns: npt.ArrayLike, *, wait: bool) -> asyncio.Future[None] | None:
        """Acknowledges messages, whoever they were delivered to, and whether they still are out. Raises ``BadArgument``
        for what cannot have been delivered, nothing acknowledged."""
        return self.ack_set(VlsnSet.of(vlsns), wait=wait)

    def ack_set(self, vlsns: VlsnSet, *, wait: bool) -> asyncio.Future[None] | None:
        """Acknowledges as ``ack``. Raises ``QueueFull`` where more intervals would be kept than may be."""
        self._check()
        self._check_known(vlsns)
        self._check_intervals(vlsns)
        removed = self._flight.remove_set(vlsns)
        self._came_in(removed)
        self._release(removed.keys)
        if self._tries:
            for vlsn in vlsns.vlsns().tolist():
                self._tries.pop(vlsn, None)
        done = vlsns.union(_with_gaps(removed)) if len(removed) else vlsns
        self._acking = self._acking.union(done)
        self.counts.acked += vlsns.count
        self._parts.freed()
        if self.settings.max_out and len(removed):
            self.wake()
        return self._parts.notes.add(self, done, wait=wait)

    def nack(self, vlsns: npt.ArrayLike, reason: str, delay_s: float | None = None) -> None:
        """Gives messages back, to be delivered again after ``delay_s``, the settings' delay for None, or dead after
        their last attempt. Those that are not out any more stay as they are. Raises as ``ack``."""
        self._check()
        if delay_s is not None and not 0 <= delay_s <= REDELIVERY_DELAY_S_MAX:
            raise BadArgument(f"delay_s: {delay_s} is not in 0–{REDELIVERY_DELAY_S_MAX}")
        given = VlsnSet.of(vlsns)
        self._check_known(given)
        column = given.vlsns()
        back = self._flight.with_somebody(column)
        self.counts.nacked += len(back)
        self._come_back(back, reason, delay_s)
        self.wake()

    def tick(self, now: float) -> None:
        """Takes back what was out for too long, lets go out again what has waited for its delay; notes what was passed
        over, if it is much."""
        self.pace.tick(now, self.counts)
        came_back = False
        while self._answers and self._answers[number := next(iter(self._answers))].deadline <= now:
            late = self._flight.vlsns_of(number)
            self.counts.expired += len(late)
            self._come_back(late, LATE)
            came_back = True
        if due := self._delays.over(now):
            self._recall(self._flight.vlsns_of(*due))
            came_back = True
        if came_back:
            self.wake()
        if self._skipped and sum(each.count for each in self._skipped) >= SKIPPED_NOTED:
            self._parts.notes.add(self, VlsnSet(), wait=False)
        if not self._window_used:
            self._windows = []
        self._window_used = False

    def _came_in(self, removed: Removed) -> None:
        """Counts what is out no more."""
        if not len(removed):
            return
        if (removed.answers == removed.answers[0]).all():
            known = [(int(removed.answers[0]), len(removed))]
        else:
            numbers, counts = np.unique(removed.answers, return_counts=True)
            known = list(zip(numbers.tolist(), counts.tolist(), strict=True))
        for number, count in known:
            if number in self._delays:
                self._delays.came_in(number, count)
                continue
            answer = self._answers[number]
            answer.left -= count
            if not answer.left:
                del self._answers[number]

    def _come_back(self, vlsns: Vlsns, reason: str, delay_s: float | None = None) -> None:
        """Takes messages that are out back after an attempt, and with them later ones of their keys that are out."""
        dead, answers = [], self._flight.answers_of(vlsns)[1].tolist()
        attempts = [
            self._answers[number].attempts.get(vlsn, 1) for vlsn, number in zip(vlsns.tolist(), answers, strict=True)
        ]
        back = self._recall(vlsns)
        self._put_off(back, attempts, delay_s)
        for vlsn, attempt in zip(vlsns.tolist(), attempts, strict=True):
            self._tries[vlsn] = attempt
            if attempt >= self.settings.attempts_max:
                dead.append(Dead(vlsn, attempt, reason))
        while len(self._tries) > TRIES_MAX:
            del self._tries[next(iter(self._tries))]
        if dead:
            self._bury(dead)

    def _recall(self, vlsns: Vlsns) -> Removed:
        """Takes messages back as if they had not been out, and later ones of their keys. Returns the former."""
        removed = self._flight.remove(vlsns)
        if not len(removed):
            return removed
        later = np.sort(self._flight.later(removed.keys, removed.vlsns))
        for each in (removed, self._flight.remove(later)):
            if len(each):
                self._lose_no_attempt(each)
                self._came_in(each)
                self._rewind(int(each.before[0]) + 1)
                self._release(each.keys)
        return removed

    def _lose_no_attempt(self, removed: Removed) -> None:
        """Takes attempts back that are noted, of messages that had none."""
        for number in np.unique(removed.answers).tolist():
            answer = self._answers.get(number)
            if answer is not None and (attempts := answer.attempts):
                back = removed.vlsns[removed.answers == number].tolist()
                self._tries |= {vlsn: attempts[vlsn] - 1 for vlsn in back if vlsn in attempts}

    def _release(self, keys: Hashes) -> None:
        """Lets later messages of these keys go out, where none of a key is out any more."""
        if not len(self._waiting_keys):
            return
        known = np.unique(keys)
        free = known[~self._flight.out_keys(known)]
        rows = np.isin(self._waiting_keys, free)
        if rows.any():
            lowest = int(self._waiting_from[rows].min())
            self._waiting_keys, self._waiting_from = self._waiting_keys[~rows], self._waiting_from[~rows]
            self._rewind(lowest)
            self.wake()

    def _rewind(self, vlsn: int) -> None:
        """Goes back to ``vlsn``; what waits behind it is met again on the way."""
        self._barren_until = 0.0
        self._at = min(self._at, vlsn)
        if len(self._waiting_from):
            stays = self._waiting_from < self._at
            self._waiting_keys, self._waiting_from = self._waiting_keys[stays], self._waiting_from[stays]

    def dead(self, vlsns: VlsnSet | None) -> VlsnSet:
        """Returns the dead that an order names, all of them for None; none whose acknowledgement is being noted: that
        counts. Raises ``NotFound`` where one that is named is not dead."""
        dead = self._acked().dead.minus(self._parts.notes.under_way(self))
        if vlsns is None:
            return dead
        if strange := vlsns.minus(dead):
            raise NotFound(f"VLSN {int(strange.firsts[0])} is none of the dead messages that {self.name} keeps")
        return vlsns

    def check_retry(self, dead: VlsnSet) -> None:
        """Checks that the table takes it when ``dead`` are not acknowledged any more. Raises ``QueueFull``."""
        done = self._acked().done
        more = done.minus(dead).intervals - done.intervals
        if more > max(0, self.intervals_left):
            raise QueueFull(
                f"{more} more intervals of acknowledged VLSNs, {ACK_INTERVALS_MAX} are kept: acknowledge first what is "
                "out, and what lies between"
            )

    def retry(self, dead: VlsnSet) -> None:
        """Delivers these again: they are not dead any more."""
        self._acking, self.oldest = self._acking.minus(dead), Oldest()
        for vlsn in dead.vlsns().tolist():
            self._tries.pop(vlsn, None)
        if dead:
            self._rewind(int(dead.firsts[0]))
        self.wake()

    def _bury(self, dead: list[Dead]) -> None:
        self._acking = self._acking.union(VlsnSet.of([each.vlsn for each in dead]))
        self.counts.dead += len(dead)
        self._parts.bury(self, dead)

    def _check_known(self, vlsns: VlsnSet) -> None:
        if not vlsns:
            raise BadArgument("vlsns: none is named")
        first, last = int(vlsns.firsts[0]), int(vlsns.lasts[-1])
        if first < 1 or last > self._parts.source.durable:
            raise BadArgument(f"vlsns: of {first}–{last} some cannot have been delivered")

    def _check_intervals(self, vlsns: VlsnSet) -> None:
        """Refuses what no table would take: a note past the limit counts for nothing, though it is durable. What is out
        has its room since it was handed out, and keeps it."""
        if vlsns.intervals <= self.intervals_left:
            return
        known = self._acked().done.union(self._acking)
        left = len(self._flight) - int(np.count_nonzero(vlsns.has(self._flight.vlsns)))
        more = known.union(vlsns).intervals
        if more + left > max(ACK_INTERVALS_MAX, known.intervals + left):
            raise QueueFull(
                f"{more} intervals of acknowledged VLSNs, {ACK_INTERVALS_MAX} are kept: acknowledge what lies between"
            )

    # What its notes say.

    def skipped(self) -> VlsnSet:
        taken = VlsnSet.covering_all(self._skipped)
        if taken.intervals > self.intervals_left:
            known = self._acked().done.union(self._acking)
            if known.union(taken).intervals > known.intervals:
                return VlsnSet()  # waits until there is room: acknowledgements go first
        self._skipped, self._acking = [], self._acking.union(taken)
        return taken

    def noted(self, done: VlsnSet) -> None:
        acked = self._parts.table(self.uuid)
        if acked is not None and acked.since == self.since and self._acking:
            all_done = self._acking.lasts[-1] <= acked.floor
            self._acking = VlsnSet() if all_done else self._acking.minus(acked.done)
        if self._askers:
            self.wake()

    def drop(self, vlsns: VlsnSet, messages: int) -> None:
        """Acknowledges ``messages`` that the master drops, because the destination is full; ``vlsns`` has them, and
        VLSNs before them that are none of its messages."""
        self._acking = self._acking.union(vlsns)
        self.counts.dropped += messages
        self._parts.notes.add(self, vlsns, wait=False)

    def is_done(self, vlsns: Vlsns) -> npt.NDArray[np.bool_]:
        """Marks those that are acknowledged, or about to be."""
        acked = self._parts.table(self.uuid)
        done = self._acking.has(vlsns)
        return done if acked is None else done | acked.done.has(vlsns)

    @property
    def floor(self) -> int:
        """The VLSN up to which all is acknowledged."""
        acked = self._parts.table(self.uuid)
        return int(acked.floor) if acked is not None else 0

    def buried(self, dead: VlsnSet) -> None:
        """Hears that these are dead, durable."""
        for vlsn in dead.vlsns().tolist():
            self._tries.pop(vlsn, None)
        self.noted(dead)

    def given_back(self, done: VlsnSet) -> None:
        self._acking, self.oldest = self._acking.minus(done), Oldest()
        if done:
            self._rewind(int(done.firsts[0]))
        self.wake()


def _with_gaps(removed: Removed) -> VlsnSet:
    """Covers messages with what lies before each, back to the message before."""
    if (removed.before[1:] == removed.vlsns[:-1]).all():
        return VlsnSet(removed.before[:1] + 1, removed.vlsns[-1:])
    return VlsnSet.covering(removed.before + 1, removed.vlsns)


def _tell(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of a destination that stays connected."""

    delivery: Delivery
    owner: int

    @property
    def uuid(self) -> str:
        return self.delivery.uuid

    async def take(self, most: int, wait_s: float, room: Holder) -> tuple[Delivered, int]:
        """Hands messages out, and returns the answer's number, 0 for none; waits so long for the first. They may be
        sent after ``confirm``. Raises as ``NodeDestinations.messages``."""
        return await self.delivery.hand_out(most, wait_s, room, owner=self.owner)

    async def confirm(self) -> None:
        """Returns once a majority has confirmed the lead. Raises ``NotMaster``, ``NotFound``."""
        await self.delivery.confirm()

    def recall(self, answers: Collection[int]) -> None:
        """Takes answers back that were not sent, as if they had not been out."""
        self.delivery.recall(answers)

    def unread(self, vlsns: Vlsns) -> None:
        """Takes messages back that nobody has looked at."""
        self.delivery.unread(vlsns, self.owner)

    def ack(self, vlsns: VlsnSet) -> asyncio.Future[None]:
        """Acknowledges; done once that is durable. Raises as ``NodeDestinations.ack``."""
        told = self.delivery.ack_set(vlsns, wait=True)
        assert told is not None
        return told
