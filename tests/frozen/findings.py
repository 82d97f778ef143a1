"""Answers of ``vlsnlog verify --json`` on directories that a seed has damaged, and of audits of a group's copies.

Three makers take turns:

* ``tests/fuzz`` harms files of a log that no node has written;
* the audit's ``Forge`` and its twelve kinds of damage hurt one copy of a log that three nodes on fakes have left;
* pages of a destination are flipped, cut and lost.
"""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from typing import Any

from repl.audit.outputs import write_outputs
from repl.audit.since import read_since
from repl.cli.main import main as vlsnlog
from tests.fakes.machine import Image
from tests.frozen.files import Frozen
from tests.fuzz.test_directories import harmed
from tests.repl.audit.damages import DAMAGES, Copies
from tests.repl.audit.forge import BLOCK, FIELDS, RECORDS, Forge, Frame
from tests.repl.audit.histories import exported
from tests.repl.audit.jobs import audited
from tests.repl.audit.life import Left, left_by
from tests.vlsn.logs import DIRECTORY, Machine
from tests.vlsn.verify.test_pages import closed, paged
from vlsnlog.testing.fakes.disk import FakeDisk

LIVES = 3
"""Groups whose directories are hurt."""
PAGED = 3
"""Logs whose pages are hurt."""
_MEASURED = re.compile(r'("(?:made_us|modified_us|seconds|mb_per_s)":) [\d.]+')
"""Times of this run, and of the files that it made."""
Edit = Callable[[Random, Forge], object]


def frozen(seed: int, scratch: Path) -> Frozen:
    """Makes and damages a directory below ``scratch``, which is removed again, and verifies it."""
    path = Path(mkdtemp(dir=scratch)) / "node"
    try:
        _MAKERS[seed % len(_MAKERS)](Random(f"frozen/{seed}"), seed, path, scratch)
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = vlsnlog(["verify", str(path), "--json"])
    finally:
        shutil.rmtree(path.parent)
    answer: dict[str, Any] = json.loads(out.getvalue() or "{}")
    words = [finding.pop("detail") for finding in answer.get("findings", ())]
    notes = answer.pop("notes", [])
    answer |= {"status": status, "notes": len(notes), "refused": bool(err.getvalue())}
    said = [*words, *notes, *err.getvalue().splitlines()]
    return Frozen(
        name=f"{seed:05}",
        facts=json.dumps(answer, indent=1) + "\n",
        words="".join(f"{each}\n" for each in said).replace(str(path), "DIR"),
    )


def audited_damage(number: int, scratch: Path) -> Frozen:
    """Audits three copies, of which one has the audit's damage of that number, without Spark."""
    place = Path(mkdtemp(dir=scratch))
    try:
        name = sorted(DAMAGES)[number]
        copies = _copies(_left(0, scratch), place)
        write_outputs(audited(*copies.paths.values()), [str(place / "before.json")])
        DAMAGES[name](copies)
        since = read_since(str(place / "before.json"), deep=False) if name == "an_old_image" else None
        report: dict[str, Any] = json.loads(audited(*copies.paths.values(), since=since).to_json())
    finally:
        shutil.rmtree(place)
    words = [finding.pop("detail", "") for finding in report["findings"]]
    facts, said = _MEASURED.sub(r"\1 0", json.dumps(report, indent=1)) + "\n", "".join(f"{each}\n" for each in words)
    return Frozen(f"{number:05}", f"{name}\n{facts.replace(str(place), 'DIR')}", said.replace(str(place), "DIR"))


# A log that no node has written.


def _harmed(rng: Random, seed: int, path: Path, scratch: Path) -> None:
    built, stores = harmed(seed)
    assert isinstance(built.disk, FakeDisk)
    _written(Image(built.disk, stores.contents), "d", path)


