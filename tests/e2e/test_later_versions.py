"""A directory that a later vlsnlog has written: refused with status 2, and not a byte is touched.

Each file format gets a version that no binary has yet, under a right checksum.  With a wrong checksum the same bytes
are damage, as ever: a version counts only where its checksum does.
"""

from __future__ import annotations

import ast
import re
import shutil
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import msgspec
import pytest

from repl.audit.report import REPORT_VERSION
from repl.cdc.position_file import VERSIONS, PositionFile, StoredPosition
from tests.e2e.commands import VLSNLOG, Ended, run_all
from vlsn import Log, LogOptions
from vlsn.errors import Damaged, WrongVersion
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.index.stored import FIRST_KEY, RECORD_KEY
from vlsn.index.time_index import META_KEY
from vlsn.index.time_index import VERSION as TIME_INDEX_VERSION
from vlsn.levels import LEVELS
from vlsn.pages.page import PageHeader
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state.state_store import RECORD_KEY as STATE_KEY
from vlsn.verify.dump import DumpFilter, dump_rows

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"_?(REPORT_)?(MAGIC|VERSION|VERSIONS)\Z")
ENTRIES = 40
LATER = LEVELS.max + 1
"""A level, and a version of node files and segments, that no binary has yet."""
MAP_BYTES = 1 << 30
WAIT_S = 60.0


@dataclass(frozen=True, slots=True)
class Made:
    """A node's directory after a kill: a sealed segment with its sidecar, a checkpoint, and blocks behind that."""

    path: Path
    settings: tuple[str, ...]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("later") / "n1"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    settings = ("--name", "n1", "--member", f"n1={url}", "--group", "g", "--segment-bytes", str(1 << 20))
    node = subprocess.Popen([VLSNLOG, "node", *settings, "--dir", str(path)], stderr=subprocess.DEVNULL)
    try:
        for command in ("append", "rotate", "append", "checkpoint", "append", "append"):
            value = ["-"] if command == "append" else []
            for _ in range(ENTRIES if command == "append" else 1):
                _until_done([VLSNLOG, command, "--url", url, *value], node)
                if command == "append":
                    break
        _wait_for((path / "00000001.vidx").exists)
    finally:
        node.kill()
        node.wait()
    return Made(path, settings)


def _until_done(command: list[str], node: subprocess.Popen[bytes]) -> None:
    """A node that has just been started refuses for a while."""
    lines = b"".join(b"entry %d\n" % number for number in range(ENTRIES))
    end = time.monotonic() + WAIT_S
    if "-" in command:
        command = [*command[:-1], "--file", "-"]
    while (done := subprocess.run(command, input=lines, capture_output=True, check=False)).returncode:
        assert node.poll() is None and time.monotonic() < end, done.stderr


