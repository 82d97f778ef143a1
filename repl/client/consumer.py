"""A consumer continues reading from its last committed position, on any node, also after a change of master.

    consumer = log.consumer("billing", from_vlsn="start")
    async for entry in consumer:
        …
        await consumer.commit()

1. The consumer's position is stored in the log, under the consumer's name. If there is no position yet, the first read
   sets one. Once the position is stored, cleaning keeps unread entries, up to the limit of holds.
2. A commit names the position that it replaces. If another worker of the same consumer has committed meanwhile, the
   commit is refused (``StaleTerm``) and nothing is logged. So a worker that sleeps while another one replaces it does
   no harm.
3. A commit sets the position just after the last entry that the loop has received. Entries that were delivered but not
   committed are delivered again to the next worker. This worker gets these entries again when it is iterated over
   again, or after a failed commit.
4. If a transaction holds the results of entries and commits the position, each entry takes effect exactly once. If that
   transaction belongs to another group, that group stores the position (``kept_in``). The consumer then reports the
   position to the group that it reads, so that this group may clean its log.
5. A transaction in the body of the loop that ends without its commit counts as a failed commit: the loop may catch
   the error, and receives the entry again. The consumer does not notice other errors: the loop must call ``rewind``,
   or its next commit skips the entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import datetime
from functools import partial, wraps
from typing import Any, Concatenate, Final, Never, ParamSpec, Protocol, TypeVar
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

P = ParamSpec("P")
T = TypeVar("T")
TELL_S: Final = 1.0
"""For a position that another group stores: the seconds between two reports of it to the group that the consumer
reads."""
Follow = Callable[[VlsnPlace], Awaitable[Page | None]]
"""Waits a while for the page at a place in the log. Returns None if no page came."""


class Keeper(Protocol):
    """A client of the group that stores a consumer's position."""

    @property
    def positions(self) -> Positions: ...


class _Read:
    """The state of reading. ``page`` is the page read last, ``left`` iterates over its entries that were not
    delivered yet, and ``ahead`` is the place after the page. A ``_Read`` is valid while its ``turn`` equals the
    consumer's ``_turn``."""

    __slots__ = ("ahead", "left", "page", "turn")

    def __init__(self, turn: int, ahead: VlsnPlace, page: Page | None = None) -> None:
        self.turn = turn
        self.ahead = ahead
        self.page = page
        self.left = iter(page.entries if page is not None else ())


_in_hand: ContextVar[tuple[ref[Consumer], ...]] = ContextVar("consumers in hand", default=())


def in_hand() -> list[Consumer]:
    """Lists the consumers that have delivered an entry to the current task, or to the task that started it."""
    return [consumer for each in _in_hand.get() if (consumer := each()) is not None]


