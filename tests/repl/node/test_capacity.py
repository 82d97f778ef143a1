"""How many readers may wait, by the machine."""

from __future__ import annotations

import pytest

from repl.net.places import KEPT, OTHERS_MAX
from repl.node.capacity import (
    FILES_KEPT,
    MEMORY_SHARE,
    READER_BYTES,
    READERS_LEAST,
    READERS_MOST,
    check_files,
    connections_of,
    memory_bytes,
    readers_of,
)
from vlsn.errors import BadArgument

MANY = 1 << 20
GIB = 1 << 30


@pytest.mark.parametrize(
    ("files", "memory", "readers"),
    [
        (MANY, GIB, GIB // MEMORY_SHARE // READER_BYTES),
        (MANY, 16 * GIB, 16 * GIB // MEMORY_SHARE // READER_BYTES),
        (MANY, GIB // 64, READERS_LEAST),
        (MANY, 1 << 50, READERS_MOST),
        (20_000, 16 * GIB, 20_000 - FILES_KEPT - KEPT - OTHERS_MAX),
        (4_096, 16 * GIB, (4_096 - FILES_KEPT - KEPT) // 2),
        (1_024, 16 * GIB, 1),
    ],
)
def test_the_default_follows_from_memory_as_far_as_descriptors_go(files: int, memory: int, readers: int) -> None:
    assert readers_of(0, files=files, memory=memory) == readers
    connections = connections_of(readers, files=files)
    assert readers < connections <= max(files - FILES_KEPT, 2 * KEPT)


@pytest.mark.parametrize(
    ("files", "connections"), [(256, 128), (300, 150), (512, 256), (1_024, 256), (1_500, 476), (20_000, 4_325)]
)
def test_where_descriptors_are_few_connections_leave_some_for_the_log(files: int, connections: int) -> None:
    check_files(files)
    assert connections_of(101, files=files) == connections


def test_too_few_descriptors_are_refused_with_what_is_needed() -> None:
    with pytest.raises(BadArgument, match=r"needs 256 file descriptors .* may have 255: .*ulimit -n"):
        check_files(255)


def test_a_setting_is_taken_as_it_is_or_refused_with_what_it_needs() -> None:
    assert readers_of(30_000, files=MANY, memory=GIB // 64) == 30_000
    with pytest.raises(BadArgument, match=r"readers_max: 30000 readers need 31408 .* may have 20000"):
        readers_of(30_000, files=20_000, memory=16 * GIB)
    most = 20_000 - FILES_KEPT - KEPT - READERS_LEAST
    assert readers_of(most, files=20_000, memory=GIB) == most < connections_of(most, files=20_000)


def test_the_memory_is_this_machines() -> None:
    assert 1 << 26 < memory_bytes() < 1 << 50
