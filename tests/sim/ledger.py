"""Everything that was ever called durable, and the media that had it then.

* one content for each (term, first VLSN)
* a durable block is on the media of a majority of the members that the log lists
* a master makes entries durable only through its own term (Raft §5.4.2)
* equal prefixes up to the common DTVLSN, since there is one list of durable blocks
* a value is in the log once
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.logs import Block
from vlsn.format.block import Entry, EntryKind, decode_header, entries
from vlsn.format.columns import TXNS
from vlsn.format.records import GroupEntry

if TYPE_CHECKING:
    from tests.sim.copies import Copy
    from tests.sim.group import SimNode
    from tests.sim.watch import Watch

DATA = frozenset((int(EntryKind.DATA),))
GROUPS = frozenset((int(EntryKind.GROUP),))


class Ledger:
    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.durable: dict[int, Block] = {}
        """Blocks that some node ever called durable, by first VLSN."""
        self.last = 0
        self.last_in: dict[int, Block] = {}
        """The last block that became durable in each term."""
        self.made_in: dict[int, int] = {}
        """The term of the first master that called the block durable, by first VLSN."""
        self.values: dict[int, bytes] = {}
        """The values of DATA entries by VLSN."""
        self.entries: dict[int, Entry] = {}
        self.vlsns: list[int] = []
        """The VLSNs of DATA entries."""
        self.places: dict[bytes, int] = {}
        self.groups: list[tuple[int, GroupEntry]] = []
        """Durable GROUP entries, by VLSN."""
        self.groups_in: dict[tuple[int, int], list[tuple[int, GroupEntry]]] = {}
        """The GROUP entries in a block, by its term and first VLSN."""
        self.holders: dict[tuple[int, int], set[tuple[str, int]]] = {}
        """Name and incarnation of each node that has synced a block, by the block's name."""
        self.first_of = ""
        """The first node that called a block durable, in its present term as master."""
        self._contents: dict[tuple[int, int], int] = {}
        self._bytes: dict[tuple[int, int], bytes] = {}

    # Blocks, before they are durable.

    def note(self, name: str, block: Block, content: bytes) -> None:
        """Notes that the node has handed the block to its writer."""
        self.one_content(name, block)
        key = (block.term, block.first)
        if self._bytes.setdefault(key, content) is content and key not in self.groups_in:
            found = entries(content, decode_header(content), kinds=GROUPS)
            if groups := [(int(entry.vlsn), GroupEntry.decode(entry.value)) for entry in found]:
                self.groups_in[key] = groups

    def one_content(self, name: str, block: Block) -> None:
        if self._contents.setdefault((block.term, block.first), block.check) != block.check:
            raise self._watch.violated(f"{name}: two contents of {block}")

    def one_content_as_noted(self, name: str, block: Block) -> None:
        """Notes a block that was read, and perhaps never written by a node of this simulation."""
        if (block.term, block.first) in self._contents:
            self.one_content(name, block)

    def has_synced(self, block: Block, who: tuple[str, int]) -> None:
        self.holders.setdefault((block.term, block.first), set()).add(who)

    def has_it_no_more(self, block: Block, name: str) -> None:
        holders = self.holders.get((block.term, block.first), set())
        holders.difference_update([who for who in holders if who[0] == name])

    def has_nothing_more(self, name: str) -> None:
        for holders in self.holders.values():
            holders.difference_update([who for who in holders if who[0] == name])

    # Durable.

    def rose(self, node: SimNode, copy: Copy, dtvlsn: int) -> None:
        """Notes that the node calls everything up to ``dtvlsn`` durable."""
        upto = min(dtvlsn, copy.last)
        if upto <= copy.checked:
            return
        index = copy.at(copy.checked + 1)
        while index < len(copy.blocks) and copy.blocks[index].last <= upto:
            block = copy.blocks[index]
            if block.first > self.last:
                self._becomes_durable(node, copy, block)
            before = self.durable.get(block.first)
            if before != block:
                raise self._watch.violated(f"{node.name} calls {block} durable; {before} was")
            copy.checked = block.last
            index += 1
        self._watch.transactions.agree(node, copy.checked)

    def _becomes_durable(self, node: SimNode, copy: Copy, block: Block) -> None:
        name, watch = node.name, self._watch
        if block.first != self.last + 1:
            raise watch.violated(f"{name} calls {block} durable; what was durable ends at {self.last}")
        key = (block.term, block.first)
        who, size = self.who_counts(copy)
        holders = self.holders.pop(key, set()) & who
        if len(holders) <= size // 2:
            said = f"only {sorted(holders)} of {size}, {sorted(who)}, have synced it"
            raise watch.violated(f"{name} calls {block} durable; {said}")
        self._through_its_term(node, block)
        watch.group.happened_first(name, "durable" if self.first_of == name else "first durable")
        self.first_of = name
        self.durable[block.first] = block
        assert node.log is not None
        term = node.log.node_file.record.term
        self.last_in[term], self.made_in[block.first] = block, term
        self.last = block.last
        self.groups += self.groups_in.get(key, [])
        data = self._bytes.pop(key)
        header = decode_header(data)
        if header.flags & TXNS:
            watch.transactions.durable(data, header)
        if watch.destinations.on:
            watch.destinations.durable(data, header)
        for entry in entries(data, header, kinds=DATA):
            self.values[entry.vlsn], self.entries[entry.vlsn] = entry.value, entry
            self.vlsns.append(entry.vlsn)
            if (entry.key or b"").startswith(b"dead-"):
                continue  # two letters of one retried message are equal: its destination counts them
            before = self.places.setdefault(entry.value, entry.vlsn)
            if before != entry.vlsn:
                raise watch.violated(
                    f"doubled: {entry.value[:20]!r} is in the log at VLSN {before} and at {entry.vlsn}"
                )

    def _through_its_term(self, node: SimNode, block: Block) -> None:
        log = node.log
        assert log is not None
        term = log.node_file.record.term
        leads = self._watch.terms.masters.get(term) == (node.name, node.member.incarnation, node.member.process)
        if leads and log.view.history.term_of(log.view.dtvlsn) < term:
            raise self._watch.violated(f"{node.name} calls {block} durable by copies alone; it leads term {term}")

    def who_counts(self, copy: Copy) -> tuple[set[tuple[str, int]], int]:
        """Returns names and incarnations of the members that may make a block durable by that log, and of how many they
        must be more than half. A name counts for neither incarnation until its passing is durable."""
        at, newest = copy.groups[-1]
        listed = {member.name: member.incarnation for member in newest.members if member.electable}
        who = {(name, int(incarnation, 16)) for name, incarnation in listed.items()}
        if at > self.last and len(copy.groups) > 1:
            before = {member.name: member.incarnation for member in copy.groups[-2][1].members}
            who = {each for each in who if before.get(each[0], listed[each[0]]) == listed[each[0]]}
        return who, len(listed)
