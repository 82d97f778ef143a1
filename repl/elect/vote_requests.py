"""Answers candidates, and a master that asks this node to stand. Requests are checked, passed to the rules, and
answered.

``election`` decides whether a vote is granted, and ``electing`` stores the vote before the answer is sent. The argument
``electing`` is a function that returns the elections of the open log, or raises.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from repl.elect.electing import Electing
from repl.group.confirming import Confirming
from repl.group.founding import parse_hex
from repl.group.member import Member
from repl.group.old_images import Told
from repl.group.vote_messages import Stand, VoteRequest, read_request
from vlsn.errors import NotMaster, VlsnLogError, WrongGroup, WrongName
from vlsn.format.json_messages import read_object
from vlsn.ids import NodeName, Term


async def answer_vote(
    member: Member, electing: Callable[[], Electing], confirming: Confirming, body: object
) -> dict[str, Any]:
    """Answers ``POST /v1/peer/vote``."""
    request = read_request(body)
    election = _election_for(member, electing, request)
    reply = await election.asked(request)
    told = Told(request.sequence, 0 if request.pre else request.term)
    confirming.told(NodeName(request.sender), parse_hex(request.incarnation), told)
    return msgspec.structs.asdict(reply)


async def answer_stand(member: Member, electing: Callable[[], Electing], body: object) -> dict[str, Any]:
    """Answers ``POST /v1/peer/stand``. Raises ``StaleTerm`` if the term in the request is not the stored term."""
    stand = read_object(body, Stand, "stand")
    _check_stays(member)
    try:
        await _election_for(member, electing, stand).stand(NodeName(stand.sender), Term(stand.term))
    except VlsnLogError:
        _check_stays(member)  # it began to stop meanwhile, and that is the reason
        raise
    return {"node": member.config.name, "stands": True}


def _check_stays(member: Member) -> None:
    if member.stopping:
        raise NotMaster("this node is stopping: it does not stand")


def _election_for(member: Member, electing: Callable[[], Electing], message: VoteRequest | Stand) -> Electing:
    if message.group != member.config.group:
        raise WrongGroup(f"this node is of group {member.config.group}, not {message.group}")
    if message.to != member.config.name or message.sender == member.config.name:
        raise WrongName(f"{message.sender} asks {message.to}; this is {member.config.name}")
    return electing()
