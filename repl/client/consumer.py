"""A consumer: reads on from where it last committed, on any node, through any failover.

    consumer = log.consumer("billing", from_vlsn="start")
    async for entry in consumer:
        …
        await consumer.commit()

1. Its position lies in the log, under its name. If it has none yet, the first read sets one. From then on unread
   entries are kept from cleaning, up to the cap of holds.
2. A commit names the position that it starts from.  Where another worker of that name has committed meanwhile it is
   refused (``StaleTerm``), and nothing is logged: a worker that slept through its replacement does no harm.
3. A commit sets the position behind the last entry that the loop has received. Entries that were delivered and not
   committed are delivered again: to the next worker, and to this one once it is iterated over anew or a commit has
   failed.
4. With the position in the transaction that holds the results of the entries, each entry takes effect once. If that
   transaction is another group's, the position lies there (``kept_in``). This group learns the position, so that it may
   clean.
5. A transaction that ends without its commit, in the body of the loop, counts as a failed commit: the loop may catch
   the error, and receives the entry again. An error that no transaction has seen is the loop's own affair: it calls
   ``rewind``, or its next commit passes the entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final, Never, Protocol, TypeVar
from weakref import ref

from repl.api import ConsumerAt, ConsumerChange
from repl.client.page import Page, VlsnPlace
from repl.client.positions import Positions
from repl.client.reader import Reader
from repl.client.starting import Begin, first_of, vlsn_of
from vlsn.errors import BadArgument, LogClosed, StaleTerm, VlsnLogError
from vlsn.format.block import Entry
from vlsn.ids import NULL_TERM, is_name
from vlsn.together import failure_of

T = TypeVar("T")
TELL_S: Final = 1.0
"""Seconds between two words to the input's group of a position that lies elsewhere."""
Follow = Callable[[VlsnPlace], Awaitable[Page | None]]
"""Waits a while for the page behind a place; None if nothing came."""


class Keeper(Protocol):
    """A client of the group in which a position lies."""

    @property
    def positions(self) -> Positions: ...


class _Read:
    """The page that was read last, and ``left``, its entries that were not given; ``ahead`` is the place behind it. It
    counts while ``turn`` is the consumer's."""

    __slots__ = ("ahead", "left", "page", "turn")

    def __init__(self, turn: int, ahead: VlsnPlace, page: Page | None = None) -> None:
        self.turn = turn
        self.ahead = ahead
        self.page = page
        self.left = iter(page.entries if page is not None else ())


_in_hand: ContextVar[tuple[ref[Consumer], ...]] = ContextVar("consumers in hand", default=())


def in_hand() -> list[Consumer]:
    """Lists the consumers that have given something to this task, or to one that has begun it."""
    return [consumer for each in _in_hand.get() if (consumer := each()) is not None]


