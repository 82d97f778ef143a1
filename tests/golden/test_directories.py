"""A log directory of the first formats, written at fd40b05, before there were levels: it opens, and goes on.

``log_0.1.0.tar.xz`` holds it twice: closed cleanly, and copied while its process had it open, as a kill leaves it.  In
both: 20 entries and a keyed one in a sealed segment, one in the next, a checkpoint, one behind it.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from vlsn import Log
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state import node_file
from vlsn.state.state_store import RECORD_KEY, StateStore
from vlsn.verify.verify import verify

HERE = Path(__file__).parent
VALUES = [*(b"entry %d" % number for number in range(20)), b"keyed", b"in the second segment", b"behind the checkpoint"]
MAP_BYTES = 1 << 30


@pytest.fixture(params=["clean", "killed"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    with tarfile.open(HERE / "log_0.1.0.tar.xz") as archive:
        archive.extractall(tmp_path)
    return str(tmp_path / request.param)


def test_the_first_formats_are_read_and_gone_on_with(directory: str) -> None:
    assert verify(PosixDisk(), LmdbStores(), directory).ok
    for opens in range(2):
        with Log.open(directory) as log:
            assert [entry.value for entry in log.read()] == [*VALUES, *[b"more"] * opens]
            assert [entry.value for entry in log.read() if entry.key == b"k"] == [b"keyed"]
            log.append([b"more"])
    assert verify(PosixDisk(), LmdbStores(), directory).ok


def test_what_says_nothing_of_a_level_is_of_level_1(directory: str) -> None:
    store = LmdbStores().open(f"{directory}/state", map_bytes=MAP_BYTES, read_only=True)
    value = store.get(RECORD_KEY)
    assert value is not None and b"level" not in value
    record = StateStore(store).record()
    assert record is not None and (record.level, record.level_vlsn) == (1, 0)
    store.close()
    assert node_file.read(PosixDisk(), f"{directory}/node.id").level == 1
