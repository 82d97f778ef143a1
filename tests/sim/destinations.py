"""Destinations in a simulation: their messages in the durable log, and whether each node's disk still has all of them.

    log      dest/NAME set by a COMMIT; acknowledgements noted by COMMITs      folded here, by a separate reader
    wanted   its messages in the durable log that are not acknowledged, and dead ones, which may be retried
    disk     every wanted message is in the node's log, or in valid and synced pages

The last line is the rule of coverage.  It is checked whenever a node has removed a segment or a page, every half second
and at the end, for each node that follows or leads.  VLSNs that a node knows to have lost (``missing``) must be on
another member.  Consumers (``consumers``) are compared with the same table. A delivered message is durable, was not
durably acknowledged before the request, and no earlier message of its key is open.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tests.sim.logs import block_of, first_of, visible
from tests.sim.page_files import Paged, paged
from tests.sim.transactions import are_there as is_of_level_2
from vlsn.format.block import BlockHeader, Entry, EntryKind, entries
from vlsnlog.testing.fakes.kv import Contents

if TYPE_CHECKING:
    from tests.sim.watch import Watch

RATE = 0.5
"""The share of the seeds with transactions that have destinations."""
SWEEP_S = 0.5
SEGMENT_BYTES = 64 << 10
UNPAGED_RATE = 0.1
"""The share of these that keep as much log as other seeds."""
PREFIX = "dest/"
FOLLOWS = ("MASTER", "REPLICA")
LATE_S = 20.0
"""The longest time from the sending of an acknowledgement to its note in the log."""
UNSAID_S = 65.0
"""The longest time until a node reports missing messages, if its disk hangs or it is suspended."""
KINDS = frozenset((int(EntryKind.DATA), int(EntryKind.COMMIT)))


def are_there(seed: int) -> bool:
    """Says whether that seed has destinations. This is drawn separately, so that other seeds run as before."""
    return is_of_level_2(seed) and Random(f"destinations/{seed}").random() < RATE


def settings_of(seed: int) -> dict[str, Any]:
    """Draws how much of its log a node keeps: mostly so little that unacknowledged messages are paged."""
    rng = Random(f"retention/{seed}")
    if rng.random() < UNPAGED_RATE:
        return {}
    return {"retention_bytes": rng.choice((1, 2)) * SEGMENT_BYTES, "hold_bytes_max": rng.choice((1, 3)) * SEGMENT_BYTES}


@dataclass(slots=True)
class Folded:
    """One destination, computed from the durable log."""

    uuid: str
    name: str = ""
    prefix: bytes = b""
    dead_letter: bytes = b""
    begin: int = 1
    since: int = 0
    """The VLSN of the COMMIT that has set its beginning."""
    told_s: float = 0.0
    """The time when the sender of that order received its durable answer; 0 before."""
    firsts: dict[str, int] = field(default_factory=dict)
    """The first VLSN of each node's log when that COMMIT became durable, or before it reached the node."""
    tries: dict[int, int] = field(default_factory=dict)
    """Deliveries by VLSN, from two on."""
    done: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    floor: int = 0
    """All up to this VLSN are done; later done ones are in ``done``."""

    def is_done(self, vlsn: int) -> bool:
        return vlsn <= self.floor or vlsn in self.done

    def takes(self, key: bytes) -> bool:
        return key.startswith(self.prefix) and key != self.dead_letter


