"""Answers the other members' calls, ``/v1/peer/…``: hellos, votes, and read indexes."""

from __future__ import annotations

from typing import Any

from repl.elect.electing import Electing
from repl.elect.vote_requests import answer_stand, answer_vote
from repl.group import founding
from repl.group.confirming import Confirming
from repl.group.founding import Question as Hello
from repl.group.hello_answers import answer_hello
from repl.group.member import Member
from repl.group.vote_messages import Stand, VoteReply, VoteRequest
from repl.names import begun
from repl.names.begun import NodeBegun
from repl.read import read_index
from repl.read.read_index import ReadIndex
from repl.web.calls import FLAG, JSON, MEMBERS, NAMED, TEXT, Call, ok, record

_PEER = "/v1/peer/"
_STANDS = record({"node": TEXT, "stands": FLAG})
CALLS = (
    Call("members", "POST", _PEER + "hello", "Meet a member", (), (ok(founding.Answer),), MEMBERS, {JSON: Hello}),
    Call("members", "POST", _PEER + "vote", "Vote", (), (ok(VoteReply),), MEMBERS, {JSON: VoteRequest}),
    Call("members", "POST", _PEER + "stand", "Take over", (), (ok(_STANDS),), MEMBERS, {JSON: Stand}),
    Call(
        "members",
        "POST",
        _PEER + "read_index",
        "Confirm the durable end",
        (),
        (ok(read_index.Answer),),
        MEMBERS,
        {JSON: read_index.Question},
    ),
    Call(
        "members",
        "POST",
        _PEER + "cdc",
        "Note that a CDC consumer begins",
        (),
        (ok(begun.Answer),),
        MEMBERS | NAMED,
        {JSON: begun.Question},
    ),
)


class NodePeers:
    """Answers the other members' calls in JSON."""

    def __init__(self, member: Member, confirming: Confirming, begun: NodeBegun) -> None:
        self.member = member
        self._confirming = confirming
        self._begun = begun

    async def hello(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/hello``, by which members found the group and find each other. Raises
        ``FeedRefused``, ``BadBody``."""
        return await answer_hello(self.member, self._confirming, body)

    async def vote(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/vote``. The term and the vote in the answer are synced. Raises ``FeedRefused``,
        ``BadBody``, and ``NotMaster`` while the log is not open."""
        return await answer_vote(self.member, self._electing, self._confirming, body)

    async def stand(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/stand``, by which the master asks this node to take over. Raises the same errors as
        ``vote``, and ``StaleTerm``."""
        return await answer_stand(self.member, self._electing, body)

    async def read_index(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/read_index``. Raises ``NotMaster``, ``FeedRefused``, ``BadBody``."""
        return await self.member.opened().part(ReadIndex).answer(body)

    async def begun(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/cdc``, by which a node says that a CDC consumer begins on it. Raises ``NotMaster``,
        ``FeedRefused``, ``BadBody``, and the errors of an append."""
        return await self._begun.answer(body)

    def _electing(self) -> Electing:
        return self.member.opened().part(Electing)
