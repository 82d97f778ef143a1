"""What this node gives to a restoring peer: answers to its questions, and bytes of segments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from feeder.restore import Restores
from vlsn.errors import Damaged, Halted, NotFound, WrongGroup, WrongName
from vlsn.ids import NodeName
from vlsn.offer import CLOSE, OPEN, document, read_ask

if TYPE_CHECKING:
    from repl.node import Node


def make_restores(node: Node) -> Restores:
    """For the log that has just been opened."""
    assert node.files is not None
    return Restores(
        node.opened(), node.files.read, group=node.config.group, name=node.config.name, incarnation=node.incarnation
    )


def answer_ask(node: Node, body: object) -> dict[str, Any]:
    """``POST /v1/peer/restore``.  Raises ``BadBody``, ``WrongGroup``, ``WrongName``, ``Halted``, and as ``Restores``
    does."""
    ask = read_ask(body)
    if ask.group != node.config.group:
        raise WrongGroup(f"this node is of group {node.config.group}, not {ask.group}")
    if ask.to != node.config.name or NodeName(ask.sender) not in node.config.members or ask.sender == ask.to:
        raise WrongName(f"restore: from {ask.sender} to {ask.to}; this is {node.config.name}")
    restores = _restores(node)
    feeders = len(getattr(node.role, "feeders", ()))
    if ask.purpose == OPEN:
        offer = restores.open(ask, feeders=feeders)
        node.event("restore.provides", peer=ask.sender, first=ask.from_vlsn, last=offer.dtvlsn, session=offer.session)
        return document(offer)
    if ask.purpose == CLOSE:
        restores.close(ask.session)
    return document(restores.look(feeders=feeders))


async def read_range(node: Node, session: str, number: int, start: int, end: int, have: int) -> tuple[bytes, int]:
    """``GET /v1/peer/restore``: bytes of a segment, and the generation.  Raises as ``Restores.read`` does."""
    try:
        return await _restores(node).read(session, number, start, end, have=have)
    except FileNotFoundError:
        raise NotFound(f"segment {number} is gone") from None
    except OSError as error:
        raise Damaged(f"segment {number} cannot be read: {error}", offset=start) from error


def _restores(node: Node) -> Restores:
    node.opened()
    if node.state == "HALTED":
        raise Halted(f"this node is halted ({node.reason}): nobody restores from it")
    assert node.restores is not None
    return node.restores
