"""Twelve kinds of damage to one of three copies of a log, each as an auditor should find it, and mended as it says.

    python -m tests.repl.audit.damages [MEGABYTES]      real nodes with a log of so many (300), every kind, each mended

``test_damages`` does the same to the small log that nodes on fakes have left, as far as no node is to be started.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from repl import connect_sync
from repl.audit import run_audit
from repl.audit.report import AuditReport
from repl.audit.session import spark_context
from tests.e2e.group import Group
from tests.repl.audit.forge import BLOCK, Forge, Frame, forged
from vlsn.real.disk import PosixDisk
from vlsn.segments.directory import LOCK_NAME

ENTRY_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Copies:
    """A group's directories, by node. ``deposed`` has rolled blocks back; ``odd`` has not, and ``early`` is its
    directory as it was before."""

    paths: dict[str, Path]
    deposed: str
    odd: str
    early: Path

    @property
    def forge(self) -> Forge:
        return Forge(self.paths[self.odd])


@dataclass(frozen=True, slots=True)
class Expected:
    """The one finding: the ``rules`` that may name it, its copy, its file, and the command that mends it."""

    rules: tuple[str, ...]
    owner: str
    file: str
    vlsn: int
    mend: str


REPAIR, START, RESTORE = "vlsnlog repair", "vlsnlog node", "vlsnlog restore"
DAMAGES: dict[str, Callable[[Copies], Expected]] = {}


def damage(make: Callable[[Copies], Expected]) -> Callable[[Copies], Expected]:
    DAMAGES[make.__name__.strip("_")] = make
    return make


def second(forge: Forge) -> int:
    """Returns the number of the log's second segment; a kill may have burnt one in between."""
    return forge.active()[1]


def third(forge: Forge) -> int:
    return forge.active()[2]