def _wait_for(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


# The bytes of a later version.  Each takes a directory, and whether the checksum is to be right.


def _patched(path: Path, at: int, data: bytes, start: int, end: int, crc_at: int, right: bool) -> None:
    """``data`` at ``at``, and the crc at ``crc_at`` over bytes ``start`` to ``end``."""
    page = bytearray(path.read_bytes())
    page[at : at + len(data)] = data
    if right:
        page[crc_at : crc_at + 4] = crc(bytes(page[start:end])).to_bytes(4, "little")
    path.write_bytes(page)


def node_file(path: Path, right: bool) -> None:
    for slot in (0, 4096):
        _patched(path / "node.id", slot + 8, bytes([LATER]), slot, slot + 4092, slot + 4092, right)


def node_files_second_slot(path: Path, right: bool) -> None:
    _patched(path / "node.id", 4096 + 8, bytes([LATER]), 4096, 8188, 8188, right)


def segment(path: Path, right: bool) -> None:
    _patched(path / "00000001.vlog", 8, bytes([LATER]), 0, 4092, 4092, right)


def last_segment(path: Path, right: bool) -> None:
    _patched(sorted(path.glob("*.vlog"))[-2], 8, bytes([LATER]), 0, 4092, 4092, right)


def _block_with_one_behind_it(path: Path) -> tuple[Path, int, int]:
    """Returns file, offset and length in bytes. The very last block, spoilt, may pass for a write that a crash cut."""
    rows = dump_rows(PosixDisk(), LmdbStores(), str(path), DumpFilter(kinds=frozenset({"BLOCK"})), reverse=True)
    next(rows)
    row = next(rows)
    return path / row.file, row.offset, row.bytes


def _reframed(path: Path, offset: int, length: int, right: bool) -> None:
    data = bytearray(path.read_bytes())
    head, body = data[offset : offset + FRAME_BYTES], data[offset + FRAME_BYTES : offset + FRAME_BYTES + length]
    if right:
        total = crc(bytes(body), crc(bytes(head[:3] + head[4:20])))
        data[offset + 20 : offset + 24] = total.to_bytes(4, "little")
    path.write_bytes(data)


def block(path: Path, right: bool) -> None:
    file, offset, length = _block_with_one_behind_it(path)
    at = offset + FRAME_BYTES
    _patched(file, at, b"\2", at, at + 60, at + 60, right)
    _reframed(file, offset, length, True)


def record(path: Path, right: bool) -> None:
    file, offset, length = _block_with_one_behind_it(path)
    data = bytearray(file.read_bytes())
    data[offset + 2] = max(FrameKind) + 1
    file.write_bytes(data)
    _reframed(file, offset, length, right)


def sidecar(path: Path, right: bool) -> None:
    file = path / "00000001.vidx"
    size = file.stat().st_size
    _patched(file, 8, b"\2", 0, size - 4, size - 4, right)


def state(path: Path, right: bool) -> None:
    assert right
    store = LmdbStores().open(str(path / "state"), map_bytes=MAP_BYTES)
    value = store.get(STATE_KEY)
    assert value is not None
    later, count = re.subn(rb'"level":\d+\b', b'"level":%d' % LATER, value)
    assert count == 1
    store.write([(STATE_KEY, later)])
    store.close()


def state_of_another_shape(path: Path, right: bool) -> None:
    assert right
    store = LmdbStores().open(str(path / "state"), map_bytes=MAP_BYTES)
    store.write([(STATE_KEY, b'{"level":%d,"vlsn":"in another shape"}' % LATER)])
    store.close()


def index(path: Path, right: bool) -> None:
    assert right
    store = LmdbStores().open(str(path / "index"), map_bytes=MAP_BYTES)
    value = store.get(RECORD_KEY)
    assert value is not None
    store.write([(RECORD_KEY, struct.pack("<H", 3) + value[2:])])
    store.close()


def index_bucket(path: Path, right: bool) -> None:
    assert right
    store = LmdbStores().open(str(path / "index"), map_bytes=MAP_BYTES)
    found = store.at_or_after(FIRST_KEY)
    assert found is not None
    store.write([(found[0], struct.pack("<H", 2) + found[1][2:])])
    store.close()


def time_index(path: Path, right: bool) -> None:
    assert right
    store = LmdbStores().open(str(path / "index"), map_bytes=MAP_BYTES)
    value = store.get(META_KEY)
    assert value is not None
    store.write([(META_KEY, struct.pack("<H", TIME_INDEX_VERSION + 1) + value[2:])])
    store.close()


def marker(path: Path, right: bool) -> None:
    text = b'{"version":2,"first_segment":"in another shape"}'
    (path / "restore.marker").write_bytes((crc(text) ^ (not right)).to_bytes(4, "little") + text)


def page(path: Path, right: bool) -> None:
    directory = path / "pages" / "00000000000000aa"
    directory.mkdir(parents=True)
    (directory / "000000001.page").write_bytes(PageHeader(directory.name, 1, 7).encode() + bytes(100))
    _patched(directory / "000000001.page", 8, b"\2", 0, 60, 60, right)


Later = Callable[[Path, bool], None]
EVERY = ("node", "verify", "dump", "truncate", "accept", "clean", "index")
FORMATS: dict[str, tuple[Later, str, str, tuple[str, ...]]] = {
    "node file": (node_file, "node.id", f"version {LATER}", EVERY),
    "node file, one slot": (node_files_second_slot, "node.id", f"version {LATER}", EVERY),
    "segment": (
        segment,
        "00000001.vlog",
        f"version {LATER}",
        ("node", "verify", "dump", "truncate", "accept", "clean"),
    ),
    "last segment": (
        last_segment,
        ".vlog",
        f"version {LATER}",
        ("node", "verify", "dump", "truncate", "accept", "clean"),
    ),
    "block": (block, ".vlog", "version 2", ("node", "verify", "dump", "truncate")),
    "record": (record, ".vlog", "kind 6", ("node", "verify", "dump", "truncate", "accept")),
    "sidecar": (sidecar, "00000001.vidx", "version 2", EVERY),
    "state": (state, "state", f"level {LATER}", ("node", "verify", "dump", "truncate", "accept", "clean")),
    "state, shape": (
        state_of_another_shape,
        "state",
        f"level {LATER}",
        ("node", "verify", "dump", "truncate", "clean"),
    ),
    "index": (index, "index", "version 3", ("node", "verify", "index")),
    "index bucket": (index_bucket, "index", "version 2", ("node", "verify", "index")),
    "time index": (time_index, "index", "version 2", ("node", "verify")),
    "page": (page, "000000001.page", "version 2", (*EVERY, "page")),
    "restore marker": (marker, "restore.marker", "version 2", EVERY),
}
"""Ways to make it, the file and the version in the error, and the commands that read that format."""
MODULES: dict[str, tuple[str, ...] | str] = {
    "vlsn/format/block.py": ("block",),
    "vlsn/format/frame.py": ("record",),
    "vlsn/format/scan.py": ("block", "record"),
    "vlsn/format/segment.py": ("segment", "last segment"),
    "vlsn/format/sidecar.py": ("sidecar",),
    "vlsn/index/bucket.py": ("index bucket",),
    "vlsn/index/stored.py": ("index",),
    "vlsn/index/time_index.py": ("time index",),
    "vlsn/pages/page.py": ("page",),
    "vlsn/pages/record.py": ("page",),
    "vlsn/recover/versions.py": ("node file", "segment"),
    "vlsn/segments/restore_marker.py": ("restore marker",),
    "vlsn/state/node_file.py": ("node file", "node file, one slot"),
    "vlsn/state/state_store.py": ("state", "state, shape"),
    "repl/cdc/position_file.py": "test_a_later_position_file_is_refused_and_stays_as_it_is",
    "repl/export/manifest.py": "test_a_later_manifest_or_report_is_refused_and_nothing_is_touched",
    "repl/audit/report.py": "test_a_later_manifest_or_report_is_refused_and_nothing_is_touched",
    "vlsn/format/batch.py": "a client's message, in no file",
    "repl/destinations/message_batch.py": "a message to a worker, in no file",
    "repl/auth/signatures.py": "a header of calls between members, in no file",
    "repl/destinations/consume_messages.py": "a message of a worker, in no file",
    "vlsn/real/lmdb_pages.py": "LMDB's own format, which only LMDB writes",
    "vlsn/levels.py": "makes the errors of all others",
}
"""The modules that lay out bytes with a magic number or a version: their fixtures above, or their test, or why they
have none."""


def commands(made: Made, path: Path) -> dict[str, tuple[str | Path, ...]]:
    return {
        "node": ("node", *made.settings, "--dir", path, "--log-level", "error"),
        "verify": ("verify", path),
        "dump": ("dump", "--all", path),
        "truncate": ("truncate", "--after", str(ENTRIES + 3), path),
        "accept": ("truncate", "--accept-floor", path),
        "clean": ("clean", path, "--dry-run"),
        "index": ("index", path),
        "page": ("page", "print", path),
    }


def _layouts() -> set[str]:
    """Finds the modules that define a magic number or a version of bytes, or refuse a later one."""
    found = set()
    for path in (each for room in ("vlsn", "feeder", "replica", "repl") for each in (ROOT / room).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if _annotated(node) else []
            names = {each.id for each in targets if isinstance(each, ast.Name)}
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if called == "unread" or any(_NAME.match(name) for name in names):
                found.add(str(path.relative_to(ROOT)))
    return found


def _annotated(node: ast.AST) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign)


def test_every_layout_that_the_code_has_is_met_in_a_later_version() -> None:
    """A new format without a fixture fails here."""
    assert _layouts() == MODULES.keys() - {"vlsn/levels.py"}
    used = {name for names in MODULES.values() if not isinstance(names, str) for name in names}
    assert used == FORMATS.keys()
    tests = {each for each in MODULES.values() if isinstance(each, str) and each.startswith("test_")}
    assert tests <= globals().keys()


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "n1"
    shutil.copytree(made.path, path)
    yield path
    shutil.rmtree(path)


def contents(path: Path) -> dict[str, bytes]:
    """Returns every file byte for byte, and its name; without the two lock files of a running process."""
    files = (each for each in path.rglob("*") if each.is_file() and each.name not in ("LOCK", "lock.mdb"))
    return {str(each.relative_to(path)): each.read_bytes() for each in files}


def refused(ended: Ended, file: str, version: str) -> None:
    assert ended.status == 2, ended
    lines = ended.err.splitlines()
    assert len(lines) == 1, ended
    assert file in lines[0] and version in lines[0] and "run a later one" in lines[0], ended


@pytest.mark.parametrize("name", FORMATS)
def test_a_later_version_is_refused_and_nothing_is_touched(name: str, made: Made, copy: Path) -> None:
    later, file, version, readers = FORMATS[name]
    later(copy, True)
    before = contents(copy)
    ended = dict(zip(readers, run_all(*(commands(made, copy)[each] for each in readers)), strict=True))
    for each in readers:
        if "belongs to a running node" in ended[each].err:  # one of the others had just locked the directory
            (ended[each],) = run_all(commands(made, copy)[each])
        refused(ended[each], file, version)
    assert contents(copy) == before


def test_a_later_position_file_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    """The node runs on with its other consumers: this one is parked."""
    position = StoredPosition(group="g", name="mirror", next=7)
    path = tmp_path / "cdc" / "mirror.position"
    path.parent.mkdir()
    later = VERSIONS[-1] + 1
    for right in (True, False):
        page = bytearray(position.encode())
        page[8] = later
        if right:
            page[-4:] = crc(bytes(page[:-4])).to_bytes(4, "little")
        path.write_bytes(bytes(page) * 2)
        with pytest.raises(WrongVersion if right else Damaged, match=f"version {later}" if right else "position"):
            PositionFile.open(PosixDisk(), str(tmp_path), "mirror")
        assert contents(tmp_path) == {"cdc/mirror.position": bytes(page) * 2}


def test_a_later_manifest_or_report_is_refused_and_nothing_is_touched(made: Made, copy: Path, tmp_path: Path) -> None:
    target, report = tmp_path / "target", tmp_path / "report.json"
    exported = ("export", copy, "--to", str(target), "--format", "json")
    (ended,) = run_all(exported)
    assert ended.status == 0, ended
    manifest = max((target / "_manifests").iterdir())
    manifest.write_text(re.sub(r'"version": *1\b', '"version": 2', manifest.read_text()))
    report.write_text(msgspec.json.encode({"version": REPORT_VERSION + 1, "checksums": "in another shape"}).decode())
    before = contents(target), contents(copy)
    refusals = run_all(exported, ("repair", copy, "--from-audit", report))
    for ended, version in zip(refusals, ("version 2", f"version {REPORT_VERSION + 1}"), strict=True):
        assert ended.status == 2 and version in ended.err, ended
    assert (contents(target), contents(copy)) == before


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in ("block", "record")])
def test_a_later_version_of_an_embedded_log_is_refused_too(name: str, tmp_path: Path) -> None:
    """An open reads nothing of its closed segments."""
    later, file, version, _ = FORMATS[name]
    with Log.open(tmp_path, LogOptions(segment_bytes=1 << 20)) as log:
        log.append([b"in the first segment"] * 9)
        log.rotate()
        log.append([b"in the second one"])
        _wait_for((tmp_path / "00000001.vidx").exists)
    later(tmp_path, True)
    before = contents(tmp_path)
    with pytest.raises(WrongVersion, match=version) as refusal:
        Log.open(tmp_path)
    assert file in str(refusal.value)
    assert contents(tmp_path) == before


