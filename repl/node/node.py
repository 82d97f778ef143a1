"""A node: one log, one role in its group, one gateway.

    serve HTTP ─► open the log (keeper's thread) ─► role: found, follow, or lead what an election won ─► stop

1. HTTP answers from the start. Until the log is open the node is UNKNOWN, with the reason ``opening``, and serves
   neither reads nor appends.
2. All parts that live as long as an open log are in one object (``OpenNode``), which is made once the log is recovered.
3. A failure of the log ends the process (``on_fatal``), because the page cache cannot be trusted after a failed sync.
4. A fault of a role ends the role, never the node. The reason is shown in the node's status, and the next role is
   tried. Only DAMAGED and HALTED need a person or a peer from which the node is repaired.
5. ``electing`` decides which role comes next. ``roles`` plays the roles, and ends each role completely before the next
   one begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from repl.auth.exposure import check_exposure, is_exposed, missing_lines
from repl.cdc.children import Children
from repl.cdc.host import CdcHost
from repl.config import NodeConfig
from repl.events import expected_if
from repl.group.role import cancelled
from repl.lead.handing_over import HAND_OVER_S, NobodyLeft
from repl.lead.leading import lead_of
from repl.names.begun import NodeBegun
from repl.names.positions import NodePositions
from repl.node.gateway import Gateway
from repl.node.open_node import OpenNode
from repl.node.parts import NodeParts
from repl.node.services import services_of
from repl.offload import Offload
from repl.repair.opening import append_limits, open_recovered
from repl.repair.restoring import RestoreWanted
from repl.repair.unopened import Unopened
from repl.web.limits import READERS_MAX
from repl.web.types import Network
from vlsn.errors import BadArgument, Damaged, NotMaster, Unreachable, VlsnLogError, WrongVersion, said_of
from vlsn.ids import NodeName
from vlsn.levels import SIGNED
from vlsn.recover.recovery import Recovered
from vlsn.repair.restore import End
from vlsn.seams import Seams

LOOK_S = 0.01
"""A node that stops asks its successor once in this many seconds whether it leads."""


class Node(NodeParts):
    """One node of one group. Call ``start`` and ``stop``. ``on_fatal`` receives the error with which the node ends
    itself."""

    def __init__(
        self,
        config: NodeConfig,
        seams: Seams,
        network: Network,
        children: Children,
        *,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        super().__init__(config, seams, network, children, on_fatal=on_fatal)
        self.services = services_of(self)
        self._unopened = Unopened(self.member, self.restoration)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Starts to listen, then opens the log and takes a role in the background. Raises ``BadArgument`` if the
        address cannot be bound, the group's key cannot be read, or the node would be exposed."""
        member, config = self.member, self.member.config
        check_exposure(config, member.seams.disk)
        member.keyring.load()
        try:
            gateway = Gateway(self.services, append_limits(config), readers_max=config.readers_max or READERS_MAX)
            self.readers, self.handed = gateway.readers, gateway.handed
            self.listener = await member.network.serve(
                config.host, config.port, gateway.handle, quick=gateway.quick, keeps=gateway.keeps
            )
        except OSError as error:
            raise BadArgument(
                f"cannot listen on {config.listen}: {said_of(error)}; choose another address, or stop "
                "what listens there"
            ) from error
        if missing := missing_lines(config):
            member.event("insecure", missing=", ".join(missing), allowed=config.insecure)
        self._tasks.append(asyncio.create_task(self._live(), name="live"))

    async def stop(self) -> None:
        """Stops cleanly: a master hands over, the role ends, the log writes its clean checkpoint, and everything is
        closed."""
        member, why = self.member, "the node is stopping"
        member.stopping = True
        leading = self.leading
        if leading is not None and leading.present:
            try:
                await self._until_leads(await leading.handing_over.run(None))
            except VlsnLogError as error:
                alone = isinstance(error, NobodyLeft)
                member.event("hand_over.failed", why=str(error), **expected_if(alone))
        await self.cdc.close()
        await cancelled(*self._tasks)
        if self.open is not None:
            self.open.read_index.close(NotMaster(why))
        await self.confirming.close()
        if self.listener is not None:
            await self.listener.close()
        await self._close_log(why)
        await self.restoration.close_log()
        member.workers.close()
        await member.network.close()

    async def _until_leads(self, successor: NodeName) -> None:
        """Waits until ``successor`` or another member leads. Until then this node must not end, because the successor
        needs this node's vote, and its other voters ask this node to confirm the hand-over. Raises ``NobodyLeft`` if no
        other member answers, and ``Unreachable`` after ``HAND_OVER_S``."""
        others = [name for name in self.member.members.listed if name not in (self.name, successor)]
        try:
            async with asyncio.timeout(HAND_OVER_S):
                while True:
                    answers = [await self.confirming.answer(successor)]
                    if answers == [None]:
                        answers = await asyncio.gather(*map(self.confirming.answer, others))
                    found = [answer for answer in answers if answer is not None]
                    if not found:
                        raise NobodyLeft(f"{successor} was to take over, and no other member answers now")
                    if any(answer.master not in ("", self.name) for answer in found):
                        return
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise Unreachable(f"neither {successor} nor another member leads within {HAND_OVER_S} s") from None

    async def _live(self) -> None:
        """Runs from the opening of the log to the end of the node. In between it may close the log, restore it and open
        it again."""
        try:
            self.member.workers.start()
            if self.member.config.group_key is not None:
                keys = self.member.keyring.watch(Offload(self.member.workers["scrub"]))
                self._tasks.append(asyncio.create_task(keys, name="keys"))
            self._tasks.append(asyncio.create_task(self.trail.run(), name="trail"))
            while True:
                await self._live_with_log()
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # any other error ends the process
            self.member.fatal(error)

    async def _live_with_log(self) -> None:
        """Runs the node with one log, and returns when another log is to be opened in its place."""
        restoration = self.restoration
        if await restoration.begun():
            await restoration.run("a restore that was begun before goes on")
        try:
            opened = await self._open()
        except Damaged as error:
            await self._unopened.run(error)
            return
        why = ""
        try:
            await opened.work(self._capture(opened))
        except* RestoreWanted as wanted:
            why = str(wanted.exceptions[0])
        log = self.opened().log
        end, durable = (
            (log.view.history.last_term, log.view.range.last),
            End(log.view.history.term_of(log.view.dtvlsn), log.view.dtvlsn),
        )
        restoration.members = self.member.members.urls
        await self._close_log(why)
        await restoration.run(why, end=end, durable=durable, whole=True)

    async def _capture(self, opened: OpenNode) -> None:
        """Runs the CDC consumers while a log is open."""
        member = self.member
        leads = partial(lead_of, member)
        host = CdcHost(
            log=opened.log,
            reads=opened.reads,
            reading=member.workers.offload("reads"),
            # a position that cannot be read does not count as damage of the log
            storing=Offload(member.workers["cdc"]),
            positions=NodePositions(member, leads),
            begun=NodeBegun(member, leads),
            is_master=member.is_master,
        )
        await self.cdc.run(host)

    async def _open(self) -> OpenNode:
        """Recovers the log on the keeper's thread, and makes the parts that live with the log. Raises the same errors
        as ``recover``."""
        member = self.member
        try:
            recovered: Recovered = await member.workers.on_keeper(lambda: open_recovered(member.config, member.seams))
        except WrongVersion as error:
            config = member.config
            if config.group_key is None:
                raise WrongVersion(
                    f"{error}. From level {SIGNED} on a node needs the group's key: set group_key"
                ) from None
            if is_exposed(config):
                lines = ", ".join(missing_lines(config)) + ", or insecure = true"
                raise WrongVersion(f"{error}. From level {SIGNED} on this node needs {lines}") from None
            raise
        opened = self.open = OpenNode(member, self.confirming, self.restoration, recovered)
        self._unopened = Unopened(member, self.restoration)
        return opened

    async def _close_log(self, why: str) -> None:
        """Stops the log cleanly, if it is open."""
        if self.open is not None:
            await self.open.close(why)
            self.open = None
