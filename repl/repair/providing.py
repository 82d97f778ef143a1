"""The side of a restore that provides the log: answers a peer's requests, and sends bytes of segments."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from feeder.restore import Read, Restores, Session
from repl.group.member import Member, OpenMember
from repl.repair.mending import Mending
from repl.repair.restoring import Restoration
from repl.repair.spared_copies import check_whole
from vlsn.errors import BadBody, Damaged, Halted, NotFound, Trimmed, WrongGroup, WrongName
from vlsn.format.block import BlockHeader, decode
from vlsn.ids import NodeName, Vlsn
from vlsn.repair.closed_block import block_of_closed
from vlsn.repair.restore_messages import CLOSE, GIVE_UP, OPEN, RECORD, Offer, RestoreAsk, read_ask


class Providing:
    """Provides one open log to members that restore. ``read`` returns bytes of the log's segments."""

    def __init__(self, opened: OpenMember, read: Read, restoration: Restoration, mending: Mending) -> None:
        self._opened = opened
        self._member = opened.member
        self._read = read
        self._restoration = restoration
        self._mending = mending
        self._restores = self._made()

    @property
    def sessions(self) -> list[Session]:
        return self._restores.sessions

    def begin_again(self) -> None:
        """Begins again, because this node has become another incarnation (store). Earlier offers end."""
        self.close("this node is another incarnation now")
        self._restores = self._made()

    def close(self, why: str) -> None:
        self._restores.close_all(why)

    async def answer(self, ask: RestoreAsk) -> bytes:
        """Returns the offer as JSON. An offer with a state record may have 32 MiB. A large offer is made on another
        thread, so that heartbeats continue. Raises ``Halted``, ``CopyNeeded``, and the errors of ``Restores``."""
        member, role = self._member, self._opened.role
        feeders = role.replicas if role is not None else 0
        if ask.purpose == GIVE_UP:
            check_whole(self._opened, self._restoration, self._mending)
            return msgspec.json.encode(self._restores.look(feeders=feeders))
        restores = self._sound()
        if ask.purpose in (OPEN, RECORD):
            made = (restores.open if ask.purpose == OPEN else restores.record)(ask, feeders=feeders)

            def encoded() -> tuple[Offer, bytes]:
                offer = made()
                return offer, msgspec.json.encode(offer)

            offer, answer = await member.workers.offload("reads")(encoded)
            member.event(
                "restore.provides", peer=ask.sender, first=ask.from_vlsn, last=offer.dtvlsn, session=offer.session
            )
            return answer
        if ask.purpose == CLOSE:
            restores.close(ask.session)
        return msgspec.json.encode(restores.look(feeders=feeders))

    async def read(self, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
        """Answers ``GET /v1/peer/restore``: bytes of a segment, and the log's generation. Raises the errors of
        ``Restores.read``."""
        try:
            return await self._sound().read(session, number, start, end, have=have)
        except FileNotFoundError:
            raise NotFound(f"segment {number} is gone") from None
        except OSError as error:
            raise Damaged(f"segment {number} cannot be read: {error}", offset=start) from error

    def _sound(self) -> Restores:
        if self._member.state == "HALTED":
            raise Halted(f"this node is halted ({self._member.reason}): nobody restores from it")
        return self._restores

    def _made(self) -> Restores:
        member = self._member
        return Restores(
            self._opened.log,
            self._read,
            group=member.config.group,
            name=member.config.name,
            incarnation=member.incarnation,
        )


def asked_of(member: Member, body: object) -> RestoreAsk:
    """Decodes a member's request in ``POST /v1/peer/restore``. Raises ``BadBody``, ``WrongGroup``, ``WrongName``."""
    ask = read_ask(body)
    check_names(member, ask.group, ask.sender, ask.to)
    return ask


async def block_of(member: Member, asked: Mapping[str, str], term: int, first: int) -> bytes:
    """Answers ``GET /v1/peer/block``: the visible block with this term and first VLSN, verified. A term of 0 requests
    the durable block that begins at ``first``. Works also for a log that does not open because of its own damage.
    Raises ``WrongGroup``, ``WrongName``, ``NotFound``, ``Damaged``, ``Trimmed``."""
    check_names(member, asked.get("group", ""), asked.get("sender", ""), asked.get("to", ""))
    if member.log is None and member.state == "DAMAGED":
        disk, stores, directory = member.seams.disk, member.seams.stores, str(member.config.dir)
        try:
            kept: bytes = await member.workers.on_keeper(lambda: block_of_closed(disk, stores, directory, term, first))
        except OSError as error:
            raise Damaged(f"this node's damaged log cannot be read now: {error}") from error
        return kept
    block, header = await block_at(member, Vlsn(first))
    if header.first_vlsn != first or (term and header.term != term):
        raise NotFound(f"block {header.name} holds VLSN {first} here, not block ({term}, {first})")
    if not term and header.last_vlsn > member.opened().log.view.dtvlsn:
        raise NotFound(f"block {header.name} is not durable as far as this node knows")
    return block


async def block_at(member: Member, vlsn: Vlsn) -> tuple[bytes, BlockHeader]:
    """Returns the visible, synced block that contains ``vlsn``, verified. Raises ``NotFound``, ``Damaged``,
    ``Trimmed``."""
    log = member.opened().log
    first, upto = log.view.range.first, log.view.range.last_sync
    if 0 < vlsn < first:
        raise Trimmed(f"VLSN {vlsn} was cleaned away; the first is {first}", first=first)
    if not first <= vlsn <= upto:
        raise NotFound(f"VLSN {vlsn} is not in this log, {first} to {upto}")
    mapping = log.view.index.at_or_before(vlsn)
    if mapping is None:
        raise NotFound(f"the index has nothing for VLSN {vlsn}")
    start, reader = mapping[1], log.view.reader()

    def read() -> bytes:
        try:
            run = reader.blocks(vlsn, start=start, upto_vlsn=upto, bytes_max=1)
        finally:
            reader.close()
        if not run.data:
            raise NotFound(f"VLSN {vlsn} is not in this log any more")
        return run.data[0]

    block = await member.workers.offload("reads")(read)
    try:
        return block, decode(block)
    except BadBody as error:
        raise Damaged(f"the block at VLSN {vlsn} is damaged here, too: {error}", vlsn=vlsn) from error


def check_names(member: Member, group: str, sender: str, to: str) -> None:
    """Checks that the sender is a member, and that the request is for this node. Raises ``WrongGroup``,
    ``WrongName``."""
    if group != member.config.group:
        raise WrongGroup(f"this node is of group {member.config.group}, not {group[:40]}")
    if to != member.config.name or NodeName(sender) not in member.members.listed or sender == to:
        raise WrongName(f"from {sender[:40]} to {to[:40]}; this is {member.config.name}")
