"""Questions to other members over HTTP, and what this node answers to theirs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import msgspec

from repl.group import lost_group
from repl.group.founding import (
    DISCOVERY,
    FOUNDING,
    Answer,
    Purpose,
    Question,
    is_newer,
    parse_hex,
    read_answer,
    read_question,
)
from repl.group.old_images import Told
from repl.group.vote_messages import VoteReply, VoteRequest, read_reply, read_request
from repl.http.problem import error_of
from vlsn.errors import NotListed, NotMaster, Unreachable, VlsnLogError, WrongGroup, WrongName
from vlsn.format.feed_messages import Name, StoredTerm
from vlsn.format.json_messages import read_object
from vlsn.ids import NULL_VLSN, Incarnation, NodeName, Term

if TYPE_CHECKING:
    from repl.elect.electing import Electing
    from repl.node.node import Node


async def ask(node: Node, name: NodeName, url: str, purpose: Purpose) -> Answer:
    """Raises ``Unreachable``, a ``FeedRefused`` subclass, or ``BadBody``."""
    if name == node.config.name:
        return answer_of(node)
    try:
        body = await post(node, f"{url}/v1/peer/hello", question_of(node, name, purpose))
    except VlsnLogError as fault:
        node.members.answered(name, fault)
        node.members.not_at(name, url, fault)
        raise
    node.members.answered(name)
    answer = read_answer(body)
    try:
        if answer.group != node.config.group:
            raise WrongGroup(f"{url} is of group {answer.group}, not {node.config.group}")
        if answer.name != name:
            raise WrongName(f"{url} is node {answer.name}, not {name}")
        node.seams.levels.check_peer(answer.levels, own=node.name, peer=name)
    except VlsnLogError as fault:
        node.members.answered(name, fault)
        node.members.not_at(name, url, fault)
        raise
    node.members.levels[name] = answer.levels
    node.members.heard.note(
        parse_hex(answer.incarnation), Told(answer.sequence, answer.term, answer.told, answer.told_term)
    )
    if not node.members.vouches_for_itself(name):
        node.members.learn(NodeName(answer.master), answer.master_url)
        if answer.members:
            node.members.vouched_for(answer.members)
        lost_group.take(node, answer)
        if answer.state == "MASTER":
            _hear_of_holds(node, answer)
    return answer


def _hear_of_holds(node: Node, master: Answer) -> None:
    """What a master says the members still need, unless its term is over."""
    log = node.log
    if log is None or node.holds is None or node.leading is not None:
        return
    if master.term >= log.node_file.record.term:
        node.holds.hear(master.holds)


def heard_in(answer: Answer) -> Told:
    """What whoever answered has heard of who asked."""
    return Told(answer.heard_sequence, answer.heard_term, answer.heard_told, answer.heard_told_term)


async def tell_all(node: Node) -> None:
    """Every other member hears how far this node is, and tells how far it is itself."""

    async def one(name: NodeName, url: str) -> None:
        try:
            await ask(node, name, url, DISCOVERY)
        except (VlsnLogError, OSError):
            pass  # who is silent hears it another time

    await asyncio.gather(*(one(name, url) for name, url in node.members.listed.items() if name != node.name))


async def ask_vote(node: Node, request: VoteRequest) -> VoteReply:
    """Raises ``Unreachable``, a ``FeedRefused`` subclass, or ``BadBody``."""
    reply = read_reply(await post_to(node, NodeName(request.to), "/v1/peer/vote", request))
    if reply.sender != request.to or reply.pre != request.pre:
        raise WrongName(f"{reply.sender} has answered in the place of {request.to}")
    node.members.heard.note(parse_hex(reply.incarnation), Told(reply.sequence, reply.term))
    return reply


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """``POST /v1/peer/stand``: the master of ``term`` asks ``to``, which has all of its log, to take over."""

    group: Name
    sender: Name
    to: Name
    term: StoredTerm


async def ask_to_stand(node: Node, name: NodeName, term: Term) -> None:
    """Raises ``Unreachable``, a ``FeedRefused`` subclass, or what ``name`` refuses it with."""
    stand = Stand(group=node.config.group, sender=node.config.name, to=name, term=term)
    await post_to(node, name, "/v1/peer/stand", stand)


async def post_to(node: Node, name: NodeName, path: str, message: msgspec.Struct) -> bytes:
    """The body of that member's answer.  Raises as ``post``; the next try looks elsewhere, if it may be there."""
    url = node.members.urls[name]
    try:
        return await post(node, url + path, message)
    except VlsnLogError as fault:
        node.members.not_at(name, url, fault)
        raise