def _written(image: Image, name: str, path: Path) -> None:
    """Writes a simulated directory to a real one, and what lies in directories of its own there."""
    exported(image, name, path)
    for each in _nested(image.disk, f"/{name}"):
        target = path / each.removeprefix(f"/{name}/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(image.disk.content(each))


def _nested(disk: FakeDisk, directory: str) -> Iterator[str]:
    for name in disk.list(directory):
        inside = f"{directory}/{name}"
        if inside not in disk.files(directory):
            yield from disk.files(inside)
            yield from _nested(disk, inside)


# One copy of a group's log.


@cache
def _left(number: int, scratch: Path) -> Left:
    return left_by(Path(mkdtemp(dir=scratch)) / "left", seed=11 + number)


def _copies(left: Left, place: Path, odd: str = "") -> Copies:
    """Copies the directories to ``place``. ``odd`` is the copy to be hurt, unless it has rolled back."""
    for name, source in left.paths.items():
        shutil.copytree(source, place / name)
    others = [name for name in sorted(left.paths) if name != left.deposed]
    odd = odd if odd in others else others[0]
    return Copies({name: place / name for name in left.paths}, left.deposed, odd, left.early[odd])


def _forged(rng: Random, seed: int, path: Path, scratch: Path) -> None:
    left = _left(rng.randrange(LIVES), scratch)
    node = rng.choice(sorted(left.paths))
    if rng.random() < 0.3:
        copies = _copies(left, path.parent, node)
        owner = DAMAGES[rng.choice(sorted(DAMAGES))](copies).owner
        copies.paths[owner].rename(path)
        return
    shutil.copytree(left.paths[node], path)
    blunt = rng.random() < 0.5
    for _ in range(rng.randint(0 if blunt else 1, 2)):
        rng.choice(_FINE)(rng, Forge(path))
    if blunt:
        rng.choice(_BLUNT)(rng, Forge(path))


def _any_frame(rng: Random, forge: Forge) -> Frame:
    """Returns a block, or, for they are few, one of the log's own records as often as not."""
    frames = list(forge.frames())
    records = [frame for frame in frames if frame.kind != BLOCK]
    return rng.choice(records if records and rng.random() < 0.5 else frames)


def _field(rng: Random, forge: Forge) -> None:
    frame = _any_frame(rng, forge)
    name = rng.choice(sorted(FIELDS) if frame.kind == BLOCK else RECORDS[frame.kind])
    bits = 8 * {"B": 1, "I": 4, "Q": 8}[FIELDS[name][0][1]] if frame.kind == BLOCK else 64
    old = frame.get(name)
    forge.put(frame, name, rng.choice((0, 1, old + 1, max(old - 1, 0), rng.getrandbits(bits))) % (1 << bits))


def _body(rng: Random, forge: Forge) -> None:
    frame = rng.choice([frame for frame in forge.frames() if frame.kind == BLOCK])
    at = rng.randrange(64, len(frame.payload))
    forge.body(frame, at, bytes([frame.payload[at] ^ 1 << rng.randrange(8)]))


def _unsummed(rng: Random, forge: Forge) -> None:
    """Changes a block under a right checksum of its frame, and under none of its own."""
    frame = rng.choice([frame for frame in forge.frames() if frame.kind == BLOCK])
    forge.write(frame, _flipped(rng, frame.payload), checksums="frame")


def _flag(rng: Random, forge: Forge) -> None:
    frame = _any_frame(rng, forge)
    forge.write(frame, frame.payload, flag=rng.choice((0, 0xA5, rng.randrange(256))))


def _flip(rng: Random, forge: Forge) -> None:
    number = rng.choice(sorted(forge.files))
    forge.flip(number, rng.randrange(forge.end_of(number)), 1 << rng.randrange(8))


def _zero(rng: Random, forge: Forge) -> None:
    forge.zero(_any_frame(rng, forge))


def _lost(rng: Random, forge: Forge) -> None:
    rng.choice([each for each in sorted(forge.path.iterdir()) if each.is_file()][1:]).unlink()


def _shortened(rng: Random, forge: Forge) -> None:
    file = forge.files[rng.choice(forge.active())]
    file.write_bytes(file.read_bytes()[: rng.randrange(1 << 16)])


def _salted(rng: Random, forge: Forge) -> None:
    forge.salted(rng.choice(forge.active()), rng.getrandbits(32))


def _cut(rng: Random, forge: Forge) -> None:
    blocks = forge.blocks()
    if blocks and {"state", "index", "node.id"} <= {each.name for each in forge.path.iterdir()}:
        forge.cut_after(rng.choice(blocks).last)


def _store(rng: Random, forge: Forge) -> None:
    name = rng.choice([each for each in ("index", "state") if (forge.path / each).exists()] or [""])
    if name:
        key = rng.choice(forge.keys(name))
        forge.store(name, key, lambda value: _flipped(rng, value))


def _sidecar(rng: Random, forge: Forge) -> None:
    for file in rng.sample(found := sorted(forge.path.glob("*.vidx")), min(1, len(found))):
        forge.sidecar(int(file.stem), rng.randrange(len(file.read_bytes()) - 4), rng.randbytes(1))


def _node_file(rng: Random, forge: Forge) -> None:
    if (forge.path / "node.id").exists():
        forge.node_file(rng.randrange(200), rng.randbytes(1))


def _flipped(rng: Random, data: bytes) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


_FINE: tuple[Edit, ...] = (
    *(_field, _field, _field, _body, _unsummed, _flag, _flag, _zero),
    *(_salted, _store, _store, _sidecar, _node_file),
)
_BLUNT: tuple[Edit, ...] = (_flip, _lost, _shortened, _cut)
"""Edits after which the forge need not find its way any more: the last of each directory."""


# Pages of a destination.


@cache
def _paged(number: int, scratch: Path) -> Path:
    machine = Machine(number)
    pager, _ = paged(machine)
    closed(pager)
    path = Path(mkdtemp(dir=scratch)) / "paged"
    _written(Image(machine.disk, machine.stores.contents), DIRECTORY.strip("/"), path)
    return path


def _paged_and_hurt(rng: Random, seed: int, path: Path, scratch: Path) -> None:
    shutil.copytree(_paged(rng.randrange(PAGED), scratch), path)
    for _ in range(rng.randint(1, 3)):
        files = sorted(path.glob("pages/*/*"))
        if not files:
            return
        file, harm = rng.choice(files), rng.random()
        data = file.read_bytes()
        if harm < 0.2:
            file.unlink()
        elif harm < 0.4:
            file.write_bytes(data[: rng.randrange(len(data) + 1)])
        elif harm < 0.5:
            file.write_bytes(rng.choice(files).read_bytes())
        else:
            file.write_bytes(_flipped(rng, data))


_MAKERS = (_harmed, _forged, _harmed, _forged, _paged_and_hurt)
