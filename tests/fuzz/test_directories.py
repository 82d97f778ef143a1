"""Dump and verify on directories that no log has written: they say what is wrong, within bounds.

Files are flipped, cut, prolonged, swapped, removed and filled with noise; headers, frames and sidecars also get any
values under right checksums, since a random flip seldom comes past one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.seeds import seeds
from tests.vlsn.builder import SEGMENT_BYTES, LogBuilder
from vlsn import Log
from vlsn.errors import VlsnLogError, WrongVersion
from vlsn.format import scan
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME, FRAME_BYTES, MAGIC, FrameKind
from vlsn.format.segment import FIRST_FRAME
from vlsn.ids import Lsn, Term, Vlsn, lsn
from vlsn.offline.truncate import loss_of
from vlsn.state import node_file
from vlsn.state.node_file import NodeRecord
from vlsn.state.state_store import IdleEnd, StateStore
from vlsn.verify.dump import DumpFilter, dump_rows
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import FakeDisk
from vlsnlog.testing.fakes.kv import FakeStores

Harm = Callable[[Random, bytearray], bytearray]
PEAK_BYTES_MAX = 24 * SEGMENT_BYTES + (8 << 20)
"""A segment, its columns and what is said of it; files claim up to 2 GiB."""


def flipped(rng: Random, data: bytearray) -> bytearray:
    for _ in range(rng.randint(1, 8)):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def cut(rng: Random, data: bytearray) -> bytearray:
    return data[: rng.randrange(len(data) + 1)]


def prolonged(rng: Random, data: bytearray) -> bytearray:
    return data + (rng.randbytes(rng.randrange(9000)) if rng.random() < 0.5 else bytes(rng.randrange(100_000)))


def noisy(rng: Random, data: bytearray) -> bytearray:
    at = rng.randrange(len(data) + 1)
    noise = rng.randbytes(min(rng.choice((8, 64, 4096, 70_000)), max(len(data) - at, 0)))
    data[at : at + len(noise)] = noise
    return data


def header_with_any_fields(rng: Random, data: bytearray) -> bytearray:
    """Returns a header page whose checksum is right: number, size, ends and salts are anything."""
    if len(data) >= FIRST_FRAME:
        for _ in range(rng.randint(1, 3)):
            at = rng.choice((10, 12, 16, 20, 24, 40, 44, 48, 56))
            value = rng.choice((0, 1, 2, 8, 4096, 4104, 65_536, 1 << 31, (1 << 32) - 8, rng.getrandbits(32)))
            data[at : at + 4] = value.to_bytes(4, "little")
        data[4092:4096] = crc(bytes(data[:4092])).to_bytes(4, "little")
    return data


def frame_with_any_fields(rng: Random, data: bytearray) -> bytearray:
    """Returns a frame whose checksum is right and whose length, kind, distances or block are anything."""
    at = FIRST_FRAME
    for _ in range(rng.randrange(12)):
        if at + FRAME_BYTES <= len(data):
            at += FRAME_BYTES + (int.from_bytes(data[at + 4 : at + 8], "little") + 7 & ~7)
    if at + 200 > len(data):
        return data
    field = rng.choice((2, 4, 8, 12, 24, 28, 32, 40, 48, 64, 80))
    data[at + field : at + field + 2] = rng.randbytes(2)
    length = int.from_bytes(data[at + 4 : at + 8], "little")
    covered = bytes(data[at : at + 3] + data[at + 4 : at + 20])
    data[at + 20 : at + 24] = crc(bytes(data[at + 24 : at + 24 + length]), crc(covered)).to_bytes(4, "little")
    return data


def checksummed(rng: Random, data: bytearray) -> bytearray:
    """Flips under a right checksum at the end, as a sidecar has one."""
    data = flipped(rng, data)
    if len(data) > 4:
        data[-4:] = crc(bytes(data[:-4])).to_bytes(4, "little")
    return data


HARMS: tuple[Harm, ...] = (
    *(flipped, cut, prolonged, noisy, header_with_any_fields, frame_with_any_fields, checksummed),
    lambda rng, data: bytearray(rng.randbytes(len(data))),
    lambda rng, data: bytearray(len(data)),
)


def log_of(rng: Random) -> LogBuilder:
    built = LogBuilder(FakeDisk(), "/d")
    for _ in range(rng.randrange(1, 5)):
        built.blocks(rng.randrange(6)).block(*[b"v" * rng.randrange(50)] * rng.randint(1, 40))
        step = rng.randrange(5)
        if step == 0:
            built.checkpoint()
        elif step == 1 and built.visible()[2:]:
            built.rollback(built.visible()[-2].last)
        elif step == 2:
            built.synced()
        elif step == 3:
            built.roll(built.piece.header.number + rng.randint(1, 3))
    built.write(sidecars=True)
    node_file.create(built.disk, "/d/node.id", NodeRecord(group="g", node="n1", incarnation=7, term=9)).close()
    return built


def state_of(rng: Random) -> FakeStores:
    stores = FakeStores()
    state = StateStore(stores.open("/d/state", map_bytes=1 << 20))
    at = lsn(rng.randrange(6), rng.choice((0, 4096, 5000, 1 << 20, (1 << 32) - 8)))
    state.save(
        idle_end=IdleEnd(lsn=Lsn(at), term=Term(1), vlsn=Vlsn(rng.randrange(90)), dtvlsn=Vlsn(rng.randrange(90)))
    )
    state.close()
    return stores


def harmed(seed: int) -> tuple[LogBuilder, FakeStores]:
    rng = Random(seed)
    built = log_of(rng)
    disk = built.disk
    for _ in range(rng.randint(1, 4)):
        names = [name for name in disk.list("/d") if name != "LOCK"]
        if not names:
            break
        name = rng.choice(names)
        path = f"/d/{name}"
        file = disk.open(path)
        data = bytearray(file.read(0, file.size()))
        file.close()
        match rng.randrange(12):
            case 0:
                disk.remove(path)
            case 1:
                built.put(rng.choice(names), bytes(data))
            case 2:
                built.put(f"{rng.randrange(9):08d}.{rng.choice(('vlog', 'vidx', 'cut-4096', 'cut-99.1'))}", bytes(data))
            case _:
                built.put(name, bytes(rng.choice(HARMS)(rng, data)))
    return built, state_of(rng) if rng.random() < 0.3 else FakeStores()


def look(built: LogBuilder, stores: FakeStores) -> None:
    """Runs everything that only looks; the direction makes no difference."""
    disk = built.disk
    for live in (False, True):
        lock = disk.lock("/d/LOCK") if live else None
        try:
            report = verify(disk, stores, "/d", live=live)
            every = list(dump_rows(disk, stores, "/d", DumpFilter(all=True)))
            assert list(dump_rows(disk, stores, "/d", DumpFilter(all=True), reverse=True)) == every[::-1]
            assert not any(row.damaged for row in every) or not report.ok
        except WrongVersion:
            pass  # under a right checksum, as some of the harm is
        if lock is not None:
            lock.release()
    for after in (1, 7):
        try:
            loss_of(disk, stores, "/d", after)
        except VlsnLogError:
            pass  # refused, in words


@pytest.mark.parametrize("seed", seeds(250))
def test_a_harmed_directory_is_told_of_and_nothing_more(seed: int) -> None:
    look(*harmed(seed))


@pytest.mark.parametrize("seed", seeds(30))
def test_memory_stays_bounded_whatever_a_directory_claims(seed: int) -> None:
    built, stores = harmed(10_000 + seed)
    tracemalloc.start()
    try:
        look(built, stores)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES_MAX, peak


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=9000), st.binary(max_size=200))
def test_any_bytes_in_the_place_of_a_segment_a_sidecar_and_a_node_file(data: bytes, more: bytes) -> None:
    built = LogBuilder(FakeDisk(), "/d").blocks(3).roll().blocks(2).roll().blocks(2).write()
    for name in ("00000002.vlog", "00000001.vidx", "node.id", "00000001.cut-4096"):
        built.put(name, data if name.endswith("vlog") else data[:100] + more)
    look(built, FakeStores())


def test_a_file_full_of_frames_that_are_none_is_given_up_on() -> None:
    """Each place claims a frame up to the end of the file, and a checksum over all of it."""
    size = 4 << 20
    data = bytearray(size)
    for at in range(FIRST_FRAME, size - 64, 24):
        FRAME.pack_into(data, at, MAGIC, FrameKind.BLOCK, 0, size - at - 24, 0, 0, 0, 0)
    assert scan.salt_of(bytes(data), 0, FIRST_FRAME) is None


# Real directories, LMDB's files too: what LMDB cannot take would end the process, so it is another one.

LOOK = """
import random, sys
from repl.cli.main import main
from pathlib import Path
directory, seed = Path(sys.argv[1]), int(sys.argv[2])
rng = random.Random(seed)
files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name not in ("LOCK", "lock.mdb"))
path = rng.choice(files)
data = bytearray(path.read_bytes())
used = min(len(data), 16384)
for _ in range(rng.randint(1, 20)):
    data[rng.randrange(used)] = rng.randrange(256)
path.write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
commands = ["verify", "--json"], ["dump", "--all"], ["truncate", "--after", "3"]
statuses = [main([*command, str(directory)]) for command in commands]
sys.exit(0 if set(statuses) <= {0, 1, 2} else 9)
"""


@pytest.mark.real
@pytest.mark.parametrize("seed", seeds(3))
def test_the_commands_end_with_a_status_and_no_traceback(seed: int, tmp_path: Path) -> None:
    with Log.open(str(tmp_path / "log")) as log:
        for number in range(20):
            log.append([b"entry %d" % number] * 3)
        log.rotate()
        log.append([b"more"])
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path / "log"), str(seed)],
        capture_output=True, text=True, timeout=60, env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
