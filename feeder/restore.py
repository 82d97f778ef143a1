"""The providing side of a network restore: sessions of peers that fetch this node's log.

1. A peer has at most one session: a new session of a peer replaces that peer's earlier session. A node serves at most
   ``RESTORES_MAX`` sessions. A peer beyond that limit is refused, and then asks another member.
2. A session places a hold on the log: cleaning does not remove entries from the VLSN that the peer needs next. The
   limit of all holds (``hold_bytes_max``) applies to a session's hold, too.
3. When a session opens, its offer is fixed: the durable end, and the state record at that end. The bytes of segments
   are sent as they are on the disk, never past the end that is synced.
4. A rollback stops a session, because a rollback changes frames' flags and writes over earlier bytes. A session also
   stops if its peer sends no request for ``RESTORE_IDLE_S``.

Runs on the event loop only. Source: JE NetworkRestore, whose providers abort a transfer in the same way.
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
"""The type of a function that reads a range of one segment. The function's arguments are the segment's number, and the
start and end (exclusive) of the range in bytes."""


@dataclass(slots=True, eq=False)
class Session:
    """One session, in which a peer fetches this node's log."""

    id: str
    peer: str
    generation: int
    hold: Hold
    idle: asyncio.TimerHandle
    bytes: int = 0


class Restores:
    """All restore sessions that this node serves. ``name``, ``incarnation`` and ``group`` are the node's own."""

    def __init__(self, log: LocalLog, read: Read, *, group: str, name: str, incarnation: int) -> None:
        self._log = log
        self._read = read
        self._group, self._name, self._incarnation = group, name, incarnation
        self._sessions: dict[str, Session] = {}
        self._ended: dict[str, str] = {}
        """For each session that has stopped, by the session's id, the reason why. The oldest ids are forgotten."""

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def sessions(self) -> list[Session]:
        return list(self._sessions.values())

    def look(self, *, feeders: int) -> Offer:
        """Makes an offer of this node's log, without opening a session."""
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
        """Opens a session for ``ask.sender``. The returned function makes the offer, on any thread, because making the
        state record may take long. Raises ``QueueFull`` if there are too many sessions or a rollback is running. Raises
        ``Trimmed`` if the wanted VLSN was cleaned away. Raises ``NotYet`` if this log is not durable up to the wanted
        VLSN."""
        log, durable = self._log, self._durable
        for session in [each for each in self._sessions.values() if each.peer == ask.sender]:
            self._end(session, "its peer opened another session")
        if len(self._sessions) >= RESTORES_MAX:
            raise QueueFull(f"{RESTORES_MAX} restores from {self._name} are under way; ask another member")
        if log.view.rollbacks % 2:
            raise QueueFull(f"{self._name} is rolling back; ask again soon")
        wanted = Vlsn(ask.from_vlsn or log.view.range.first)
        if not durable or wanted > durable + 1:
            raise NotYet(f"{self._name} has a log that is durable to VLSN {durable}, not to {wanted}")
        if wanted < log.view.range.first:
            raise Trimmed(
                f"VLSN {wanted} was cleaned away; the first is {log.view.range.first}", first=log.view.range.first
            )
        mapping = log.view.index.at_or_before(wanted) if wanted <= durable else None
        if mapping is None and wanted <= durable:
            raise Damaged(f"the index has no mapping for VLSN {wanted} of {log.view.range}", vlsn=wanted)
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
        """Offers, without a session, the state record at a durable VLSN from ``ask.from_vlsn`` to ``ask.upto``. The
        returned function makes the offer, as with ``open``. Raises ``QueueFull`` while a rollback is running. Raises
        ``NotYet`` if this node has no exact record for any VLSN in that range, since checkpoints discard older
        detail."""
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
        """Reads bytes ``start`` to ``end`` (exclusive) of segment ``number``. Returns the bytes, and the log's
        generation, which each rollback changes. ``have`` is the VLSN up to which the peer has synced everything. Raises
        ``NotFound`` if the session has stopped, ``Trimmed`` for cleaned bytes, and ``NotYet`` for bytes that this node
        has not synced."""
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
        """Closes a session. Does nothing if the session has stopped already."""
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
            self.close_for(session_id, f"the log was cleaned past it, and now begins at VLSN {first}")

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
            why = self._ended.get(session_id, "this node has no such session")
            raise NotFound(f"the restore {session_id[:16]} is over: {why}")
        session.idle.cancel()
        session.idle = self._timer(session_id)
        return session

    def _timer(self, session_id: str) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        return loop.call_later(RESTORE_IDLE_S, self.close_for, session_id, f"no request came for {RESTORE_IDLE_S} s")

    def _end(self, session: Session, why: str) -> None:
        session.idle.cancel()
        self._sessions.pop(session.id, None)
        self._log.care.holds.release(session.hold)
        while len(self._ended) >= RESTORES_MAX * 2:
            del self._ended[next(iter(self._ended))]
        self._ended[session.id] = why
