"""The providing side of a network restore: sessions of peers that fetch this node's log.

1. A session is one peer's: its next one replaces it.  At most ``RESTORES_MAX`` at once; a later peer is refused and
   goes to another member.
2. It holds the log from the VLSN that the peer wants next, so that cleaning leaves it there, up to the holds' cap.
3. Its offer is fixed when it is opened: the durable end, and the state record as of it. The bytes of segments are sent
   as they are, never past the synced end.
4. A rollback ends it: flags change and places are written again.  So does a peer that asks for nothing for
   ``RESTORE_IDLE_S``.

Runs on the loop only.  Source: JE NetworkRestore, whose providers abort the same way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec.structs import replace

from vlsn.errors import Damaged, NotFound, NotYet, QueueFull, Trimmed
from vlsn.ids import NULL_LSN, Lsn, Vlsn, lsn_file
from vlsn.limits import RESTORE_IDLE_S, RESTORE_RANGE_BYTES_MAX, RESTORES_MAX
from vlsn.repair.restore_messages import Offer, OfferedSegment, RestoreAsk
from vlsn.state.holds import Hold, Owner
from vlsn.write.local_log import LocalLog

Read = Callable[[int, int, int], Awaitable[bytes]]
"""Number, start and end (exclusive) of a range of one segment's bytes."""


@dataclass(slots=True, eq=False)
class Session:
    """One peer's fetch."""

    id: str
    peer: str
    generation: int
    hold: Hold
    idle: asyncio.TimerHandle
    bytes: int = 0


