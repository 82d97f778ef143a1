"""What must hold at every step of a simulated group, held against what its nodes do and what their disks hold.

The nodes of a simulation (``group.SimNode``) tell it what happens in them; it reads their disks itself:

    one master in a term                                 at each election
    a majority of those whom it lists has voted for      the same
        it in that term, a name that passes to another
        counting for neither
    a master has what was durable in lower terms         the same (Raft §5.4.3)
    a vote is for a log at or past all that the voter    at each vote told (Raft §5.4.1)
        has taken, synced or on its way to the disk
    one vote for each (incarnation, term), on the        at each sync of a node file, at each vote told
        medium before it is told; terms never fall
    one content for each (term, first VLSN)              at each block handed to a writer
    VLSNs contiguous                                     the same
    what a node says is synced is on its medium          at each sync
    what is durable is on the media of a majority of     whenever a DTVLSN rises
        the incarnations that the log lists, and of
        both lists while a name passes to another
    a master makes nothing durable but through its term  the same (Raft §5.4.2)
    equal prefixes up to the common DTVLSN               the same: there is one list of what is durable
    a DTVLSN never falls within a process                the same
    nothing durable is rolled back, or gone after        at each rollback, at each open
        a restart
    what had been synced is not cut away                 at each open
    index and term runs say what the log says, and       the same
        fit it
    a value is in the log once                           at each block that becomes durable
    no node whose disk is sound is DAMAGED or HALTED     at each change of a state
    nobody is answered that a node has met its own bug   at each answer

The first violation is kept; whoever runs the simulation asks for it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tests.sim.logs import Block, Medium, block_of, said_synced, visible
from vlsn.block import EntryKind, decode_header, entries
from vlsn.errors import BadBody
from vlsn.ids import Vlsn
from vlsn.nodefile import SLOT_BYTES, NodeRecord
from vlsn.records import GroupEntry

if TYPE_CHECKING:
    from tests.sim.group import SimGroup, SimNode

DATA = frozenset((int(EntryKind.DATA),))
GROUPS = frozenset((int(EntryKind.GROUP),))
UNFIT = "the VLSN index"
"""How a note of an open begins that finds the index unfit; one on a sound disk always fits its log."""
SAMPLE = 7
"""Of the blocks of a log that was opened, every so manieth is looked up in its index."""


class Violation(AssertionError):
    """Something that must hold does not."""


def newest_record(data: bytes) -> NodeRecord | None:
    """Of a node file's slots; None where neither can be read."""
    found = []
    for at in (0, SLOT_BYTES):
        try:
            found.append(NodeRecord.decode(data[at : at + SLOT_BYTES]))
        except BadBody:
            continue
    return max(found, key=lambda record: record.sequence, default=None)


@dataclass(slots=True)
class Copy:
    """The log of one machine, as far as its node was told to write it."""

    blocks: list[Block] = field(default_factory=list)
    unsynced: list[tuple[Block, bytes]] = field(default_factory=list)
    synced: int = 0
    """The last VLSN that was found on the medium."""
    groups: list[tuple[int, GroupEntry]] = field(default_factory=list)
    """Who is a member, by the VLSN from which on."""
    checked: int = 0
    """Up to where it was compared with what is durable."""
    process: int = 0
    dtvlsn: int = 0
    replaced: bool = False
    """A wipe or a restore has made another log of it since."""
    given_up_after: int | None = None
    """The matchpoint of a rollback under way: this node holds nothing past it for anybody.  Whoever calls that durable
    later does so without this node, which goes on with its rollback, after a restart too."""

    @property
    def last(self) -> int:
        return self.blocks[-1].last if self.blocks else 0

    def at(self, vlsn: int) -> int:
        """The index of the first block that ends at or after ``vlsn``."""
        return bisect_left(self.blocks, vlsn, key=lambda block: block.last)

    def ending_at(self, vlsn: int) -> Block | None:
        index = self.at(vlsn)
        return self.blocks[index] if index < len(self.blocks) and self.blocks[index].last == vlsn else None


