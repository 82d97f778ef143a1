"""Questions to other members over HTTP, and what this node answers to theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from repl.founding import FOUNDING, Answer, Purpose, Question, parse_hex, read_answer, read_question
from repl.http.problem import error_of
from vlsn.errors import Unreachable, VlsnLogError, WrongGroup, WrongName
from vlsn.ids import Incarnation, NodeName

if TYPE_CHECKING:
    from repl.node import Node


async def ask(node: Node, name: NodeName, url: str, purpose: Purpose) -> Answer:
    """Raises ``Unreachable``, a ``FeedRefused`` subclass, or ``BadBody``."""
    if name == node.config.name:
        return answer_of(node)
    response = await node.network.request(
        "POST",
        f"{url}/v1/peer/hello",
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode(question_of(node, name, purpose)),
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


def question_of(node: Node, to: str, purpose: Purpose) -> Question:
    return Question(
        group=node.config.group,
        sender=node.config.name,
        to=to,
        incarnation=f"{node.incarnation:016x}",
        process=f"{node.process:016x}",
        purpose=purpose,
        term=node.opened().node_file.record.term,
    )


def answer_of(node: Node) -> Answer:
    """What ``node`` says of itself; only synced blocks are spoken of."""
    log = node.opened()
    record = log.node_file.record
    span = log.range
    return Answer(
        group=node.config.group,
        name=node.config.name,
        incarnation=f"{record.incarnation:016x}",
        process=f"{node.process:016x}",
        term=record.term,
        empty=not log.allocated,
        last_term=log.history.term_of(span.last_sync),
        last=span.last_sync,
        floor_term=record.floor_term,
        floor_vlsn=record.floor_vlsn,
        state=node.state,
        clock_us=node.seams.clock.wall_us(),
    )


async def answer_hello(node: Node, body: object) -> dict[str, Any]:
    """``POST /v1/peer/hello``.  A founding question is answered once all is synced, and remembered: whoever was
    told that this node is empty is the one that its first feed may come from."""
    question = read_question(body)
    if question.group != node.config.group:
        raise WrongGroup(f"this node is of group {node.config.group}, not {question.group}")
    if question.to != node.config.name or NodeName(question.sender) not in node.config.members:
        raise WrongName(f"hello from {question.sender} to {question.to}; this is {node.config.name}")
    node.opened()
    if question.purpose == FOUNDING:
        await node.drained()
        node.founder = (Incarnation(parse_hex(question.incarnation)), parse_hex(question.process))
    answer = answer_of(node)
    return {field: getattr(answer, field) for field in answer.__struct_fields__}


__all__ = ["Unreachable", "ask", "ask_all"]
