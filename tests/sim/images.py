"""Disks, node files and stores of a minority that are lost, or replaced by older or damaged ones.

Running members recognise an old image of a disk, or of a node file, if they have promises that it has forgotten
(docs/crash-safety.md); a node that starts meanwhile has none.  So an image comes back only while another running node
with a log has received such a promise, by the simulation's own ``books``.  A node without it ends, or stays and answers
too; then the answer of a node with the promise decides, if it has arrived.  No other node starts until the returning
node has asked.  If no node with the promise is left, the disk is emptied, as an operator would do.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from repl.node.node import Node
from tests.fakes.machine import Image
from tests.sim.logs import Block, visible
from tests.sim.terms import newest_record
from tests.sim.ways import between
from vlsn.state.node_file import SLOT_BYTES, NodeRecord
from vlsnlog.testing.fakes.kv import Contents

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis, Table

IMAGE_RATE = 0.4
"""The share of strikes at which an image is made."""
LOOK_S = 0.05
TAILS = ("vote", "rollback")
"""Events of a node at which its log may end in blocks that the next master does not have."""
TAIL_RATE, TAIL_S = 0.3, (0.05, 3.0)
UNMATCHED_RATE, UNMATCHED_S = 0.7, 6.0
"""The rate at which the image made before a rollback comes back, and the longest wait for it. It comes back once some
node has a promise that it misses, while it is longer than the log that its node has acknowledged instead."""
STEPPED_DOWN_RATE = 0.6
ASKED_S = 0.01
LEADS_S, ALONE_S = 1.0, (2.0, 4.0)
IGNORANT_RATE = 0.4
"""The rate at which nodes without such a promise answer, too."""
IMAGES_MAX = 3
"""The number of images kept for each node: the last ones."""


class Found(NamedTuple):
    """The contents of an image."""

    record: NodeRecord
    blocks: set[Block]


class Kept(NamedTuple):
    """An image, and its rotten bytes."""

    image: Image
    flips: dict[str, dict[int, int]]


class Images:
    def __init__(self, nemesis: Nemesis) -> None:
        self.nemesis = nemesis
        self.group, self.rng = nemesis.group, nemesis.rng
        self.returning = ""
        """The node with an older image that has not asked for its identity yet."""
        self._turn = 0
        """The number of images that have come back so far."""
        self._was = 0
        """The former incarnation of that node."""
        self._came: Found | None = None
        """The node file and the blocks of the image that came back."""
        self._know: set[tuple[str, int]] = set()
        """Name and process of each node with a promise that it has forgotten."""
        self._others_answer = False
        """True if nodes without that promise run, too."""
        self._told_s: dict[int, float] = {}
        """The time of the first answer of a node with the promise, by the process that asked."""
        self._was_slow = False
        """True if messages may have overtaken one another by far meanwhile."""
        self._images: dict[str, list[Kept]] = {}
        self.begin_anew()

    def table(self) -> Table:
        """Lists the kinds of faults for a minority."""
        return {
            "alone with clients": (3.0, self._alone),
            "old disk": (3.0, self._old_disk),
            "node file lost": (1.0, self._lose_node_file),
            "node file older": (3.0, self._old_node_file),
            "node file slot flipped": (0.3, lambda name: self._flip_slots(name, 1)),
            "node file flipped": (0.6, lambda name: self._flip_slots(name, 2)),
            "index lost": (0.4, lambda name: self._lose_store(name, "index")),
            "index older": (0.6, lambda name: self._old_store(name, "index")),
            "index flipped": (0.4, lambda name: self._flip_store(name, "index")),
            "index unreadable": (0.3, lambda name: self._unreadable(name, "index")),
            "state lost": (0.4, lambda name: self._lose_store(name, "state")),
            "state older": (0.8, lambda name: self._old_store(name, "state")),
            "state flipped": (0.4, lambda name: self._flip_store(name, "state")),
            "state unreadable": (0.3, lambda name: self._unreadable(name, "state")),
        }

    # Images.

    def begin_anew(self) -> None:
        """Begins anew, with images of the nodes that may lose things from here on."""
        self._images = {name: [] for name in self.nemesis.victims}

    def look(self) -> None:
        """Makes an image of a running node, now and then: the synced bytes, and some of the others."""
        for name in self._images:
            if self.rng.random() < IMAGE_RATE:
                self._look_at(name)

    def heard(self, name: str, event: str) -> None:
        """Makes an image of a disk whose log may end in blocks that a new master does not have; it comes back soon."""
        if event == "steps_down":
            self.nemesis.later(ASKED_S, lambda: self._known_to_alone(name))
        if event not in TAILS or name not in self._images:
            return
        if event == "rollback" and self.rng.random() < UNMATCHED_RATE:
            kept = self._look_at(name)
            if kept is not None:
                self._once_heard_of(name, kept, self._in(name, kept), UNMATCHED_S)
        elif self.rng.random() < TAIL_RATE:
            kept = self._look_at(name)
            if kept is not None:
                self.nemesis.later(self.rng.uniform(*TAIL_S), lambda: self._again(name, kept))

    def _once_heard_of(self, name: str, kept: Kept, found: Found | None, left_s: float) -> None:
        if found is None or not self.nemesis.active or left_s <= 0:
            return
        record, blocks = found
        others = [each for each in self.group.nodes if each != name]
        if any(self.group.books.of(each, record.incarnation).forgotten(record, blocks) for each in others):
            self.nemesis.strike("old disk", name, lambda name: self._old_disk(name, kept, surely=True))
        else:
            self.nemesis.later(ASKED_S, lambda: self._once_heard_of(name, kept, found, left_s - ASKED_S))

    def _known_to_alone(self, master: str) -> None:
        """Lets only the former master answer, if it has a promise that some node's newest image has forgotten."""
        for name, images in self._images.items():
            if images and name != master and master in self.group.nodes and self.rng.random() < STEPPED_DOWN_RATE:
                kept = images[-1]
                strike = lambda name, kept=kept: self._old_disk(name, kept, only=master)  # noqa: E731
                self.nemesis.strike("old disk, of who led to tell", name, strike)

    def _alone(self, name: str) -> object:
        """Cuts a master off from all but clients, so that it logs entries that are rolled back when it meets the next
        master, which has only its first block. Before that a replica receives the leadership."""
        node = self.group.nodes.get(name)
        if node is None or node.state not in ("MASTER", "REPLICA"):
            return False
        if not node.member.is_master():
            self.nemesis.people.hand_over(name)

        def cut_off() -> None:
            led = self.group.nodes.get(name)
            if self.nemesis.active and led is not None and led.member.is_master():
                others = [each for each in self.group.names if each != name]
                self.nemesis.ways.block(between([name, "client"], others), ALONE_S)

        self.nemesis.later(0.0 if node.member.is_master() else LEADS_S, cut_off)
        return True

    def _again(self, name: str, kept: Kept) -> None:
        if self.nemesis.active:
            self.nemesis.strike("old disk", name, lambda name: self._old_disk(name, kept))

    def _look_at(self, name: str) -> Kept | None:
        node = self.group.nodes.get(name)
        if node is None or node.log is None or name == self.returning:
            return None
        image = self.group.machines[name].image()
        image.disk.power_cut(self.rng)
        flips = {path: dict(bytes_) for path, bytes_ in self.group.watch.flips.items() if f"/{name}/" in path}
        kept = Kept(image, flips)
        self._images[name] = [*self._images[name], kept][-IMAGES_MAX:]
        return kept

    def _kept(self, name: str) -> Kept | None:
        images = self._images.get(name)
        return self.rng.choice(images) if images else None

    def _in(self, name: str, kept: Kept) -> Found | None:
        """Returns the image's node file and blocks."""
        record = record_in(kept.image, name)
        if record is None:
            return None
        return Found(record, {block for block, _ in visible(kept.image.disk, f"/{name}", kept.flips)})

    def _old_disk(self, name: str, kept: Kept | None = None, *, surely: bool = False, only: str = "") -> object:
        kept = kept or self._kept(name)
        found = self._in(name, kept) if kept is not None else None
        if kept is None or found is None or not self._comes_back(name, *found, surely=surely, only=only):
            return False
        self.group.put_back(name, kept.image)
        self.group.watch.flips.update({path: dict(bytes_) for path, bytes_ in kept.flips.items()})
        return True

    def _old_node_file(self, name: str) -> object:
        kept = self._kept(name)
        record = record_in(kept.image, name) if kept is not None else None
        if kept is None or record is None or not self._comes_back(name, record, self.group.watch.copies[name].blocks):
            return False
        disk = self.group.machines[name].disk
        disk.write_content(f"/{name}/node.id", kept.image.disk.content(f"/{name}/node.id"))
        return True

    def _comes_back(
        self, name: str, record: NodeRecord, blocks: Collection[Block], *, surely: bool = False, only: str = ""
    ) -> bool:
        """Ends the process and replaces its disk by the image; the node then asks the members.  False if no running
        node could recognise it.  With ``surely`` others may lack the promise; with ``only`` no other node runs then."""
        if name not in self.nemesis.victims:
            return False  # its image was made while another minority could lose things
        if (
            self.returning
            or not self.group.listed(name)
            or record.incarnation != self.group.nodes[name].member.incarnation
        ):
            return False
        others = [each for each in self.group.nodes if each != name and self.group.watch.copies[each].blocks]
        heard = {each: self.group.books.of(each, record.incarnation).forgotten(record, blocks) for each in others}
        know = [each for each in others if heard[each] and self.group.nodes[each].log is not None]
        if only:
            know = [each for each in know if each == only]
        elif not surely and len(know) < len(others) and self.rng.random() < 0.5:
            return False
        if not know:
            return False
        self.nemesis.say(f"    forgotten: {heard[know[0]]}; known to {', '.join(know)}")
        self._know = {(each, self.group.nodes[each].member.process) for each in know}
        self._told_s.clear()
        self._was_slow = False
        may_answer = not only and len(know) < len(others) and not self._is_slow(name)
        self._others_answer = may_answer and self.rng.random() < IGNORANT_RATE
        for each in list(
            self.group.nodes
        ):  # also a node whose log is being restored: it has no promise, and will answer
            if each not in (name, *know) and not self._others_answer:
                self.nemesis.die(each, power=False)
        self._was = self.group.nodes[name].member.incarnation
        self._came = Found(record, set(blocks))
        self.nemesis.lost = True
        self.group.watch.forgets(name)
        self.nemesis.die(name, power=False, back_s=(0.01, 0.5))
        self.returning = name
        self._turn = turn = self._turn + 1
        self.nemesis.later(LOOK_S, lambda: self._look_again(turn))
        return True

    def answered(self, speaker: str, listener: str) -> None:
        """Notes that a hello of ``listener`` was answered."""
        if listener != self.returning:
            return
        node, asker = self.group.nodes.get(speaker), self.group.nodes.get(listener)
        if node is not None and asker is not None and (speaker, node.member.process) in self._know:
            self._told_s.setdefault(asker.member.process, self.group.loop.time())

    def recognised(self, name: str) -> None:
        """Notes that the node has asked, and has kept its incarnation, or has another."""
        node = self.group.nodes.get(name)
        if name != self.returning or node is None:
            return
        is_another = node.member.incarnation != self._was
        told = self._told_s.get(node.member.process, inf) < self.group.loop.time()
        told = not self._others_answer or (told and not self._was_slow and not self._is_slow(name))
        told = told and self._is_older_still(name)
        said = f"{name} has come back older, and nobody has told it: it is incarnation {self._was:016x} still"
        self.group.watch.hold(is_another or not told, said)
        self.nemesis.later(0.0, self._is_back if is_another else self._put_back_empty)

    def _is_older_still(self, name: str) -> bool:
        """Says whether promised blocks or votes are still missing. A damaged image is restored before it has asked: its
        acknowledged blocks are back, or of a term that a majority has passed. Its votes are not back."""
        assert self._came is not None
        record, came = self._came
        has = self.group.watch.copies[name].blocks
        restored = _end_of(has) > _end_of(came)
        others = [each for each in self.group.nodes if each != name]
        promised = [self.group.books.of(each, self._was) for each in others]
        return any(each.forgotten(record, has, end=_end_of(has) if restored else (0, 0)) for each in promised)

    def _is_slow(self, name: str) -> bool:
        """Says whether messages to or from the node may overtake one another by far."""
        net = self.group.net
        return any(name in way for links in (net.delays_s, net.bytes_per_s) for way in links)

    def _look_again(self, turn: int) -> None:
        name = self.returning
        if turn != self._turn or not name:
            return
        self._was_slow |= self._is_slow(name)
        if name not in self.group.names:
            self._is_back()  # its member was removed, and it is switched off
        elif not self._may_tell(name) or self._waits_for_a_person(name):
            self._put_back_empty()
        else:
            self.nemesis.later(LOOK_S, lambda: self._look_again(turn))

    def _may_tell(self, name: str) -> bool:
        """Says whether another member runs with a log. A node that waits to be listed has received no promises.  A node
        cut off as it logged a list without this one answers only "not listed", until that list is rolled back."""
        _, durable = self.group.watch.groups[-1]
        members = {member.name for member in durable.members} - {name}
        up = [node for each, node in self.group.nodes.items() if each in members and node.state != "RESTORING"]
        return any(node.log is None or _lists(node, name) for node in up)

    def _waits_for_a_person(self, name: str) -> bool:
        """Says whether its log stays damaged although all faults have ended: it does not ask for its identity, and
        nodes without its promises stay down until it has."""
        node = self.group.nodes.get(name)
        return not self.nemesis.active and node is not None and node.state == "DAMAGED"

    def _put_back_empty(self) -> None:
        name = self.returning
        if not name:
            return
        self.nemesis.say(f"--- nobody who had heard of {name} tells it so: a person puts it back empty")
        self.nemesis.die(name, power=False)
        self.nemesis.disks.empty(name)
        self._is_back()

    def _is_back(self) -> None:
        self.returning = ""
        for each in self.group.names:
            self.nemesis.start(each)

    # Node files and stores.

    def _lose_node_file(self, name: str) -> object:
        if not self.group.listed(name):
            return False
        self.nemesis.die(name, power=False)
        disk = self.group.machines[name].disk
        if f"/{name}/node.id" not in disk.files(f"/{name}"):
            return False
        disk.remove(f"/{name}/node.id")
        disk.sync_directory(f"/{name}")
        self.nemesis.lost = True
        return True

    def _flip_slots(self, name: str, slots: int) -> object:
        if slots > 1 and not self.group.listed(name):
            return False
        self.nemesis.die(name, power=False)
        disk = self.group.machines[name].disk
        path = f"/{name}/node.id"
        if path not in disk.files(f"/{name}") or len(disk.content(path)) != 2 * SLOT_BYTES:
            return False
        for slot in self.rng.sample((0, 1), slots):
            disk.flip_bit(path, self.rng.randrange(160) + SLOT_BYTES * slot, self.rng.randrange(8))
        self.nemesis.lost |= slots > 1
        return True

    def _contents(self, name: str, store: str) -> Contents | None:
        return self.group.machines[name].stores.contents.get(f"/{name}/{store}")

    def _lose_store(self, name: str, store: str) -> object:
        self.nemesis.die(name, power=False)
        stores, path = self.group.machines[name].stores, f"/{name}/{store}"
        stores.unreadable.discard(path)
        return stores.contents.pop(path, None) is not None

    def _old_store(self, name: str, store: str) -> object:
        kept = self._kept(name)
        old = kept.image.stores.get(f"/{name}/{store}") if kept is not None else None
        now = self._contents(name, store)
        if old is None or now is None or old.values == now.values:
            return False
        self.nemesis.die(name, power=False)
        stores, path = self.group.machines[name].stores, f"/{name}/{store}"
        stores.unreadable.discard(path)
        stores.restore(path, old)
        return True

    def _flip_store(self, name: str, store: str) -> object:
        """Flips a bit in a store; half the time the next start reads it at once."""
        contents = self._contents(name, store)
        if contents is None or not contents.keys:
            return False
        if self.rng.random() < 0.5:
            self.nemesis.die(name, power=False)
        key = self.rng.choice(contents.keys)
        self.group.machines[name].stores.corrupt(f"/{name}/{store}", key, bit=self.rng.randrange(64))
        return True

    def _unreadable(self, name: str, store: str) -> object:
        """Flips a bit in the store's own pages."""
        if self._contents(name, store) is None:
            return False
        self.nemesis.die(name, power=False)
        self.group.machines[name].stores.unreadable.add(f"/{name}/{store}")
        return True


def _lists(node: Node, name: str) -> bool:
    group = node.log.view.history.group if node.log is not None else None
    return group is None or any(member.name == name for member in group.members)


def _end_of(blocks: Collection[Block]) -> tuple[int, int]:
    return max(((block.term, block.last) for block in blocks), default=(0, 0))


def record_in(image: Image, name: str) -> NodeRecord | None:
    """Returns the newest record in the image's node file."""
    path = f"/{name}/node.id"
    data = image.disk.content(path) if path in image.disk.files(f"/{name}") else b""
    return newest_record(data)
