"""Appends that are answered before a majority has synced them, because the append or the group requests less than a
sync.

    sealed ─► the master has it as `local` says, and as many replicas as its acks require have it as `replica` says ─►
    answered

    durability write_no_sync,no_sync · acks majority of three
    n1 (master) sealed 90, written 90, synced 70 · n2 received 90, written 70 · n3 received 80 ─► answered to VLSN 90

1. An early answer relies on bytes in memory or in the operating system's cache. An early answer says ``durable`` only
   if a majority happens to have synced the append. Early answers do not move the durable end (DTVLSN), which readers,
   elections and rollbacks follow: it counts synced entries only.
2. A replica may sync a block later only if every entry in the block allows that.
3. An append that requests a sync loses no safety: it is synced together with all earlier entries.
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
    """The appends of one term that may be answered before a majority has synced them. ``book`` counts synced
    entries. ``messages`` reports to replicas which VLSNs they may sync later."""

    def __init__(self, book: AppendBook, messages: Messages) -> None:
        self.used = False
        """True once an append with less than a sync was submitted. While it is False, callers skip this class."""
        self._book = book
        self._messages = messages
        self._waiting: dict[tuple[Acks, GroupDurability], deque[Append]] = {}
        self._sealed = self._written = NULL_VLSN
        self._received: dict[Incarnation, tuple[Vlsn, Vlsn]] = {}
        """For each replica, the VLSN up to which it has received, and the VLSN up to which it has written."""

    def promise(self, append: Append, durability: GroupDurability) -> None:
        """Marks ``append``, before it is queued, to be answered at ``durability``."""
        self.used = True
        append.promised = durability
        if durability.local != "sync":
            append.durability = Durability.WRITE_NO_SYNC  # the writer handles all appends of the log in their order

    def sealed(self, pendings: list[Pending]) -> list[Pending]:
        """Keeps those sealed appends that request less than a sync, and returns the other appends."""
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
        if in_memory:  # an append is never answered while it is being submitted
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
        """Forgets how far ``replica`` has received and written, until it acknowledges again."""
        self._received.pop(replica, None)

    def release(self) -> None:
        """Answers the appends that have reached their promised durability."""
        for (acks, durability), queue in list(self._waiting.items()):
            if queue:
                reached = self._reached(acks, durability)
                while queue and queue[0].last <= reached:
                    self._book.answer(queue.popleft())

    def fail(self, error: Callable[[], VlsnLogError]) -> None:
        """Ends the term: answers every waiting append with ``error``."""
        for queue in self._waiting.values():
            while queue:
                queue.popleft().settle(error())

    def _reached(self, acks: Acks, durability: GroupDurability) -> int:
        """Returns the VLSN up to which appends with these settings have reached their durability."""
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
