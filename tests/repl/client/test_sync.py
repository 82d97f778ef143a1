"""The client without asyncio."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from repl import connect_sync
from tests.repl.client.group import ServedNode
from vlsn.errors import LogClosed, TooLarge
from vlsn.limits import ENTRY_BYTES_MAX


@pytest.fixture
def served() -> Iterator[ServedNode]:
    with ServedNode() as one:
        yield one


def test_appends_and_reads_block_until_they_are_done(served: ServedNode) -> None:
    with connect_sync(served.url) as log:
        assert log.append(b"a", key=b"k") == 2
        assert log.append_many([b"b", b"c"]) == (3, 4)
        assert [(entry.vlsn, entry.key, entry.value) for entry in log.read()] == [
            (2, b"k", b"a"),
            (3, None, b"b"),
            (4, None, b"c"),
        ]
        tail = log.tail(from_vlsn=4)
        assert next(tail).value == b"c"
        log.append(b"d")
        assert next(tail).value == b"d"


def test_many_threads_share_one_client(served: ServedNode) -> None:
    with connect_sync(served.url) as log, ThreadPoolExecutor(16) as pool:
        vlsns = list(pool.map(log.append, [b"%d" % number for number in range(200)]))
    assert sorted(vlsns) == list(range(2, 202))
    values: dict[int, bytes] = {entry.vlsn: entry.value for entry in served.node.entries}
    assert all(values[vlsn] == b"%d" % number for number, vlsn in enumerate(vlsns))


def test_errors_are_raised_in_the_caller(served: ServedNode) -> None:
    with connect_sync(served.url) as log:
        with pytest.raises(TooLarge):
            log.append(bytes(ENTRY_BYTES_MAX + 1))
        assert log.append(b"fine") == 2
    with pytest.raises(LogClosed):
        log.append(b"too late")
