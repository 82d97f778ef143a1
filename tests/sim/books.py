"""The simulation's own record of nodes' promises, and of the nodes that have received them.

A node promises its stored terms and its votes in hellos and votes, and by acknowledgements that blocks are on its disk.
A process that has received a promise has it until it ends.  An image of a disk *has forgotten* a promise if that is

    a term that was reported, above the one stored in the image
    a vote that was reported, in its term
    a block that was acknowledged in its term, by name: not the VLSN alone

The product is not asked for any of it, because this record tests the product's own rule (``repl/group/old_images.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from tests.sim.logs import Block
from vlsn.errors import BadBody
from vlsn.format.feed_messages import ACK, decode_ack
from vlsn.format.records import GroupEntry
from vlsn.state.node_file import NodeRecord

if TYPE_CHECKING:
    from tests.sim.group import SimGroup, SimNode

HELLO, VOTE = "/v1/peer/hello", "/v1/peer/vote"


@dataclass(slots=True)
class Promises:
    """The promises of one incarnation, as far as one process has received them."""

    term: int = 0
    votes: dict[int, str] = field(default_factory=dict)
    """The votes by term."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """The last blocks by the term in which they were acknowledged."""

    def acknowledged(self, term: int, block: Block | None) -> None:
        if block is not None:
            self.blocks[term] = max(block, self.blocks.get(term, block))

    def forgotten(self, record: NodeRecord, blocks: Collection[Block], *, end: tuple[int, int] = (0, 0)) -> str:
        """Lists what a disk with that node file and those blocks has forgotten; "" if nothing.  ``end`` is the term and
        VLSN of a block that a majority has, for a restored log: a missing block of an earlier term was never durable.
        """
        if self.term > record.term:
            return f"term {self.term}"
        vote = self.votes.get(record.term, "")
        if vote and (record.vote_term, record.voted_for) != (record.term, vote):
            return f"its vote for {vote} in term {record.term}"
        block = self.blocks.get(record.term)
        if block is None or block in blocks or block.last < min((each.first for each in blocks), default=0):
            return ""  # cleaned blocks are not forgotten
        if (block.term, block.last) <= (record.floor_term, record.floor_vlsn):
            return ""  # its vote floor keeps it from standing or voting for less
        if block.term < end[0]:
            return ""
        return f"{block}, acknowledged in term {record.term}"


class Books:
    def __init__(self, group: SimGroup) -> None:
        self._group = group
        self._heard: dict[tuple[str, int], dict[int, Promises]] = {}
        """Promises by name and process of the receiver, and incarnation of the promiser."""
        self._furthest: dict[int, tuple[int, int]] = {}
        """The highest end that each incarnation has ever synced, as term and VLSN."""
        self._newest: dict[str, int] = {}
        """The VLSN of the newest list in each name's log."""
        self.on_answered: Callable[[str, str], None] = lambda speaker, listener: None
        """Is called when the second node has the first's answer to its hello."""

    def of(self, listener: str, incarnation: int) -> Promises:
        node = self._group.nodes[listener]
        return self._heard.setdefault((listener, node.member.process), {}).setdefault(incarnation, Promises())

    def lists(self, listener: str, speaker: str, incarnation: int) -> bool:
        """Says whether the log of ``listener`` has that incarnation as a member."""
        groups = self._group.watch.copies[listener].groups
        named = speaker, f"{incarnation:016x}"
        return bool(groups) and any((each.name, each.incarnation) == named for each in groups[-1][1].members)

    # Delivered messages.

    def said(self, speaker: str, listener: str, path: str, body: bytes) -> None:
        """Notes an answer that has arrived.  A question proves nothing: any process may have sent it, and its receiver
        asks back (``repl/group/confirming.py``)."""
        if path not in (HELLO, VOTE) or listener not in self._group.nodes:
            return
        message: dict[str, Any] = msgspec.json.decode(body)
        incarnation = int(message["incarnation"], 16)
        if not self.lists(listener, speaker, incarnation):
            return  # unknown there
        promises = self.of(listener, incarnation)
        term = int(message["term"])
        if path == HELLO:
            self.on_answered(speaker, listener)
            promises.term = max(promises.term, term)
            self._note_block(promises, speaker, incarnation, term, message.get("told", 0))
        elif not message["pre"]:
            promises.term = max(promises.term, term)
            if message["granted"]:
                promises.votes[term] = listener

    def _note_block(self, promises: Promises, speaker: str, incarnation: int, term: int, told: Any) -> None:
        """Notes a block; ``told`` is the VLSN up to which the speaker said its log equals that term's master's."""
        if speaker not in self._group.nodes:
            return  # an answer of an ended process, or a removed machine
        record = self._group.watch.terms.record_of(speaker)
        if record is None or (record.incarnation, record.term) != (incarnation, term):
            return  # the message is late: its blocks may have been rolled back since, in a higher term
        last = told if isinstance(told, int) else int(told["vlsn"])
        promises.acknowledged(term, self._group.watch.copies[speaker].ending_at(last))

    def taken(self, speaker: str, listener: str, message: bytes) -> None:
        """Notes a message of a channel that the listening process has received."""
        if len(message) != ACK.size or speaker not in self._group.nodes or listener not in self._group.nodes:
            return
        try:
            ack = decode_ack(message)
        except BadBody:
            return
        master = self._group.nodes[listener]
        if not master.member.is_master() or master.opened().log.node_file.record.term != ack.term:
            return
        promises = self.of(listener, self._group.nodes[speaker].member.incarnation)
        promises.term = max(promises.term, ack.term)
        promises.acknowledged(ack.term, self._group.watch.copies[listener].ending_at(ack.synced))

    # Lists of members.

    def listed_so_far(self) -> int:
        """Returns the VLSN of the newest durable list, for ``all_have``."""
        return self._group.watch.groups[-1][0]

    def all_have(self, answer: dict[str, Any], since: int) -> None:
        """Checks that blocks acknowledged by all are on the disk of every electable member in each list since."""
        watch = self._group.watch
        lists = [group for at, group in watch.groups if at >= since]
        lists += [group for found in watch.ledger.groups_in.values() for at, group in found if at > since]
        required = set.intersection(
            *({(each.name, int(each.incarnation, 16)) for each in group.members if each.electable} for group in lists)
        )
        end = answer["term"], answer["last"]
        lack = sorted(name for name, incarnation in required if self._furthest.get(incarnation, (0, 0)) < end)
        watch.hold(not lack, f"VLSN {end[1]} of term {end[0]} was acknowledged by all, and {lack} have never synced it")

    def synced(self, node: SimNode) -> None:
        """Notes that the node has synced its log up to the VLSN that ``watch`` found on the medium."""
        copy = self._group.watch.copies[node.name]
        block = copy.ending_at(copy.synced)
        if block is not None:
            end = block.term, block.last
            self._furthest[node.member.incarnation] = max(end, self._furthest.get(node.member.incarnation, end))

    def taken_in(self, node: SimNode) -> None:
        """Checks a GROUP entry in the group that the node's writer has: it names the GROUP before it. From the last
        durable list on, any two majorities that may be used have a member in common."""
        watch = self._group.watch
        groups = watch.copies[node.name].groups
        if not groups or self._newest.get(node.name) == groups[-1][0]:
            return
        self._newest[node.name] = at = groups[-1][0]
        for (before, _), (vlsn, now) in pairwise(groups[-3:]):
            said = f"{node.name}: the list at VLSN {vlsn} follows on {now.previous}, before it lies {before}"
            watch.hold(now.previous == before, said)
        kept = [place for place, _ in groups if place <= watch.ledger.last]
        counted = [group for place, group in groups if place >= (kept[-1] if kept else 0)]
        apart = any(may_miss(one, other) for one, other in combinations(counted, 2))
        watch.hold(not apart, f"{node.name}: a majority of the list at VLSN {at} need not meet one of those before it")


def may_miss(one: GroupEntry, other: GroupEntry) -> bool:
    """Says whether majorities of both lists may have no member in common. ``other`` counts a name with another
    incarnation than in ``one`` only for its size."""
    first = {each.name: each.incarnation for each in one.members if each.electable}
    second = {each.name: each.incarnation for each in other.members if each.electable}
    both = {name for name in first if second.get(name) == first[name]}
    passing = {name for name in second if name in first and name not in both}
    left = len(first) // 2 + 1 - (len(first) - len(both))
    right = len(second) // 2 + 1 - (len(second) - len(both) - len(passing))
    return max(0, left) + max(0, right) <= len(both)