class Watch:
    def __init__(self, group: SimGroup, say: Callable[[str], None]) -> None:
        self.violation: Violation | None = None
        self.group = group
        self.masters: dict[int, tuple[str, int, int]] = {}
        """By term: name, incarnation and process of who was elected."""
        self.leads: list[str] = []
        self.durable: dict[int, Block] = {}
        """By first VLSN: what some node ever called durable."""
        self.durable_last = 0
        self.values: dict[int, bytes] = {}
        """By VLSN: the DATA entries of it."""
        self.places: dict[bytes, int] = {}
        self.groups: list[tuple[int, GroupEntry]] = []
        """Durable, by VLSN."""
        self._media: dict[str, Medium] = {}
        self.copies: dict[str, Copy] = {}
        self.flips: dict[str, dict[int, int]] = {}
        """By path and offset: what each byte was before rot struck it."""
        self.rotten: set[str] = set()
        """Whose disks may rot."""
        self.rolled_back = 0
        self.restored = 0
        self._say = say
        self._durable_in: dict[int, Block] = {}
        """The last block that became durable in each term."""
        self._first_of = ""
        """Who called a block durable as the first, in its present lead."""
        self._contents: dict[tuple[int, int], int] = {}
        self._bytes: dict[tuple[int, int], bytes] = {}
        self._groups_in: dict[tuple[int, int], list[tuple[int, GroupEntry]]] = {}
        """By term and first VLSN of a block: the GROUP entries in it."""
        self._holders: dict[tuple[int, int], set[tuple[str, int]]] = {}
        """Name and incarnation of who has synced it."""
        self._votes: dict[tuple[int, int], str] = {}
        self._terms: dict[int, int] = {}
        self._forgetful: dict[str, int] = {}
        """Who came back older, as which incarnation: it may not promise anything as that one any more."""

    def look_at(self, name: str) -> None:
        """There is a machine of that name, or another disk in it."""
        self._media[name] = Medium(self.group.machines[name].disk, f"/{name}")
        self.copies.setdefault(name, Copy())

    def hold(self, holds: bool, said: str) -> None:
        """Keeps the violation, and ends what was about to be done."""
        if holds:
            return
        raise self.violated(said)

    def violated(self, said: str) -> Violation:
        """To be raised; at what happens with every block, where the words would cost more than the look."""
        violation = Violation(said)
        if self.violation is None:
            self.violation = violation
            self._say(f"VIOLATION: {said}")
        return violation

    def met_a_bug(self, name: str, path: str, answer: bytes) -> None:
        """A node has answered with a fault of its own, not of its disk."""
        if b'"a fault of the node (' in answer:
            self.violated(f"{name} answers {path} with {answer.decode()}")

    # Elections.

    def elected(self, node: SimNode, term: int) -> None:
        who = (node.name, node.incarnation, node.process)
        before = self.masters.setdefault(term, who)
        self.hold(before == who, f"two masters of term {term}: {before[0]} and {node.name}")
        self._has_votes(node, term)
        before_it = [block for lead, block in self._durable_in.items() if lead < term]
        if before_it:
            copy, block = self.copies[node.name], max(before_it)
            index = copy.at(block.last)
            has = copy.blocks[index] if index < len(copy.blocks) else None
            said = f"{node.name} leads term {term} without what was durable before: {block}; it has {has}"
            self.hold(has == block, said)

    def _has_votes(self, node: SimNode, term: int) -> None:
        who, size = self._who_counts(self.copies[node.name])
        votes = sorted(name for name, incarnation in who if self._votes.get((incarnation, term)) == node.name)
        said = f"{node.name} leads term {term}, in which only {votes} of {size} have voted for it"
        self.hold(len(votes) > size // 2, said)

    def node_file(self, name: str) -> None:
        """The node file of that machine was synced."""
        record = self.record_of(name)
        if record is None:
            return
        before = self._terms.get(record.incarnation, 0)
        fell = record.term < before and record.incarnation != self._forgetful.get(name)
        self.hold(not fell, f"{name}: its stored term fell from {before} to {record.term}")
        self._terms[record.incarnation] = max(before, record.term)
        if record.voted_for:
            self._vote(name, record.incarnation, record.vote_term, record.voted_for)

    def voted(self, node: SimNode, term: int, candidate: str, end: tuple[int, int]) -> None:
        """A vote is about to be told, for a log with that last term and last VLSN."""
        log = node.opened()
        taken = (log.history.term_of(log.allocated), log.allocated)
        said = f"{node.name} votes for {candidate}, whose log ends at {end}, and has itself taken up to {taken}"
        self.hold(end >= taken, said)
        self._vote(node.name, node.incarnation, term, candidate)
        record = self.record_of(node.name)
        durable = record is not None and (record.vote_term, record.voted_for) == (term, candidate)
        self.hold(durable, f"{node.name} tells a vote for {candidate} in term {term} that its medium does not hold")

    def _vote(self, name: str, incarnation: int, term: int, candidate: str) -> None:
        before = self._votes.setdefault((incarnation, term), candidate)
        self.hold(before == candidate, f"{name} votes in term {term} for {before} and for {candidate}")

    def record_of(self, name: str) -> NodeRecord | None:
        """What the medium alone holds of the node file."""
        data = bytes(self.group.machines[name].disk.on_medium(f"/{name}/node.id") or b"")
        return newest_record(data)

    # The log of a node.

    def opened(self, node: SimNode) -> None:
        name, log = node.name, node.opened()
        before = self.copies[name]
        found = visible(self.group.machines[name].disk, f"/{name}", self.flips)
        found = self._not_cut(name, found, log.range.last)
        blocks = [block for block, _ in found if block.first >= log.range.first]
        copy = self.copies[name] = Copy(blocks, synced=blocks[-1].last if blocks else 0, process=node.process)
        copy.dtvlsn = before.dtvlsn if before.process == node.process and not before.replaced else 0
        for one, other in pairwise(blocks):
            if other.first != one.last + 1:
                raise self.violated(f"{name}: {other} follows on {one} after an open")
        self._index(node, found)
        copy.groups = [(vlsn, group) for vlsn, group in self.groups if vlsn < log.range.first]
        for block in blocks:
            copy.groups += self._groups_in.get((block.term, block.first), [])
        self._has_synced(node)
        for block in blocks[copy.at(self.durable_last + 1) :]:
            if (block.term, block.first) in self._contents:
                self._one_content(name, block)
        if not before.replaced:
            self._kept(name, before, copy, log.range.first)
        self.durable_rose(node)

    def _has_synced(self, node: SimNode) -> None:
        """All of its log that is not durable yet, as the incarnation that it is."""
        copy = self.copies[node.name]
        for block in copy.blocks[copy.at(self.durable_last + 1) : copy.at(copy.synced + 1)]:
            self._holders.setdefault((block.term, block.first), set()).add((node.name, node.incarnation))

    def _not_cut(self, name: str, found: list[tuple[Block, int]], last: int) -> list[tuple[Block, int]]:
        """What rot has made unreadable at the end of a log may be cut, with a vote floor, but only where nothing says
        that it had been synced."""
        missing = [lsn for block, lsn in found if block.last > last]
        if name not in self.rotten or not missing:
            return found
        damaged = said_synced(self.group.machines[name].disk, f"/{name}", missing[0], self.flips)
        self.hold(not damaged, f"{name}: its log is cut at {missing[0]:#x}, where it had been synced and is damaged")
        self.copies[name].replaced = True
        return found[: -len(missing)]

    def _index(self, node: SimNode, found: list[tuple[Block, int]]) -> None:
        log, name = node.opened(), node.name
        places = {block.first: lsn for block, lsn in found}
        lasts = {block.last: lsn for block, lsn in found}
        last = found[-1][0].last if found else 0
        self.hold(log.range.last == last, f"{name}: the index ends at {log.range.last}, the log at {last}")
        runs = log.history.term_runs
        ends = runs[-1].last if runs else 0
        self.hold(ends == last, f"{name}: its term runs end at {ends}, the log at {last}")
        first = log.range.first
        for block, lsn in [*found[:1], *found[::SAMPLE], *found[-2:]]:
            if block.first < first:
                continue
            if log.history.term_of(Vlsn(block.last)) != block.term:
                raise self.violated(f"{name}: {block}, and the term runs {runs}")
            mapping = log.index.at_or_before(Vlsn(block.first))
            at, there = mapping or (block.last + 1, 0)
            if at > block.first or there not in (places.get(at), lasts.get(at)):
                raise self.violated(f"{name}: the index has {mapping} for {block} at {lsn:#x}")

    def _kept(self, name: str, before: Copy, now: Copy, first: int) -> None:
        """What was synced here before the restart and is durable is still here."""
        held = set(now.blocks)
        kept_to = before.synced if before.given_up_after is None else min(before.synced, before.given_up_after)
        for block in before.blocks[before.at(max(first, 1)) : before.at(kept_to + 1)]:
            if block.first >= first and self.durable.get(block.first) == block and block not in held:
                raise self.violated(f"{name}: {block}, durable and synced here, is gone after an open")

    def handed_over(self, node: SimNode) -> None:
        """Another group is with the writer."""
        log, name = node.opened(), node.name
        group = log.cycle.group
        if group is None or not group.firsts:
            return
        copy, first = self.copies[name], group.firsts[0]
        self._finish_rollback(name, upto=first - 1)
        self.rollback_refused(node)  # of one whose caller did not wait for its end
        ring = log.ring
        position = ring.position_of(Vlsn(first))
        if position is None or (copy.blocks and first != copy.last + 1):
            raise self.violated(f"{name}: a block begins at VLSN {first}, behind {copy.last}")
        for data in ring.take(position, end=ring.end, bytes_max=1 << 30):
            content = bytes(data)
            block = block_of(content)
            if copy.blocks and block.first != copy.last + 1:
                raise self.violated(f"{name}: {block} follows on {copy.last}")
            self._one_content(name, block)
            self._note_groups(block, content)
            copy.groups += self._groups_in.get((block.term, block.first), [])
            copy.blocks.append(block)
            copy.unsynced.append((block, content))

    def _note_groups(self, block: Block, content: bytes) -> None:
        key = (block.term, block.first)
        if self._bytes.setdefault(key, content) is content and key not in self._groups_in:
            found = entries(content, decode_header(content), kinds=GROUPS)
            if groups := [(int(entry.vlsn), GroupEntry.decode(entry.value)) for entry in found]:
                self._groups_in[key] = groups

    def _one_content(self, name: str, block: Block) -> None:
        if self._contents.setdefault((block.term, block.first), block.check) != block.check:
            raise self.violated(f"{name}: two contents of {block}")

    def rollback_begins(self, node: SimNode, matchpoint: int) -> None:
        """Nothing durable may go; from here on what goes makes nothing durable either."""
        name, copy = node.name, self.copies[node.name]
        self._finish_rollback(name, upto=node.opened().allocated)  # one whose caller did not wait for its end
        for block in copy.blocks[copy.at(matchpoint + 1) :]:
            self.hold(self.durable.get(block.first) != block, f"{name}: {block} was durable, and is rolled back")
            holders = self._holders.get((block.term, block.first), set())
            holders.difference_update([who for who in holders if who[0] == name])
        copy.given_up_after = matchpoint

    def rollback_refused(self, node: SimNode) -> None:
        """It holds all that it held, unless something of that has gone."""
        copy = self.copies[node.name]
        if copy.given_up_after is not None and node.opened().allocated >= copy.last:
            copy.given_up_after = None
            self._has_synced(node)

    def rollback_ended(self, node: SimNode) -> None:
        self._finish_rollback(node.name, upto=node.opened().allocated)

    def _finish_rollback(self, name: str, *, upto: int) -> None:
        """The log ends at ``upto``: what was given up is gone.  Others may have made some of that durable meanwhile,
        without this node."""
        copy = self.copies[name]
        if copy.given_up_after is not None and upto <= copy.given_up_after:
            self._truncate(name, copy, copy.given_up_after)
            copy.given_up_after = None

    def _truncate(self, name: str, copy: Copy, last: int) -> None:
        self.rolled_back += 1
        del copy.blocks[copy.at(last + 1) :]
        copy.groups = [(vlsn, group) for vlsn, group in copy.groups if vlsn <= last]
        copy.unsynced = [(block, data) for block, data in copy.unsynced if block.last <= last]
        copy.synced = min(copy.synced, last)
        self.hold(copy.checked <= last, f"{name}: rolled back to {last}, it had called {copy.checked} durable")

    def synced(self, node: SimNode, last: int) -> None:
        name, copy = node.name, self.copies[node.name]
        medium = self._media[name]
        left = []
        for block, data in copy.unsynced:
            if block.last > last:
                left.append((block, data))
                continue
            if not medium.holds(data, self.flips):
                raise self.violated(f"{name}: {block} is told to be synced, and is not on its medium")
            if copy.given_up_after is None or block.last <= copy.given_up_after:
                self._holders.setdefault((block.term, block.first), set()).add((name, node.incarnation))
            copy.synced = block.last
        copy.unsynced = left

    def durable_rose(self, node: SimNode) -> None:
        log = node.log
        if log is None:
            return
        name, copy, dtvlsn = node.name, self.copies[node.name], log.dtvlsn
        if dtvlsn < copy.dtvlsn:
            raise self.violated(f"{name}: the DTVLSN fell from {copy.dtvlsn} to {dtvlsn}")
        copy.dtvlsn = dtvlsn
        self._finish_rollback(name, upto=log.allocated)
        upto = min(dtvlsn, copy.last)
        if upto <= copy.checked:
            return
        index = copy.at(copy.checked + 1)
        while index < len(copy.blocks) and copy.blocks[index].last <= upto:
            block = copy.blocks[index]
            if block.first > self.durable_last:
                self._becomes_durable(name, block)
            before = self.durable.get(block.first)
            if before != block:
                raise self.violated(f"{name} calls {block} durable; {before} was")
            copy.checked = block.last
            index += 1

    def _becomes_durable(self, name: str, block: Block) -> None:
        if block.first != self.durable_last + 1:
            raise self.violated(f"{name} calls {block} durable; what was durable ends at {self.durable_last}")
        key = (block.term, block.first)
        who, size = self._who_counts(self.copies[name])
        holders = self._holders.pop(key, set()) & who
        if len(holders) <= size // 2:
            said = f"only {sorted(holders)} of {size}, {sorted(who)}, have synced it"
            raise self.violated(f"{name} calls {block} durable; {said}")
        self._through_its_term(name, block)
        self.group.happened_first(name, "durable" if self._first_of == name else "first durable")
        self._first_of = name
        self.durable[block.first] = block
        self._durable_in[self.group.nodes[name].opened().node_file.record.term] = block
        self.durable_last = block.last
        self.groups += self._groups_in.get(key, [])
        data = self._bytes.pop(key)
        for entry in entries(data, decode_header(data), kinds=DATA):
            self.values[entry.vlsn] = entry.value
            before = self.places.setdefault(entry.value, entry.vlsn)
            if before != entry.vlsn:
                raise self.violated(f"{entry.value[:20]!r} is in the log at VLSN {before} and at {entry.vlsn}")

    def _through_its_term(self, name: str, block: Block) -> None:
        node = self.group.nodes[name]
        log = node.opened()
        term = log.node_file.record.term
        leads = self.masters.get(term) == (name, node.incarnation, node.process)
        if leads and log.history.term_of(log.dtvlsn) < term:
            raise self.violated(f"{name} calls {block} durable by copies alone; it leads term {term}")

    def _who_counts(self, copy: Copy) -> tuple[set[tuple[str, int]], int]:
        """Name and incarnation of who may make something durable, and of how many they have to be more than half, as
        that log says.  A name whose passing to another incarnation is not durable yet counts for neither."""
        at, newest = copy.groups[-1]
        listed = {member.name: member.incarnation for member in newest.members if member.electable}
        who = {(name, int(incarnation, 16)) for name, incarnation in listed.items()}
        if at > self.durable_last and len(copy.groups) > 1:
            before = {member.name: member.incarnation for member in copy.groups[-2][1].members}
            who = {each for each in who if before.get(each[0], listed[each[0]]) == listed[each[0]]}
        return who, len(listed)

    # What happens to a machine.

    def flips_at(self, path: str, offset: int, byte: int) -> None:
        """Rot is to strike ``byte``."""
        self.flips.setdefault(path, {}).setdefault(offset, byte)

    def replaced(self, name: str) -> None:
        """A wipe, a restore, an old image: what its log holds from here on is not to be compared with what it held."""
        self.copies[name].replaced = True
        for path in [path for path in self.flips if path.startswith(f"/{name}/")]:
            del self.flips[path]

    def _gives_up(self, name: str) -> None:
        """Its log is given up: what it held it makes durable for nobody, until it is opened again."""
        for holders in self._holders.values():
            holders.difference_update([who for who in holders if who[0] == name])

    def forgets(self, name: str) -> None:
        """An older node file is to come back there."""
        self._forgetful[name] = self.group.nodes[name].incarnation

    def shown(self, who: str, vlsn: int, value: bytes) -> None:
        """A client was told of an entry, by a read or an acknowledgement."""
        if vlsn > self.durable_last:
            raise self.violated(f"{who} was shown VLSN {vlsn}; durable is {self.durable_last}")
        durable = self.values.get(vlsn)
        if durable != value:
            raise self.violated(f"{who} was shown {value[:20]!r} at VLSN {vlsn}, which is {(durable or b'')[:20]!r}")

    def event(self, node: SimNode, name: str, fields: dict[str, Any]) -> None:
        if name == "elected":
            self.elected(node, int(fields["term"]))
        elif name == "leads":
            self.leads.append(node.name)
            self._first_of = ""
        elif name == "open":
            note = str(fields["note"])
            self.hold(node.name in self.rotten or not note.startswith(UNFIT), f"{node.name}: {note}")
        elif name == "state" and fields["state"] in ("DAMAGED", "HALTED"):
            self.hold(node.name in self.rotten, f"{node.name} is {fields['state']}: {fields['reason']}")
        elif name == "old_image":
            before = int(str(fields["before"]), 16)
            self.hold(self._forgetful.get(node.name) == before, f"{node.name} has become another, and forgot nothing")
            self._has_synced(node)
        elif name in ("restore.begin", "restore.again"):
            self.copies[node.name].replaced = True  # its log is still there where nobody is there to restore from
        elif name == "restore.from":
            self._gives_up(node.name)
        elif name == "restore.done":
            there = self.group.machines[node.name].disk.files(f"/{node.name}")
            for path in [path for path in self.flips if path.startswith(f"/{node.name}/") and path not in there]:
                del self.flips[path]
            self.restored += 1
