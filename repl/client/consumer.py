"""A consumer: reads on from where it last committed, on any node, through any failover.

    consumer = log.consumer("billing", from_vlsn="start")
    async for entry in consumer:
        …
        await consumer.commit()

1. Its position lies in the log, under its name.  Where there is none yet, the first read sets one: from then on nothing
   that it has not read is cleaned away, up to the cap of holds.
2. A commit names the position that it starts from.  Where another worker of that name has committed meanwhile it is
   refused (``StaleTerm``), and nothing is logged: a worker that slept through its replacement does no harm.
3. The position is behind the last entry that the loop was given.  What was read and not committed is read again by
   whoever comes next; also by this one, when it is iterated over again or a commit of it has failed.
4. With the position in a transaction, beside what came of the entries, each entry takes effect once.  Where that
   transaction is another group's, the position lies there (``kept_in``), and this group is told so that it may clean.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from typing import Final, Protocol

from repl.api import ConsumerAt, ConsumerChange
from repl.client.starting import Begin, Places, first_of
from repl.client.tail import Page
from vlsn.errors import BadArgument, StaleTerm, VlsnLogError
from vlsn.format.block import Entry
from vlsn.ids import NULL_TERM, is_name

TELL_S: Final = 1.0
"""Seconds between two words to the input's group of a position that lies elsewhere."""


class Positions(Protocol):
    """The positions of a group (``repl.client.positions``); ``group`` is the same object for one client's."""

    @property
    def group(self) -> object: ...

    async def get(self, name: str) -> ConsumerAt | None: ...

    async def set(self, name: str, change: ConsumerChange) -> ConsumerAt: ...


class Keeper(Protocol):
    """A client of the group in which a position lies."""

    @property
    def positions(self) -> Positions: ...


class Log(Keeper, Places, Protocol):
    """The part of a ``Client`` that a consumer needs."""

    async def group_name(self) -> str: ...

    async def first_vlsn(self) -> int: ...

    def tail_pages(self, from_vlsn: Begin = None, *, after_term: int | None = None) -> AsyncIterator[Page]: ...


class Consumer:
    """One worker of the consumer ``name``; made by ``Client.consumer``.  Iterate over it, again after a fault too."""

    def __init__(
        self,
        log: Log,
        name: str,
        *,
        from_vlsn: Begin,
        at: datetime | int | None,
        kept_in: Positions,
        by: str,
    ) -> None:
        """Makes one; ``kept_in`` are the positions of the group in which this one lies, ``by`` 16 hex digits that are
        its own."""
        self.name = name
        self._log = log
        self._from_vlsn, self._at_time = from_vlsn, at
        self._by = by
        self._positions = kept_in
        self._elsewhere = kept_in is not log.positions
        self._key = "" if self._elsewhere else name
        self._placed: ConsumerAt | None = None
        """The position as it is known to lie in the log; None before the first read, and after a fault."""
        self._next = 0
        """Behind the last entry that was given."""
        self._term = int(NULL_TERM)
        self._told, self._tell_s = 0, 0.0
        """The position that the input's group was told, and the time when it is told again."""

    @property
    def next_vlsn(self) -> int:
        """The VLSN behind the last entry given: what ``commit`` commits. 0 before the first read."""
        return self._next

    @property
    def begins_anew(self) -> bool:
        """Says whether the next read begins where the log says: before the first one, and after a fault."""
        return self._placed is None

    def lies_in(self, positions: Positions) -> bool:
        """Says whether its position is one of these: a transaction of that client may commit it."""
        return self._positions.group is positions.group

    async def position(self) -> ConsumerAt | None:
        """Asks where the consumer is in the log, None where it never was. Raises as ``Positions.get``."""
        return await self._positions.get(await self._name())

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self._entries()

    async def _entries(self) -> AsyncIterator[Entry]:
        async for page in self.pages():
            for entry in page.entries:
                self.given(entry)
                yield entry
                if self.begins_anew:
                    break

    async def pages(self) -> AsyncIterator[Page]:
        """Yields pages in place of entries; ``given`` says how far the caller has come in one."""
        while True:
            await self._begin()
            after = self._term if self._next > 1 else 0
            async for page in self._log.tail_pages(self._next, after_term=after or None):
                yield page
                if self.begins_anew:
                    break  # a commit has failed: the log says where to go on
                self._next, self._term = page.next_vlsn, page.term or self._term
                await self._tell_input()

    def given(self, entry: Entry) -> None:
        self._next, self._term = entry.vlsn + 1, entry.term

    async def commit(self) -> ConsumerAt:
        """Commits the position, durable on return. Raises ``StaleTerm`` where another worker has committed since,
        nothing logged; and as ``Positions.set``. After any of them the next read begins where the log says."""
        if self._placed is None:
            raise BadArgument(f"consumer {self.name} has nothing to commit: it has read nothing since it began")
        if self._next == self._placed.next:
            return self._placed
        try:
            placed = await self._set()
        except BaseException:
            self._placed = None
            raise
        self.committed(placed)
        return placed

    def change(self) -> tuple[str, ConsumerChange]:
        """Returns what a transaction commits for it: the position's name, and where it is to be. Raises
        ``BadArgument`` before the first read."""
        if self._placed is None:
            raise BadArgument(f"consumer {self.name} has nothing to commit: it has read nothing since it began")
        term = self._term if self._elsewhere else 0
        return self._key, ConsumerChange(self._next, self._placed.at, self._by, term)

    def committed(self, placed: ConsumerAt | None) -> None:
        """Notes where the position lies by now; None: the log is asked before the next read."""
        self._placed = placed

    def committed_by(self, change: ConsumerChange, vlsn: int) -> None:
        """Notes that the COMMIT at ``vlsn`` has set what ``change`` asked for."""
        term = self._term if self._next == change.next else int(NULL_TERM)
        self._placed = ConsumerAt(self._key, change.next, term, vlsn, by=change.by)

    # The position.

    async def _name(self) -> str:
        """Returns the position's name, which has the input's group in front where it lies in another one."""
        if not self._key:
            group = await self._log.group_name()
            if not is_name(group):
                raise BadArgument(f"{group!r} is no name of a group")
            self._key = f"{group}/{self.name}"
        return self._key

    async def _begin(self) -> None:
        """Finds where to go on. One that has no position yet gets one, so that it holds what it will read."""
        placed = self._placed
        if placed is None:
            name = await self._name()
            placed = await self._positions.get(name)
        if placed is None:
            first = await first_of(self._log, self._from_vlsn, self._at_time) or await self._log.first_vlsn()
            change = ConsumerChange(first, 0, self._by)
            placed = await self._positions.set(name, change)
        self._placed, self._next, self._term = placed, placed.next, placed.term
        await self._tell_input()

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
        there. It is told again later, so nothing depends on its answer."""
        now, placed = asyncio.get_running_loop().time(), self._placed
        if not self._elsewhere or placed is None or placed.next == self._told or now < self._tell_s:
            return
        self._tell_s = now + TELL_S
        with suppress(VlsnLogError):
            await self._log.positions.set(self.name, ConsumerChange(placed.next, None, self._by))
            self._told = placed.next