def _held(
    call: Callable[Concatenate[Consumer, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Consumer, P], Coroutine[Any, Any, T]]:
    """Makes the task that makes a call hold the consumer, whichever task awaits the call. ``asyncio.wait_for`` may
    await it in a new task, and a task does not know what the tasks that it starts hold."""

    @wraps(call)
    def called(consumer: Consumer, /, *args: P.args, **named: P.kwargs) -> Coroutine[Any, Any, T]:
        consumer.hold()
        return call(consumer, *args, **named)

    return called


class Consumer:
    """One worker of the consumer ``name``, made by ``Client.consumer``. Iterate over the worker, or call ``poll``.
    After an error you may iterate over the same worker again."""

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
        """Makes a worker. ``own`` are the positions of the group that the worker reads; ``kept_in`` are the
        positions of the group that stores the worker's position. ``by`` is 16 hex digits that identify this worker.
        ``tasks`` receives the worker's reading task; the client cancels these tasks when it closes."""
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
        """The position that the next commit replaces, or None before the first read."""
        self._asked_for: ConsumerChange | None = None
        """The position change that the last commit requested, until the position is read from the log again."""
        self._asks = True
        """True if the position must be read from the log before the next read: before the first read, and after an
        error."""
        self._next = 0
        """The VLSN after the last entry delivered."""
        self._term = int(NULL_TERM)
        self._sought = 0
        """The VLSN of the last ``seek``; 0 to begin at the committed position."""
        self._turn = 0
        """Counts the jumps: how often reading began elsewhere than after the last page."""
        self._read: _Read | None = None
        self._filling: asyncio.Task[None] | None = None
        self._me = ref(self)
        self._told, self._tell_s = 0, 0.0
        """The position last reported to the group that the consumer reads, and the time of the next report."""

    @property
    def next_vlsn(self) -> int:
        """The VLSN after the last entry delivered, which ``commit`` commits. 0 before the first read."""
        return self._next

    @property
    def begins_anew(self) -> bool:
        """True if the next read begins at the committed position: before the first read, and after an error."""
        return self._asks

    def lies_in(self, positions: Positions) -> bool:
        """Returns whether the group of ``positions`` stores this consumer's position. Only a transaction of that
        group may commit the position."""
        return self._positions.group is positions.group

    async def position(self) -> ConsumerAt | None:
        """Reads the consumer's position from the log. Returns None if no position was ever set. Raises the same
        errors as ``Positions.get``."""
        return await self._positions.get(await self._name())

    def __aiter__(self) -> AsyncIterator[Entry]:
        self.turn()
        return _Steps(partial(self._next_of, self.take))

    def pages(self) -> AsyncIterator[Page]:
        """Yields pages of entries instead of single entries. Call ``given`` with the entry of a page that was
        processed last."""
        self.turn()
        return _Steps(partial(self._next_of, self.take_page))

    @_held
    async def poll(self, timeout_s: float | None = None) -> Entry | None:
        """Returns the next entry: the one after the last entry that a loop or ``poll`` has delivered. Returns None
        if no entry came within ``timeout_s`` seconds (None: no limit), for any reason. A page that arrives later is
        kept for the next call. Raises ``Trimmed``, ``NotInLog``, ``BadArgument``, and the errors of
        ``Positions.get``."""
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
        """Goes back to the last committed position, where the next read begins. A commit before the next read has no
        effect."""
        self.not_committed()
        if self._placed is not None:
            self._next, self._term = self._placed.next, self._placed.term

    def seek(self, vlsn: int) -> None:
        """Moves to ``vlsn``, backwards or forwards; the next read begins at ``vlsn``. A commit then sets ``vlsn`` as
        the position, if the consumer has read anything before. Raises ``BadArgument``."""
        sought = vlsn_of(vlsn, "vlsn")
        self.turn()
        self._sought = sought
        if self._placed is not None:
            self._next, self._term = self._sought, int(NULL_TERM)

    async def commit(self) -> ConsumerAt:
        """Commits the position; the commit is durable on return. If another worker has committed meanwhile, nothing
        is logged and ``StaleTerm`` is raised. Also raises the errors of ``Positions.set``. After an error the next
        read begins at the committed position."""
        placed = self._known()
        if self._next == placed.next:
            return placed
        try:
            self._placed = await self._set()
        except BaseException:
            self.not_committed()
            raise
        return self._placed

    # Steps of reads.

    def turn(self) -> None:
        """Makes the next read begin at the committed position."""
        self._turn += 1
        self._filling = None

    def take(self) -> Entry | None:
        """Returns the next undelivered entry of the current page, or None if all entries of the page were delivered."""
        read = self._read
        if read is None or read.turn != self._turn:
            return None
        entry = next(read.left, None)
        if entry is not None:
            self._next, self._term = entry.vlsn + 1, entry.term
            self.hold()
        return entry

    def take_page(self) -> Page | None:
        """Returns the current page without its delivered entries. Returns None if the page was returned before."""
        read = self._read
        if read is None or read.turn != self._turn or read.page is None:
            return None
        page, read.page = read.page, None
        self.hold()
        return replace(page, entries=list(read.left))

    async def fill(self, timeout_s: float | None = None) -> bool:
        """Reads the next page once every entry of the current page was delivered. Returns True if the read has
        finished. If a read takes longer than ``timeout_s``, or its caller is cancelled, the read continues until the
        next call. Raises the same errors as ``poll``."""
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

    @_held
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
        """Notes that this task, and each task that it starts, processes entries of this consumer."""
        held = _in_hand.get()
        if not held or held[-1] is not self._me:
            _in_hand.set((*(each for each in held if each() not in (None, self)), self._me))

    # Steps of transactions.

    def change(self) -> tuple[str, ConsumerChange]:
        """Returns the position's name and the new position, for a transaction to commit. Raises ``BadArgument``
        before the first read."""
        placed = self._known()
        term = self._term if self._elsewhere else 0
        self._asked_for = ConsumerChange(self._next, placed.at, self._by, term)
        return self._key, self._asked_for

    def committed_by(self, change: ConsumerChange, vlsn: int) -> None:
        """Notes that the COMMIT at ``vlsn`` has set the position that ``change`` requested.

        A late answer is ignored if the position was read from the log again meanwhile. Entries delivered since then
        start from the old position, so the master must refuse their commit.
        """
        if change is not self._asked_for:
            return
        term = self._term if self._next == change.next else int(NULL_TERM)
        self._placed = ConsumerAt(self._key, change.next, term, vlsn, by=change.by)

    def not_committed(self) -> None:
        """Notes that a commit has failed or was not made. The next read begins at the committed position. Before the
        next read, the delivered entries can still be committed."""
        self._asks = True
        self._sought = 0
        self.turn()

    # The committed position.

    def _known(self) -> ConsumerAt:
        if self._placed is None:
            raise BadArgument(f"consumer {self.name} has nothing to commit: it has read nothing yet")
        return self._placed

    async def _name(self) -> str:
        """Returns the name of the position. If another group stores the position, the name begins with the name of
        the group that the consumer reads."""
        if not self._key:
            group = await self._reader.group()
            if not is_name(group):
                raise BadArgument(f"{group!r} is no name of a group")
            self._key = f"{group}/{self.name}"
        return self._key

    async def _begin(self) -> ConsumerAt:
        """Reads the position from the log. If there is none yet, sets one, so that cleaning keeps the entries that
        the consumer has not read."""
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
            # This worker may have set the position by a call that was cancelled or got no answer.
            placed = await self._positions.get(name)
            if placed is None or placed.by != self._by:
                raise
            self._placed = placed
            return await self._positions.set(*self.change())

    async def _tell_input(self) -> None:
        """If another group stores the position, reports the position to the group that the consumer reads, so that this
        group may clean its log up to the position. The report is repeated, so a lost report does no harm."""
        now, placed = asyncio.get_running_loop().time(), self._placed
        if not self._elsewhere or placed is None or placed.next == self._told or now < self._tell_s:
            return
        self._tell_s = now + TELL_S
        with suppress(VlsnLogError):
            await self._own.set(self.name, ConsumerChange(placed.next, None, self._by))
            self._told = placed.next


class _Steps(AsyncIterator[T]):
    """An asynchronous iterator that survives a cancelled step. A generator would end after a cancel, for example by
    ``asyncio.wait_for``."""

    def __init__(self, step: Callable[[], Awaitable[T]]) -> None:
        self._step = step

    def __anext__(self) -> Awaitable[T]:
        return self._step()

    async def aclose(self) -> None:
        """Ends the iteration."""
        self._step = _ended


async def _ended() -> Never:
    raise StopAsyncIteration
