"""The delivery of one destination by the master: a cursor over its messages, and the messages that are out.

    acknowledged 1–40 · out 41 42 44 (A's batch) · at 50           43, 46 wait: earlier messages of their keys are out

A message is *out* while it is delivered and not acknowledged. The cursor is ``at``, the next VLSN to look at.

1. Messages are read from ``at`` on in VLSN order: from the log, or from pages (files of messages) if the log was
   cleaned there. Messages that are out, acknowledged, or noted for acknowledgement are skipped.
2. A message comes back if it is not acknowledged in time, or if ``nack`` returns it: ``at`` moves back to the message.
   A message that fails its last attempt becomes a dead letter (``dead_letters``).
3. Order of a key: while a message of a key is out, later messages of that key wait. Several messages of a key may be in
   one answer, in VLSN order. When a message comes back, the later messages of its key come back with it. While a
   returned message waits for its redelivery delay, later messages of its key wait as well.
4. The VLSNs between two messages of a destination are no messages of it. An acknowledgement covers the VLSNs between
   its message and the message before. So acknowledgements in order form one interval.
5. Before an answer is sent, a majority confirms that this node is the master. So a deposed master delivers no message
   that was acknowledged at its successor.

Only this master's memory has the list of messages that are out, and their first attempts. The next master delivers
every unacknowledged message again. This module runs on the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Final

import numpy as np
import numpy.typing as npt

from repl.destinations.acknowledged import Acknowledged
from repl.destinations.delivered import Dead, Delivered, DeliveryCounts, Pace, Source
from repl.destinations.gauges import WINDOWS, Incoming, Oldest
from repl.destinations.handed import Holder
from repl.destinations.limits import BLOCKED, BLOCKED_MAX, BLOCKED_S, LOOK_S
from repl.destinations.message_columns import MessageColumns
from repl.destinations.messages_out import Found, MessagesOut
from repl.destinations.notes import Notes
from repl.destinations.out_table import Removed
from repl.destinations.waiters import Waiters
from repl.destinations.waiting_keys import WaitingKeys
from repl.destinations.window import NO_KEY, Hashes, MessageWindows
from repl.web.limits import MESSAGE_BYTES, READ_BYTES_MAX
from vlsn.errors import BadArgument, NotFound, VlsnLogError, anew
from vlsn.format.messages import MessageFilter
from vlsn.format.rows import Mask
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.limits import REDELIVERY_DELAY_S_MAX
from vlsn.pages.source import PageSource
from vlsn.state.acks import Acked, Tries
from vlsn.state.destinations import DestinationSettings

LATE: Final = "not acknowledged in time"


@dataclass(frozen=True, slots=True)
class DeliveryParts:
    """The collaborators that a delivery is created with."""

    source: Source
    pages: Callable[[], PageSource | None]
    table: Callable[[str], Acked | None]
    """Returns the folded acknowledgements of the destination with this uuid."""
    notes: Notes
    confirm: Callable[[], Awaitable[object]]
    """Returns once a majority has confirmed that this node is the master."""
    bury: Callable[[Delivery, list[Dead]], None]
    freed: Callable[[], None]
    """Called after messages were acknowledged, because appends that wait may have room now."""
    event: Callable[..., None]


class Delivery:
    """One destination's delivery. ``close`` is called when the master's term ends or the destination is dropped."""

    def __init__(self, parts: DeliveryParts, name: str, settings: DestinationSettings) -> None:
        self._parts = parts
        self.name = name
        self.uuid = settings.uuid
        self._workers = 0
        self._numbers = count(1)
        """The numbers of answers and delays. No number is used twice, even after the destination is reset."""
        self.counts = DeliveryCounts()
        self.pace = Pace()
        self.incoming = Incoming()
        self.blocked_by = ""
        """The reason why no message is delivered now, for the status; "" if there is none."""
        self._lock = asyncio.Lock()
        self._waiters = Waiters(name)
        self._closed: VlsnLogError | None = None
        self._reset(settings)

    def _reset(self, settings: DestinationSettings) -> None:
        """Resets the delivery to the position in the table of acknowledgements, with no message out."""
        self._out = MessagesOut(self._numbers)
        self.acks = Acknowledged(self.name, partial(self._parts.table, self.uuid), self._out.table)
        self._use(settings)
        self._at = self.acks.floor + 1
        self._barren_until = 0.0
        """The loop's time until which calls without own keys do not search, because the last search found nothing."""
        self._waiting_keys = WaitingKeys()
        self.oldest = Oldest()

    def _use(self, settings: DestinationSettings) -> None:
        self.settings, parts = settings, self._parts
        self.wanted = MessageFilter(self.name, settings.prefix.encode(), settings.dead_letter.encode())
        lost = partial(self.counts.note_lost, self.name, parts.event)
        self._windows = MessageWindows(parts.source, parts.pages, self.wanted, self.uuid, self.acks.since, lost)

    def follow(self, settings: DestinationSettings) -> None:
        """Applies new settings and the current table of acknowledgements. Raises ``NotFound``."""
        if settings is not self.settings:
            self._use(settings)
            self._out.shorten(asyncio.get_running_loop().time() + settings.ack_timeout_s)
            self._waiters.wake()
        if self.acks.table().since != self.acks.since:
            self._parts.notes.forget(self)
            self._reset(settings)

    @property
    def out(self) -> int:
        """The number of messages that are delivered and not acknowledged yet."""
        return len(self._out)

    @property
    def delayed(self) -> int:
        """The number of messages that came back and wait for their redelivery delay."""
        return self._out.delayed

    @property
    def waiting(self) -> int:
        """The number of calls that wait for messages."""
        return len(self._waiters)

    def _is_barren(self) -> bool:
        """Returns whether a call has just searched, and found only messages that wait for their keys."""
        return asyncio.get_running_loop().time() < self._barren_until

    def rose(self) -> None:
        """Wakes a waiting call, because the durable end rose and a new message may exist."""
        if len(self._waiters) and self._at <= self._parts.source.durable and not self._is_barren():
            self._waiters.wake()

    def close(self, error: VlsnLogError) -> None:
        self._closed = error
        self._waiters.wake_all()

    # Delivery.

    def worker(self) -> Worker:
        """Makes a worker that stays connected. Later messages of a key may follow earlier ones to the same worker."""
        self._workers += 1
        return Worker(self, -self._workers)

    async def messages(self, most: int, wait_s: float, room: Holder) -> Delivered:
        """Takes up to ``most`` messages for one caller, and waits up to ``wait_s`` seconds for the first. Raises
        ``QueueFull``, ``NotFound``, ``NotMaster``, ``Damaged``."""
        delivered, answer = await self.hand_out(most, wait_s, room)
        if answer:
            try:
                await self.confirm()
            except BaseException:
                self.recall([answer])
                raise
        return delivered

    async def hand_out(self, most: int, wait_s: float, room: Holder, *, owner: int = 0) -> tuple[Delivered, int]:
        """Takes messages as ``messages`` does, and also returns the answer's number; the number is 0 if there are no
        messages. The caller then either waits for ``confirm`` and sends the messages, or recalls the answer; at last
        it releases the room. ``owner`` is the number of a worker, or 0 for a single call."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            self._check()
            if self._is_barren() and self._barren_until < deadline and not self._out.table.has_keys_of(owner):
                await self._waiters.wait(self._barren_until)  # another call has just searched on behalf of all calls
                continue
            async with self._lock:
                if await room.wait(max(deadline, loop.time() + LOOK_S)):
                    delivered, answer = await self._take(most, deadline, owner)
                else:
                    self.blocked_by = "workers that do not read their messages"
                    delivered, answer = self._nothing()
                if answer:
                    room.take(answer, delivered.columns.bytes + MESSAGE_BYTES * len(delivered.columns))
            now = loop.time()
            if answer or now >= deadline:
                return delivered, answer
            more = len(self._waiting_keys) > 0 and self._at <= self._parts.source.durable
            await self._waiters.wait(min(deadline, now + BLOCKED_S) if more else deadline)

    async def confirm(self) -> None:
        """Returns once a majority has confirmed that this node is the master. Raises ``NotMaster``, ``NotFound``."""
        await self._parts.confirm()
        self._check()

    def recall(self, answers: Iterable[int]) -> None:
        """Takes back the messages of answers that were never sent."""
        for answer in answers:
            self._recall(self._out.table.vlsns_of(answer))
        self._waiters.wake()

    def unread(self, vlsns: Vlsns, owner: int) -> None:
        """Takes back messages that a worker has received but not processed."""
        self._recall(self._out.table.owned(vlsns, owner))
        self._waiters.wake()

    def _check(self) -> None:
        if self._closed is not None:
            raise anew(self._closed)

    async def _take(self, most: int, deadline: float, owner: int) -> tuple[Delivered, int]:
        """Hands messages out, under the lock. Returns the messages and the answer's number (0: no messages)."""
        if self.settings.paused:
            self.blocked_by = "paused"
            return self._nothing()
        if 0 < self.settings.max_out <= self.out:
            self.blocked_by = f"max_out: {self.out} messages are out"
            return self._nothing()
        room = self.acks.intervals_left
        self.blocked_by = "" if room > 0 else "a gap in the acknowledged VLSNs"
        if room <= 0:
            # Acknowledging the first message never adds an interval, so only that message can be delivered.
            self._rewind(self.acks.floor + 1)
            most = 1
        if len(self._waiting_keys) and self._out.table.has_keys_of(owner):
            own = self._waiting_keys.first_but(self._out.table.keys_of_others(owner)[0])
            # these messages wait for keys that only this owner has, so for other owners nothing has changed
            if own is not None:
                barren_until = self._barren_until
                self._rewind(own)
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
                if len(self._waiting_keys) and self._at - self._waiting_keys.first > BLOCKED_MAX:
                    self.blocked_by = "order in a key: an earlier message is out"
                    break
                if not await self._look(found, limit, first_only=room <= 0):
                    break
        except BaseException:
            if found.count:
                self._rewind(int(found.before[0][0]) + 1)  # the caller has left, or a read failed
            raise
        if not found.count:
            if found.blocked:
                self._barren_until = loop.time() + BLOCKED_S
            return self._nothing()
        handed = self._hand_out(found)
        if self._at <= self._parts.source.durable and not self._is_barren():
            self._waiters.wake()
        return handed

    def _nothing(self) -> tuple[Delivered, int]:
        return Delivered(MessageColumns(), {}, self.uuid), 0

    async def _look(self, found: Found, limit: int, *, first_only: bool) -> bool:
        """Searches the next messages for ones that can be delivered. Returns False if no more can be found now."""
        at, since = self._at, self.acks.since
        window = await self._windows.at(at)
        self._check()
        if self.acks.since != since:
            found.clear()  # the messages were found before the destination was moved
            return True
        if self._at != at:
            # A message that has come back meanwhile may be earlier than those found, and have one of their keys.
            if found.count:
                self._rewind(int(found.before[0][0]) + 1)
                found.clear()
            return True
        if window is None:
            if (missing := self._windows.missing) is not None:
                self.blocked_by = f"VLSNs {missing[0]}–{missing[1]}, which this node has to fetch"
            return False
        acked = self.acks.table()
        start = int(np.searchsorted(window.vlsns, at))
        end = start + window.fitting(slice(start, start + limit), READ_BYTES_MAX - found.bytes)
        whole = end == len(window.vlsns)
        if end == start:
            self._at = window.end
            self.acks.skip(at, window.end - 1)
            return True
        vlsns = window.vlsns[start:end]
        last = int(vlsns[-1])
        self._at = window.end if whole else last + 1
        if whole:
            self.acks.skip(last + 1, window.end - 1)
        before = np.concatenate((np.array([at - 1], np.int64), vlsns[:-1]))
        free = ~self._passed_over(vlsns, before)
        if first_only and not (free[0] and before[0] == acked.floor):
            return False
        keys = window.key_hashes(slice(start, end))
        if keys is not None:
            ordered = free & ~self._waits(vlsns, before, keys, free, found.owner)
            found.blocked += int(np.count_nonzero(free)) - int(np.count_nonzero(ordered))
            free = ordered
        if self._wait_anew(acked, vlsns, before, keys, free):
            self._rewind(at)  # later messages of the same keys must wait, too
            return True
        chosen = self._living(acked, vlsns, np.flatnonzero(free))
        if len(chosen) == len(vlsns):
            found.add(window.columns(slice(start, end)), before, keys)
        elif len(chosen):
            found.add(window.columns(start + chosen), before[chosen], None if keys is None else keys[chosen])
        return not first_only

    def _passed_over(self, vlsns: Vlsns, before: Vlsns) -> npt.NDArray[np.bool_]:
        """Marks messages that are out or acknowledged. Skips the gaps between acknowledged messages."""
        if vlsns[0] > max(self.acks.last, self._out.table.last):
            return np.zeros(len(vlsns), np.bool_)  # no message in this window was ever delivered
        done = self.acks.has(vlsns)
        self.acks.skip_before(vlsns[done], before[done])
        return done | self._out.table.has(vlsns)

    def _waits(self, vlsns: Vlsns, before: Vlsns, keys: Hashes, free: Mask, owner: int) -> Mask:
        """Marks messages that wait for earlier messages of their keys. Also notes where to search each key again."""
        others, behind = self._out.table.keys_of_others(owner)
        waits: Mask = np.isin(keys, others) & free
        if waits.any():
            waits[waits] = vlsns[waits] > behind[np.searchsorted(others, keys[waits])]
        if waits.any():
            rows = np.flatnonzero(waits)
            self._waiting_keys.add(keys[rows], before[rows] + 1)
        return waits

    def _wait_anew(self, acked: Acked, vlsns: Vlsns, before: Vlsns, keys: Hashes | None, free: Mask) -> bool:
        """Delays messages that were tried under an earlier master. Only that master had the time of the last attempt,
        so the delay counts from now. Returns whether any message was delayed."""
        if not self.settings.redelivery_delay_s or not len(acked.tries.vlsns):
            return False
        rows = np.flatnonzero(free & np.isin(vlsns, acked.tries.vlsns))
        tried = self._out.learn(vlsns[rows], acked.tries)
        rows = rows[np.isin(vlsns[rows], [*tried])]
        hashes = np.full(len(rows), NO_KEY, np.uint64) if keys is None else keys[rows]
        return self._put_off(Removed(vlsns[rows], before[rows], rows, hashes), tried.values(), None)

    def _put_off(self, back: Removed, attempts: Collection[int], delay_s: float | None) -> bool:
        """Delays messages that came back after ``attempts`` attempts and may be tried again. The delay is
        ``delay_s``, or None for the delay of the settings. Returns whether any message has to wait."""
        settings = self.settings

        def delay(attempt: int) -> float:
            if attempt >= settings.attempts_max:
                return 0.0
            return settings.redelivery_delay(attempt) if delay_s is None else delay_s

        return self._out.delay(back, list(map(delay, attempts)), asyncio.get_running_loop().time())

    def _living(self, acked: Acked, vlsns: Vlsns, chosen: Vlsns) -> Vlsns:
        """Removes messages that have had their last attempt, and moves these messages to the dead letters."""
        if not self._out.has_tried(acked.tries):
            return chosen
        dead, left = [], []
        for row in chosen.tolist():
            tried = self._out.tried(vlsn := int(vlsns[row]), acked.tries)
            if tried >= self.settings.attempts_max:
                dead.append(Dead(vlsn, tried, LATE))
            else:
                left.append(row)
        if dead:
            self._bury(dead)
        return np.array(left, np.int64)

    def _hand_out(self, found: Found) -> tuple[Delivered, int]:
        columns, noted = MessageColumns.joined(found.parts), self.acks.table().tries
        deadline = asyncio.get_running_loop().time() + self.settings.ack_timeout_s
        number, attempts = self._out.hand_out(found, columns.vlsns, noted, deadline)
        self.counts.delivered += len(columns)
        self.counts.delivered_again += len(attempts)
        if attempts:
            self._parts.notes.tried(self, attempts)
        return Delivered(columns, attempts, self.uuid), number

    async def peek(self, most: int) -> Delivered:
        """Shows the first unacknowledged messages, out or not, up to one answer. Raises as ``messages``."""
        acked, loop = self.acks.table(), asyncio.get_running_loop()
        at, found = int(acked.floor) + 1, list[MessageColumns]()
        until, left, room = loop.time() + LOOK_S, most, READ_BYTES_MAX
        while left and room > 0 and at <= self._parts.source.durable and loop.time() < until:
            window = await self._windows.read(at)
            if window is None or window.end <= at:
                break
            rows = np.flatnonzero(~self.acks.has(window.vlsns) & (window.vlsns >= at))[:left]
            fits = window.fitting(rows, room)
            part = window.columns(rows[:fits])
            found.append(part)
            if fits < len(rows):
                break
            at, left, room = window.end, left - fits, room - part.bytes
        columns = MessageColumns.joined([part for part in found if len(part)])
        return Delivered(columns, self._out.attempts(columns.vlsns, acked.tries), self.uuid)

    async def look_at_oldest(self) -> None:
        """Finds the message that has waited longest; a long search takes several calls. Raises as ``messages``."""
        oldest, durable = self.oldest, self._parts.source.durable
        if oldest.vlsn and not self.acks.has(np.array([oldest.vlsn]))[0]:
            return
        oldest.vlsn, oldest.time_us = 0, 0
        at = max(self.acks.floor + 1, oldest.looked_to)
        for _ in range(WINDOWS):
            window = await self._windows.read(at) if at <= durable else None
            if oldest is not self.oldest or window is None or window.end <= at:
                return
            rows = np.flatnonzero(~self.acks.has(window.vlsns) & (window.vlsns >= at))
            if len(rows):
                oldest.vlsn, oldest.time_us = int(window.vlsns[rows[0]]), int(window.times[rows[0]])
                oldest.looked_to = oldest.vlsn
                return
            at = oldest.looked_to = window.end

    # Acknowledgements and returns.

    def ack(self, vlsns: VlsnSet, *, wait: bool) -> asyncio.Future[None] | None:
        """Acknowledges messages, whichever worker has them, and even if they are no longer out. With ``wait`` the
        future completes when the acknowledgement is durable. Raises ``BadArgument`` for VLSNs that cannot have been
        delivered, and ``QueueFull`` beyond the limit of intervals. After an error no message is acknowledged."""
        self._check()
        self._check_known(vlsns)
        self.acks.check(vlsns)
        removed = self._out.acknowledge(vlsns)
        self._release(removed.keys)
        done = vlsns.union(_with_gaps(removed)) if len(removed) else vlsns
        self.acks.add(done)
        self.counts.acked += vlsns.count
        self._parts.freed()
        if self.settings.max_out and len(removed):
            self._waiters.wake()
        return self._parts.notes.add(self, done, wait=wait)

    def nack(self, vlsns: npt.ArrayLike, reason: str, delay_s: float | None = None) -> None:
        """Returns messages for another attempt after ``delay_s`` (None: the settings' delay), or as dead letters after
        the last attempt. Messages that are no longer out are ignored. Raises as ``ack``."""
        self._check()
        if delay_s is not None and not 0 <= delay_s <= REDELIVERY_DELAY_S_MAX:
            raise BadArgument(f"delay_s: {delay_s} is not in 0–{REDELIVERY_DELAY_S_MAX}")
        given = VlsnSet.of(vlsns)
        self._check_known(given)
        back = self._out.table.with_somebody(given.vlsns())
        self.counts.nacked += len(back)
        self._come_back(back, reason, delay_s)
        self._waiters.wake()

    def tick(self, now: float) -> None:
        """Takes back overdue messages, and messages whose delay is over. Logs the skipped VLSNs if there are many."""
        self.pace.tick(now, self.counts)
        came_back = False
        while len(late := self._out.late(now)):
            self.counts.expired += len(late)
            self._come_back(late, LATE)
            came_back = True
        if len(due := self._out.due(now)):
            self._recall(due)
            came_back = True
        if came_back:
            self._waiters.wake()
        if self.acks.has_skipped_much:
            self._parts.notes.add(self, VlsnSet(), wait=False)
        self._windows.let_go()

    def _come_back(self, vlsns: Vlsns, reason: str, delay_s: float | None = None) -> None:
        """Takes back messages after a finished attempt, and also the later messages of their keys that are out."""
        attempts = self._out.attempts(vlsns, Tries())
        back = self._recall(vlsns)
        self._put_off(back, attempts.values(), delay_s)
        self._out.end_attempts(attempts)
        last = self.settings.attempts_max
        if dead := [Dead(vlsn, attempt, reason) for vlsn, attempt in attempts.items() if attempt >= last]:
            self._bury(dead)

    def _recall(self, vlsns: Vlsns) -> Removed:
        """Takes back messages and the later ones of their keys, as if none was delivered. Returns the former."""
        back = self._out.take_back(vlsns)
        for each in back:
            if len(each):
                self._rewind(int(each.before[0]) + 1)
                self._release(each.keys)
        return back[0]

    def _release(self, keys: Hashes) -> None:
        """Makes later messages of ``keys`` deliverable again, for each key of which no message is out any more."""
        if not len(self._waiting_keys):
            return
        known = np.unique(keys)
        lowest = self._waiting_keys.release(known[~self._out.table.out_keys(known)])
        if lowest is not None:
            self._rewind(lowest)
            self._waiters.wake()

    def _rewind(self, vlsn: int) -> None:
        """Moves the cursor back to ``vlsn``. Messages after ``vlsn`` that wait for their keys will be found again."""
        self._barren_until = 0.0
        self._at = min(self._at, vlsn)
        self._waiting_keys.keep_below(self._at)

    def dead(self, vlsns: VlsnSet | None) -> VlsnSet:
        """Returns the dead messages among ``vlsns``, or all dead messages for None. Leaves out a dead message whose
        acknowledgement is not durable yet. Raises ``NotFound`` if one of ``vlsns`` is not dead."""
        dead = self.acks.table().dead.minus(self._parts.notes.under_way(self))
        if vlsns is None:
            return dead
        if strange := vlsns.minus(dead):
            raise NotFound(f"VLSN {int(strange.firsts[0])} is none of the dead messages that {self.name} keeps")
        return vlsns

    def retry(self, dead: VlsnSet) -> None:
        """Delivers dead messages again, from their first attempt."""
        self._out.forget_attempts(dead)
        self.given_back(dead)

    def _bury(self, dead: list[Dead]) -> None:
        self.acks.add(VlsnSet.of([each.vlsn for each in dead]))
        self.counts.dead += len(dead)
        self._parts.bury(self, dead)

    def _check_known(self, vlsns: VlsnSet) -> None:
        if not len(vlsns.firsts):
            raise BadArgument("vlsns: the list is empty")
        first, last = int(vlsns.firsts[0]), int(vlsns.lasts[-1])
        if first < 1 or last > self._parts.source.durable:
            raise BadArgument(f"vlsns: some of {first}–{last} cannot have been delivered")

    # Callbacks of notes.

    def skipped(self) -> VlsnSet:
        return self.acks.take_skipped()

    def noted(self, done: VlsnSet) -> None:
        self.acks.fold()
        self._waiters.wake()

    def drop(self, vlsns: VlsnSet, messages: int) -> None:
        """Acknowledges ``messages`` messages that the master drops because the destination is full. ``vlsns``
        contains these messages and the skipped VLSNs before each."""
        self.acks.add(vlsns)
        self.counts.dropped += messages
        self._parts.notes.add(self, vlsns, wait=False)

    def buried(self, dead: VlsnSet) -> None:
        """Notes that the dead letters of these messages are durable."""
        self._out.forget_attempts(dead)
        self.noted(dead)

    def given_back(self, done: VlsnSet) -> None:
        self.acks.give_back(done)
        self.oldest = Oldest()
        if done:
            self._rewind(int(done.firsts[0]))
        self._waiters.wake()


