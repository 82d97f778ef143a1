"""A node's own network restore: the node replaces its log by that of another member, the *provider*.

    wanted (trimmed in syncup, or a person asks) ─► role ends, log closed ─► RESTORING:
        ask all members ─► marker ─► log opened ``restoring`` ─► transfer, from one provider after another
        ─► clean stop ─► marker removed ─► the log is opened as at any start, and the node follows

1. The marker is a file. A node that finds a marker at its start continues the restore, and does not open the log for
   any other purpose.
2. The marker is written only when there is a provider, so a node that reaches no member keeps its log. After
   ``TRIES_MAX`` tries the node opens an undamaged log again. Other members may need this node's answers or vote before
   one of them can be a provider.
3. If a provider fails, aborts or sends wrong bytes, the next provider is tried, with pauses, without end. The restored
   part stays. The restore begins again only if no provider's log continues that part.
4. During a restore the node does not vote, stand, acknowledge or serve, because it has no log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, TypeVar
from urllib.parse import urlencode

import msgspec

from repl.group.member import Member
from repl.offload import Offload, settle
from repl.repair.opening import log_options, open_recovered
from repl.web.problem import error_of
from replica.restore import Disagrees, Progress, Transfer, choose
from vlsn.errors import BadBody, Damaged, LogFailed, NotFound, Trimmed, VlsnLogError
from vlsn.format.checksum import crc
from vlsn.ids import NULL_VLSN, NodeName, Term, Vlsn
from vlsn.repair.restore import NULL_END, End, Restart
from vlsn.repair.restore_messages import CLOSE, LOOK, OPEN, RECORD, Offer, Purpose, RestoreAsk, read_offer
from vlsn.segments.restore_marker import Marker, check_no_restore
from vlsn.state.state_store import StateRecord
from vlsn.write.local_log import LocalLog
from vlsn.write.write_cycle import LogListener

CRC_FIELD = "Vlsnlog-Crc32c"
"""The header with the crc32c of an answer's body, as 8 hex digits."""
T = TypeVar("T")
RANGE_TIMEOUT_S = 30.0
AGAIN_S = 1.0
"""The seconds between two rounds of asking all members, if none of them can be the provider."""
LOOK_REST_S = 0.5
"""After the first possible provider has answered, the node waits this many seconds for the other members."""
TRIES_MAX = 10
"""After this many rounds without a provider, the node opens its log again, if the log is undamaged or could not be
compared with every member's log."""
TICK_S = 0.1
AGAIN_VLSNS = 10_000
"""If a restore ends more than this many VLSNs behind its provider, another session continues it."""
ROUNDS_MAX = 8
"""At most this many sessions continue a restore. The feed delivers the entries that remain after the last session."""
HISTORY_MAX = 8
_Faults = (VlsnLogError, OSError, TimeoutError)


class RestoreWanted(VlsnLogError):
    """The node's log must be replaced by a peer's log."""

    retry_safe = False


