"""Appends that are answered before a majority has synced them: they ask for less, or the group does.

    sealed ─► the master has it as `local` says, and as many replicas as its acks count as `replica` says ─► answered

    durability write_no_sync,no_sync · acks majority of three
    n1 (master) sealed 90, written 90, synced 70 · n2 received 90, written 70 · n3 received 80 ─► answered to VLSN 90

1. Such an answer rests on bytes in memory or in a page cache. It says ``durable`` only where a majority has synced them
   all the same. The DTVLSN counts synced entries alone, and with it readers, elections and rollbacks.
2. A replica may sync a block later only where every VLSN in the block allows it.
3. An append that asks for a sync loses nothing beside these: it is synced as ever, and what lies before it with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from feeder.feeder import Messages
from repl.api import Acks
from repl.lead.append_book import Append, AppendBook
from vlsn.durability import SYNCED, Durability, GroupDurability
from vlsn.errors import VlsnLogError
from vlsn.format.feed_messages import Ack
from vlsn.ids import NULL_VLSN, Incarnation, Vlsn
from vlsn.write.queue import Pending


class UnsyncedAppends:
    """Those of one lead, whose ``book`` counts what is synced. ``messages`` carry the VLSNs that replicas may sync
    later."""

    def __init__(self, book: AppendBook, messages: Messages) -> None:
        self.used = False
        """There was one: until then nobody asks."""
        self._book = book
        self._messages = messages
        self._waiting: dict[tuple[Acks, GroupDurability], deque[Append]] = {}
        self._sealed = self._written = NULL_VLSN
        self._received: dict[Incarnation, tuple[Vlsn, Vlsn]] = {}
        """Each replica: the VLSNs up to which it has received, and has written."""

    def promise(self, append: Append, durability: GroupDurability) -> None:
        """Makes ``append``, which is not queued yet, one of these."""
        self.used = True
        append.promised = durability
        if durability.local != "sync":
            append.durability = Durability.WRITE_NO_SYNC  # it goes to the writer in its turn

    def sealed(self, pendings: list[Pending]) -> list[Pending]:
        """Takes the sealed appends that asked for less than a sync, and returns the others."""
        others: list[Pending] = []
        in_memory = False
        for append in pendings:
            assert isinstance(append, Append)
            promised = append.promised
            if promised is SYNCED:
                others.append(append)
                continue
            self._waiting.setdefault((append.acks, promised), deque()).append(append)
            in_memory |= promised.local == "no_sync"
            self._tell_replicas(append)
        self._sealed = Vlsn(pendings[-1].last)
        if in_memory:  # no append is answered while it is submitted, and that may be just now
            asyncio.get_running_loop().call_soon(self.release)
        return others

    def _tell_replicas(self, append: Append) -> None:
        messages, replica = self._messages, append.promised.replica
        if replica == "sync":
            return
        start, end = messages.unhurried
        follows = end and append.first == end + 1
        messages.unhurried = start if follows else Vlsn(append.first), Vlsn(append.last)
        if replica == "no_sync":
            messages.receipt_to = Vlsn(append.last)

    def written(self, vlsn: Vlsn) -> None:
        """Notes that the master has written everything up to ``vlsn``."""
        self._written = vlsn
        self.release()

    def acknowledged(self, replica: Incarnation, ack: Ack) -> None:
        written = ack.synced if ack.written is None else ack.written
        self._received[replica] = Vlsn(ack.received), Vlsn(written)
        self.release()

    def withdraw(self, replica: Incarnation) -> None:
        """Forgets what ``replica`` has, until it acknowledges it again."""
        self._received.pop(replica, None)

    def release(self) -> None:
        """Answers the appends whose promised durability is reached."""
        for (acks, durability), queue in list(self._waiting.items()):
            if queue:
                reached = self._reached(acks, durability)
                while queue and queue[0].last <= reached:
                    self._book.answer(queue.popleft())

    def fail(self, error: Callable[[], VlsnLogError]) -> None:
        """Ends the term: answers every append still waiting with ``error``."""
        for queue in self._waiting.values():
            while queue:
                queue.popleft().settle(error())

    def _reached(self, acks: Acks, durability: GroupDurability) -> int:
        """Returns the VLSN up to which appends have what they were promised."""
        local, replica = durability.levels
        book = self._book
        own = book.synced.get(book.own, NULL_VLSN)
        here = own if local is Durability.SYNC else max(own, self._written)
        if local is Durability.NO_SYNC:
            here = self._sealed
        if acks is Acks.NONE:
            return here
        needed = book.needed[acks]
        there = sorted((self._at(each, replica) for each in book.electable if each != book.own), reverse=True)
        reached = min(here, there[needed - 1]) if needed else here
        return max(reached, book.durable) if acks is Acks.MAJORITY else reached

    def _at(self, replica: Incarnation, level: Durability) -> Vlsn:
        synced = self._book.synced.get(replica, NULL_VLSN)
        received, written = self._received.get(replica, (synced, synced))
        if level is Durability.SYNC:
            return synced
        return max(synced, written if level is Durability.WRITE_NO_SYNC else received)