class Destinations:
    """The record of all destinations of one simulation."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.on = False
        """True if this seed has destinations."""
        self.of: dict[str, Folded] = {}
        """The destinations by uuid, as of the durable end."""
        self.named: dict[str, str] = {}
        """Uuids by name."""
        self.keys: dict[int, bytes] = {}
        """The keys of durable DATA entries by VLSN."""
        self.letters: list[tuple[int, bytes, dict[str, Any]]] = []
        """Dead letters: VLSN, key, value."""
        self.checks = 0
        self.paged_most = 0
        """The most messages that a node had in pages only."""
        self.lacking_most = 0
        """The most VLSNs that a node reported as missing, and had to fetch."""
        self.again: Counter[tuple[bytes, int]] = Counter()
        """The number of retries of dead messages, by the key of their letters and VLSN."""
        self.again_s: dict[tuple[bytes, int], float] = {}
        """The time when the last retry was durable."""
        self.begun: Counter[bytes] = Counter()
        """The number of moves and drops, by the key of the letters, after which messages may die again."""
        self.sent: dict[str, dict[int, float]] = {}
        """The time when an acknowledgement was last sent, by destination and VLSN."""
        self.drops: set[str] = set()
        """Destinations whose messages the master itself may acknowledge."""
        self._firsts: dict[str, tuple[frozenset[str], int]] = {}
        self._wired: set[int] = set()
        self._unsaid: dict[tuple[str, int | str], tuple[Any, float]] = {}
        """By node, and ``since`` or uuid: its open log, and the time from which on it has not said what it lacks."""
        self._struck: dict[tuple[str, str, int], set[int]] = {}
        """The VLSNs of each page whose file was lost, or cut short: by node, uuid and number."""

    # Durable entries.

    def durable(self, data: bytes, header: BlockHeader) -> None:
        """Folds a block that became durable."""
        for entry in entries(data, header, kinds=KINDS):
            if entry.kind == EntryKind.COMMIT:
                self._commit(entry)
            else:
                self.keys[entry.vlsn] = entry.key or b""
                if (entry.key or b"").startswith(b"dead-"):
                    self.letters.append((entry.vlsn, entry.key or b"", json.loads(entry.value)))

    def _commit(self, commit: Entry) -> None:
        told = json.loads(commit.value) if commit.value else {}
        for uuid, note in told.get("acks", {}).items():
            self._note(commit.vlsn, uuid, note)
        for name, settings in told.get("put", {}).items():
            if name.startswith(PREFIX):
                self._set(name.removeprefix(PREFIX), settings)

    def _set(self, name: str, settings: dict[str, Any] | None) -> None:
        uuid = self.named.pop(name, None)
        if settings is None:
            self.of.pop(uuid or "", None)
            return
        folded = self.of.setdefault(settings["uuid"], Folded(settings["uuid"]))
        folded.name, folded.prefix = name, settings.get("prefix", "").encode()
        folded.dead_letter = settings.get("dead_letter", "dead_letter").encode()
        self.named[name] = settings["uuid"]

    def _note(self, vlsn: int, uuid: str, note: dict[str, Any]) -> None:
        if note.get("over"):
            dropped = self.of.pop(uuid, None)
            self.begun[dropped.dead_letter if dropped is not None else b""] += 1
            return
        if note.get("begin") is not None:
            before = self.of.get(uuid)
            folded = self.of[uuid] = Folded(uuid, begin=min(note["begin"] or vlsn + 1, vlsn + 1), since=vlsn)
            folded.firsts = {name: self.first(name) for name in self._watch.group.names}
            folded.floor = folded.begin - 1
            if before is not None:
                folded.name, folded.prefix, folded.dead_letter = before.name, before.prefix, before.dead_letter
                self.begun[before.dead_letter] += 1
        if uuid not in self.of:
            return
        folded = self.of[uuid]
        again = unpacked(note.get("again", ""))
        if again and min(again) <= folded.floor:
            folded.done |= set(range(min(again), folded.floor + 1))
            folded.floor = min(again) - 1
        folded.done -= again
        folded.dead -= again
        folded.tries = {each: count for each, count in folded.tries.items() if each not in again}
        for count, tried in note.get("tries", {}).items():
            folded.tries.update(dict.fromkeys(unpacked(tried), int(count)))
        self.again.update((folded.dead_letter, each) for each in again)
        now_s = self._watch.group.loop.time() if again else 0.0
        self.again_s.update(((folded.dead_letter, each), now_s) for each in again)
        done = {each for each in unpacked(note.get("done", "")) if each <= vlsn}
        self._asked_for(folded, done - unpacked(note.get("dead", "")))
        folded.done |= {each for each in done if each > folded.floor}
        folded.dead -= done
        folded.dead |= {each for each in unpacked(note.get("dead", "")) if each <= vlsn}
        while folded.floor + 1 in folded.done:
            folded.floor += 1
            folded.done.discard(folded.floor)

    def _asked_for(self, folded: Folded, done: set[int]) -> None:
        """Checks that some consumer has sent each acknowledgement that a note has, since a skipped message is lost.
        Messages owed again after an answered move are compared from then on."""
        if folded.name not in self.sent or folded.name in self.drops:
            return
        sent = self.sent[folded.name]
        wrong = [
            each
            for each in sorted(done)
            if each > folded.floor and each in self.keys and folded.takes(self.keys[each]) and not folded.is_done(each)
            if sent.get(each, -inf) < folded.told_s - LATE_S
        ]
        self._watch.hold(
            not wrong, f"VLSNs {wrong[:5]} of {folded.name} (since {folded.since}) are noted, acknowledged by nobody"
        )

    def wanted(self, folded: Folded, below: int) -> list[int]:
        """Lists the messages below a VLSN that must be kept."""
        from_ = min([folded.floor + 1, *folded.dead])
        return [
            vlsn
            for vlsn in range(from_, min(below, self._watch.durable_last + 1))
            if vlsn in self.keys and folded.takes(self.keys[vlsn]) and (not folded.is_done(vlsn) or vlsn in folded.dead)
        ]

    # Disks.

    def wire(self, name: str) -> None:
        """Checks a disk right after each removal of a segment or a page."""
        disk = self._watch.group.machines[name].disk
        if id(disk) in self._wired:
            return
        self._wired.add(id(disk))
        plain = disk.remove

        def remove(path: str) -> None:
            plain(path)
            if path.endswith((".vlog", ".page")):
                self.look_at(name)

        disk.remove = remove  # type: ignore[method-assign]

    async def sweep(self, is_over: Any) -> None:
        """Checks every disk again and again."""
        while not is_over():
            await asyncio.sleep(SWEEP_S)
            for name in list(self._watch.group.names):
                self.wire(name)
                self.look_at(name)

    def look_at(self, name: str) -> None:
        """Checks the rule of coverage on one node's disk."""
        watch = self._watch
        node = watch.group.nodes.get(name)
        if not self.of or node is None or node.log is None or node.state not in FOLLOWS:
            return
        if name in watch.rotten or watch.copies[name].replaced or not watch.group.listed(name):
            return
        first = self.first(name)
        for folded in list(self.of.values()):
            wanted = self.wanted(folded, first)
            found = self.pages_of(name, folded.uuid) if wanted else Paged()
            lacks = self._unmet(name, folded, found, self._lacking(found, wanted))
            lacks = self._unexcused(name, folded, found, lacks)
            watch.hold(
                not lacks,
                f"{name}: VLSNs {lacks[:5]} of destination {folded.name}, not acknowledged, are neither in its log, "
                f"which begins at {first}, nor in pages that count; {found.fault or 'its pages read back'}; "
                f"paged to {found.paged_to}, {found.pages} pages, missing {found.missing}",
            )
            self.checks += 1
            self.paged_most = max(self.paged_most, len(wanted))
            self.lacking_most = max(self.lacking_most, sum(last - low + 1 for low, last in found.missing))

    def _unexcused(self, name: str, folded: Folded, found: Paged, lacks: list[int]) -> list[int]:
        """Leaves out what a node's log had lost before there was a destination that wants it, until the node says so:
        it delivers nothing of that destination before. A node whose log does not reach the destination's beginning
        cannot know of it, and cleans as it was before."""
        if lacks and self.last(name) < folded.since:
            self._unsaid.pop((name, folded.since), None)
            folded.firsts[name] = self.first(name)
            return []
        if self._must_have_said(name, folded.since, found.since != folded.since and bool(lacks)):
            return lacks
        return [each for each in lacks if each >= folded.firsts.get(name, 0)]

    def _unmet(self, name: str, folded: Folded, found: Paged, lacks: list[int]) -> list[int]:
        """Leaves out the messages of pages that were struck while the node was down, until it has put these pages
        aside: a node whose pages cannot be read for now tries again, and delivers none of them before."""
        struck = [self._struck.get((name, folded.uuid, number), set()) for number in found.short]
        excused = set[int]().union(*struck)
        return lacks if self._must_have_said(name, folded.uuid, bool(excused)) else sorted({*lacks} - excused)

    def _must_have_said(self, name: str, what: int | str, unsaid: bool) -> bool:
        """Says whether a node's open log has had the time to say ``what`` it lacks, or has no more to say."""
        place, log, now = (name, what), self._watch.group.nodes[name].log, self._watch.group.loop.time()
        if not unsaid:
            self._unsaid.pop(place, None)
            return True
        since_s = now
        if self._unsaid.get(place, (None, 0.0))[0] is log:
            since_s = self._unsaid[place][1]
        self._unsaid[place] = log, since_s
        return now > since_s + UNSAID_S

    def strikes(self, name: str, path: str) -> None:
        """Notes the messages of a page whose file is about to be lost, or cut short."""
        uuid, file = path.split("/")[-2:]
        held = self._paged(name, uuid, lambda each: each == file)
        blocks = [block_of(data) for data in held.blocks]
        vlsns = {*held.values, *(vlsn for block in blocks for vlsn in range(block.first, block.last + 1))}
        self._struck.setdefault((name, uuid, int(file[:9])), set()).update(vlsns)

    def _lacking(self, found: Paged, wanted: list[int]) -> list[int]:
        values, ledger = self._watch.values, self._watch.ledger
        have = set[int]()
        self._watch.hold(not found.twice, f"VLSNs {found.twice[:5]} lie in pages twice")
        for vlsn, value in found.values.items():
            self._watch.hold(values.get(vlsn) == value, f"a page has another value than the log at VLSN {vlsn}")
            have.add(vlsn)
        for data in found.blocks:
            block = block_of(data)
            self._watch.hold(ledger.durable.get(block.first) == block, f"a page has {block}, which the log has not")
            again = have.intersection(range(block.first, block.last + 1))
            self._watch.hold(not again, f"VLSNs {sorted(again)[:5]} lie in pages twice")
            have.update(range(block.first, block.last + 1))
        for first, last in found.missing:
            have.update(range(first, last + 1))
        return [vlsn for vlsn in wanted if vlsn not in have]

    def pages_of(self, name: str, uuid: str) -> Paged:
        """Reads the pages of one node: as its medium has them, and its page table."""
        return self._paged(name, uuid, lambda _: True)

    def _paged(self, name: str, uuid: str, counts: Callable[[str], bool]) -> Paged:
        """Reads those pages of which the file ``counts``."""
        machine = self._watch.group.machines[name]
        files = machine.disk.medium(f"/{name}/pages/{uuid}")
        there = {path.rpartition("/")[2] for path in machine.disk.files(f"/{name}/pages/{uuid}")}
        contents = machine.stores.contents.get(f"/{name}/state")
        table = page_table(contents) if contents else {}
        return paged({each: data for each, data in files.items() if each in there and counts(each)}, table, uuid)

    def first(self, name: str) -> int:
        """Finds the first VLSN of a node's log by its files."""
        disk = self._watch.group.machines[name].disk
        paths = frozenset(path for path in disk.files(f"/{name}") if path.endswith(".vlog"))
        known = self._firsts.get(name)
        if known is not None and known[0] == paths and known[1]:
            return known[1]
        first = first_of(disk, f"/{name}")
        self._firsts[name] = paths, first
        return first

    def last(self, name: str) -> int:
        """Finds the last VLSN of a node's log by its files."""
        return max((block.last for block, _ in visible(self._watch.group.machines[name].disk, f"/{name}")), default=0)

    # The end.

    def left_page_mode(self, name: str) -> bool:
        """Says whether a node has no page whose messages are all done."""
        return all(not self.pages_of(name, uuid).pages for uuid, folded in self.of.items() if not self.open_of(folded))

    def open_of(self, folded: Folded) -> list[int]:
        return self.wanted(folded, self._watch.durable_last + 1)

    def check(self) -> None:
        """Checks at the end that each dead message has one dead letter, unless it was retried since."""
        told: Counter[tuple[bytes, int]] = Counter()
        for at, key, letter in self.letters:
            where = (key, int(letter["vlsn"]))
            told[where] += 1
            self._watch.hold(
                told[where] <= 1 + self.again[where] + self.begun[key],
                f"VLSN {where[1]} has {told[where]} dead letters, the last at {at}; tried again: {self.again[where]}",
            )
            self._watch.hold(where[1] in self.keys, f"the dead letter at VLSN {at} is of no entry: {letter}")


def page_table(contents: Contents) -> dict[bytes, bytes | None]:
    """Returns the rows of a page table; None for one whose checksum does not match."""
    rows = {key: kept for key, kept in contents.values.items() if key[:1] == b"g"}
    return {key: value if crc32(value, crc32(key)) == check else None for key, (value, check) in rows.items()}


def unpacked(text: str) -> set[int]:
    """Reads a packed set of VLSNs: count, heads, lengths, each a varint."""
    numbers: list[int] = []
    value = shift = 0
    for byte in base64.b64decode(text):
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(value)
            value = shift = 0
    if not numbers:
        return set()
    count, heads, lengths = numbers[0], numbers[1 : 1 + numbers[0]], iter(numbers[1 + numbers[0] :])
    assert len(heads) == count
    found: set[int] = set()
    last = 0
    for head in heads:
        first = last + (head >> 1) + 1
        last = first + next(lengths) + 1 if head & 1 else first
        found.update(range(first, last + 1))
    return found