async def post(node: Node, url: str, message: msgspec.Struct) -> bytes:
    """The body of the answer.  Raises ``Unreachable``, or what was answered instead."""
    response = await node.network.request(
        "POST",
        url,
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode(message),
        timeout_s=node.config.connect_timeout_s,
    )
    if response.status != 200:
        raise error_of(bytes(response.body))
    return bytes(response.body)


async def get(node: Node, name: NodeName, path: str, **fields: object) -> bytes:
    """What the member ``name`` answers to a GET that says who asks whom.  Raises ``Unreachable``, or what was answered
    instead."""
    asked = {"group": node.config.group, "sender": node.config.name, "to": name, **fields}
    response = await node.network.request(
        "GET", f"{node.members.urls[name]}{path}?{urlencode(asked)}", timeout_s=node.config.connect_timeout_s
    )
    if response.status != 200:
        raise error_of(bytes(response.body))
    return bytes(response.body)


async def ask_all(node: Node, purpose: Purpose, names: Iterable[NodeName]) -> dict[NodeName, Answer]:
    """The answers that came; a silent or refusing member is missing."""
    urls = node.members.urls

    async def one(name: NodeName) -> tuple[NodeName, Answer | None]:
        try:
            return name, await ask(node, name, urls[name], purpose)
        except (VlsnLogError, OSError) as error:
            node.event("peer.silent", peer=name, why=str(error))
            return name, None

    answers = await asyncio.gather(*(one(name) for name in names))
    return {name: answer for name, answer in answers if answer is not None}


def question_of(node: Node, to: str, purpose: Purpose) -> Question:
    told = node.members.told()
    group_term, group_vlsn = group_at(node)
    return Question(
        group=node.config.group,
        sender=node.config.name,
        to=to,
        incarnation=f"{node.incarnation:016x}",
        process=f"{node.process:016x}",
        purpose=purpose,
        term=told.term,
        sequence=told.sequence,
        told=told.vlsn,
        told_term=told.block_term,
        wants_group=node.log is not None and lost_group.is_lost(node.log),
        levels=node.seams.levels,
        url=node.config.url,
        group_term=group_term,
        group_vlsn=group_vlsn,
    )


def group_at(node: Node) -> tuple[int, int]:
    """Term and VLSN of the newest GROUP entry in this log; 0, 0 for none."""
    history = node.opened().history
    at = history.group_vlsn if history.group is not None else NULL_VLSN
    return (history.term_of(at), at) if at else (0, 0)


def log_end(node: Node) -> tuple[int, int]:
    """Term and VLSN of the end of this log, synced."""
    log = node.opened()
    return log.history.term_of(log.range.last_sync), log.range.last_sync