def test_what_was_made_is_a_log_without_a_finding(made: Made, copy: Path) -> None:
    """Every refusal above might have another reason otherwise."""
    names = [name for name in commands(made, copy) if name != "node"]
    ended = dict(zip(names, run_all(*(commands(made, copy)[name] for name in names)), strict=True))
    assert {name: each.status for name, each in ended.items() if name != "truncate"} == dict.fromkeys(
        [name for name in names if name != "truncate"], 0
    ), ended
    assert "nothing was changed" in ended["truncate"].err


@pytest.mark.parametrize(
    ("later", "what"),
    [
        (node_file, "node-file"),
        (segment, "segment-header"),
        (block, "block-header"),
        (record, "frame-header"),
        (sidecar, "sidecar"),
    ],
)
def test_a_version_that_its_checksum_does_not_vouch_for_is_damage(later: Later, what: str, copy: Path) -> None:
    later(copy, False)
    (ended,) = run_all(("verify", copy))
    assert ended.status == 1, ended
    assert what.encode() in ended.out, ended


def test_the_audit_refuses_it_too(made: Made, copy: Path) -> None:
    block(copy, True)
    (ended,) = run_all(("audit", made.path, copy))
    assert ended.status == 2 and "version 2" in ended.err.splitlines()[-1], ended
