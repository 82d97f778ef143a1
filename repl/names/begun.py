"""Records in the group which CDC consumers have begun on which node. A node reports a begin to the master, which logs
it.

    POST /v1/peer/cdc  {"group", "sender", "to", "consumer", "file", "replace"}  ─►  {"sender", "file"}

The answer has the number of the position file that the group has recorded for ``consumer`` on ``sender``. The recorded
number is durable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from repl.api import Puts
from repl.group.member import Member
from repl.group.peers import Unreachable, post_to
from repl.names.commits import CommitLead, commit_alone
from vlsn.errors import NotMaster, OutcomeUnknown, ProducersMissing, WrongGroup, WrongName
from vlsn.format.feed_messages import Name
from vlsn.format.json_messages import read_json, read_object
from vlsn.ids import NodeName
from vlsn.state.cdc_consumers import begun_file, begun_key, begun_value

TIMEOUT_S = 4.0
"""The master has this many seconds to make the number durable; otherwise it answers with an error."""
FileNumber = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """The begin of a consumer on a node: the number of its position file."""

    group: Name
    sender: Name
    to: Name
    consumer: Name
    file: FileNumber
    replace: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The number of the position file that the group has recorded."""

    sender: Name
    file: FileNumber


class NodeBegun:
    """The group's record of begins (``repl.cdc.position_stores.Begun``). ``leads`` returns the master's term, or raises
    ``NotMaster``."""

    def __init__(self, member: Member, leads: Callable[[], CommitLead]) -> None:
        self.member = member
        self._leads = leads

    async def begin(self, consumer: str, file: int, *, replace: bool) -> int:
        member = self.member
        master = member.master_name()
        if master is None:
            raise NotMaster("no master is known yet; it must record that this consumer begins on this node")
        question = Question(
            group=self.member.config.group,
            sender=self.member.name,
            to=master,
            consumer=consumer,
            file=f"{file:016x}",
            replace=replace,
        )
        if member.is_master():
            return await self._begun(self._leads(), question)
        try:
            body = await post_to(member, master, "/v1/peer/cdc", question)
        except (Unreachable, OSError) as error:
            raise NotMaster(
                f"{master}, which must record that this consumer begins here, does not answer: {error}"
            ) from None
        answer = read_json(body, Answer, "no answer to the begin of a consumer")
        if answer.sender != master:
            raise WrongName(f"{answer.sender} has answered in the place of {master}")
        return int(answer.file, 16)

    async def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers ``POST /v1/peer/cdc``. Raises ``NotMaster``, ``FeedRefused``, ``BadBody``."""
        question = read_object(body, Question, "the begin of a consumer")
        if question.group != self.member.config.group:
            raise WrongGroup(f"this node is of group {self.member.config.group}, not {question.group}")
        if question.to != self.member.name or NodeName(question.sender) not in self.member.members.urls:
            raise WrongName(f"{question.sender} asks {question.to}; this is {self.member.name}")
        return {"sender": self.member.name, "file": f"{await self._begun(self._leads(), question):016x}"}

    async def _begun(self, lead: CommitLead, question: Question) -> int:
        """Logs the number unless the group has recorded a number already. Returns the recorded number, which is
        durable."""
        deadline = asyncio.get_running_loop().time() + TIMEOUT_S
        small, key, file = (
            lead.log.view.history.small,
            begun_key(question.sender, question.consumer),
            int(question.file, 16),
        )
        if small.lacks_to:
            raise ProducersMissing(f"this node has lost the small state up to VLSN {small.lacks_to}; ask again")
        kept = small.get(key)
        known = begun_file(kept)
        if known == file or (known and not question.replace):
            assert kept is not None
            await lead.read_index()  # a deposed master may not have a number that its successor has logged
            if not await lead.reads.reached(kept.vlsn, deadline):
                raise OutcomeUnknown(
                    f"the begin of {question.consumer} is logged at VLSN {kept.vlsn}, and not durable yet"
                )
            return known
        expects = {key: int(kept.vlsn) if kept is not None else 0}
        await commit_alone(lead, Puts({key: begun_value(file)}, expects), deadline)
        return file