def plain(forge: Forge) -> Frame:
    """Returns a block of clients' entries and nothing else, in the middle of the second segment."""
    visible = (frame for frame in forge.frames(second(forge)) if frame.visible)
    frames = [frame for frame in visible if not frame.get("flags") and not frame.get("kind")]
    return frames[len(frames) // 2]


def of_segment(it: Copies, number: int, *rules: str) -> Expected:
    first = next(frame for frame in it.forge.frames(number) if frame.visible).first
    return Expected(rules, it.odd, it.forge.files[number].name, first, START)


def of_block(it: Copies, frame: Frame, mend: str, *rules: str) -> Expected:
    return Expected(rules, it.odd, it.forge.files[frame.number].name, frame.first, mend)


@damage
def flip(it: Copies) -> Expected:
    frame = plain(it.forge)
    it.forge.flip(frame.number, frame.offset + 200)
    return of_block(it, frame, REPAIR, "frame-crc")


@damage
def index(it: Copies) -> Expected:
    """A page of the index is another page's: what a disk does that writes past its place."""
    key = next(key for key in it.forge.keys("index") if key[:1] == b"b")
    it.forge.store("index", key, lambda value: value[:28] + (9).to_bytes(4, "little") + value[32:])
    return Expected(("index",), it.odd, "index", int.from_bytes(key[1:], "big") + 9, f"rm -r {it.paths[it.odd]}/index")


@damage
def truncated(it: Copies) -> Expected:
    frame = plain(it.forge)
    os.truncate(it.forge.files[frame.number], frame.offset + 100)
    return of_block(it, frame, REPAIR, "frame-header")


@damage
def missing(it: Copies) -> Expected:
    number = second(it.forge)
    expected = of_segment(it, number, "gap")
    it.forge.files[number].unlink()
    return expected


@damage
def swapped(it: Copies) -> Expected:
    expected = of_segment(it, second(it.forge), "segment-header")
    one, two = (it.forge.files[number] for number in (second(it.forge), third(it.forge)))
    one.rename(aside := one.with_suffix(".aside"))
    two.rename(one)
    aside.rename(two)
    return expected


@damage
def duplicated(it: Copies) -> Expected:
    expected = of_segment(it, third(it.forge), "segment-header")
    shutil.copyfile(it.forge.files[second(it.forge)], it.forge.files[third(it.forge)])
    return expected


@damage
def forged_block(it: Copies) -> Expected:
    """Another value under checksums that were made for it."""
    frame = plain(it.forge)
    it.forge.body(frame, len(frame.payload) - 5, b"other")
    return replace(of_block(it, frame, REPAIR, "divergence"), vlsn=frame.last)


@damage
def one_entry_behind(it: Copies) -> Expected:
    """The last block is gone with all behind it, though it had been synced."""
    forge = it.forge
    frame = forge.blocks()[-1]
    size = forge.files[frame.number].stat().st_size
    with forge.files[frame.number].open("r+b") as file:
        file.seek(frame.offset)
        file.write(bytes(size - frame.offset))
    return of_block(it, frame, START, "frame-header")


@damage
def a_kept_overmarked_range(it: Copies) -> Expected:
    """A range that was rolled back is visible again."""
    forge = Forge(it.paths[it.deposed])
    frames = [frame for frame in forge.frames() if frame.kind == BLOCK and frame.flag]
    for frame in frames:
        forge.write(frame, frame.payload, flag=0)
    return Expected(("overmark",), it.deposed, forge.files[frames[0].number].name, frames[0].first, RESTORE)


@damage
def an_old_image(it: Copies) -> Expected:
    """The directory as it was once, put back: all of it is right, and an earlier audit has read more."""
    shutil.rmtree(it.paths[it.odd])
    shutil.copytree(it.early, it.paths[it.odd])
    last = it.forge.blocks()[-1]
    return Expected(("shorter-than-claimed",), it.odd, it.forge.files[last.number].name, last.last + 1, START)


@damage
def a_forged_term(it: Copies) -> Expected:
    frame = plain(it.forge)
    it.forge.put(frame, "term", 99)
    return of_block(it, frame, REPAIR, "term-order", "divergence")


@damage
def a_forged_value(it: Copies) -> Expected:
    """16 bytes of a value, and 8 that leave every checksum as it was."""
    frame = plain(it.forge)
    payload = forged(frame.payload, len(frame.payload) - 40, b"forged by someone"[:16])
    it.forge.write(frame, payload, checksums="none")
    return replace(of_block(it, frame, REPAIR, "divergence"), vlsn=frame.last)


def faults_of(report: AuditReport, expected: Expected) -> list[str]:
    """Returns what of the report is not as an auditor should have it."""
    if not report.findings:
        return ["nothing was found"]
    first = report.findings[0]
    found = [] if first.rule in expected.rules else [f"told as {first.rule}"]
    pairs = [(name, getattr(first, name), getattr(expected, name)) for name in ("owner", "file", "vlsn")]
    found += [f"{name} is {told!r}, and not {right!r}" for name, told, right in pairs if told != right]
    if expected.mend not in first.mend:
        found.append(f"mended by {first.mend!r}")
    others = [each for each in report.findings[1:] if (each.rule, each.source) != (first.rule, first.source)]
    return found + [f"and {each.rule} at VLSN {each.vlsn} of {each.source}" for each in others]


class RealNodes:
    """A group of processes with a log of ``size`` bytes, a rollback of n1 near its beginning, and n3's early image."""

    def __init__(self, root: Path, size: int) -> None:
        self._root, self._made, self._early = root, root / "made", root / "early"
        group = Group(self._made, segment_bytes=max(1 << 20, min(64 << 20, size // 6 >> 12 << 12)))
        try:
            group.start()
            group.lead("n1")
            self._fill(group, size // 8)
            self._depose(group)
            self._fill(group, size * 3 // 8)
            self._rest(group)
            shutil.copytree(group.path("n3"), self._early)
            group.start()
            self._fill(group, size // 2)
            self._rest(group)
        finally:
            group.end()

    def _fill(self, group: Group, size: int) -> None:
        values = [b"entry %d " % number + b"." * ENTRY_BYTES for number in range(500)]
        with connect_sync(",".join(group.urls.values())) as log:
            for _ in range(max(1, size // (len(values) * len(values[0])))):
                log.append_many(values)

    def _depose(self, group: Group) -> None:
        """n1 logs what nobody else gets, and is killed; another one leads; n1 rolls back."""
        group.settle()
        group.kill("n2", "n3")
        with connect_sync(group.urls["n1"]) as log:
            for number in range(4):
                log.append_batch([b"nobody's %d" % number], acks="none")
        group.until(lambda: group.status("n1")["range"]["last_sync"] == group.status("n1")["range"]["last"], "synced")
        group.kill("n1")
        group.start("n2", "n3")
        with connect_sync(",".join(group.urls.values())) as log:
            log.append(b"after it")
        group.start("n1")

    def _rest(self, group: Group) -> None:
        """Stops all nodes, each with its idle end noted."""
        group.settle()
        group.stop("n1", "n2", "n3")

    @contextmanager
    def copies(self) -> Iterator[tuple[Group, Copies]]:
        """Yields a copy of the directories, and the group that they are of, which is not started."""
        work = self._root / "work"
        shutil.copytree(self._made, work)
        group = Group(work)
        try:
            yield group, Copies({name: group.path(name) for name in group.urls}, "n1", "n3", self._early)
        finally:
            group.end()
            shutil.rmtree(work)


def mended(group: Group, owner: str, command: str) -> None:
    """Does what a finding says, with the nodes up or down as it needs them; they are stopped afterwards."""
    others = [name for name in group.urls if name != owner]
    if command.startswith(RESTORE):
        group.start()
        if group.leader == owner:
            group.lead(others[0])
        subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)
        group.until(lambda: bool(group.status(owner).get("restore", {}).get("history")), f"{owner} has its log again")
        group.settle()
        group.stop(*group.urls)
    elif START in command:
        group.launch(*others)
        node = subprocess.Popen(command, shell=True, start_new_session=True, stderr=subprocess.DEVNULL)
        try:
            last = max(group.status(group.leader)["range"]["last"], 1)
            group.until(lambda: group.status(owner).get("dtvlsn", 0) >= last, f"{owner} has the log again")
        finally:
            os.killpg(node.pid, signal.SIGTERM)
            node.wait()  # the shell's end, and not yet the node's
            lock = str(group.path(owner) / LOCK_NAME)
            group.until(lambda: not PosixDisk().is_locked(lock), f"{owner} has ended")
        group.stop(*others)
    else:
        subprocess.run(command, shell=True, check=True, stdout=subprocess.DEVNULL)


def main(megabytes: int) -> int:
    fast = "/dev/shm" if Path("/dev/shm").is_dir() else None
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    wrong = 0
    with TemporaryDirectory(prefix="vlsnlog-damages-", dir=fast) as directory, spark_context("local[2]"):
        root, out = Path(directory), f"{directory}/report.json"
        nodes = RealNodes(root, megabytes * 1_000_000)
        for name, make in DAMAGES.items():
            with nodes.copies() as (group, copies):
                paths = list(map(str, copies.paths.values()))
                before = run_audit(paths, out=[f"{directory}/before.json"])
                assert before.equal and not before.findings, before.findings
                expected = make(copies)
                since = f"{directory}/before.json" if name == "an_old_image" else None
                report = run_audit(paths, out=[out], since_last=since)
                faults = faults_of(report, expected)
                if report.findings:
                    mended(group, report.findings[0].owner, report.findings[0].mend)
                    faults += [f"left: {each}" for each in run_audit(paths).findings]
                wrong += bool(faults)
                told = report.findings[0] if report.findings else None
                print(f"{name}: {told and (str(told.rule), told.owner, told.file, told.vlsn, told.mend)}", flush=True)
                print("\n".join(f"    {fault}" for fault in faults) or f"    right, and mended; {report.seconds:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 300))
