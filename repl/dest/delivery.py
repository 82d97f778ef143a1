"""The delivery of one destination, by the master: a cursor over its messages, and those that are out.

    acknowledged 1–40 · out 41 42 44 (A's batch) · at 50           43, 46: keys of which an earlier message is out

1. Messages are read from ``at`` on, in VLSN order: from the log, and where that was cleaned from pages.  What is
   acknowledged, about to be, or out, is passed over.
2. A message that is out comes back when nobody acknowledges it in time, or ``nack`` gives it back: ``at`` goes back to
   it, so it is the next one.  After the last attempt it is dead instead (``dead_letters``).
3. Order in a key: while a message of a key is out, later ones of that key wait; those of one answer go out together, in
   their order.  One that comes back recalls the later ones of its key that are out.
4. An acknowledgement of a message covers the VLSNs between the message before it and itself, which are none of this
   destination's, so that acknowledgements in order are one interval.
5. Before an answer goes out a majority confirms that this node leads: one that was unseated hands out nothing that was
   acknowledged elsewhere meanwhile.

What is out, and a first attempt, lie in the memory of this lead: the next master delivers what is not acknowledged.
On the loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Final, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from repl.dest.limits import ASKERS_MAX, BLOCKED, BLOCKED_MAX, BLOCKED_S, LOOK_S, PACE_S, SKIPPED_NOTED, TRIES_MAX
from repl.dest.notes import Notes
from repl.http.limits import READ_BYTES_MAX
from vlsn.errors import BadArgument, NotFound, QueueFull, Trimmed, VlsnLogError
from vlsn.format.block import Entry
from vlsn.format.key_filter import KeyFilter
from vlsn.format.vlsn_set import Vlsns, VlsnSet
from vlsn.ids import Vlsn
from vlsn.limits import ACK_INTERVALS_MAX
from vlsn.state.acks import Acked
from vlsn.state.destinations import DestinationSettings

LATE: Final = "not acknowledged in time"


class Page(Protocol):
    """Entries in rising VLSNs, and the first VLSN that was not looked at."""

    @property
    def entries(self) -> list[Entry]: ...

    @property
    def next_vlsn(self) -> int: ...


class Source(Protocol):
    """The durable log, to be read."""

    @property
    def durable(self) -> Vlsn: ...

    async def page(
        self, from_vlsn: int | None, *, limit: int, bytes_max: int, all_kinds: bool, keys: KeyFilter | None = None
    ) -> Page: ...


class PagedRun(Protocol):
    """Messages in VLSN order, and the first VLSN that was not looked at; at or past the log's first one the log has it.
    ``lacks`` are VLSNs from there on that lie neither in this node's log nor in its pages yet."""

    @property
    def entries(self) -> list[Entry]: ...

    @property
    def next_vlsn(self) -> Vlsn: ...

    @property
    def lacks(self) -> tuple[int, int] | None: ...


class PagedSizes(Protocol):
    """VLSNs of messages, and the bytes of each."""

    @property
    def vlsns(self) -> Vlsns: ...

    @property
    def sizes(self) -> Vlsns: ...

    @property
    def next_vlsn(self) -> Vlsn: ...


class PageSource(Protocol):
    """Messages that the log lost when it was cleaned (``vlsn/pages``)."""

    @property
    def pressed(self) -> bool: ...

    def why_full(self, uuid: str, limit_bytes: int) -> str: ...

    async def sizes(self, uuid: str, from_vlsn: int) -> PagedSizes: ...

    async def messages(self, uuid: str, from_vlsn: int, *, limit: int, bytes_max: int) -> PagedRun: ...


class Delivered(NamedTuple):
    """Messages of one answer, in VLSN order; ``attempts`` of those that are not delivered for the first time."""

    entries: list[Entry]
    attempts: dict[int, int]
    uuid: str


class Dead(NamedTuple):
    """A message that nobody could take."""

    vlsn: int
    attempts: int
    reason: str


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


@dataclass(slots=True, eq=False)
class _Batch:
    """The messages of one answer."""

    vlsns: Vlsns
    before: Vlsns
    """The VLSN of the message before each of them."""
    keys: dict[int, bytes]
    attempts: dict[int, int]
    deadline: float
    left: int
    """Those that are out yet."""


@dataclass(slots=True)
class DeliveryCounts:
    """Counters since this node leads."""

    delivered: int = 0
    again: int = 0
    acked: int = 0
    nacked: int = 0
    expired: int = 0
    dead: int = 0
    dropped: int = 0
    lost: int = 0


