"""A network restore: the choice of a provider, and the transfer of its blocks into this node's own log.

    choose    picks those members' offers that are fresh enough, the least loaded first
    Transfer  open a session ─► segment by segment, range by range ─► unpack ─► append_blocks ─► synced
              the provider's state record at its durable end, once everything up to that end is synced here

1. Blocks are kept byte for byte, in this node's own frames and segments. A peer's headers, salt, checkpoints, rollbacks
   and node file are not kept.
2. A session has a fixed end: the provider's durable end at the time when the session opened. Blocks after a session's
   fixed end are not kept.
3. Before a block is written, its term is stored in the node file and synced.
4. A restore may be interrupted at any moment. A restore continues after this log's last synced block, from the same
   provider or another one. But if the terms of this log and of the provider's log disagree, the restore begins again
   from the start.
5. A fault of the provider (``BadBody``, ``NotFound``, ``Unreachable`` …) stops only the transfer from that provider.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from replica.level import store_level
from replica.unpack import Unpacked, unpack
from vlsn.errors import BadBody, IntegrityFault, VlsnLogError
from vlsn.format.block_run import BlockRun
from vlsn.format.feed_messages import TermRun
from vlsn.format.segment import FIRST_FRAME, HEADER_PAGE, SegmentHeader
from vlsn.ids import NULL_VLSN, Lsn, Term, Vlsn, lsn_file, lsn_offset
from vlsn.limits import RESTORE_LAG_VLSNS_MAX, RESTORE_RANGE_BYTES, RESTORE_RANGE_BYTES_MAX, UNSYNCED_BYTES_MAX
from vlsn.repair.restore import End
from vlsn.repair.restore_messages import Offer
from vlsn.state.state_store import StateRecord
from vlsn.write.local_log import LocalLog


class Disagrees(IntegrityFault):
    """The provider's log differs from the blocks restored so far, so the restore cannot continue from this provider."""


class Provider(Protocol):
    """One member that offers its log for a restore."""

    @property
    def name(self) -> str: ...

    async def open(self, from_vlsn: Vlsn) -> Offer: ...

    async def read(self, session: str, number: int, start: int, end: int, *, have: Vlsn) -> bytes: ...

    async def close(self, session: str) -> None: ...


def choose(offers: Sequence[Offer], *, have: Vlsn, durable: End, rotten: Collection[str] = frozenset()) -> list[Offer]:
    """Chooses the members to restore from, best first.

    ``durable`` is the end, as a VLSN and a term, that this node may have acknowledged. A member is useful if its log is
    durable up to ``durable``. A member whose log is durable in a later term is also useful, because it has every entry
    that can be durable. Members whose durable end is far behind the best member's are left out.

    ``have`` is the last VLSN restored already. A member whose log begins at ``have + 1`` or earlier is preferred, so
    that the restored entries can stay. The ``rotten`` members, which sent wrong bytes before, come last, because there
    may be no other member.
    """
    useful = [offer for offer in offers if offer.dtvlsn and not offer.full and offer.dtvlsn >= have]
    useful = [offer for offer in useful if _has_all(offer, durable)]
    best = max((offer.dtvlsn for offer in useful), default=0)
    fresh = [offer for offer in useful if offer.dtvlsn >= best - RESTORE_LAG_VLSNS_MAX]
    return sorted(
        fresh,
        key=lambda offer: (
            offer.name in rotten,
            offer.lacks_group,
            offer.lacks_producers,
            bool(have) and offer.first > have + 1,
            offer.restores,
            offer.feeders,
            -offer.dtvlsn,
            offer.name,
        ),
    )


def _has_all(offer: Offer, end: End) -> bool:
    in_time = not offer.dtvlsn_term or offer.dtvlsn_term >= end.term
    return (offer.dtvlsn >= end.vlsn and in_time) or offer.dtvlsn_term > end.newest


