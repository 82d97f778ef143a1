"""Appends that are answered before a majority has synced them, because they or the group ask for less than a sync.

    sealed ─► the master has it as `local` says, and as many replicas as its acks require have it as `replica` says ─►
    answered

    durability write_no_sync,no_sync · acks majority of three
    n1 (master) sealed 90, written 90, synced 70 · n2 received 90, written 70 · n3 received 80 ─► answered to VLSN 90

1. Such an answer relies on bytes in memory or in a page cache. The answer says ``durable`` only if a majority has
   synced the append nevertheless. The DTVLSN counts synced entries only, and readers, elections and rollbacks follow
   the DTVLSN.
2. A replica may sync a block later only if every VLSN in the block allows that.
3. An append that asks for a sync is as safe as ever beside these: it is synced together with all earlier entries.
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
    """The appends of one term that are answered early. ``book`` counts synced entries. ``messages`` tells replicas
    which VLSNs they may sync later."""

    def __init__(self, book: AppendBook, messages: Messages) -> None:
        self.used = False
        """True once there was such an append. Until then callers skip this class."""
        self._book = book
        self._messages = messages
        self._waiting: dict[tuple[Acks, GroupDurability], deque[Append]] = {}
        self._sealed = self._written = NULL_VLSN
        self._received: dict[Incarnation, tuple[Vlsn, Vlsn]] = {}
        """The VLSNs up to which each replica has received and has written."""

    def promise(self, append: Append, durability: GroupDurability) -> None:
        """Marks ``append``, which is not queued yet, to be answered at ``durability``."""
        self.used = True
        append.promised = durability
        if durability.local != "sync":
            append.durability = Durability.WRITE_NO_SYNC  # the writer handles the append in its order

    def sealed(self, pendings: list[Pending]) -> list[Pending]:
        """Keeps the sealed appends that ask for less than a sync, and returns the others."""
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
        if in_memory:  # an append may be in its submission at this moment, and is never answered during it
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
        """Forgets the VLSNs of ``replica`` until it acknowledges again."""
        self._received.pop(replica, None)

    def release(self) -> None:
        """Answers the appends whose promised durability is reached."""
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
        """Returns the VLSN up to which appends have reached their promised durability."""
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