@dataclass(slots=True)
class Pace:
    """Messages a second, of late: over the last whole ``PACE_S``."""

    delivered: float = 0.0
    acked: float = 0.0
    _since: float = 0.0
    _counted: tuple[int, int] = (0, 0)

    def tick(self, now: float, counts: DeliveryCounts) -> None:
        if now - self._since < PACE_S:
            return
        delivered, acked = self._counted
        span = now - self._since if self._since else PACE_S
        self.delivered, self.acked = (counts.delivered - delivered) / span, (counts.acked - acked) / span
        self._since, self._counted = now, (counts.delivered, counts.acked)


@dataclass(slots=True)
class _Found:
    """Messages that may go out, put together over several pages."""

    entries: list[Entry] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    bytes: int = 0
    blocked: int = 0
    """Messages that were passed over because of their keys."""


class Delivery:
    """One destination.  ``close`` when the lead has ended, or the destination is gone."""

    def __init__(self, parts: DeliveryParts, name: str, settings: DestinationSettings, acked: Acked) -> None:
        self._parts = parts
        self.name = name
        self.uuid = settings.uuid
        self.counts = DeliveryCounts()
        self.pace = Pace()
        self.blocked_by = ""
        """The reason why messages are not delivered, for status."""
        self._lock = asyncio.Lock()
        self._askers: deque[asyncio.Future[None]] = deque()
        self._closed: VlsnLogError | None = None
        self._use(settings)
        self._reset(acked)

    def _use(self, settings: DestinationSettings) -> None:
        self.settings = settings
        prefix, self._without = settings.prefix.encode(), settings.dead_letter.encode()
        self._keys = KeyFilter(prefix, prefix=True) if prefix else None
        self._filters = self._without.startswith(prefix)
        """Its own dead letters are among what the prefix says."""

    def _reset(self, acked: Acked) -> None:
        """Begins anew where the table says, with nothing out."""
        self.since = acked.since
        self._at = int(acked.floor) + 1
        self._flight: dict[int, _Batch] = {}
        self._batches: dict[_Batch, None] = {}
        """The batches of which some are out, the one first that comes back first."""
        self._high = 0
        """The highest VLSN that was delivered."""
        self._tries: dict[int, int] = {}
        """Attempts by VLSN, of messages that came back."""
        self._out: Counter[bytes] = Counter()
        """Messages that are out, by key."""
        self._blocked: dict[bytes, int] = {}
        """The VLSN from which on messages of a key wait."""
        self._acking = VlsnSet()
        """Acknowledged, and not folded yet."""
        self._skipped: list[VlsnSet] = []

    def follow(self, settings: DestinationSettings) -> None:
        """Goes by these settings, and by the table as it is. Raises ``NotFound``."""
        if settings is not self.settings:
            self._use(settings)
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
        return len(self._flight)

    @property
    def waiting(self) -> int:
        """The askers that wait for messages."""
        return len(self._askers)

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

    async def messages(self, most: int, wait_s: float) -> Delivered:
        """Takes up to ``most`` messages, each to one asker; waits up to ``wait_s`` for the first. Raises ``QueueFull``,
        ``NotFound``, ``NotMaster``, ``Damaged``."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_s
        while True:
            self._check()
            async with self._lock:
                found = await self._take(most, deadline)
            now = loop.time()
            if found.entries or now >= deadline:
                return found
            more = self._blocked and self._at <= self._parts.source.durable
            await self._wait(min(deadline, now + BLOCKED_S) if more else deadline)

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
            raise self._closed

    async def _take(self, most: int, deadline: float) -> Delivered:
        if self.settings.paused:
            self.blocked_by = "paused"
            return Delivered([], {}, self.uuid)
        acked = self._acked()
        room = ACK_INTERVALS_MAX - acked.done.intervals - self._acking.intervals - len(self._flight)
        self.blocked_by = "" if room > 0 else "a gap in what is acknowledged"
        if room <= 0:
            # The first message alone can be delivered: whatever becomes of it, no interval is added.
            self._rewind(int(acked.floor) + 1)
            most = 1
        found = _Found()
        loop, most = asyncio.get_running_loop(), min(most, max(room, 1))
        until = max(deadline, loop.time() + LOOK_S)
        while len(found.entries) < most and found.bytes < READ_BYTES_MAX and self._at <= self._parts.source.durable:
            limit = most - len(found.entries)
            if loop.time() >= until or found.blocked >= max(BLOCKED, 2 * most):
                break
            if len(self._blocked) and self._at - min(self._blocked.values()) > BLOCKED_MAX:
                self.blocked_by = "order in a key: an earlier message is out"
                break
            if not await self._look(found, limit, first_only=room <= 0):
                break
        if not found.entries:
            return Delivered([], {}, self.uuid)
        delivered, batch = self._hand_out(found)
        try:
            await self._parts.confirm()
            self._check()
        except BaseException:
            self._take_back(batch, [int(vlsn) for vlsn in batch.vlsns])
            raise
        if self._at <= self._parts.source.durable:
            self.wake()
        return delivered

    async def _look(self, found: _Found, limit: int, *, first_only: bool) -> bool:
        """Reads one page into ``found``; False where there is nothing more to be had now."""
        at, since = self._at, self.since
        entries, upto = await self._read(at, limit, READ_BYTES_MAX - found.bytes)
        self._check()
        if self.since != since:
            return False
        if self._at != at:
            return not found.entries  # something came back meanwhile: it is the next one
        if upto <= at:
            return False
        self._at = upto
        acked = self._acked()
        if not entries:
            self._skip(VlsnSet.between(at, upto - 1))
            return True
        vlsns = np.array([entry.vlsn for entry in entries], np.int64)
        before = np.concatenate((np.array([at - 1], np.int64), vlsns[:-1]))
        self._skip(VlsnSet.between(int(vlsns[-1]) + 1, upto - 1))
        free = ~self._passed_over(acked, vlsns, before)
        if first_only and not (free[0] and before[0] == acked.floor):
            return False
        chosen = np.flatnonzero(free).tolist()
        if self._out or self._blocked:
            free_rows = len(chosen)
            chosen = self._in_order(entries, before, chosen)
            found.blocked += free_rows - len(chosen)
        chosen = self._living(acked, entries, chosen)
        found.entries += [entries[row] for row in chosen] if len(chosen) < len(entries) else entries
        found.before += before[chosen].tolist()
        found.bytes += sum(len(entries[row].value) for row in chosen)
        return not first_only

    def _passed_over(self, acked: Acked, vlsns: Vlsns, before: Vlsns) -> npt.NDArray[np.bool_]:
        """Marks what is not to be delivered; notes what lies between those that are done."""
        done = acked.done.has(vlsns) | self._acking.has(vlsns)
        if done.any():
            gaps = done & (before + 1 < vlsns)
            if gaps.any():
                self._skip(VlsnSet.covering(before[gaps] + 1, vlsns[gaps] - 1))
        if vlsns[0] <= self._high and self._flight:
            done |= np.fromiter(map(self._flight.__contains__, vlsns.tolist()), np.bool_, len(vlsns))
        return done

    def _in_order(self, entries: Sequence[Entry], before: Vlsns, chosen: Iterable[int]) -> list[int]:
        """Leaves out messages of whose keys earlier ones are out."""
        out, blocked, left = self._out, self._blocked, []
        for row in chosen:
            key = entries[row].key
            if key is not None and (key in out or key in blocked):
                blocked.setdefault(key, int(before[row]) + 1)
            else:
                left.append(row)
        return left

    def _living(self, acked: Acked, entries: Sequence[Entry], chosen: list[int]) -> list[int]:
        """Leaves out messages that had their last attempt already, and buries them."""
        if not self._tries and not len(acked.tries.vlsns):
            return chosen
        dead, left = [], []
        for row in chosen:
            vlsn = int(entries[row].vlsn)
            tried = self._tried(acked, vlsn)
            if tried >= self.settings.attempts_max:
                dead.append(Dead(vlsn, tried, LATE))
            else:
                left.append(row)
        if dead:
            self._bury(dead)
        return left

    def _tried(self, acked: Acked, vlsn: int) -> int:
        tried = self._tries.get(vlsn)
        return acked.tries.of(vlsn) if tried is None else tried

    def _hand_out(self, found: _Found) -> tuple[Delivered, _Batch]:
        entries, acked = found.entries, self._acked()
        vlsns = np.array([entry.vlsn for entry in entries], np.int64)
        attempts: dict[int, int] = {}
        if self._tries or len(acked.tries.vlsns):
            for vlsn in vlsns.tolist():
                if tried := self._tried(acked, vlsn):
                    attempts[vlsn] = tried + 1
        keys = {int(entry.vlsn): entry.key for entry in entries if entry.key is not None}
        deadline = asyncio.get_running_loop().time() + self.settings.ack_timeout_s
        batch = _Batch(vlsns, np.array(found.before, np.int64), keys, attempts, deadline, len(vlsns))
        self._flight.update(zip(vlsns.tolist(), repeat(batch)))
        self._batches[batch] = None
        self._out.update(keys.values())
        self._high = max(self._high, int(vlsns[-1]))
        self.counts.delivered += len(vlsns)
        if attempts:
            self.counts.again += len(attempts)
            noted: dict[int, list[int]] = {}
            for vlsn, attempt in attempts.items():
                noted.setdefault(attempt, []).append(vlsn)
            self._parts.notes.tried(self, noted)
        return Delivered(entries, attempts, self.uuid), batch

    async def _read(self, at: int, limit: int, bytes_max: int) -> tuple[list[Entry], int]:
        """Reads messages from ``at`` on, and returns the first VLSN that was not looked at."""
        parts = self._parts
        try:
            page = await parts.source.page(at, limit=limit, bytes_max=bytes_max, all_kinds=False, keys=self._keys)
            entries, upto = page.entries, page.next_vlsn
        except Trimmed as trimmed:
            pages = parts.pages()
            if pages is None:
                self._lost(at, int(trimmed.first) - 1)
                return [], int(trimmed.first)
            run = await pages.messages(self.uuid, at, limit=limit, bytes_max=bytes_max)
            if run.lacks is not None and not run.entries:
                self.blocked_by = f"VLSNs {run.lacks[0]}–{run.lacks[1]}, which this node has to fetch"
                return [], at
            entries, upto = run.entries, int(run.next_vlsn)
        if self._filters:
            entries = [entry for entry in entries if entry.key != self._without]
        return entries, upto

    def _lost(self, first: int, last: int) -> None:
        self.counts.lost += 1
        self._parts.event("destination.lost", destination=self.name, first=first, last=last)

    def _skip(self, vlsns: VlsnSet) -> None:
        if vlsns:
            self._skipped.append(vlsns)

    async def peek(self, most: int) -> Delivered:
        """Shows messages from the first on that is not acknowledged, out or not, and takes none. Raises as
        ``messages``."""
        acked = self._acked()
        at, found, attempts = int(acked.floor) + 1, list[Entry](), dict[int, int]()
        until = asyncio.get_running_loop().time() + LOOK_S
        while len(found) < most and at <= self._parts.source.durable and asyncio.get_running_loop().time() < until:
            entries, upto = await self._read(at, most - len(found), READ_BYTES_MAX)
            if upto <= at:
                break
            at = upto
            done = acked.done.has([entry.vlsn for entry in entries]) | self._acking.has([e.vlsn for e in entries])
            found += [entry for entry, gone in zip(entries, done.tolist(), strict=True) if not gone]
        for entry in found:
            vlsn = int(entry.vlsn)
            batch = self._flight.get(vlsn)
            attempts[vlsn] = batch.attempts.get(vlsn, 1) if batch is not None else self._tried(acked, vlsn)
        return Delivered(found, attempts, self.uuid)

    # What comes back.

    def ack(self, vlsns: Sequence[int], *, wait: bool) -> asyncio.Future[None] | None:
        """Acknowledges messages, whoever they were delivered to, and whether they still are out. Raises ``BadArgument``
        for what cannot have been delivered, nothing acknowledged."""
        self._check()
        column = self._column(vlsns)
        firsts = column.copy()
        popped = list(map(self._flight.pop, column.tolist(), repeat(None)))
        for batch in {id(batch): batch for batch in popped if batch is not None}.values():
            mine = np.fromiter((each is batch for each in popped), np.bool_, len(popped))
            firsts[mine] = batch.before[np.searchsorted(batch.vlsns, column[mine])] + 1
            self._came_in(batch, int(mine.sum()))
            self._release(batch, column[mine].tolist())
        for vlsn in column.tolist() if self._tries else ():
            self._tries.pop(vlsn, None)
        done = VlsnSet.covering(firsts, column)
        self._acking = self._acking.union(done)
        self.counts.acked += len(column)
        self._parts.freed()
        return self._parts.notes.add(self, done, wait=wait)

    def nack(self, vlsns: Sequence[int], reason: str) -> None:
        """Gives messages back, to be delivered again at once, or dead after their last attempt. Those that are not out
        any more stay as they are. Raises as ``ack``."""
        self._check()
        column = self._column(vlsns)
        back: dict[int, _Batch] = {}
        for vlsn in column.tolist():
            batch = self._flight.get(vlsn)
            if batch is not None:
                back[vlsn] = batch
        self.counts.nacked += len(back)
        for vlsn, batch in back.items():
            self._come_back(batch, [vlsn], reason)
        self.wake()

    def tick(self, now: float) -> None:
        """Takes back what was out for too long; notes what was passed over, if it is much."""
        self.pace.tick(now, self.counts)
        came_back = False
        while self._batches and (batch := next(iter(self._batches))).deadline <= now:
            late = [vlsn for vlsn in batch.vlsns.tolist() if self._flight.get(vlsn) is batch]
            self.counts.expired += len(late)
            self._come_back(batch, late, LATE)
            came_back = True
        if came_back:
            self.wake()
        if self._skipped and sum(each.count for each in self._skipped) >= SKIPPED_NOTED:
            self._parts.notes.add(self, VlsnSet(), wait=False)

    def _came_in(self, batch: _Batch, count: int) -> None:
        batch.left -= count
        if not batch.left:
            self._batches.pop(batch, None)

    def _come_back(self, batch: _Batch, vlsns: list[int], reason: str) -> None:
        """Takes messages back after an attempt, and with them later ones of their keys that are out."""
        dead = []
        self._take_back(batch, vlsns)
        for vlsn in vlsns:
            attempt = self._tries[vlsn] = batch.attempts.get(vlsn, 1)
            if attempt >= self.settings.attempts_max:
                dead.append(Dead(vlsn, attempt, reason))
        while len(self._tries) > TRIES_MAX:
            del self._tries[next(iter(self._tries))]
        for vlsn in vlsns:
            key = batch.keys.get(vlsn)
            if key is not None and self._out.get(key):
                later = [each for each, held in batch.keys.items() if held == key and each > vlsn]
                self._take_back(batch, [each for each in later if self._flight.get(each) is batch])
        if dead:
            self._bury(dead)

    def _take_back(self, batch: _Batch, vlsns: list[int]) -> None:
        """Takes messages back as if they had not been out: the attempt, which is noted, is not theirs to lose."""
        back = [vlsn for vlsn in vlsns if self._flight.pop(vlsn, None) is batch]
        if not back:
            return
        if batch.attempts:
            self._tries |= {vlsn: batch.attempts[vlsn] - 1 for vlsn in back if vlsn in batch.attempts}
        self._came_in(batch, len(back))
        self._release(batch, back)
        self._rewind(int(batch.before[np.searchsorted(batch.vlsns, min(back))]) + 1)

    def _release(self, batch: _Batch, vlsns: Iterable[int]) -> None:
        """Lets later messages of their keys go out."""
        if not batch.keys:
            return
        out, blocked = self._out, self._blocked
        lowest = self._at
        for key in filter(None, map(batch.keys.get, vlsns)):
            left = out[key] - 1
            if left > 0:
                out[key] = left
                continue
            del out[key]
            if key in blocked:
                lowest = min(lowest, blocked.pop(key))
        if lowest < self._at:
            self._rewind(lowest)
            self.wake()

    def _rewind(self, vlsn: int) -> None:
        """Goes back to ``vlsn``; what waits behind it is met again on the way."""
        self._at = min(self._at, vlsn)
        for key in [key for key, first in self._blocked.items() if first >= self._at]:
            del self._blocked[key]

    def retry(self, dead: VlsnSet) -> None:
        """Delivers these again: they are not dead any more."""
        self._acking = self._acking.minus(dead)
        for vlsn in dead.vlsns().tolist():
            self._tries.pop(vlsn, None)
        if dead:
            self._rewind(int(dead.firsts[0]))
        self.wake()

    def _bury(self, dead: list[Dead]) -> None:
        self._acking = self._acking.union(VlsnSet.of([each.vlsn for each in dead]))
        self.counts.dead += len(dead)
        self._parts.bury(self, dead)

    def _column(self, vlsns: Sequence[int]) -> Vlsns:
        column = np.unique(np.array(vlsns, np.int64)) if len(vlsns) else np.empty(0, np.int64)
        if not len(column):
            raise BadArgument("vlsns: none is named")
        if column[0] < 1 or column[-1] > self._parts.source.durable:
            raise BadArgument(f"vlsns: of {column[0]}–{column[-1]} some cannot have been delivered")
        return column

    # What its notes say.

    def skipped(self) -> VlsnSet:
        taken, self._skipped = VlsnSet.covering_all(self._skipped), []
        return taken

    def noted(self, done: VlsnSet) -> None:
        acked = self._parts.table(self.uuid)
        if acked is not None and acked.since == self.since:
            self._acking = self._acking.minus(acked.done)
        if self._askers:
            self.wake()

    def drop(self, vlsns: VlsnSet) -> None:
        """Acknowledges messages that the master drops, because the destination is full."""
        self._acking = self._acking.union(vlsns)
        self.counts.dropped += vlsns.count
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
        self._acking = self._acking.minus(done)
        if done:
            self._rewind(int(done.firsts[0]))
        self.wake()


def _tell(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)