def answer_of(node: Node, asker: int = 0, *, wants_group: bool = False) -> Answer:
    """What ``node`` says of itself, and of the incarnation ``asker``; only synced blocks are spoken of."""
    told, heard = node.members.told(), node.members.heard_of(asker)
    log = node.opened()
    record = log.node_file.record
    span = log.range
    hands_term, hands_to = node.electing.announced if node.electing is not None else (0, "")
    return Answer(
        group=node.config.group,
        name=node.config.name,
        levels=node.seams.levels,
        incarnation=f"{record.incarnation:016x}",
        process=f"{node.process:016x}",
        term=record.term,
        empty=not log.allocated,
        last_term=log.history.term_of(span.last_sync),
        last=span.last_sync,
        floor_term=record.floor_term,
        floor_vlsn=record.floor_vlsn,
        state=node.state,
        no_space=log.refusal is not None,
        clock_us=node.seams.clock.wall_us(),
        sequence=told.sequence,
        told=told.vlsn,
        told_term=told.block_term,
        master=node.master_name() or "",
        master_url=node.master_url() or "",
        heard_sequence=heard.sequence,
        heard_term=heard.term,
        heard_told=heard.vlsn,
        heard_told_term=heard.block_term,
        known_group=lost_group.known_group(log) if wants_group else None,
        holds=node.holds.told() if node.lead is not None and node.holds is not None else None,
        hands_to=hands_to,
        hands_term=hands_term,
    )


async def answer_hello(node: Node, body: object) -> dict[str, Any]:
    """``POST /v1/peer/hello``.  A founding question is answered once all is synced, and remembered: whoever was
    told that this node is empty is the one that its first feed may come from.  A new master asks it, too: whoever
    looks for one looks at once."""
    question = read_question(body)
    if question.group != node.config.group:
        raise WrongGroup(f"this node is of group {node.config.group}, not {question.group}")
    if question.to != node.config.name:
        raise WrongName(f"hello from {question.sender} to {question.to}; this is {node.config.name}")
    listed_at = question.group_term, question.group_vlsn
    if NodeName(question.sender) not in node.members.listed:
        if not (node.opened().history.group is not None and is_newer(listed_at, log_end(node))):
            raise NotListed(f"the group does not list {question.sender}")
        node.members.told_of_itself(NodeName(question.sender), question.url)
    node.seams.levels.check_peer(question.levels, own=node.name, peer=question.sender)
    node.opened()
    if question.purpose == FOUNDING:
        if node.following is not None:
            node.following.called()
        await node.drained()
        node.founder = (Incarnation(parse_hex(question.incarnation)), parse_hex(question.process))
    asker = parse_hex(question.incarnation)
    answer = answer_of(node, asker, wants_group=question.wants_group)
    if group_at(node) > listed_at:
        answer = msgspec.structs.replace(answer, members=node.members.listed)
    told = Told(question.sequence, question.term, question.told, question.told_term)
    node.confirming.told(NodeName(question.sender), asker, told)
    node.members.answered(NodeName(question.sender))
    return msgspec.structs.asdict(answer)


async def answer_vote(node: Node, body: object) -> dict[str, Any]:
    """``POST /v1/peer/vote``."""
    request = read_request(body)
    election = _election_for(node, request)
    reply = await election.asked(request)
    told = Told(request.sequence, 0 if request.pre else request.term)
    node.confirming.told(NodeName(request.sender), parse_hex(request.incarnation), told)
    return msgspec.structs.asdict(reply)


async def answer_stand(node: Node, body: object) -> dict[str, Any]:
    """``POST /v1/peer/stand``.  Raises ``StaleTerm`` when that term is not the stored one."""
    stand = read_object(body, Stand, "stand")
    if node.stopping:
        raise NotMaster("this node is stopping: it does not stand")
    await _election_for(node, stand).stand(NodeName(stand.sender), Term(stand.term))
    return {"node": node.config.name, "stands": True}


def _election_for(node: Node, message: VoteRequest | Stand) -> Electing:
    if message.group != node.config.group:
        raise WrongGroup(f"this node is of group {node.config.group}, not {message.group}")
    if message.to != node.config.name or message.sender == node.config.name:
        raise WrongName(f"{message.sender} asks {message.to}; this is {node.config.name}")
    node.opened()
    if node.electing is None:
        raise NotMaster("the node is still opening its log; try again soon")
    return node.electing


__all__ = ["Unreachable", "ask", "ask_all", "ask_to_stand", "ask_vote", "post"]
