"""The log of each machine as its node had to write it: received, synced, rolled back.

VLSNs contiguous, one content for each (term, first VLSN)      at each block handed to a writer
blocks that a node calls synced are on its medium              at each sync
nothing durable is rolled back; if so, its copy is not needed  at each rollback
a DTVLSN never falls within a process                          whenever it rises
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.sim.logs import Block, Medium, block_of
from vlsn.format.records import GroupEntry
from vlsn.ids import Vlsn

if TYPE_CHECKING:
    from tests.sim.group import SimNode
    from tests.sim.watch import Watch


@dataclass(slots=True)
class Copy:
    """The log of one machine, as far as its node had to write it."""

    blocks: list[Block] = field(default_factory=list)
    unsynced: list[tuple[Block, bytes]] = field(default_factory=list)
    synced: int = 0
    """The last VLSN that was found on the medium."""
    groups: list[tuple[int, GroupEntry]] = field(default_factory=list)
    """GROUP entries, each with its VLSN."""
    checked: int = 0
    """The VLSN up to which it was compared with the durable log."""
    process: int = 0
    dtvlsn: int = 0
    replaced: bool = False
    """True if a wipe or a restore has replaced the log since."""
    given_up_after: int | None = None
    """The matchpoint of a rollback under way: no majority includes this node's blocks after it.  A later durable end
    after it is reached without this node, which continues its rollback, after a restart too."""

    @property
    def last(self) -> int:
        return self.blocks[-1].last if self.blocks else 0

    def at(self, vlsn: int) -> int:
        """Returns the index of the first block that ends at or after ``vlsn``."""
        return bisect_left(self.blocks, vlsn, key=lambda block: block.last)

    def ending_at(self, vlsn: int) -> Block | None:
        index = self.at(vlsn)
        return self.blocks[index] if index < len(self.blocks) and self.blocks[index].last == vlsn else None


class Writing:
    """Follows the writers of all nodes."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._media: dict[str, Medium] = {}
        self.rolled_back = 0

    def look_at(self, name: str) -> None:
        self._media[name] = Medium(self._watch.group.machines[name].disk, f"/{name}")

    def handed_over(self, node: SimNode) -> None:
        """Notes that the writer has another group, also of a log that is closing."""
        log, name, watch = node.log, node.name, self._watch
        assert log is not None
        group = log.cycle.group
        if group is None or not group.firsts:
            return
        copy, first = watch.copies[name], group.firsts[0]
        self._finish_rollback(name, upto=first - 1)
        self.rollback_refused(node)  # its caller did not wait for its end
        ring = log.view.ring
        position = ring.position_of(Vlsn(first))
        if position is None or (copy.blocks and first != copy.last + 1):
            raise watch.violated(f"{name}: a block begins at VLSN {first}, behind {copy.last}")
        for data in ring.take(position, end=ring.end, bytes_max=1 << 30):
            content = bytes(data)
            block = block_of(content)
            if copy.blocks and block.first != copy.last + 1:
                raise watch.violated(f"{name}: {block} follows on {copy.last}")
            watch.ledger.note(name, block, content)
            copy.groups += watch.ledger.groups_in.get((block.term, block.first), [])
            copy.blocks.append(block)
            copy.unsynced.append((block, content))

    def synced(self, node: SimNode, last: int) -> None:
        name, watch, copy = node.name, self._watch, self._watch.copies[node.name]
        medium = self._media[name]
        left = []
        for block, data in copy.unsynced:
            if block.last > last:
                left.append((block, data))
                continue
            if not medium.holds(data, watch.flips):
                raise watch.violated(f"{name}: {block} is told to be synced, and is not on its medium")
            if copy.given_up_after is None or block.last <= copy.given_up_after:
                watch.ledger.has_synced(block, (name, node.member.incarnation))
            copy.synced = block.last
        copy.unsynced = left

    def has_synced(self, node: SimNode) -> None:
        """Notes that all of its log is synced, for its present incarnation."""
        copy, ledger = self._watch.copies[node.name], self._watch.ledger
        for block in copy.blocks[copy.at(ledger.last + 1) : copy.at(copy.synced + 1)]:
            ledger.has_synced(block, (node.name, node.member.incarnation))

    def durable_rose(self, node: SimNode) -> None:
        log = node.log
        if log is None:
            return
        name, copy, dtvlsn = node.name, self._watch.copies[node.name], log.view.dtvlsn
        if dtvlsn < copy.dtvlsn:
            raise self._watch.violated(f"{name}: the DTVLSN fell from {copy.dtvlsn} to {dtvlsn}")
        copy.dtvlsn = dtvlsn
        self._finish_rollback(name, upto=log.view.allocated)
        self._watch.ledger.rose(node, copy, dtvlsn)

    # Rollbacks.

    def rollback_begins(self, node: SimNode, matchpoint: int) -> None:
        """Checks that nothing durable is rolled back; these blocks make nothing durable from here on, either.

        A node whose stored term is below the one in which a block became durable was not needed for that: it may follow
        a master of a lower term and roll its copy back, as in Raft.
        """
        name, copy, ledger = node.name, self._watch.copies[node.name], self._watch.ledger
        term = node.opened().log.node_file.record.term
        self._finish_rollback(name, upto=node.opened().log.view.allocated)  # one whose caller did not wait for its end
        for block in copy.blocks[copy.at(matchpoint + 1) :]:
            said = f"{name}: {block} was durable, and is rolled back"
            self._watch.hold(ledger.durable.get(block.first) != block or term < ledger.made_in[block.first], said)
            ledger.has_it_no_more(block, name)
        copy.given_up_after = matchpoint

    def rollback_refused(self, node: SimNode) -> None:
        """Checks that the node still has all its blocks, unless some of them are gone."""
        copy, log = self._watch.copies[node.name], node.log
        assert log is not None
        if copy.given_up_after is not None and log.view.allocated >= copy.last:
            copy.given_up_after = None
            self.has_synced(node)

    def rollback_ended(self, node: SimNode) -> None:
        self._finish_rollback(node.name, upto=node.opened().log.view.allocated)

    def _finish_rollback(self, name: str, *, upto: int) -> None:
        """Notes that the log ends at ``upto``, without the abandoned blocks.  Others may have made some of them
        durable, without this node."""
        copy = self._watch.copies[name]
        if copy.given_up_after is not None and upto <= copy.given_up_after:
            self._truncate(name, copy, copy.given_up_after)
            copy.given_up_after = None

    def _truncate(self, name: str, copy: Copy, last: int) -> None:
        self.rolled_back += 1
        del copy.blocks[copy.at(last + 1) :]
        copy.groups = [(vlsn, group) for vlsn, group in copy.groups if vlsn <= last]
        copy.unsynced = [(block, data) for block, data in copy.unsynced if block.last <= last]
        copy.synced = min(copy.synced, last)
        self._watch.hold(copy.checked <= last, f"{name}: rolled back to {last}, it had called {copy.checked} durable")
