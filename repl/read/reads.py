"""Reads durable entries of the log: from the ring (recent blocks in memory) if it has them, otherwise from the
segments.

Entries past the durable end are never shown. The durable end is the highest VLSN that a majority has synced (DTVLSN),
as far as this node has the entries. A response is empty only if there is no visible entry before the durable end, or
within the limit of a search by key. A read below the log's first VLSN raises ``Trimmed``, which names the first VLSN.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from repl.api import BlockPage, EntryPage
from repl.group.member import Member
from repl.offload import Offload, settle
from vlsn.errors import Damaged, Lagging, NotData, NotInLog, NotYet, ProducersMissing, QueueFull, Trimmed, VlsnLogError
from vlsn.format import block as block_format
from vlsn.format.block import Entry, EntryKind
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import EntryRows
from vlsn.ids import Lsn, Vlsn
from vlsn.index.waiters import Waiters, Wake
from vlsn.limits import MIB
from vlsn.seams import Buffer
from vlsn.segments.gathering import NO_LIMIT, Gathering
from vlsn.segments.reader import DATA_ONLY, EntryRun, LogReader, ReadRun, TimeRun
from vlsn.segments.time_search import LOOK_BYTES, TimeSearch
from vlsn.write.local_log import LocalLog

WAITERS_MAX = 10_000
LOOK_BYTES_MAX = 32 * MIB
"""A read with a key filter searches at most this many bytes of blocks if it finds nothing."""
LOOK_BYTES_AT_ONCE = MIB
"""After a search has passed this many bytes, which takes about a millisecond, other tasks run."""
WAKES_A_TURN = 16
"""The most pages (answers to readers) that are begun in one turn of the event loop. If many readers request different
entries, many pages wait."""
SEEK_BYTES_MAX = 1024 * MIB
"""One search for a time reads at most this many bytes. Only segments of an earlier version, which stored no times, must
be read."""
_PADDING = [bytes(size) for size in range(8)]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The limits of one page: the most entries, the most bytes, the kinds (None: all), and the keys (None: all)."""

    limit: int
    bytes_max: int
    kinds: frozenset[int] | None
    keys: KeyFilter | None


