"""Reading ahead gives what reading in turn gives, and stops when nobody asks any more."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import pytest

from vlsn.real.threads import READ_AHEAD, ReadAhead
from vlsn.seams import File, Reading, in_turn
from vlsnlog.testing.fakes.disk import FakeDisk

DATA = bytes(range(256)) * 40
RANGES = [(at, 100) for at in range(0, len(DATA) + 300, 100)]


class Watched:
    """A file that tells of each read before it is made."""

    def __init__(self, file: File, told: Callable[[int], None]) -> None:
        self._file = file
        self._told = told

    def read(self, offset: int, size: int) -> bytes:
        self._told(offset)
        return self._file.read(offset, size)

    def read_into(self, offset: int, into: memoryview) -> int:
        self._told(offset)
        return self._file.read_into(offset, into)

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


@pytest.fixture
def file() -> File:
    disk = FakeDisk()
    disk.make_directory("/d")
    made = disk.open("/d/f", create=True)
    made.write(0, [DATA])
    return made


def threads_reading() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "vlsnlog-read-ahead"]


@pytest.mark.parametrize("reading", [in_turn, ReadAhead()])
def test_pieces_come_in_order_the_last_ones_as_short_as_the_file(reading: Reading, file: File) -> None:
    assert list(map(bytes, reading(file, RANGES))) == [DATA[at : at + size] for at, size in RANGES]
    assert not list(reading(file, []))
    assert not threads_reading()


@pytest.mark.parametrize("reading", [in_turn, ReadAhead()])
def test_a_read_that_fails_is_told_in_its_turn(reading: Reading, file: File) -> None:
    def told(offset: int) -> None:
        if offset == 500:
            raise OSError(errno.EIO, "a bad sector")

    pieces = reading(Watched(file, told), RANGES)  # type: ignore[arg-type]
    assert [bytes(next(pieces)) for _ in range(5)] == [DATA[at : at + 100] for at in range(0, 500, 100)]
    with pytest.raises(OSError, match="a bad sector"):
        next(pieces)
    assert not threads_reading()


@pytest.mark.parametrize("taken", [0, 1, 7])
def test_no_more_is_held_than_is_said_and_nothing_is_read_after_the_end(taken: int, file: File) -> None:
    asked: list[int] = []
    pieces = ReadAhead()(Watched(file, asked.append), RANGES)  # type: ignore[arg-type]
    for number in range(taken):
        next(pieces)
        assert len(asked) <= number + READ_AHEAD
    pieces.close()
    assert not threads_reading()
    assert len(asked) <= taken + READ_AHEAD
