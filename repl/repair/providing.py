"""What this node gives to a restoring peer: answers to its questions, and bytes of segments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from feeder.restore import Restores
from repl.repair.spared_copies import check_whole
from vlsn.errors import BadBody, Damaged, Halted, NotFound, Trimmed, WrongGroup, WrongName
from vlsn.format.block import BlockHeader, decode
from vlsn.ids import NodeName, Vlsn
from vlsn.repair.closed_block import block_of_closed
from vlsn.repair.restore_messages import CLOSE, GIVE_UP, OPEN, RECORD, Offer, read_ask

if TYPE_CHECKING:
    from repl.node.node import Node


def make_restores(node: Node) -> Restores:
    """For the log that has just been opened."""
    assert node.files is not None
    return Restores(
        node.opened(), node.files.read, group=node.config.group, name=node.config.name, incarnation=node.incarnation
    )


async def answer_ask(node: Node, body: object) -> bytes:
    """``POST /v1/peer/restore``: the offer, in JSON.  With a state record, which may take 32 MiB, it is made off the
    loop: heartbeats go on meanwhile.  Raises ``BadBody``, ``WrongGroup``, ``WrongName``, ``Halted``, and as
    ``Restores`` does."""
    ask = read_ask(body)
    check_names(node, ask.group, ask.sender, ask.to)
    feeders = len(node.leading.feeders) if node.leading is not None else 0
    if ask.purpose == GIVE_UP:
        check_whole(node)
        assert node.restores is not None
        return msgspec.json.encode(node.restores.look(feeders=feeders))
    restores = _restores(node)
    if ask.purpose in (OPEN, RECORD):
        made = (restores.open if ask.purpose == OPEN else restores.record)(ask, feeders=feeders)

        def encoded() -> tuple[Offer, bytes]:
            offer = made()
            return offer, msgspec.json.encode(offer)

        offer, answer = await node.offload("reads")(encoded)
        node.event("restore.provides", peer=ask.sender, first=ask.from_vlsn, last=offer.dtvlsn, session=offer.session)
        return answer
    if ask.purpose == CLOSE:
        restores.close(ask.session)
    return msgspec.json.encode(restores.look(feeders=feeders))


async def read_range(node: Node, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
    """``GET /v1/peer/restore``: bytes of a segment, and the generation.  Raises as ``Restores.read`` does."""
    try:
        return await _restores(node).read(session, number, start, end, have=have)
    except FileNotFoundError:
        raise NotFound(f"segment {number} is gone") from None
    except OSError as error:
        raise Damaged(f"segment {number} cannot be read: {error}", offset=start) from error


async def block_of(node: Node, asked: Mapping[str, str], term: int, first: int) -> bytes:
    """``GET /v1/peer/block``: the visible block of that name, verified, as it lies in this log; with a term of 0 the
    one that begins at ``first``, if it is durable.  Also of a log that does not open for its own damage.  Raises
    ``WrongGroup``, ``WrongName``, ``NotFound``, ``Damaged``, ``Trimmed``."""
    check_names(node, asked.get("group", ""), asked.get("sender", ""), asked.get("to", ""))
    if node.log is None and node.state == "DAMAGED":
        disk, stores, directory = node.seams.disk, node.seams.stores, str(node.config.dir)
        kept: bytes = await node.on_keeper(lambda: block_of_closed(disk, stores, directory, term, first))
        return kept
    block, header = await block_at(node, Vlsn(first))
    if header.first_vlsn != first or (term and header.term != term):
        raise NotFound(f"block {header.name} holds VLSN {first} here, not block ({term}, {first})")
    if not term and header.last_vlsn > node.opened().dtvlsn:
        raise NotFound(f"block {header.name} is not durable as far as this node knows")
    return block


async def block_at(node: Node, vlsn: Vlsn) -> tuple[bytes, BlockHeader]:
    """The visible, synced block that holds ``vlsn``, verified.  Raises ``NotFound``, ``Damaged``, ``Trimmed``."""
    log = node.opened()
    first, upto = log.range.first, log.range.last_sync
    if 0 < vlsn < first:
        raise Trimmed(f"VLSN {vlsn} was cleaned away; the first is {first}", first=first)
    if not first <= vlsn <= upto:
        raise NotFound(f"VLSN {vlsn} is not in this log, {first} to {upto}")
    mapping = log.index.at_or_before(vlsn)
    if mapping is None:
        raise NotFound(f"the index has nothing for VLSN {vlsn}")
    start, reader = mapping[1], log.reader()

    def read() -> bytes:
        try:
            run = reader.blocks(vlsn, start=start, upto_vlsn=upto, bytes_max=1)
        finally:
            reader.close()
        if not run.data:
            raise NotFound(f"VLSN {vlsn} is not in this log any more")
        return run.data[0]

    block = await node.offload("reads")(read)
    try:
        return block, decode(block)
    except BadBody as error:
        raise Damaged(f"the block at VLSN {vlsn} is damaged here, too: {error}", vlsn=vlsn) from error


def check_names(node: Node, group: str, sender: str, to: str) -> None:
    """That a member asks, and asks this node.  Raises ``WrongGroup``, ``WrongName``."""
    if group != node.config.group:
        raise WrongGroup(f"this node is of group {node.config.group}, not {group[:40]}")
    if to != node.config.name or NodeName(sender) not in node.members.listed or sender == to:
        raise WrongName(f"from {sender[:40]} to {to[:40]}; this is {node.config.name}")


def _restores(node: Node) -> Restores:
    node.opened()
    if node.state == "HALTED":
        raise Halted(f"this node is halted ({node.reason}): nobody restores from it")
    assert node.restores is not None
    return node.restores