def _with_gaps(removed: Removed) -> VlsnSet:
    """Returns the VLSNs of the messages, and the VLSNs between each message and the message before it."""
    if (removed.before[1:] == removed.vlsns[:-1]).all():
        return VlsnSet(removed.before[:1] + 1, removed.vlsns[-1:])
    return VlsnSet.covering(removed.before + 1, removed.vlsns)


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of a destination that stays connected."""

    delivery: Delivery
    owner: int

    @property
    def uuid(self) -> str:
        return self.delivery.uuid

    async def take(self, most: int, wait_s: float, room: Holder) -> tuple[Delivered, int]:
        """Hands messages out. Returns the messages and the answer's number (0: no messages). Waits up to ``wait_s``
        seconds for the first. The messages may be sent after ``confirm``. Raises as ``NodeDestinations.messages``."""
        return await self.delivery.hand_out(most, wait_s, room, owner=self.owner)

    async def confirm(self) -> None:
        """Returns once a majority has confirmed that this node is the master. Raises ``NotMaster``, ``NotFound``."""
        await self.delivery.confirm()

    def recall(self, answers: Collection[int]) -> None:
        """Takes back the messages of answers that were not sent, as if they had not been delivered."""
        self.delivery.recall(answers)

    def unread(self, vlsns: Vlsns) -> None:
        """Takes back messages that the worker has received but not processed."""
        self.delivery.unread(vlsns, self.owner)

    def ack(self, vlsns: VlsnSet) -> asyncio.Future[None]:
        durable = self.delivery.ack(vlsns, wait=True)
        assert durable is not None
        return durable