def agree(mine: Sequence[TermRun], theirs: Sequence[tuple[int, int, int]]) -> bool:
    """Returns whether two logs have the same terms in the VLSNs that both have. ``theirs`` must reach at least as far
    as ``mine``."""
    if not mine or not theirs:
        return True
    low = max(mine[0].first, theirs[0][1])
    high = min(mine[-1].last, theirs[-1][2])
    ours = [(run.term, run.first, run.last) for run in mine]
    return _clipped(ours, low, high) == _clipped(theirs, low, high)


def _clipped(runs: Sequence[tuple[int, int, int]], low: int, high: int) -> list[tuple[int, int, int]]:
    return [(term, max(first, low), min(last, high)) for term, first, last in runs if last >= low and first <= high]


@dataclass(slots=True)
class Progress:
    """The progress of a restore, as a status shows it."""

    provider: str = ""
    began_s: float = 0.0
    bytes_done: int = 0
    """The bytes of segments that this process has fetched."""
    bytes_total: int = 0
    """The bytes of the provider's segments from the start of this fetch on, plus the bytes fetched before."""
    vlsn: int = 0
    target: int = 0
    attempts: int = 0
    last_error: str = ""


@dataclass(slots=True)
class _Place:
    """The position of the transfer in the provider's segments."""

    segments: list[tuple[int, int]]
    index: int = 0
    offset: int = 0
    salt: int = 0
    bytes_wanted: int = RESTORE_RANGE_BYTES

    @property
    def number(self) -> int:
        return self.segments[self.index][0]

    @property
    def end(self) -> int:
        return self.segments[self.index][1]

    @property
    def over(self) -> bool:
        return self.index >= len(self.segments)

    def next(self) -> None:
        self.index += 1
        self.offset, self.salt = FIRST_FRAME, 0


