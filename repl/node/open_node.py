"""The parts of a node that exist for as long as its log is open. They are made together, run until the node or the log
ends, and are closed together.

    recovered ─► the log ─► mending, reads, files, providing, scrub, cleaning, elections, roles ─► work ─► close

Everything except the workers' jobs runs on the event loop's thread, in tasks that ``work`` owns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from errno import errorcode
from functools import partial
from typing import Any

from repl.destinations.filling import Filling, Giving
from repl.destinations.page_reading import PageReading
from repl.destinations.page_scrub import PageScrub
from repl.destinations.pager import Pager
from repl.elect.electing import Electing
from repl.group import peers
from repl.group.confirming import Confirming
from repl.group.member import Member, OpenMember
from repl.lead.tenure import TICK_S
from repl.names.position_lags import ConsumerLags
from repl.node.roles import Roles
from repl.offload import settle
from repl.read.read_index import ReadIndex
from repl.read.reads import Reads
from repl.read.scan_pace import ScanPace
from repl.read.segment_files import SegmentFiles
from repl.repair.cleaning import Cleaning
from repl.repair.lost_producers import LostProducers
from repl.repair.mending import Mending
from repl.repair.opening import log_options
from repl.repair.providing import Providing
from repl.repair.restoring import Restoration
from repl.repair.scrub import Scrub
from vlsn.errors import NotMaster
from vlsn.ids import Vlsn
from vlsn.recover.recovery import Recovered
from vlsn.segments.background import Fault
from vlsn.together import together
from vlsn.write.local_log import LocalLog
from vlsn.write.write_cycle import LogListener


class OpenNode(LogListener):
    """The parts of one open log, and its listener while no role plays."""

    def __init__(self, member: Member, confirming: Confirming, restoration: Restoration, recovered: Recovered) -> None:
        config = member.config
        self.member = member
        self.log = log = LocalLog(
            recovered,
            log_options(config),
            member.seams,
            writer=member.workers["writer"],
            keeper=member.workers["keeper"],
            listener=self,
            failed=member.fatal,
        )
        for note in recovered.notes:
            member.event("open", note=note)
        log.life.background.told = self._background_told
        self.opened = opened = OpenMember(member, log)
        self.mending = Mending(opened)
        member.workers.damaged = self.mending.met
        self.reads = Reads(log, member.workers.offload("reads"))
        self.read_index = ReadIndex(opened, self.reads)
        self.consumers = ConsumerLags(log, self.reads, member.seams.clock)
        log.care.consumer_holds.dropped = self._consumer_dropped
        log.care.destinations.dropped = self._destination_dropped
        pace = ScanPace(member.seams.clock, config.scan_bytes_per_s)
        self.files = SegmentFiles(log, member.workers.offload("reads"), pace)
        self.providing = Providing(opened, self.files.read, restoration, self.mending)
        self.cleaning = Cleaning(opened)
        self.pager = Pager(opened)
        self.scrub = Scrub(opened, PageScrub(self.pager, member.seams.disk, member.workers.offload("scrub")))
        opened.pages = self.page_reading = PageReading(self.pager)
        self.filling = Filling(opened, self.pager)
        self.giving = Giving(opened, self.pager, self.page_reading)
        member.recognise(recovered.empty_store or member.members.are_none())
        self.electing = Electing(opened, confirming, self.mending)
        opened.add(self.reads, self.read_index, self.consumers, self.files, self.providing, self.cleaning, self.pager)
        opened.add(self.giving, self.electing)
        self.roles = Roles(opened, self.electing, self.reads, self.providing, confirming, restoration)
        self._restoration = restoration
        member.reason = "starting"
        span = log.view.range
        member.event("opened", incarnation=f"{member.incarnation:016x}", first=span.first, last=span.last)

    async def work(self, capture: Coroutine[Any, Any, None]) -> None:
        """Does everything that a node does while its log is open. ``capture`` runs the node's CDC consumers. Raises an
        exception group that contains ``RestoreWanted``, or the error that ends the node."""
        await together(
            tick=self._tick(),
            elections=self.electing.run(),
            role=self.roles.play(),
            tell=peers.tell(self.member),
            cleaning=self.cleaning.run(),
            paging=self.pager.run(),
            filling=self.filling.run(),
            mending=self.mending.run(),
            scrub=self.scrub.run(),
            consumers=self.consumers.run(),
            producers=LostProducers(self.opened).run(),
            restore=self._restoration.wanted(),
            cdc=capture,
        )

    async def close(self, why: str) -> None:
        """Stops the log cleanly. Callers that wait for something in the log get ``why``."""
        self.read_index.close(NotMaster(why))
        self.reads.fail(NotMaster(why))
        self.providing.close(why)
        await self.pager.close()
        closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log.close(partial(settle(closed), None))
        if self.log.life.failure is None:
            await closed
        self.log.node_file.close()
        self.member.closed()

    async def _tick(self) -> None:
        log, member = self.log, self.member
        holes, said, full = log.placement.holes, "", False
        while True:
            await asyncio.sleep(TICK_S)
            log.tick()
            if holes.fault != said:
                said = holes.fault
                member.event("unpunched", why=said)
            if full != bool(log.no_space):
                full = not full
                if full:
                    member.event("no_space", why=log.no_space)
                else:
                    member.event("has_space", free_bytes=log.care.space.free_bytes)
            if self.opened.role is not None:
                self.opened.role.tick()

    def _background_told(self, fault: Fault) -> None:
        about = {"work": fault.work, "why": fault.why, "errno": errorcode.get(fault.errno, "")}
        self.member.event("background.failed" if fault.failures else "background.works", **about)

    def _consumer_dropped(self, name: str, first: Vlsn) -> None:
        self.member.event("hold.dropped", owner="consumer", consumer=name, first=first)

    def _destination_dropped(self, name: str, first: Vlsn) -> None:
        self.member.event("hold.dropped", owner="destination", destination=name, first=first)

    def synced(self, last_vlsn: Vlsn) -> None:
        """Wakes readers of a replica's blocks that came to the ring after its last role had ended."""
        self.reads.rose()