class Restores:
    """The sessions at one node; ``name``, ``incarnation`` and ``group`` are its own."""

    def __init__(self, log: LocalLog, read: Read, *, group: str, name: str, incarnation: int) -> None:
        self._log = log
        self._read = read
        self._group, self._name, self._incarnation = group, name, incarnation
        self._sessions: dict[str, Session] = {}
        self._ended: dict[str, str] = {}
        """The reasons why the last session of each peer ended, by its id."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def look(self, *, feeders: int) -> Offer:
        """Offers a restore as this node would serve it."""
        durable = self._durable
        return Offer(
            group=self._group,
            name=self._name,
            incarnation=f"{self._incarnation:016x}",
            first=self._log.view.range.first if durable else 0,
            dtvlsn=durable,
            dtvlsn_term=self._log.view.history.term_of(durable),
            restores=len(self._sessions),
            feeders=feeders,
            full=len(self._sessions) >= RESTORES_MAX,
            lacks_group=self._log.view.history.lacks_group(self._log.view.range.first, self._log.view.dtvlsn),
            lacks_producers=self._log.view.history.lacks_to,
            generation=self._log.view.rollbacks,
            level=self._log.view.history.level,
        )

    def open(self, ask: RestoreAsk, *, feeders: int) -> Callable[[], Offer]:
        """Opens a session for ``ask.sender``. The returned call makes the offer, on any thread, for the state record
        may take long. Raises ``QueueFull`` when there are too many, or a rollback is under way; ``Trimmed`` when what
        is wanted is gone; ``NotYet`` when this log is not that far."""
        log, durable = self._log, self._durable
        for session in [each for each in self._sessions.values() if each.peer == ask.sender]:
            self._end(session, "its peer opened another one")
        if len(self._sessions) >= RESTORES_MAX:
            raise QueueFull(f"{RESTORES_MAX} restores from {self._name} are under way; ask another member")
        if log.view.rollbacks % 2:
            raise QueueFull(f"{self._name} is rolling back; ask again soon")
        wanted = Vlsn(ask.from_vlsn or log.view.range.first)
        if not durable or wanted > durable + 1:
            raise NotYet(f"{self._name} has the log durable to VLSN {durable}, not to {wanted}")
        if wanted < log.view.range.first:
            raise Trimmed(
                f"VLSN {wanted} was cleaned away; the first is {log.view.range.first}", first=log.view.range.first
            )
        mapping = log.view.index.at_or_before(wanted) if wanted <= durable else None
        if mapping is None and wanted <= durable:
            raise Damaged(f"the index has nothing for VLSN {wanted} of {log.view.range}", vlsn=wanted)
        at = mapping[1] if mapping is not None else NULL_LSN
        segments = [
            OfferedSegment(number, end)
            for number, end in log.view.segments().items()
            if at and number >= lsn_file(Lsn(at))
        ]
        session = self._place(ask.sender, wanted)
        self._sessions[session.id] = session
        offer = replace(self.look(feeders=feeders), session=session.id, at=at, segments=segments)
        record = log.view.snapshot(durable)
        return lambda: replace(offer, record=record())

    def record(self, ask: RestoreAsk, *, feeders: int) -> Callable[[], Offer]:
        """Offers the state record as of a durable VLSN from ``ask.from_vlsn`` to ``ask.upto``, without a session. The
        returned call makes it, as with ``open``. Raises ``QueueFull`` while a rollback is under way, ``NotYet`` where
        it is exact as of no such VLSN: at a checkpoint what came before becomes less than that."""
        log = self._log
        if log.view.rollbacks % 2:
            raise QueueFull(f"{self._name} is rolling back; ask again soon")
        vlsn = Vlsn(min(self._durable, ask.upto))
        least = max(ask.from_vlsn, log.view.history.settled, log.view.range.first)
        if not least <= vlsn:
            raise NotYet(f"{self._name} has no state record of VLSN {vlsn}: from {least} on it is exact")
        offer = replace(self.look(feeders=feeders), dtvlsn=vlsn, dtvlsn_term=log.view.history.term_of(vlsn))
        record = log.view.snapshot(vlsn)
        return lambda: replace(offer, record=record())

    async def read(self, session_id: str, number: int, start: int, end: int, *, have: int) -> tuple[bytes, int]:
        """Reads bytes ``start`` to ``end`` (exclusive) of a segment, and the generation. Everything up to VLSN ``have``
        is synced at the peer. Raises ``NotFound`` when the session is over, ``Trimmed``, ``NotYet`` past what is synced
        here."""
        session = self._session(session_id)
        session.hold.advance(Vlsn(min(have + 1, self._log.view.range.last_sync)))
        if end > self._log.view.synced_end(number):
            raise NotYet(f"segment {number} is not synced up to {end}")
        assert end - start <= RESTORE_RANGE_BYTES_MAX
        data = await self._read(number, start, end)
        self._session(session_id)
        session.bytes += len(data)
        return data, self._log.view.rollbacks

    def close(self, session_id: str) -> None:
        """Harmless when it is over already."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._end(session, "it was closed")

    def close_all(self, why: str) -> None:
        for session in self.sessions:
            self._end(session, why)

    @property
    def _durable(self) -> Vlsn:
        return Vlsn(min(self._log.view.dtvlsn, self._log.view.range.last_sync))

    def _place(self, peer: str, wanted: Vlsn) -> Session:
        log = self._log
        session_id = f"{log.seams.random.u64():016x}"

        def dropped(first: Vlsn) -> None:
            self.close_for(session_id, f"the log was cleaned past it; it begins at VLSN {first}")

        hold = log.care.holds.place(Owner.RESTORE, peer, Vlsn(min(wanted, self._durable)), on_dropped=dropped)
        return Session(session_id, peer, log.view.rollbacks, hold, self._timer(session_id))

    def close_for(self, session_id: str, why: str) -> None:
        session = self._sessions.get(session_id)
        if session is not None:
            self._end(session, why)

    def _session(self, session_id: str) -> Session:
        session = self._sessions.get(session_id)
        if session is not None and session.generation != self._log.view.rollbacks:
            self._end(session, "the log was rolled back")
            session = None
        if session is None:
            why = self._ended.get(session_id, "it is not known here")
            raise NotFound(f"the restore {session_id[:16]} is over: {why}")
        session.idle.cancel()
        session.idle = self._timer(session_id)
        return session

    def _timer(self, session_id: str) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(RESTORE_IDLE_S, self.close_for, session_id, f"nothing was asked for {RESTORE_IDLE_S} s")

    def _end(self, session: Session, why: str) -> None:
        session.idle.cancel()
        self._sessions.pop(session.id, None)
        self._log.care.holds.release(session.hold)
        while len(self._ended) >= RESTORES_MAX * 2:
            del self._ended[next(iter(self._ended))]
        self._ended[session.id] = why
