"""Answers another member's hello."""

from __future__ import annotations

from typing import Any

import msgspec

from repl.group.confirming import Confirming
from repl.group.founding import FOUNDING, is_newer, parse_hex, read_question
from repl.group.hello import answer_of, group_at, log_end
from repl.group.member import Member
from repl.group.old_images import Told
from vlsn.errors import NotListed, WrongGroup, WrongName
from vlsn.ids import Incarnation, NodeName


async def answer_hello(member: Member, confirming: Confirming, body: object) -> dict[str, Any]:
    """Answers ``POST /v1/peer/hello``. The answer to a founding request waits until everything is synced. The asking
    node is remembered: only the last node that received the answer "empty" may be the first to feed this node. A new
    master sends the same request, so a node without a master then looks for it at once."""
    question = read_question(body)
    if question.group != member.config.group:
        raise WrongGroup(f"this node is of group {member.config.group}, not {question.group}")
    if question.to != member.config.name:
        raise WrongName(f"hello from {question.sender} to {question.to}; this is {member.config.name}")
    listed_at = question.group_term, question.group_vlsn
    if NodeName(question.sender) not in member.members.listed:
        if not (member.opened().log.view.history.group is not None and is_newer(listed_at, log_end(member))):
            raise NotListed(f"the group does not list {question.sender}")
        member.members.told_of_itself(NodeName(question.sender), question.url)
    member.seams.levels.check_peer(question.levels, own=member.name, peer=question.sender)
    opened = member.opened()
    if question.purpose == FOUNDING:
        if opened.role is not None:
            opened.role.called()
        await opened.drained()
        member.founder = (Incarnation(parse_hex(question.incarnation)), parse_hex(question.process))
    asker = parse_hex(question.incarnation)
    answer = answer_of(member, asker, wants_group=question.wants_group)
    if group_at(member) > listed_at:
        answer = msgspec.structs.replace(answer, members=member.members.listed)
    told = Told(question.sequence, question.term, question.told, question.told_term)
    confirming.told(NodeName(question.sender), asker, told)
    member.members.answered(NodeName(question.sender))
    member.members.keys[NodeName(question.sender)] = tuple(question.keys)
    return msgspec.structs.asdict(answer)