class Reads:
    """Reads one log. ``offload`` runs the reads of segments on another thread."""

    def __init__(self, log: LocalLog, offload: Offload) -> None:
        self._log = log
        self._contents = log.view
        self._ring = log.view.ring
        self._offload = offload
        self._waiters = Waiters()
        self._pages = Waiters()
        """Callers that make a page for several readers. Making a page takes a while, so a few of these callers are
        woken in each turn."""
        self._woken: deque[Wake] = deque()

    @property
    def durable(self) -> Vlsn:
        """The VLSN up to which readers may see the log. A majority has synced the log up to there; this node may not be
        part of that majority."""
        return min(self._contents.dtvlsn, self._ring.last_vlsn)

    def rose(self) -> None:
        """Wakes readers, because the durable end (DTVLSN) or the synced end has moved."""
        durable = self.durable
        if durable >= self._waiters.lowest:
            for wake in self._waiters.take(durable):
                wake(None)
        if durable >= self._pages.lowest:
            called = bool(self._woken)
            self._woken.extend(self._pages.take(durable))
            if not called:
                self._wake()

    def _wake(self) -> None:
        for _ in range(min(WAKES_A_TURN, len(self._woken))):
            self._woken.popleft()(None)
        if self._woken:
            asyncio.get_running_loop().call_soon(self._wake)

    def fail(self, error: VlsnLogError) -> None:
        for wake in (*self._waiters.take_all(), *self._pages.take_all()):
            wake(error)

    async def until(self, vlsn: int) -> None:
        """Returns once ``vlsn`` is durable on this node and it is the caller's turn. Raises ``NotMaster`` if the log is
        closed meanwhile."""
        if self.durable >= vlsn:
            return
        reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake(error: VlsnLogError | None) -> None:
            if not reached.done():
                if error is None:
                    reached.set_result(None)
                else:
                    reached.set_exception(error)

        number = self._pages.add(Vlsn(vlsn), wake)
        try:
            await reached
        finally:
            self._pages.remove(number)

    async def reached(self, vlsn: int, deadline: float) -> bool:
        """Returns whether ``vlsn`` was durable on this node before ``deadline`` (the event loop's time). Raises
        ``QueueFull``, and ``NotMaster`` if the log is closed meanwhile."""
        return self.durable >= vlsn or await self._wait(vlsn, deadline)

    def check_place(self, vlsn: int, term: int) -> None:
        """Checks that the log can contain, at ``vlsn``, the entry of ``term`` that a reader has read. Raises
        ``NotInLog``. Terms never fall along the log. So if the log ends below ``vlsn`` with a higher term, it cannot
        contain that entry."""
        found = self._log.view.history.term_of(Vlsn(min(vlsn, self.durable)))
        if found > term or (found and found != term and vlsn <= self.durable):
            raise NotInLog(
                f"VLSN {vlsn} of term {term} was read before, but is not in the log: it holds term {found} at "
                f"{min(vlsn, self.durable)}. Durable entries were given up by a person; read again from below it",
                vlsn=vlsn,
                term=term,
                found=found,
            )

    async def page(
        self,
        from_vlsn: int | None,
        *,
        limit: int,
        bytes_max: int,
        all_kinds: bool,
        keys: KeyFilter | None = None,
    ) -> EntryPage:
        """Reads entries from ``from_vlsn`` on. A page without entries ends at the durable end. With ``keys`` a page may
        also end after ``LOOK_BYTES_MAX`` bytes without a wanted entry."""
        at = self._start(from_vlsn)
        wanted = _Wanted(limit, bytes_max, None if all_kinds else DATA_ONLY, keys)
        looked = 0
        while True:
            durable = self.durable
            if at > durable:
                return EntryPage([], at, durable, self.term_before(at))
            entries, next_vlsn = await self._entries(at, durable, wanted)
            if entries:
                return EntryPage(entries, next_vlsn, durable, self.term_before(next_vlsn))
            if next_vlsn == at:
                raise Damaged(f"VLSN {at} is durable, but cannot be read here", vlsn=at)
            at = next_vlsn
            if keys is not None and at <= durable:
                looked += LOOK_BYTES_AT_ONCE
                if looked >= LOOK_BYTES_MAX:
                    return EntryPage([], at, durable, self.term_before(at))
                # filtering blocks in memory takes time on the event loop, so let other tasks run
                await asyncio.sleep(0)

    async def blocks(self, from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
        at = self._start(from_vlsn)
        durable = self.durable
        if at > durable:
            return BlockPage([], at, durable)
        ring = self._log.view.ring
        position = ring.position_of(Vlsn(at))
        if position is not None and (taken := ring.through(position, durable, bytes_max=bytes_max)):
            next_vlsn = ring.last_at(position + len(taken) - 1) + 1
            return BlockPage([_padded(bytes(block)) for block in taken], next_vlsn, durable)
        run = await self._blocks_from_segments(at, durable, bytes_max)
        return BlockPage([_padded(block) for block in run.data], run.next_vlsn if run.data else at, durable)

    async def find_time(self, time_us: int) -> Vlsn:
        """Finds the first durable VLSN at which the highest block time so far is at or past ``time_us``, or one past
        the durable end. Usually reads about 1 MiB of segments. If the times of segments are not known, reads up to
        ``SEEK_BYTES_MAX`` bytes and then raises ``Lagging``; the next call continues the search. Raises ``Damaged``."""
        looked = 0
        while True:
            search = TimeSearch(self._log.view.index, time_us, self._log.view.range.first, Vlsn(self.durable))
            try:
                while (part := search.part()) is not None:
                    search.looked(await self._seek(time_us, *part))
                    looked += LOOK_BYTES
                    if looked >= SEEK_BYTES_MAX:
                        raise Lagging(
                            "the times of this log are not all known here yet; ask again, and the search goes on"
                        )
                return search.result
            except Trimmed:
                # these entries were cleaned away meanwhile, so the search begins again at the log's first VLSN
                continue

    async def _seek(self, time_us: int, at: Vlsn, upto: Vlsn) -> TimeRun:
        reader, start = self._reader(at)

        def read() -> TimeRun:
            try:
                return reader.sealed_at(time_us, at, start=start, upto_vlsn=upto, bytes_max=LOOK_BYTES)
            finally:
                reader.close()

        return await self._offload(read)

    async def one(self, vlsn: int) -> Entry:
        if vlsn > self.durable:
            raise NotYet(f"VLSN {vlsn} is above the durable end, {self.durable}")
        self._start(vlsn)
        entries, _ = await self._entries(vlsn, self.durable, _Wanted(1, 1, None, None))
        if not entries or entries[0].vlsn != vlsn:
            raise Damaged(f"VLSN {vlsn} is durable, but cannot be read here", vlsn=vlsn)
        if entries[0].kind != EntryKind.DATA:
            raise NotData(f"VLSN {vlsn} is a {EntryKind(entries[0].kind).name} entry, the log's own")
        return entries[0]

    async def block_with(self, vlsn: Vlsn) -> Buffer:
        """Returns the block that contains ``vlsn``, durable or not. A block that is not synced is in the ring (recent
        blocks in memory). Raises ``Trimmed``, ``Damaged``."""
        ring = self._log.view.ring
        position = ring.position_of(vlsn)
        if position is not None:
            return ring.take(position, end=ring.end, bytes_max=0)[0]
        self._start(vlsn)
        run = await self._blocks_from_segments(vlsn, self._log.view.range.last_sync, 1)
        if not run.data:
            raise Damaged(f"VLSN {vlsn} cannot be read here", vlsn=vlsn)
        return run.data[0]

    def term_before(self, vlsn: int) -> int:
        """Returns the term of the entry before ``vlsn``, or 0 if that entry is missing or not durable."""
        return self._log.view.history.term_of(Vlsn(vlsn - 1)) if 1 < vlsn <= self.durable + 1 else 0

    def _start(self, from_vlsn: int | None) -> int:
        first = self._contents.index.range.first
        if from_vlsn is None:
            return first or 1
        if first and from_vlsn < first:
            raise Trimmed(f"VLSN {from_vlsn} was cleaned away; the first still here is {first}", first=first)
        return from_vlsn

    async def _wait(self, vlsn: int, deadline: float) -> bool:
        """Returns whether ``vlsn`` became durable before ``deadline`` (the event loop's time)."""
        loop = asyncio.get_running_loop()
        if loop.time() >= deadline:
            return self.durable >= vlsn
        if len(self._waiters) >= WAITERS_MAX:
            raise QueueFull(f"{WAITERS_MAX} readers already wait at this node")
        reached: asyncio.Future[bool] = loop.create_future()

        def wake(error: VlsnLogError | None) -> None:
            if reached.done():
                return
            if error is not None:
                reached.set_exception(error)
            else:
                reached.set_result(True)

        number = self._waiters.add(Vlsn(vlsn), wake)
        timer = loop.call_at(deadline, settle(reached), False)
        try:
            return await reached
        finally:
            timer.cancel()
            self._waiters.remove(number)

    async def _entries(self, at: int, durable: int, wanted: _Wanted) -> tuple[list[Entry], int]:
        """Returns entries from ``at`` on, where ``at`` is at most ``durable``. Also returns the VLSN after the last
        entry that was examined."""
        ring = self._log.view.ring
        position = ring.position_of(Vlsn(at))
        if position is None:
            run = await self._entries_from_segments(at, durable, wanted)
            return run.entries, run.next_vlsn
        bytes_max = LOOK_BYTES_AT_ONCE if wanted.keys is not None else max(wanted.bytes_max, 1)
        taken = ring.through(position, durable, bytes_max=bytes_max)
        found = Gathering(at, limit=wanted.limit, bytes_max=wanted.bytes_max, kinds=wanted.kinds, keys=wanted.keys)
        if wanted.keys is not None:
            if taken:
                found.add_rows(EntryRows.joined(taken))
            return found.entries, found.next_vlsn
        for block in taken:
            if not found.add(block, block_format.decode_header(block)):
                break
        return found.entries, found.next_vlsn

    async def _entries_from_segments(self, at: int, durable: int, wanted: _Wanted) -> EntryRun:
        reader, start = self._reader(at)

        def read() -> EntryRun:
            try:
                return reader.entries(
                    at,
                    start=start,
                    upto_vlsn=durable,
                    limit=wanted.limit,
                    bytes_max=wanted.bytes_max,
                    kinds=wanted.kinds,
                    keys=wanted.keys,
                    look_bytes_max=NO_LIMIT if wanted.keys is None else LOOK_BYTES_AT_ONCE,
                )
            finally:
                reader.close()

        return await self._offload(read)

    async def _blocks_from_segments(self, at: int, durable: int, bytes_max: int) -> ReadRun:
        reader, start = self._reader(at)

        def read() -> ReadRun:
            try:
                return reader.blocks(at, start=start, upto_vlsn=durable, bytes_max=bytes_max)
            finally:
                reader.close()

        return await self._offload(read)

    def _reader(self, at: int) -> tuple[LogReader, Lsn]:
        log = self._log
        mapping = log.view.index.at_or_before(Vlsn(at))
        if mapping is None:
            self._start(at)  # raises ``Trimmed`` if these entries were cleaned away meanwhile
            raise Damaged(f"the index has nothing for VLSN {at} of {log.view.range}", vlsn=at)
        return log.view.reader(), mapping[1]


def reads_of(member: Member) -> Reads:
    """Returns the reads of the open log. Raises ``NotMaster`` until the log is open, ``Damaged`` if it cannot be
    opened, and ``NotListed`` if this node is no member any more."""
    opened = member.opened()
    member.check_listed()
    return opened.part(Reads)


def missing(what: str, lacks_to: int) -> ProducersMissing:
    return ProducersMissing(
        f"this node has lost what it knew of {what}, if it did, up to VLSN {lacks_to}; it asks the other members; "
        "nothing was logged, try again"
    )


def _padded(block: bytes) -> bytes:
    pad = -len(block) & 7
    return block + _PADDING[pad] if pad else block
