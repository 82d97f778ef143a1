"""A node's own network restore: its beginning, its providers, its progress.

    wanted (trimmed in syncup, or a person asks) ─► role ends, log closed ─► RESTORING:
        look at all members ─► marker ─► log opened ``restoring`` ─► transfer, from one provider after the other
        ─► clean stop ─► marker removed ─► the log is opened as at any start, and the node follows

1. A marker found at a start continues the restore; the log opens for no other purpose.
2. The marker is written only when there is a provider: a node that can ask nobody keeps what it has.  After
   ``TRIES_MAX`` looks it opens a whole log again: the others may need its word, or its vote, before one of them can be
   a provider.
3. A provider that fails, aborts, or sends wrong bytes is passed over for the next one, with back-off, for ever. The
   restored part stays.  It begins again only where no provider's log goes on from it.
4. While it lasts the node does not vote, stand, acknowledge or serve: it has no log.
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
from repl.repair.restore_http import CRC_FIELD
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

T = TypeVar("T")
RANGE_TIMEOUT_S = 30.0
AGAIN_S = 1.0
"""Seconds between two looks at all members, when none of them could be restored from."""
LOOK_REST_S = 0.5
"""Seconds of waiting for the other members behind the first that can be restored from."""
TRIES_MAX = 10
"""Looks before a log that is whole, or could not be held against every member's, is opened again."""
TICK_S = 0.1
AGAIN_VLSNS = 10_000
"""A restore that ends further behind its provider goes on with another session …"""
ROUNDS_MAX = 8
"""… but not for ever: the feed does the rest."""
HISTORY_MAX = 8
_Faults = (VlsnLogError, OSError, TimeoutError)


class RestoreWanted(VlsnLogError):
    """The node's log is to be replaced by a peer's."""

    retry_safe = False