@dataclass(slots=True)
class Transfer:
    """Transfers one provider's blocks into ``log``, which was opened for a restore (state ``restoring``). ``run`` is
    called once."""

    log: LocalLog
    provider: Provider
    progress: Progress
    store_term: Callable[[Term], Awaitable[None]]
    offload: Callable[[Callable[[], Unpacked]], Awaitable[Unpacked]]
    _have: Vlsn = NULL_VLSN
    """The last VLSN handed to the log. ``_term`` is the term of ``_have``."""
    _term: int = 0
    _unsynced: int = 0
    _failed: VlsnLogError | None = None
    _moved: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> StateRecord:
        """Restores the log and returns the provider's state record. On return, everything up to the record's VLSN is
        synced. Raises ``Disagrees``, or the error that stopped the transfer."""
        log = self.log
        await self._drained()  # waits until the blocks of an earlier transfer are stored
        self._have, self._term = log.view.allocated, log.view.history.last_term
        offer = await self.provider.open(Vlsn(self._have + 1))
        try:
            assert offer.record is not None
            self._begin(offer)
            if not agree(log.view.history.term_runs, offer.record.term_runs):
                raise Disagrees(f"{self.provider.name} has other terms than the blocks restored so far")
            log.view.raise_dtvlsn(self._have)  # only durable blocks were restored before
            await self._fetch(offer)
            await self._synced()
            if log.view.range.last != offer.dtvlsn:
                raise BadBody(
                    f"the segments of {self.provider.name} end at VLSN {log.view.range.last}, not {offer.dtvlsn}"
                )
            if not agree(log.view.history.term_runs, offer.record.term_runs):
                raise Disagrees(f"the blocks of {self.provider.name} have other terms than its state record")
            return offer.record
        finally:
            await self._close(offer.session)

    def _begin(self, offer: Offer) -> None:
        progress = self.progress
        progress.provider = self.provider.name
        progress.vlsn, progress.target = self._have, offer.dtvlsn
        size = sum(segment.end - FIRST_FRAME for segment in offer.segments)
        if offer.segments:
            size -= lsn_offset(Lsn(offer.at)) - FIRST_FRAME
        progress.bytes_total = progress.bytes_done + max(0, size)

    async def _close(self, session: str) -> None:
        try:
            await self.provider.close(session)
        except (VlsnLogError, OSError):
            pass  # the provider closes an idle session itself

    async def _fetch(self, offer: Offer) -> None:
        """Fetches all blocks up to the offer's durable end, and hands them to the log."""
        place = _Place([(segment.number, segment.end) for segment in offer.segments])
        if place.over:
            return
        if place.number != lsn_file(Lsn(offer.at)):
            raise BadBody(f"the offer begins in segment {lsn_file(Lsn(offer.at))}, its segments with {place.number}")
        place.offset = max(FIRST_FRAME, lsn_offset(Lsn(offer.at)))
        while not place.over and self._have < offer.dtvlsn:
            if place.offset >= place.end:
                place.next()
            elif not place.salt:
                await self._read_header(offer, place)
            else:
                await self._fetch_range(offer, place)

    async def _read_header(self, offer: Offer, place: _Place) -> None:
        page = await self._read(offer, place, 0, HEADER_PAGE)
        header = SegmentHeader.decode(page)
        if header.number != place.number or header.group != offer.group:
            raise BadBody(f"segment {place.number} has the header of {header.number} of group {header.group}")
        place.salt = header.salt

    async def _fetch_range(self, offer: Offer, place: _Place) -> None:
        end = min(place.end, place.offset + place.bytes_wanted)
        data = await self._read(offer, place, place.offset, end)
        expected, base, salt, term = self._have + 1, place.offset, place.salt, self._term
        found = await self.offload(
            lambda: unpack(data, base=base, salt=salt, expected=expected, upto=offer.dtvlsn, term_min=term)
        )
        if found.bytes_wanted:
            if end == place.end or found.bytes_wanted > RESTORE_RANGE_BYTES_MAX:
                raise BadBody(f"a frame at {base} of segment {place.number} takes {found.bytes_wanted} bytes")
            place.bytes_wanted = found.bytes_wanted
            return
        self.progress.bytes_done += found.at - place.offset
        place.offset, place.bytes_wanted = found.at, RESTORE_RANGE_BYTES
        if found.run is not None:
            await self._keep(found.run)

    async def _read(self, offer: Offer, place: _Place, start: int, end: int) -> bytes:
        data = await self.provider.read(offer.session, place.number, start, end, have=self.log.view.range.last_sync)
        if len(data) != end - start:
            raise BadBody(f"{len(data)} bytes of segment {place.number} where {end - start} were requested")
        return data

    async def _keep(self, run: BlockRun) -> None:
        log = self.log
        if run.terms[-1] > log.node_file.record.term:
            await self.store_term(Term(run.terms[-1]))
        await store_level(log, run.level)
        self._have, self._term = Vlsn(run.last_vlsn), run.terms[-1]
        self._unsynced += run.bytes
        log.append_blocks(run, lambda error: self._kept(run, error))
        await self._room(UNSYNCED_BYTES_MAX)

    def _kept(self, run: BlockRun, error: VlsnLogError | None) -> None:
        self._unsynced -= run.bytes
        self._failed = self._failed or error
        if error is None:
            self.progress.vlsn = run.last_vlsn
            self.log.view.raise_dtvlsn(Vlsn(run.last_vlsn))  # a provider sends durable blocks only
        self._moved.set()

    async def _room(self, unsynced_max: int) -> None:
        """Waits until at most ``unsynced_max`` bytes are not synced. Raises the log's error if the log has refused a
        block."""
        while self._unsynced > unsynced_max and self._failed is None:
            self._moved.clear()
            await self._moved.wait()
        if self._failed is not None:
            raise self._failed

    async def _synced(self) -> None:
        await self._room(0)

    async def _drained(self) -> None:
        """Waits until the log's queue is empty, so that each queued block was either stored or refused."""
        drained = asyncio.Event()
        self.log.cycle.drain(drained.set)
        await drained.wait()
