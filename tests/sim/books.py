"""What nodes have promised, and who has heard of it: the simulation's own books, by what the network has delivered.

A node promises its stored terms and its votes in hellos and votes, and by acknowledgements that blocks are on its disk.
Whoever has heard of a promise knows it for the life of its process.  An image of a disk *has forgotten* what

    a term that was told of, above the one stored in it
    a vote that was told of, in its term
    a block that was acknowledged in its term, by name: not the VLSN alone

none of which is asked of the product: its own rule (``repl/images.py``) is what these books judge.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tests.sim.logs import Block
from vlsn.errors import BadBody
from vlsn.nodefile import NodeRecord
from vlsn.stream import ACK, decode_ack

if TYPE_CHECKING:
    from tests.sim.group import SimGroup

HELLO, VOTE = "/v1/peer/hello", "/v1/peer/vote"


@dataclass(slots=True)
class Promises:
    """Of one incarnation, as far as one process has heard of them."""

    term: int = 0
    votes: dict[int, str] = field(default_factory=dict)
    """By term."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """By the term in which it was acknowledged: the last one."""

    def acknowledged(self, term: int, block: Block | None) -> None:
        if block is not None:
            self.blocks[term] = max(block, self.blocks.get(term, block))

    def forgotten(self, record: NodeRecord, blocks: Collection[Block]) -> str:
        """What a disk with that node file and those blocks has forgotten; "" for nothing."""
        if self.term > record.term:
            return f"term {self.term}"
        vote = self.votes.get(record.term, "")
        if vote and (record.vote_term, record.voted_for) != (record.term, vote):
            return f"its vote for {vote} in term {record.term}"
        block = self.blocks.get(record.term)
        if block is None or block in blocks or block.last < min((each.first for each in blocks), default=0):
            return ""  # of what was cleaned away nothing is forgotten
        return f"{block}, acknowledged in term {record.term}"


class Books:
    def __init__(self, group: SimGroup) -> None:
        self._group = group
        self._heard: dict[tuple[str, int], dict[int, Promises]] = {}
        """By name and process of who has heard, and incarnation of who has promised."""

    def of(self, listener: str, incarnation: int) -> Promises:
        node = self._group.nodes[listener]
        return self._heard.setdefault((listener, node.process), {}).setdefault(incarnation, Promises())

    def lists(self, listener: str, speaker: str, incarnation: int) -> bool:
        """Whether the log of ``listener`` has that one as a member."""
        groups = self._group.watch.copies[listener].groups
        named = speaker, f"{incarnation:016x}"
        return bool(groups) and any((each.name, each.incarnation) == named for each in groups[-1][1].members)

    # What was delivered.

    def said(self, speaker: str, listener: str, path: str, body: bytes) -> None:
        """An answer has arrived, at whom it was that asked.  A question proves nothing: anybody may have sent it, and
        who hears it asks back (``repl/confirming.py``)."""
        if path not in (HELLO, VOTE) or listener not in self._group.nodes:
            return
        message: dict[str, Any] = msgspec.json.decode(body)
        incarnation = int(message["incarnation"], 16)
        if not self.lists(listener, speaker, incarnation):
            return  # nobody who is known there
        promises = self.of(listener, incarnation)
        term = int(message["term"])
        if path == HELLO:
            promises.term = max(promises.term, term)
            self._note_block(promises, speaker, incarnation, term, message.get("told", 0))
        elif not message["pre"]:
            promises.term = max(promises.term, term)
            if message["granted"]:
                promises.votes[term] = listener

    def _note_block(self, promises: Promises, speaker: str, incarnation: int, term: int, told: Any) -> None:
        """``told``: it has said up to where its log is the one of that term's master."""
        if speaker not in self._group.nodes:
            return  # an answer of a process, or a machine, that is no more
        record = self._group.watch.terms.record_of(speaker)
        if record is None or (record.incarnation, record.term) != (incarnation, term):
            return  # the message is late: what it told of may have been rolled back since, in a higher term
        last = told if isinstance(told, int) else int(told["vlsn"])
        promises.acknowledged(term, self._group.watch.copies[speaker].ending_at(last))

    def taken(self, speaker: str, listener: str, message: bytes) -> None:
        """A message of a channel has been taken by who listens."""
        if len(message) != ACK.size or speaker not in self._group.nodes or listener not in self._group.nodes:
            return
        try:
            ack = decode_ack(message)
        except BadBody:
            return
        master = self._group.nodes[listener]
        if not master.is_master() or master.opened().node_file.record.term != ack.term:
            return
        promises = self.of(listener, self._group.nodes[speaker].incarnation)
        promises.term = max(promises.term, ack.term)
        promises.acknowledged(ack.term, self._group.watch.copies[listener].ending_at(ack.synced))
