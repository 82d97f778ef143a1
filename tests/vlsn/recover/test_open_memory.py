"""The memory of an open: one segment, once, a quarter more at most, and what it cuts."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from random import Random

import pytest

from tests.vlsn.builder import LogBuilder
from vlsn.limits import MIB
from vlsn.recover.torn_tail import Cut, examine, untaken
from vlsn.segments.directory import survey
from vlsnlog.testing.fakes.disk import FakeDisk

SEGMENT = 16 * MIB


def peak_of(call: Callable[[], object]) -> int:
    """Returns bytes that ``call`` held at most."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("cut", [0, 100, 4 * MIB], ids=["zeros behind", "a torn group", "a long tail"])
def test_a_last_segment_is_read_once(cut: int) -> None:
    built = LogBuilder(FakeDisk(), "/d", segment_bytes=SEGMENT).blocks(20).write()
    (segment,) = survey(built.disk, "/d")
    file = built.disk.open(segment.path, write=True)
    file.write(built.piece.end, [Random(1).randbytes(cut)])
    found = examine(built.disk, segment, start=4096, last=True, stated=[])  # what is imported, or made once, is there
    assert (found.cut is not None) == bool(cut)
    assert found.cut is None or len(found.cut.data) == cut
    peak = peak_of(lambda: examine(built.disk, segment, start=4096, last=True, stated=[]))
    assert SEGMENT - 4096 <= peak <= SEGMENT + SEGMENT // 4 + cut


def test_a_segment_that_was_never_synced_is_read_once() -> None:
    built = LogBuilder(FakeDisk(), "/d", segment_bytes=SEGMENT).blocks(20).write()
    file = built.disk.open("/d/00000001.vlog", write=True)
    file.write(0, [bytes(4096)])
    (segment,) = survey(built.disk, "/d")
    cut = untaken(built.disk, segment, stated=[])
    assert isinstance(cut, Cut)
    peak = peak_of(lambda: untaken(built.disk, segment, stated=[]))
    assert peak <= SEGMENT + SEGMENT // 4