class Restoration:
    """The restores of one node. ``log`` is the log that is being restored, or None outside a restore."""

    def __init__(self, member: Member) -> None:
        self.log: LocalLog | None = None
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY_MAX)
        """The restores since the process started, in order of time."""
        self.count = 0
        self.members: dict[NodeName, str] = dict(member.config.members)
        """The members to ask for a log: those that the group listed when a log was last open."""
        self._member = member
        self._progress = Progress(began_s=0.0)
        self._running = False
        self._rotten: set[str] = set()
        """The members that have sent wrong bytes in the current restore."""
        self._wanted: asyncio.Future[str] | None = None
        self._avoid: frozenset[NodeName] = frozenset()
        self._silent: frozenset[NodeName] = frozenset()
        self._keep = False
        self._going = False
        self._asked = 0
        """The number of persons' requests for a restore that are being checked."""

    @property
    def progress(self) -> Progress | None:
        """The progress of the current restore, or of the search for a provider, or None."""
        return self._progress if self._running else None

    def _begins(self) -> None:
        self._progress, self._running = Progress(began_s=self._member.seams.clock.monotonic_s()), True

    # Requests.

    def want(
        self, why: str, *, avoid: Collection[NodeName] = (), silent: Collection[NodeName] = (), keep: bool = False
    ) -> bool:
        """Requests a restore of the log. Returns True if a caller of ``wanted`` receives the request, False if there
        was an earlier request. Members in ``avoid`` and ``silent`` are not providers; ``silent`` are members whose
        copies could not be compared. If there is no other provider, the log is opened again. With ``keep`` the log's
        newest segments are kept aside."""
        if self._wanted is None or self._wanted.done():
            return False
        self._avoid, self._silent, self._keep = frozenset(avoid), frozenset(silent), keep
        self._going = True
        self._wanted.set_result(why)
        return True

    @property
    def gives_up(self) -> bool:
        """True if this node's copy of the log is being given up, or may be. Other members do not rely on a copy that is
        being given up (``spared_copies``)."""
        return self._going or self._asked > 0

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Marks that a request to give the log up is being checked."""
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1

    async def asked(self) -> str:
        """Waits until a restore is requested. Returns the reason for the restore."""
        self._wanted, self._going = asyncio.get_running_loop().create_future(), False
        try:
            return await self._wanted
        finally:
            self._wanted = None

    async def wanted(self) -> None:
        raise RestoreWanted(await self.asked())

    async def lossless(self) -> End | None:
        """Returns the end of a log that does not open, if some member has all its entries that may be durable
        (``choose``). Returns None if no member has them. A restore from that member loses no entry that this node has
        acknowledged."""
        self._begins()
        try:
            end = await self._on_keeper(self._restart().end)
            if end is None or not await self._look(NULL_VLSN, end):
                return None
            return end
        finally:
            self._running = False

    async def begun(self) -> bool:
        """Returns whether a restore has begun on this node and is not finished."""
        disk, directory = self._member.seams.disk, str(self._member.config.dir)

        def look() -> bool:
            try:
                check_no_restore(disk, directory)
            except VlsnLogError:
                return True
            return False

        return await self._on_keeper(look)

    # The restore.

    async def run(
        self, why: str, *, end: tuple[int, int] | None = None, durable: End = NULL_END, whole: bool = False
    ) -> None:
        """Runs the whole restore. On return the directory has a log. ``end`` and ``durable`` describe the log that was
        here before (``Restart.begin``). ``whole`` is true if that log was open until now."""
        member = self._member
        self._begins()
        member.set_state("RESTORING", why)
        member.event("restore.begin", why=why)
        self._rotten.clear()
        restart = self._restart()
        marker = await self._on_keeper(restart.begun)
        while True:
            if marker is None:
                marker = await self._begin(restart, why, end, durable, impatient=whole or bool(self._silent))
                if marker is None:
                    self._failed("", NotFound("no member to restore from; the log is unchanged, and is opened again"))
                    self._running = False
                    member.set_state("UNKNOWN", "opening")
                    return
                # The old log is given up, so now any provider is acceptable.
                self._silent, whole = frozenset(), False
            try:
                record = await self._fetch(durable)
                break
            except (Disagrees, Trimmed, Damaged) as error:
                self._failed("", error)
                member.event("restore.again", why=str(error))
                await self.close_log()
                await asyncio.sleep(AGAIN_S)
                marker = None
        await self.close_log()
        await self._on_keeper(lambda: restart.finish(record))
        self._over(marker, record, why)

    async def _begin(
        self, restart: Restart, why: str, end: tuple[int, int] | None, durable: End, *, impatient: bool
    ) -> Marker | None:
        """Begins the restore once there is a provider. Returns None if no provider is found in time."""
        for tries in count(1):
            offers = await self._look(NULL_VLSN, durable)
            if offers:
                break
            if impatient and tries >= TRIES_MAX:
                return None
            await asyncio.sleep(AGAIN_S)
        after = Vlsn(offers[0].first - 1)
        marker = await self._on_keeper(lambda: restart.begin(after, why, end=end, keep=self._keep))
        for note in restart.notes:
            self._member.event("restore.note", note=note)
        restart.notes.clear()
        return marker

    async def _fetch(self, durable: End) -> StateRecord:
        """Fetches the log from providers. On return the log is open and complete up to the VLSN of the returned
        record."""
        log = self.log = await self._open()
        tick = asyncio.create_task(self._tick(log), name="restore tick")
        try:
            rounds = 0
            while True:
                for offer in await self._look(log.view.range.last_sync or log.view.trimmed_to, durable):
                    record = await self._transfer(log, offer)
                    if record is None:
                        continue
                    rounds += 1
                    if rounds >= ROUNDS_MAX or await self._moved_on(offer) - record.vlsn <= AGAIN_VLSNS:
                        return record
                    break
                else:
                    await asyncio.sleep(AGAIN_S)
        finally:
            tick.cancel()

    async def _transfer(self, log: LocalLog, offer: Offer) -> StateRecord | None:
        """Transfers the log from one provider. Returns None if the provider failed. Raises ``Disagrees``, ``Trimmed``,
        ``LogFailed``."""
        member, progress = self._member, self._progress
        if offer.first > log.view.allocated + 1:
            said = f"{offer.name} begins at VLSN {offer.first}, this log ends at {log.view.allocated}"
            raise Trimmed(said, first=offer.first)
        progress.attempts += 1
        member.event("restore.from", provider=offer.name, have=log.view.allocated, target=offer.dtvlsn)
        transfer = Transfer(
            log=log,
            provider=self._peer(offer.name),
            progress=progress,
            store_term=partial(self._store_term, log),
            offload=Offload(member.workers["reads"]),
        )
        try:
            return await transfer.run()
        except (Disagrees, LogFailed):
            raise
        except _Faults as error:
            if isinstance(error, BadBody | Damaged):
                self._rotten.add(offer.name)
            self._failed(offer.name, error)
            return None

    async def _moved_on(self, offer: Offer) -> int:
        try:
            return (await self._peer(offer.name).ask(LOOK)).dtvlsn
        except _Faults:
            return 0

    async def _look(self, have: Vlsn, durable: End) -> list[Offer]:
        """Returns the possible providers, best first. After the first one has answered, the others have little time. If
        this node waited for a silent member, other members could clean away the entries that it needs next."""
        others = [name for name in self.members if name != self._member.name and name not in self._avoid | self._silent]
        asked = [asyncio.create_task(self._ask(name), name=f"look at {name}") for name in others]

        def chosen() -> list[Offer]:
            offers = [task.result() for task in asked if task.done()]
            useful = [offer for offer in offers if offer is not None]
            return choose(useful, have=have, durable=durable, rotten=self._rotten)

        waiting = set(asked)
        try:
            while waiting and not chosen():
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                await asyncio.wait(waiting, timeout=LOOK_REST_S)
            return chosen()
        finally:
            for task in asked:
                task.cancel()

    async def _ask(self, name: NodeName) -> Offer | None:
        try:
            return await self._peer(name).ask(LOOK)
        except _Faults as error:
            self._failed(name, error)
            return None

    def _peer(self, name: str) -> Peer:
        return Peer(self._member, NodeName(name), self.members[NodeName(name)])

    def _failed(self, provider: str, error: BaseException) -> None:
        said = f"{provider}: {error}" if provider else str(error)
        if said != self._progress.last_error:
            self._member.event("restore.failed", provider=provider, why=str(error))
        self._progress.last_error = said

    def _over(self, marker: Marker, record: StateRecord, why: str) -> None:
        member, progress = self._member, self._progress
        seconds = round(member.seams.clock.monotonic_s() - progress.began_s, 3)
        done = {
            "from": progress.provider,
            "first": marker.after + 1,
            "last": record.vlsn,
            "bytes": progress.bytes_done,
            "seconds": seconds,
            "why": why,
            "time": member.seams.clock.wall_us(),
        }
        self.history.append(done)
        self.count += 1
        member.event("restore.done", **{key: value for key, value in done.items() if key not in ("why", "time")})
        self._running = False
        member.set_state("UNKNOWN", "opening")

    # Its log.

    async def _open(self) -> LocalLog:
        member = self._member
        recovered = await self._on_keeper(lambda: open_recovered(member.config, member.seams, restoring=True))
        log = LocalLog(
            recovered,
            log_options(member.config),
            member.seams,
            writer=member.workers["writer"],
            keeper=member.workers["keeper"],
            listener=LogListener(),
            failed=member.fatal,
        )
        member.node_file = log.node_file
        return log

    async def close_log(self) -> None:
        """Stops the log that is being restored cleanly. Does nothing if no log is open."""
        log = self.log
        if log is None:
            return
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        log.close(partial(settle(closed), None))
        if log.life.failure is None:
            await closed
        log.node_file.close()
        self.log = None

    async def _tick(self, log: LocalLog) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            log.tick()
            if (refusal := log.refusal) is not None:
                self._progress.last_error = f"{refusal.slug}: {refusal}"

    async def _store_term(self, log: LocalLog, term: Term) -> None:
        def store() -> None:
            record = log.node_file.record
            if term > record.term:
                log.node_file.replace(replace(record, term=term), learned=True)

        await self._on_keeper(store)

    def _restart(self) -> Restart:
        member = self._member
        return Restart(
            member.seams,
            str(member.config.dir),
            group=member.config.group,
            node=member.config.name,
            index_map_bytes=member.config.index_map_bytes,
            state_map_bytes=member.config.state_map_bytes,
        )

    def _on_keeper(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return Offload(self._member.workers["keeper"])(job)


class Peer:
    """One member, as a restoring node calls it; it implements ``replica.restore.Provider``."""

    def __init__(self, member: Member, name: NodeName, url: str) -> None:
        self.name = name
        self._member = member
        self._url = f"{url}/v1/peer/restore"

    async def open(self, from_vlsn: Vlsn) -> Offer:
        offer = await self.ask(OPEN, from_vlsn=from_vlsn)
        if not offer.session:
            raise BadBody(f"{self.name} has opened no session")
        return offer

    async def close(self, session: str) -> None:
        await self.ask(CLOSE, session=session)

    async def record(self, from_vlsn: Vlsn, upto: Vlsn) -> tuple[Offer, StateRecord]:
        """Fetches the member's state record at a durable VLSN within a span. The returned offer names that VLSN and its
        term. Raises the errors of ``ask``."""
        offer = await self.ask(RECORD, from_vlsn=from_vlsn, upto=upto)
        if offer.record is None or not from_vlsn <= offer.record.vlsn <= upto:
            raise BadBody(f"{self.name} was asked for a state record of VLSN {from_vlsn} to {upto}, and sent another")
        return offer, offer.record

    async def ask(self, purpose: Purpose, *, from_vlsn: int = 0, upto: int = 0, session: str = "") -> Offer:
        """Sends a request to the member. Raises ``Unreachable``, ``BadBody``, and the peer's refusal."""
        member = self._member
        asked = RestoreAsk(
            group=member.config.group,
            sender=member.config.name,
            incarnation=f"{member.incarnation:016x}",
            to=self.name,
            purpose=purpose,
            from_vlsn=from_vlsn,
            upto=upto,
            session=session,
        )
        response = await member.calls.request(
            self.name,
            "POST",
            self._url,
            headers={"Content-Type": "application/json"},
            body=msgspec.json.encode(asked),
            timeout_s=member.config.connect_timeout_s,
        )
        if response.status != 200:
            raise error_of(bytes(response.body))
        body = bytes(response.body)
        # An offer with a record may have 32 MiB. Decoding runs on another thread, because this node may be the master.
        offer = (
            await member.workers.offload("reads")(partial(read_offer, body)) if purpose == RECORD else read_offer(body)
        )
        if (offer.group, offer.name) != (member.config.group, self.name):
            raise BadBody(f"{self._url} is node {offer.name} of group {offer.group}")
        member.seams.levels.check_log(offer.level, f"the log of {self.name}")
        return offer

    async def read(self, session: str, number: int, start: int, end: int, *, have: Vlsn) -> bytes:
        fields = urlencode({"session": session, "segment": number, "start": start, "end": end, "have": have})
        url = f"{self._url}?{fields}"
        response = await self._member.calls.request(self.name, "GET", url, timeout_s=RANGE_TIMEOUT_S)
        body = bytes(response.body)
        if response.status != 200:
            raise error_of(body)
        if f"{crc(body):08x}" != response.headers.get(CRC_FIELD):
            raise BadBody(f"bytes {start} to {end} of segment {number} do not match their checksum")
        return body
