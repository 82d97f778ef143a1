"""The client without asyncio."""

from __future__ import annotations

import subprocess
import sys
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
        batch = log.append_batch([b"x", b"y"], acks="none")
        assert (batch.first, batch.last, batch.durable, batch.synced, batch.acks) == (6, 7, False, 1, "none")


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


def test_an_iterator_may_append_by_itself(served: ServedNode) -> None:
    """The iterator runs in its caller's thread: on the loop's it would wait for itself."""
    with connect_sync(served.url) as log:
        assert log.append_many(b"%d" % log.append(b"x") for _ in range(3)) == (5, 7)


FORKS = """
import os, sys, threading
from repl import connect, connect_sync
from vlsn.errors import LogClosed

def refused(call):
    try:
        call()
    except LogClosed as error:
        assert "fork" in str(error), error
        return
    raise AssertionError(call)

def child(log, tail):
    for call in (
        lambda: log.append(b"y"),
        lambda: log.append_many([b"y"]),
        lambda: list(log.read()),
        lambda: next(log.tail(1)),
        lambda: next(tail),
    ):
        refused(call)
    log.close()
    with connect_sync(sys.argv[1]) as own:
        own.append(b"child's own")

over = threading.Event()

def work(log):
    while not over.is_set():
        log.append(b"busy")

with connect_sync(sys.argv[1]) as log:
    log.append(b"before")
    tail = log.tail(1)
    next(tail)
    threads = [threading.Thread(target=work, args=(log,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(5):
        log.append(b"parent")
        pid = os.fork()
        if not pid:
            child(log, tail)
            break
        assert os.waitpid(pid, 0)[1] == 0
    else:
        over.set()
        for thread in threads:
            thread.join()
        next(tail)
        log.append(b"behind it")
"""


@pytest.mark.real
def test_a_forked_child_finds_the_client_closed_and_its_parent_goes_on(served: ServedNode) -> None:
    """Others append, at whatever point they are: a gunicorn that preloads, Celery."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, served.url]
    ended = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
    values = [entry.value for entry in served.node.entries]
    assert values[-1] == b"behind it" and b"y" not in values
    assert values.count(b"child's own") == values.count(b"parent") == 5