class Consumer:
    """One worker of the consumer ``name``; made by ``Client.consumer``.  Iterate over it, again after a fault too, or
    ``poll`` it."""

    def __init__(
        self,
        reader: Reader,
        own: Positions,
        name: str,
        *,
        from_vlsn: Begin,
        at: datetime | int | None,
        kept_in: Positions,
        by: str,
        follow: Follow,
        tasks: set[asyncio.Task[None]],
    ) -> None:
        """Makes one; ``own`` are the positions of the group that it reads, ``kept_in`` those among which its own lies,
        ``by`` 16 hex digits that are its own. Its reading is among ``tasks``, which the client ends as it closes."""
        self.name = name
        self._reader = reader
        self._own = own
        self._from_vlsn, self._at_time = from_vlsn, at
        self._by = by
        self._positions = kept_in
        self._elsewhere = kept_in is not own
        self._key = "" if self._elsewhere else name
        self._follow = follow
        self._tasks = tasks
        self._placed: ConsumerAt | None = None
        """The position that a commit starts from; None before the first read."""
        self._asked_for: ConsumerChange | None = None
        """The change of the last commit, until the log is asked for the position again."""
        self._asks = True
        """The log is asked for the position before the next read: before the first one, and after a fault."""
        self._next = 0
        """The VLSN behind the last entry delivered."""
        self._term = int(NULL_TERM)
        self._sought = 0
        """The VLSN at which the next turn begins; 0 for the position."""
        self._turn = 0
        """Counts how often it began to read at another place than behind the page before."""
        self._read: _Read | None = None
        self._filling: asyncio.Task[None] | None = None
        self._me = ref(self)
        self._told, self._tell_s = 0, 0.0
        """The position that the input's group has received, and the time of the next report."""

    @property
    def next_vlsn(self) -> int:
        """The VLSN behind the last entry delivered, which ``commit`` commits. 0 before the first read."""
        return self._next

    @property
    def begins_anew(self) -> bool:
        """Says whether the next read begins where the log says: before the first one, and after a fault."""
        return self._asks

    def lies_in(self, positions: Positions) -> bool:
        """Says whether its position is one of these: a transaction of that client may commit it."""
        return self._positions.group is positions.group

    async def position(self) -> ConsumerAt | None:
        """Asks where the consumer is in the log, None where it never was. Raises as ``Positions.get``."""
        return await self._positions.get(await self._name())

    def __aiter__(self) -> AsyncIterator[Entry]:
        self.turn()
        return _Steps(partial(self._next_of, self.take))

    def pages(self) -> AsyncIterator[Page]:
        """Yields pages in place of entries; ``given`` says how far the caller has come in one."""
        self.turn()
        return _Steps(partial(self._next_of, self.take_page))

    async def poll(self, timeout_s: float | None = None) -> Entry | None:
        """Gives the entry behind the last one given, by a loop too; None where it did not come within ``timeout_s``
        seconds (None: no limit), whatever the reason. A page that is on its way then is there for the next call. Raises
        ``Trimmed``, ``NotInLog``, ``BadArgument``, and as ``Positions.get``."""
        if timeout_s is not None and not timeout_s >= 0:
            raise BadArgument(f"timeout_s is {timeout_s}; it is 0 or more")
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while (entry := self.take()) is None:
            if not await self.fill(None if deadline is None else deadline - loop.time()):
                return None
        return entry

    def given(self, entry: Entry) -> None:
        self._next, self._term = entry.vlsn + 1, entry.term

    def rewind(self) -> None:
        """Goes back to the last committed position: the next read begins there, and a commit before it changes
        nothing."""
        self.not_committed()
        if self._placed is not None:
            self._next, self._term = self._placed.next, self._placed.term

    def seek(self, vlsn: int) -> None:
        """Goes to ``vlsn``, back or ahead: the next read begins there. Once it has read anything, a commit sets that
        position. Raises ``BadArgument``."""
        sought = vlsn_of(vlsn, "vlsn")
        self.turn()
        self._sought = sought
        if self._placed is not None:
            self._next, self._term = self._sought, int(NULL_TERM)

    async def commit(self) -> ConsumerAt:
        """Commits the position, durable on return. Raises ``StaleTerm`` where another worker has committed since,
        nothing logged; and as ``Positions.set``. After any of them the next read begins where the log says."""
        placed = self._known()
        if self._next == placed.next:
            return placed
        try:
            self._placed = await self._set()
        except BaseException:
            self.not_committed()
            raise
        return self._placed

    # Steps of its readers.

    def turn(self) -> None:
        """Has the next read begin at the position."""
        self._turn += 1
        self._filling = None

    def take(self) -> Entry | None:
        """Gives the next entry that was read; None where all were given."""
        read = self._read
        if read is None or read.turn != self._turn:
            return None
        entry = next(read.left, None)
        if entry is not None:
            self._next, self._term = entry.vlsn + 1, entry.term
            self.hold()
        return entry

    def take_page(self) -> Page | None:
        """Returns the page that was read, without the entries delivered before; None if it was returned already."""
        read = self._read
        if read is None or read.turn != self._turn or read.page is None:
            return None
        page, read.page = read.page, None
        self.hold()
        return replace(page, entries=list(read.left))

    async def fill(self, timeout_s: float | None = None) -> bool:
        """Reads on, once all that was read is given. Says whether it is done. A read that is not done in time, or whose
        caller is cancelled, goes on until the next call. Raises as ``poll``."""
        filling = self._filling
        if filling is None:
            filling = self._filling = asyncio.create_task(self._fill(self._turn), name=f"consumer-{self.name}")
            self._tasks.add(filling)
            filling.add_done_callback(self._tasks.discard)
            filling.add_done_callback(failure_of)
        await asyncio.wait((filling,), timeout=timeout_s)
        if not filling.done():
            return False
        if self._filling is filling:
            self._filling = None
        if filling.cancelled():
            raise LogClosed("the client was closed while a consumer read")
        filling.result()
        return True

    async def _next_of(self, take: Callable[[], T | None]) -> T:
        while (found := take()) is None:
            await self.fill()
        return found

    async def _fill(self, turn: int) -> None:
        read = self._read
        if read is None or read.turn != turn:
            placed = await self._begin()
            if turn != self._turn:
                return
            self._placed, self._asks, self._asked_for = placed, False, None
            begins, self._sought = self._sought, 0
            term = placed.term if not begins and placed.next > 1 else int(NULL_TERM)
            read = self._read = _Read(turn, VlsnPlace(begins or placed.next, term))
        assert read.ahead.vlsn is not None
        self._next, self._term = read.ahead.vlsn, read.ahead.term
        await self._tell_input()
        page = await self._follow(read.ahead)
        if page is not None and turn == self._turn:
            self._read = _Read(turn, read.ahead.after(page), page)

    def hold(self) -> None:
        """Notes that this task, and those that it begins, have in hand what it has given."""
        held = _in_hand.get()
        if not held or held[-1] is not self._me:
            _in_hand.set((*(each for each in held if each() not in (None, self)), self._me))

    # Steps of transactions.

    def change(self) -> tuple[str, ConsumerChange]:
        """Returns what a transaction commits for it: the position's name, and where it is to be. Raises
        ``BadArgument`` before the first read."""
        placed = self._known()
        term = self._term if self._elsewhere else 0
        self._asked_for = ConsumerChange(self._next, placed.at, self._by, term)
        return self._key, self._asked_for

    def committed_by(self, change: ConsumerChange, vlsn: int) -> None:
        """Notes that the COMMIT at ``vlsn`` has set what ``change`` asked for.

        A late answer is passed over once the log was asked for the position again. Entries delivered since then start
        from the position before, and the master has to refuse a commit of them."""
        if change is not self._asked_for:
            return
        term = self._term if self._next == change.next else int(NULL_TERM)
        self._placed = ConsumerAt(self._key, change.next, term, vlsn, by=change.by)

    def not_committed(self) -> None:
        """Notes that a commit has failed, or was not made: the next read begins where the log says. Until then the
        entries delivered can be committed as before."""
        self._asks = True
        self._sought = 0
        self.turn()

    # The position.

    def _known(self) -> ConsumerAt:
        if self._placed is None:
            raise BadArgument(f"consumer {self.name} has nothing to commit: it has read nothing yet")
        return self._placed

    async def _name(self) -> str:
        """Returns the position's name, which has the input's group in front where it lies in another one."""
        if not self._key:
            group = await self._reader.group()
            if not is_name(group):
                raise BadArgument(f"{group!r} is no name of a group")
            self._key = f"{group}/{self.name}"
        return self._key

    async def _begin(self) -> ConsumerAt:
        """Finds the position. A consumer that has none yet gets one, so that it holds what it will read."""
        if self._placed is not None and not self._asks:
            return self._placed
        name = await self._name()
        placed = await self._positions.get(name)
        if placed is None:
            first = await first_of(self._reader, self._from_vlsn, self._at_time)
            first = first or await self._reader.first_vlsn()
            placed = await self._positions.set(name, ConsumerChange(first, 0, self._by))
        return placed

    async def _set(self) -> ConsumerAt:
        name, change = self.change()
        try:
            return await self._positions.set(name, change)
        except StaleTerm:
            # Its own, of a call that was cancelled or had no answer?
            placed = await self._positions.get(name)
            if placed is None or placed.by != self._by:
                raise
            self._placed = placed
            return await self._positions.set(*self.change())

    async def _tell_input(self) -> None:
        """Tells the input's group how far a consumer is whose position lies in another one, so that it may clean up to
        there. The report is repeated later, so nothing depends on its answer."""
        now, placed = asyncio.get_running_loop().time(), self._placed
        if not self._elsewhere or placed is None or placed.next == self._told or now < self._tell_s:
            return
        self._tell_s = now + TELL_S
        with suppress(VlsnLogError):
            await self._own.set(self.name, ConsumerChange(placed.next, None, self._by))
            self._told = placed.next


class _Steps(AsyncIterator[T]):
    """An iteration.  No generator: those are over once a step of theirs was cancelled, as ``asyncio.wait_for`` does."""

    def __init__(self, step: Callable[[], Awaitable[T]]) -> None:
        self._step = step

    def __anext__(self) -> Awaitable[T]:
        return self._step()

    async def aclose(self) -> None:
        """Ends it."""
        self._step = _ended


async def _ended() -> Never:
    raise StopAsyncIteration
