"""Requests to other members over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from urllib.parse import urlencode

import msgspec

from repl.events import expected_if
from repl.group import lost_group
from repl.group.founding import ALARMS_MAX, DISCOVERY, Answer, Purpose, parse_hex, read_answer
from repl.group.hello import answer_of, question_of
from repl.group.member import Member
from repl.group.members import AWAITED_S
from repl.group.old_images import Told
from repl.group.vote_messages import Stand, VoteReply, VoteRequest, read_reply
from repl.web.problem import error_of
from vlsn.errors import NotListed, Unreachable, VlsnLogError, WrongGroup, WrongName
from vlsn.ids import NodeName, Term

TELL_S = 5.0
"""Members exchange reports of their promises once in this many seconds (``old_images``)."""


async def ask(member: Member, name: NodeName, url: str, purpose: Purpose) -> Answer:
    """Sends a hello to a member. Raises ``Unreachable``, a ``FeedRefused`` subclass, or ``BadBody``."""
    if name == member.config.name:
        return answer_of(member)
    try:
        body = await post(member, name, f"{url}/v1/peer/hello", question_of(member, name, purpose))
    except VlsnLogError as fault:
        member.members.alarms.pop(name, None)
        member.members.answered(name, fault)
        member.members.not_at(name, url, fault)
        if isinstance(fault, NotListed):
            member.members.unlisted_by[name] = str(fault)
        raise
    member.members.answered(name)
    member.members.unlisted_by.pop(name, None)
    answer = read_answer(body)
    try:
        if answer.group != member.config.group:
            raise WrongGroup(f"{url} is of group {answer.group}, not {member.config.group}")
        if answer.name != name:
            raise WrongName(f"{url} is node {answer.name}, not {name}")
        member.seams.levels.check_peer(answer.levels, own=member.name, peer=name)
    except VlsnLogError as fault:
        member.members.answered(name, fault)
        member.members.not_at(name, url, fault)
        raise
    answer = member.members.vetted(name, answer)
    member.members.levels[name] = answer.levels
    member.members.keys[name] = tuple(answer.keys)
    member.members.alarms[name] = answer.alarms[:ALARMS_MAX]
    member.members.heard.note(
        parse_hex(answer.incarnation), Told(answer.sequence, answer.term, answer.told, answer.told_term)
    )
    if not member.members.vouches_for_itself(name):
        member.members.learn(NodeName(answer.master), answer.master_url)
        if answer.members:
            member.members.vouched_for(answer.members)
        lost_group.take(member, answer)
        if answer.state == "MASTER":
            _hear_of_holds(member, answer)
    return answer


def _hear_of_holds(member: Member, master: Answer) -> None:
    """Adopts the positions from which members still need the log, unless the term of the answering master is over."""
    opened = member.open
    if opened is None or (opened.role is not None and opened.role.leads):
        return
    if master.term >= opened.log.node_file.record.term:
        opened.holds.hear(master.holds)


def heard_in(answer: Answer) -> Told:
    """Returns the newest report of this node that the answering node has."""
    return Told(answer.heard_sequence, answer.heard_term, answer.heard_told, answer.heard_told_term)


async def tell(member: Member) -> None:
    """Exchanges reports periodically, without end. Reports must be recent, because an old report reveals no old
    image."""
    silent_at: dict[NodeName, float] = {}
    while True:
        await asyncio.sleep(TELL_S)
        if member.recognised:
            await _tell_all(member, silent_at)


async def _tell_all(member: Member, silent_at: dict[NodeName, float]) -> None:
    """Reports this node's position to every other member, and receives theirs. ``silent_at`` keeps the time since
    which each silent member has not answered."""

    async def one(name: NodeName, url: str) -> None:
        try:
            await ask(member, name, url, DISCOVERY)
            silent_at.pop(name, None)
        except (VlsnLogError, OSError) as error:  # a silent member receives the report later
            now = member.seams.clock.monotonic_s()
            if not isinstance(error, Unreachable):
                silent_at.pop(name, None)
            elif now - silent_at.setdefault(name, now) >= AWAITED_S:
                member.event("peer.silent", peer=name, why=str(error))

    await asyncio.gather(*(one(name, url) for name, url in member.members.listed.items() if name != member.name))


async def ask_vote(member: Member, request: VoteRequest) -> VoteReply:
    """Requests a vote. Raises ``Unreachable``, a ``FeedRefused`` subclass, or ``BadBody``."""
    reply = read_reply(await post_to(member, NodeName(request.to), "/v1/peer/vote", request))
    if reply.sender != request.to or reply.pre != request.pre:
        raise WrongName(f"{reply.sender} has answered in the place of {request.to}")
    member.members.heard.note(parse_hex(reply.incarnation), Told(reply.sequence, reply.term))
    return reply


async def ask_to_stand(member: Member, name: NodeName, term: Term) -> None:
    """Asks ``name`` to stand for election. Raises ``Unreachable``, a ``FeedRefused`` subclass, or the refusal of
    ``name``."""
    stand = Stand(group=member.config.group, sender=member.config.name, to=name, term=term)
    await post_to(member, name, "/v1/peer/stand", stand)


async def post_to(member: Member, name: NodeName, path: str, message: msgspec.Struct) -> bytes:
    """Posts to the member ``name``, and returns the body of the answer. Raises as ``post``. If the member was not
    found, the next call uses another of its URLs."""
    url = member.members.urls[name]
    try:
        return await post(member, name, url + path, message)
    except VlsnLogError as fault:
        member.members.not_at(name, url, fault)
        raise


async def post(member: Member, name: NodeName, url: str, message: msgspec.Struct) -> bytes:
    """Posts a message, and returns the body of the answer. Raises ``Unreachable``, or the error that was answered."""
    response = await member.calls.request(
        name,
        "POST",
        url,
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode(message),
        timeout_s=member.config.connect_timeout_s,
    )
    if response.status != 200:
        raise error_of(bytes(response.body))
    return bytes(response.body)


async def get(member: Member, name: NodeName, path: str, **fields: object) -> bytes:
    """Sends a GET to the member ``name``, with the names of both nodes. Raises ``Unreachable``, or the error that was
    answered."""
    asked = {"group": member.config.group, "sender": member.config.name, "to": name, **fields}
    url = f"{member.members.urls[name]}{path}?{urlencode(asked)}"
    response = await member.calls.request(name, "GET", url, timeout_s=member.config.connect_timeout_s)
    if response.status != 200:
        raise error_of(bytes(response.body))
    return bytes(response.body)


async def ask_all(member: Member, purpose: Purpose, names: Iterable[NodeName]) -> dict[NodeName, Answer]:
    """Asks several members. Members that are silent or refuse are left out."""
    urls = member.members.urls

    async def one(name: NodeName) -> tuple[NodeName, Answer | None]:
        try:
            return name, await ask(member, name, urls[name], purpose)
        except (VlsnLogError, OSError) as error:
            member.event("peer.silent", peer=name, why=str(error), **expected_if(member.is_expected(name, error)))
            return name, None

    answers = await asyncio.gather(*(one(name) for name in names))
    return {name: answer for name, answer in answers if answer is not None}


__all__ = ["Unreachable", "ask", "ask_all", "ask_to_stand", "ask_vote", "post"]