class Restoration:
    """The restores of one node.  ``log`` is the one that is being restored, while there is one."""

    def __init__(self, member: Member) -> None:
        self.log: LocalLog | None = None
        self.history: deque[dict[str, Any]] = deque(maxlen=HISTORY_MAX)
        """The restores of this process's life, the newest last."""
        self.count = 0
        self.members: dict[NodeName, str] = dict(member.config.members)
        """The members to ask: as the group listed them when there was a log."""
        self._member = member
        self._progress = Progress(began_s=0.0)
        self._running = False
        self._rotten: set[str] = set()
        """The members that have given wrong bytes, of this restore."""
        self._wanted: asyncio.Future[str] | None = None
        self._avoid: frozenset[NodeName] = frozenset()
        self._silent: frozenset[NodeName] = frozenset()
        self._keep = False
        self._going = False
        self._asked = 0
        """Requests of a person that are being looked into."""

    @property
    def progress(self) -> Progress | None:
        """The progress of the restore, or the look for one, that is under way."""
        return self._progress if self._running else None

    def _begins(self) -> None:
        self._progress, self._running = Progress(began_s=self._member.seams.clock.monotonic_s()), True

    # When.

    def want(
        self, why: str, *, avoid: Collection[NodeName] = (), silent: Collection[NodeName] = (), keep: bool = False
    ) -> bool:
        """Asks for a restore of the log, and says whether a call waits in ``wanted`` for that; False also after an
        earlier request. Members in ``avoid`` and in ``silent`` are no providers: copies of the latter could not be
        compared. Where there is no other provider the log is opened again. ``keep``: its newest segments stay aside."""
        if self._wanted is None or self._wanted.done():
            return False
        self._avoid, self._silent, self._keep = frozenset(avoid), frozenset(silent), keep
        self._going = True
        self._wanted.set_result(why)
        return True

    @property
    def gives_up(self) -> bool:
        """This node's copy of the log goes, or may go: other members do not count on it (``spared_copies``)."""
        return self._going or self._asked > 0

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Counts a request to give the log up while it is looked into."""
        self._asked += 1
        try:
            yield
        finally:
            self._asked -= 1

    async def asked(self) -> str:
        """Waits until a restore is asked for; returns the reason."""
        self._wanted, self._going = asyncio.get_running_loop().create_future(), False
        try:
            return await self._wanted
        finally:
            self._wanted = None

    async def wanted(self) -> None:
        raise RestoreWanted(await self.asked())

    async def lossless(self) -> End | None:
        """Returns the end of a log that does not open, if some member has every entry of it that can have been durable
        (``choose``). A restore then loses no entry that this node has acknowledged. Else None."""
        self._begins()
        try:
            end = await self._on_keeper(self._restart().end)
            if end is None or not await self._look(NULL_VLSN, end):
                return None
            return end
        finally:
            self._running = False

    async def begun(self) -> bool:
        """Says whether a restore has begun here and is not over."""
        disk, directory = self._member.seams.disk, str(self._member.config.dir)

        def look() -> bool:
            try:
                check_no_restore(disk, directory)
            except VlsnLogError:
                return True
            return False

        return await self._on_keeper(look)

    # How.

    async def run(
        self, why: str, *, end: tuple[int, int] | None = None, durable: End = NULL_END, whole: bool = False
    ) -> None:
        """Runs the whole restore; on return the directory holds a log. ``end`` and ``durable``: of the log that was
        here (``Restart.begin``); ``whole``: it was open until now."""
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
                    self._failed("", NotFound("nobody to restore from; the log is as it was, and is opened again"))
                    self._running = False
                    member.set_state("UNKNOWN", "opening")
                    return
                # The log is given up: any provider will do from here on.
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
        """Begins once there is a provider; None where that takes too long."""
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
        """Fetches the log; it is open and whole on return, as of the record's VLSN."""
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
        """Transfers from one provider; None when it did not bring it to its end. Raises ``Disagrees``, ``Trimmed``,
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
        """Looks for providers, best first. Behind the first useful one the others have little time: while a silent
        member is waited for, others may clean the next entries away."""
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

    # The log under restore.

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
        """Stops the log cleanly; harmless when none is open."""
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
    """One member as a restoring node asks it; ``replica.restore.Provider``."""

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
        """Asks for its state record as of a durable VLSN in that span, which the offer names, with its term. As
        ``ask``."""
        offer = await self.ask(RECORD, from_vlsn=from_vlsn, upto=upto)
        if offer.record is None or not from_vlsn <= offer.record.vlsn <= upto:
            raise BadBody(f"{self.name} was asked for its state record of VLSN {from_vlsn} to {upto}, and gave another")
        return offer, offer.record

    async def ask(self, purpose: Purpose, *, from_vlsn: int = 0, upto: int = 0, session: str = "") -> Offer:
        """Raises ``Unreachable``, ``BadBody``, and what the peer refuses with."""
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
        response = await member.network.request(
            "POST",
            self._url,
            headers={"Content-Type": "application/json"},
            body=msgspec.json.encode(asked),
            timeout_s=member.config.connect_timeout_s,
            peer=self.name,
        )
        if response.status != 200:
            raise error_of(bytes(response.body))
        body = bytes(response.body)
        # One of these may take 32 MiB, and this node may lead.
        offer = (
            await member.workers.offload("reads")(partial(read_offer, body)) if purpose == RECORD else read_offer(body)
        )
        if (offer.group, offer.name) != (member.config.group, self.name):
            raise BadBody(f"{self._url} is node {offer.name} of group {offer.group}")
        member.seams.levels.check_log(offer.level, f"the log of {self.name}")
        return offer

    async def read(self, session: str, number: int, start: int, end: int, *, have: Vlsn) -> bytes:
        fields = urlencode({"session": session, "segment": number, "start": start, "end": end, "have": have})
        response = await self._member.network.request(
            "GET", f"{self._url}?{fields}", timeout_s=RANGE_TIMEOUT_S, peer=self.name
        )
        body = bytes(response.body)
        if response.status != 200:
            raise error_of(body)
        if f"{crc(body):08x}" != response.headers.get(CRC_FIELD):
            raise BadBody(f"bytes {start} to {end} of segment {number} do not match their checksum")
        return body
