"""Faults of simulated disks: they stop a process, fail, fill, stall, and rot.

*Rot everywhere*: bits flip on every node, but only in durable blocks that enough other nodes can read. Of each block
less than half of the copies are bad at any time, and at least one is good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tests.fakes.threads import FakeWorker
from tests.sim.logs import FIRST_FRAME, Block, places
from vlsnlog.testing.fakes.disk import Call

if TYPE_CHECKING:
    from repl.node.node import Node
    from tests.sim.nemesis import Nemesis, Table

SLOW_DISKS_S = ((0.0, 0.02), (0.01, 0.2), (0.0, 1.0))
QUICK_DISK_S = (0.0, 0.000_5)
STALLS_S = ((0.3, 3.0), (3.0, 15.0), (12.0, 60.0))
"""Seconds that a disk hangs."""
SHORT_STALL_S = 3.0
"""A longer stall hits a minority at a time."""
LEADS_S = 11.0
"""A master leads no longer once one write of its disk has taken 10 s, and 1 s more to notice it."""
NEAR_BYTES = 12_000
"""Bytes from the end of a log that the next open mostly reads again."""
Copies = Mapping[str, Mapping[Block, tuple[str, int, int]]]
"""The places of each node's readable blocks."""


class Disks:
    def __init__(self, nemesis: Nemesis) -> None:
        self.nemesis = nemesis
        self.group, self.rng = nemesis.group, nemesis.rng
        self._fails_at_start: set[str] = set()

    def table(self) -> Table:
        return {
            "stop at a disk call": (1.0, self._stop_soon),
            "stop inside a rollback": (0.5, self.stop_in_rollback),
            "stop inside a checkpoint": (0.5, lambda name: self._stop_while(name, _checkpoints)),
            "failed write": (0.7, lambda name: self._fail_once(name, "write")),
            "failed sync": (0.7, lambda name: self._fail_once(name, "sync")),
            "failed write of the node file": (0.4, lambda name: self._fail_next(name, _writes_node_file)),
            "failed commit": (0.4, lambda name: self._fail_next(name, _commits)),
            "failed read of a sidecar": (0.3, lambda name: self._fail_next(name, _reads_sidecar)),
            "failed read at a start": (0.5, self._fail_start),
            "full disk": (0.5, self._fill),
            "slow disk": (0.7, self.slow),
            "stalled disk": (0.6, self._stall),
            "master's disk stalled": (0.3, self._stall_master),
        }

    def rots(self) -> Table:
        """Lists the kinds of rot of a minority."""
        return {
            "flipped bit": (2.0, self._flip),
            "failed reads": (1.0, self._fail_reads),
            "stop inside a mending": (1.0, lambda name: self._stop_while(name, _mends)),
            "wiped": (1.2, self.wipe),
        }

    def rots_everywhere(self) -> Table:
        return {
            "flipped bit, of each block on a minority": (6.0, self._flip_somewhere),
            "stop inside a mending": (1.0, lambda name: self._stop_while(name, _mends)),
        }

    def mend(self, name: str) -> None:
        disk = self.group.machines[name].disk
        disk.mend()
        self.group.machines[name].stores.fail_opens.clear()
        disk.capacity_bytes = None
        self._takes(name, QUICK_DISK_S)

    # Calls.

    def _stop_soon(self, name: str) -> object:
        disk = self.group.machines[name].disk
        if name not in self.group.nodes:
            return False
        disk.stop_at(len(disk.calls) + self.rng.randrange(1, 120))
        return True

    def stop_in_rollback(self, name: str) -> object:
        return self._stop_while(name, _rolls_back)

    def _stop_while(self, name: str, holds: Callable[[Node], bool]) -> object:
        """Stops the node at one of the disk calls that it makes while ``holds``: its first write, its last, the
        index."""
        left = min(self.rng.randrange(1, 12), self.rng.randrange(1, 12))
        if name not in self.group.nodes:
            return False

        def strikes(call: Call) -> bool:
            nonlocal left
            node = self.group.nodes.get(name)
            if call.changes and node is not None and holds(node):
                left -= 1
                return left == 0
            return False

        self.group.machines[name].disk.stop_at(strikes, moment=self.rng.choice(("before", "after")))
        return True

    def _fail_once(self, name: str, kind: str) -> None:
        def strikes(call: Call) -> bool:
            return call.name == kind and call.path.endswith(".vlog")

        self.group.machines[name].disk.fail_at(strikes)

    def _fail_next(self, name: str, kind: Callable[[Call], str], times: int = 1) -> object:
        """Makes the next ``times`` of these calls fail with EIO; after a restart the disk works."""
        if name not in self.group.nodes:
            return False

        def strikes(call: Call) -> bool:
            what = kind(call)
            if what:
                self.nemesis.report.met[f"a {what} that failed"] += 1
            return bool(what)

        self.group.machines[name].disk.fail_at(strikes, times=times)
        return True

    def _fail_start(self, name: str) -> object:
        """Makes the node's next start fail, at one of its reads; the start after that succeeds."""
        if name not in self.group.nodes:
            return False
        self.nemesis.die(name, power=self.rng.random() < 0.3)
        self._fails_at_start.add(name)
        return True

    def starts(self, name: str) -> None:
        """Is called just before a process starts on that machine."""
        if name not in self._fails_at_start:
            return
        self._fails_at_start.discard(name)
        machine = self.group.machines[name]
        what = self.rng.choice(("segment", "node file", "index", "state"))
        if what in ("index", "state"):
            machine.stores.fail_opens[f"/{name}/{what}"] = 1
            return
        end = ".vlog" if what == "segment" else "/node.id"
        left = self.rng.randrange(4)

        def strikes(call: Call) -> bool:
            nonlocal left
            if call.name != "read" or not call.path.endswith(end):
                return False
            left -= 1
            self.nemesis.report.met["a read at a start that failed"] += left < 0
            return left < 0

        machine.disk.fail_at(strikes)

    def _fail_reads(self, name: str) -> object:
        """Makes the segments of a running node unreadable for a moment, or every other read."""
        until_s, every = self.group.loop.time() + self.rng.uniform(0.1, 3.0), self.rng.random() < 0.5

        def reads(call: Call) -> str:
            if call.name != "read" or not call.path.endswith(".vlog") or self.group.loop.time() > until_s:
                return ""
            return "read of a segment" if every or self.rng.random() < 0.5 else ""

        return self._fail_next(name, reads, times=1 << 30)

    def _fill(self, name: str) -> None:
        disk = self.group.machines[name].disk
        disk.capacity_bytes = 1
        self.nemesis.later(self.rng.uniform(0.5, 5.0), lambda: setattr(disk, "capacity_bytes", None))

    def slow(self, name: str, latency_s: tuple[float, float] | None = None) -> None:
        self._takes(name, latency_s or self.rng.choice(SLOW_DISKS_S))
        self.nemesis.later(self.rng.uniform(1.0, 10.0), lambda: self._takes(name, QUICK_DISK_S))

    def _stall_master(self, _: str) -> object:
        """Stalls the master until it gives up its leadership; half the time without another fault before."""
        node = self.group.nodes.get(self.group.master)
        if (
            node is None
            or not node.member.is_master()
            or self._stall(node.name, self.rng.uniform(*STALLS_S[-1])) is False
        ):
            return False
        if self.rng.random() < 0.5:
            self.nemesis.quiet_until_s = self.group.loop.time() + LEADS_S
        return True

    def _stall(self, name: str, seconds: float = 0.0) -> object:
        """Hangs a disk: the present call is done already, or only at the end; the rest of the machine works."""
        seconds, now = seconds or self.rng.uniform(*self.rng.choice(STALLS_S)), self.group.loop.time()
        others = [until_s > now for each, until_s in self.stalls().items() if each != name]
        if name not in self.group.nodes or (seconds > SHORT_STALL_S and 2 * (sum(others) + 1) >= len(others) + 1):
            return False
        disk = self.group.machines[name].disk
        disk.stalled_until_s = max(disk.stalled_until_s, now + seconds)
        return True

    def stalls(self) -> dict[str, float]:
        """Returns the end of the stall of each member with a vote, present or past."""
        machines = self.group.machines
        listed = [member.name for member in self.nemesis.people.members.members if member.electable]
        return {name: machines[name].disk.stalled_until_s for name in listed if name in machines}

    def whole_by(self, began_s: float) -> tuple[float, float]:
        """Returns the times at which the disks of a majority, and all, no longer hang; not before ``began_s``."""
        stalls = sorted(self.stalls().values())
        every = [machine.disk.stalled_until_s for machine in self.group.machines.values()]
        return max(began_s, stalls[len(stalls) // 2]), max(began_s, *every)

    def look(self) -> None:
        """Checks that a master whose disk hangs does not lead on."""
        for name, node in self.group.nodes.items():
            if not node.member.is_master() or self.nemesis.stood_still(name):
                continue
            writer = node.member.workers["writer"]
            assert isinstance(writer, FakeWorker)
            if not writer.pending():
                continue
            hangs_s = self.group.loop.time() - writer.since_s
            said = f"{name} leads on, though its disk has been at one write for {hangs_s:.1f} s"
            self.group.watch.hold(hangs_s <= LEADS_S, said)

    def _takes(self, name: str, latency_s: tuple[float, float]) -> None:
        machine = self.group.machines.get(name)
        if machine is None:
            return  # it was removed meanwhile
        machine.latency_s = latency_s
        if machine.process is not None:
            machine.process.threads.latency_s = latency_s

    # Rot.

    def _flip(self, name: str) -> object:
        """Flips a bit of a segment, half the time near the log's end, where an open reads it."""
        disk = self.group.machines[name].disk
        ends = {
            path: len(disk.content(path).rstrip(b"\0")) for path in disk.files(f"/{name}") if path.endswith(".vlog")
        }
        segments = [path for path, end in ends.items() if end > FIRST_FRAME + 512]
        if not segments:
            return False
        path, near = self.rng.choice(segments), self.rng.random() < 0.5
        if near:
            self.nemesis.die(name, power=False)
            path = segments[-1]
        low = max(FIRST_FRAME, ends[path] - NEAR_BYTES) if near else FIRST_FRAME
        self.flip_at(name, path, self.rng.randrange(low, ends[path]))
        return True

    def flip_at(self, name: str, path: str, offset: int) -> None:
        disk = self.group.machines[name].disk
        self.group.watch.flips_at(path, offset, disk.content(path)[offset])
        disk.flip_bit(path, offset, self.rng.randrange(8))

    def _flip_somewhere(self, name: str) -> object:
        """Flips a bit in a durable block of which enough good copies are left."""
        durable = self.group.watch.durable
        disks = {each: self.group.machines[each].disk for each in self.group.names}
        copies = {each: places(disk, f"/{each}") for each, disk in disks.items()}
        had = {each: places(disk, f"/{each}", self.group.watch.flips) for each, disk in disks.items()}
        fit = [
            place
            for block, place in copies[name].items()
            if durable.get(block.first) == block and is_safe(block, copies, had, name)
        ]
        if not fit:
            return False
        path, start, end = self.rng.choice(fit)
        self.flip_at(name, path, self.rng.randrange(start, end))
        if self.rng.random() < 0.3:
            self.nemesis.die(name, power=False)
        return True

    def wipe(self, name: str) -> object:
        """Replaces the disk by an empty one: the node comes back as an unlisted incarnation.  Half the time the master
        dies at once, so that the rest may miss durable entries."""
        if not self.may_be_emptied(name):
            return False
        self.nemesis.die(name, power=False)
        self.empty(name)
        if self.rng.random() < 0.5:
            self.nemesis.die(self.group.master, power=False)
        return True

    def may_be_emptied(self, name: str) -> bool:
        """Says whether the node's log may be lost. The log of a node that waits for readmission stays, since the others
        would be a minority of the old list. It also stays while another log is replaced, since these two may have the
        only copies of some blocks."""
        copies = self.group.watch.copies
        return self.group.listed(name) and not any(copies[each].replaced for each in self.group.names if each != name)

    def empty(self, name: str) -> None:
        machine = self.group.machines[name]
        machine.disk.wipe()
        machine.stores.contents.clear()
        machine.stores.unreadable.clear()
        self.nemesis.lost = True
        self.nemesis.minority.struck("wiped", name)
        self.group.watch.replaced(name)


def _writes_node_file(call: Call) -> str:
    written = call.name in ("write", "sync") and call.path.endswith(("/node.id", "/node.id.new"))
    return f"{call.name} of the node file" if written else ""


def _commits(call: Call) -> str:
    return "commit" if call.name == "commit" else ""


def _reads_sidecar(call: Call) -> str:
    return "read of a sidecar" if call.name == "read" and call.path.endswith(".vidx") else ""


def is_safe(block: Block, copies: Copies, had: Copies, name: str) -> bool:
    """Says whether a good copy is left when that of ``name`` is bad. Most of those that have it must be good, too;
    ``had``: the places without any rot, also of blocks at the very beginning or end of a log."""
    others = {each: copy for each, copy in copies.items() if each != name and copy}
    bad = sum(
        block not in copy and (block in had[each] or min(copy).first < block.first < max(copy).first)
        for each, copy in others.items()
    )
    return any(block in copy for copy in others.values()) and bad < len(others) // 2


def _rolls_back(node: Node) -> bool:
    return node.log is not None and node.log.view.rollbacks % 2 == 1


def _checkpoints(node: Node) -> bool:
    """Says whether a checkpoint is between the index and the record of it."""
    return node.log is not None and node.log.care.checkpointer.running


def _mends(node: Node) -> bool:
    """Says whether known damage is being mended, with the log open or not."""
    if node.state == "DAMAGED":
        return True
    return node.open is not None and bool(node.open.mending.damages)
