"""Leaders and votes by term, compared with the media of the voters.

* one master in a term, with everything that was durable in lower terms (Raft §5.4.3)
* a majority of the members that its log lists has voted for it in that term
* one vote for each (incarnation, term), on the medium before it is sent; stored terms never fall
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vlsn.errors import BadBody
from vlsn.state.node_file import SLOT_BYTES, NodeRecord

if TYPE_CHECKING:
    from tests.sim.group import SimNode
    from tests.sim.watch import Watch


def newest_record(data: bytes) -> NodeRecord | None:
    """Reads the newest of a node file's slots; None if both are unreadable."""
    found = []
    for at in (0, SLOT_BYTES):
        try:
            found.append(NodeRecord.decode(data[at : at + SLOT_BYTES]))
        except BadBody:
            continue
    return max(found, key=lambda record: record.sequence, default=None)


class Terms:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.masters: dict[int, tuple[str, int, int]] = {}
        """Name, incarnation and process of the elected master, by term."""
        self.forgetful: dict[str, int] = {}
        """Nodes with older disks, and the incarnations as which they may not promise anything."""
        self._votes: dict[tuple[int, int], str] = {}
        self._stored: dict[int, int] = {}

    def elected(self, node: SimNode, term: int) -> None:
        watch = self._watch
        who = (node.name, node.member.incarnation, node.member.process)
        before = self.masters.setdefault(term, who)
        watch.hold(before == who, f"two masters of term {term}: {before[0]} and {node.name}")
        self._has_votes(node, term)
        before_it = [block for lead, block in watch.ledger.last_in.items() if lead < term]
        if before_it:
            copy, block = watch.copies[node.name], max(before_it)
            index = copy.at(block.last)
            has = copy.blocks[index] if index < len(copy.blocks) else None
            said = f"{node.name} leads term {term} without what was durable before: {block}; it has {has}"
            watch.hold(has == block, said)

    def _has_votes(self, node: SimNode, term: int) -> None:
        who, size = self._watch.ledger.who_counts(self._watch.copies[node.name])
        votes = sorted(name for name, incarnation in who if self._votes.get((incarnation, term)) == node.name)
        said = f"{node.name} leads term {term}, in which only {votes} of {size} have voted for it"
        self._watch.hold(len(votes) > size // 2, said)

    def node_file(self, name: str) -> None:
        """Notes that the node file of that machine was synced."""
        record = self.record_of(name)
        if record is None:
            return
        before = self._stored.get(record.incarnation, 0)
        fell = record.term < before and record.incarnation != self.forgetful.get(name)
        self._watch.hold(not fell, f"{name}: its stored term fell from {before} to {record.term}")
        self._stored[record.incarnation] = max(before, record.term)
        if record.voted_for:
            self._vote(name, record.incarnation, record.vote_term, record.voted_for)

    def voted(self, node: SimNode, term: int, candidate: str, end: tuple[int, int]) -> None:
        """Checks a vote that is about to be sent, for a log with that last term and last VLSN."""
        log = node.opened().log
        taken = (log.view.history.term_of(log.view.allocated), log.view.allocated)
        said = f"{node.name} votes for {candidate}, whose log ends at {end}, and has itself taken up to {taken}"
        self._watch.hold(end >= taken, said)
        self._vote(node.name, node.member.incarnation, term, candidate)
        record = self.record_of(node.name)
        durable = record is not None and (record.vote_term, record.voted_for) == (term, candidate)
        said = f"{node.name} tells a vote for {candidate} in term {term} that its medium does not hold"
        self._watch.hold(durable, said)

    def _vote(self, name: str, incarnation: int, term: int, candidate: str) -> None:
        before = self._votes.setdefault((incarnation, term), candidate)
        self._watch.hold(before == candidate, f"{name} votes in term {term} for {before} and for {candidate}")

    def record_of(self, name: str) -> NodeRecord | None:
        """Reads the node file's record on the medium."""
        data = bytes(self._watch.group.machines[name].disk.on_medium(f"/{name}/node.id") or b"")
        return newest_record(data)
