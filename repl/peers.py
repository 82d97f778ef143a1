"""Questions to other members over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from repl.founding import Answer, Purpose, read_answer
from repl.http.problem import error_of
from vlsn.errors import Unreachable, VlsnLogError, WrongGroup, WrongName
from vlsn.ids import NodeName

if TYPE_CHECKING:
    from repl.node import Node


async def ask(node: Node, name: NodeName, url: str, purpose: Purpose) -> Answer:
    """Raises ``Unreachable``, a ``FeedRefused`` subclass, or ``BadBody``."""
    if name == node.config.name:
        return node.answer()
    response = await node.network.request(
        "POST",
        f"{url}/v1/peer/hello",
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode(node.question(name, purpose)),
        timeout_s=node.config.connect_timeout_s,
    )
    if response.status != 200:
        raise error_of(bytes(response.body))
    answer = read_answer(bytes(response.body))
    if answer.group != node.config.group:
        raise WrongGroup(f"{url} is of group {answer.group}, not {node.config.group}")
    if answer.name != name:
        raise WrongName(f"{url} is node {answer.name}, not {name}")
    return answer


async def ask_all(node: Node, purpose: Purpose, names: Iterable[NodeName]) -> dict[NodeName, Answer]:
    """The answers that came; a silent or refusing member is missing."""
    members = node.config.members

    async def one(name: NodeName) -> tuple[NodeName, Answer | None]:
        try:
            return name, await ask(node, name, members[name], purpose)
        except (VlsnLogError, OSError) as error:
            node.event("peer.silent", peer=name, why=str(error))
            return name, None

    answers = await asyncio.gather(*(one(name) for name in names))
    return {name: answer for name, answer in answers if answer is not None}


__all__ = ["Unreachable", "ask", "ask_all"]
