"""The client without asyncio."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest

from repl import connect_sync
from repl.client.destination import Destination
from repl.client.destination_stream import DestinationStream, Lost
from repl.client.destinations import Destinations
from repl.client.sync_destination import SyncDestination
from repl.destinations.consume_messages import HELLO, head
from tests.repl.client.group import ServedNode
from tests.repl.web.one_node import FIRST
from tests.seam.test_workers import Line
from vlsn.errors import LogClosed, NotFound, TooLarge
from vlsn.limits import ENTRY_BYTES_MAX


@pytest.fixture
def served() -> Iterator[ServedNode]:
    with ServedNode() as one:
        yield one


def test_appends_and_reads_block_until_they_are_done(served: ServedNode) -> None:
    with connect_sync(served.url) as log:
        assert log.append(b"a", key=b"k") == FIRST
        assert log.append_many([b"b", b"c"]) == (FIRST + 1, FIRST + 2)
        assert [(entry.vlsn, entry.key, entry.value) for entry in log.read()] == [
            (FIRST, b"k", b"a"),
            (FIRST + 1, None, b"b"),
            (FIRST + 2, None, b"c"),
        ]
        tail = log.tail(from_vlsn=FIRST + 2)
        assert next(tail).value == b"c"
        log.append(b"d")
        assert next(tail).value == b"d"
        batch = log.append_batch([b"x", b"y"], acks="none", durability="no_sync")
        assert (batch.first, batch.last) == (FIRST + 4, FIRST + 5)
        assert (batch.durable, batch.synced, batch.acks) == (False, 0, "none")


def test_many_threads_share_one_client(served: ServedNode) -> None:
    with connect_sync(served.url) as log, ThreadPoolExecutor(16) as pool:
        vlsns = list(pool.map(log.append, [b"%d" % number for number in range(200)]))
    assert sorted(vlsns) == list(range(FIRST, FIRST + 200))
    values: dict[int, bytes] = {entry.vlsn: entry.value for entry in served.node.entries}
    assert all(values[vlsn] == b"%d" % number for number, vlsn in enumerate(vlsns))


def test_errors_are_raised_in_the_caller(served: ServedNode) -> None:
    with connect_sync(served.url) as log:
        with pytest.raises(TooLarge):
            log.append(bytes(ENTRY_BYTES_MAX + 1))
        assert log.append(b"fine") == FIRST
    with pytest.raises(LogClosed):
        log.append(b"too late")


def test_an_iterator_may_append_by_itself(served: ServedNode) -> None:
    """The iterator runs in its caller's thread: on the loop's it would wait for itself."""
    with connect_sync(served.url) as log:
        assert log.append_many(b"%d" % log.append(b"x") for _ in range(3)) == (FIRST + 3, FIRST + 5)


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


def test_what_the_other_client_can_this_one_can(served: ServedNode) -> None:
    with connect_sync(served.url, codec="json", exactly_once=True) as log:
        log.append({"a": 1}, key="k")
        log.append("text", codec="utf8")
        log.append_many(["a", "b"])
        assert log.append_batch([b"c"], codec="bytes").last == FIRST + 4
        assert log.submit([7], producer=9, sequence=0, born=0).first == FIRST + 5
        assert log.producer_at(9).place.next == 1
        assert log.durable_vlsn() == FIRST + 5
        assert log.vlsn_at(0) == 1
        pages = list(log.read_pages(from_vlsn=FIRST))
        assert [entry.value for page in pages for entry in page.entries] == [
            b'{"a":1}',
            b"text",
            b'"a"',
            b'"b"',
            b"c",
            b"7",
        ]
        assert pages[-1].next_vlsn == FIRST + 6
        tail = log.tail_pages(from_vlsn=FIRST + 5)
        assert [entry.json() for entry in next(tail).entries] == [7]
        log.append(8)
        assert [entry.json() for entry in next(tail).entries] == [8]


def test_values_are_encoded_in_the_callers_thread(served: ServedNode) -> None:
    with connect_sync(served.url, codec="json") as log:
        assert log.append_many({"behind": log.append("x")} for _ in range(3)) == (FIRST + 3, FIRST + 5)
        with pytest.raises(TypeError):
            log.append(b"bytes")


def test_a_consumer_reads_on_from_where_it_committed(served: ServedNode) -> None:
    with connect_sync(served.url) as log, connect_sync(served.url) as other:
        log.append_many([b"a", b"b", b"c"])
        consumer = log.consumer("billing", from_vlsn="start")
        for entry in consumer:
            if entry.value == b"b":
                assert consumer.commit().next == consumer.next_vlsn == entry.vlsn + 1
                break
        assert next(iter(log.consumer("billing"))).value == b"c"
        assert [(each.name, each.next) for each in log.positions.list()] == [("billing", entry.vlsn + 1)]
        placed = consumer.position()
        assert placed is not None
        again = log.positions.get("billing")
        assert again is not None
        # The age of what is not read yet grows between the two questions.
        assert placed == msgspec.structs.replace(again, lag_s=placed.lag_s)
        elsewhere = log.consumer("copy", from_vlsn="start", kept_in=other)
        assert next(iter(elsewhere)).value == b"a"
        elsewhere.commit()
        assert [each.name for each in other.positions.list()] == ["billing", "copy", "sim/copy"]
        log.positions.delete("billing")
        assert log.positions.get("billing") is None
        with pytest.raises(NotFound):
            log.positions.delete("billing")


def test_a_worker_is_given_again_what_its_transaction_did_not_commit(served: ServedNode) -> None:
    with connect_sync(served.url) as log:
        log.append_many([b"a", b"b", b"c"])
        consumer = log.consumer("billing", from_vlsn="start")
        given: list[bytes] = []
        for entry in consumer:
            given.append(entry.value)
            if len(given) == 2:
                with pytest.raises(ZeroDivisionError), log.transaction():
                    raise ZeroDivisionError
                continue
            consumer.commit()
            if entry.value == b"c":
                break
        last = entry.vlsn
        assert given == [b"a", b"b", b"b", b"c"]
        assert consumer.poll(0.05) is None
        waiting = threading.Thread(target=log.append, args=(b"d",))
        waiting.start()
        polled = consumer.poll(10.0)
        waiting.join()
        assert polled is not None and polled.value == b"d"
        with pytest.raises(ZeroDivisionError), log.transaction():
            raise ZeroDivisionError
        assert (again := consumer.poll(10.0)) is not None and again.value == b"d"
        consumer.seek(last)
        assert (before := consumer.poll(10.0)) is not None and before.value == b"c"
        consumer.rewind()
        assert (again := consumer.poll(10.0)) is not None and again.value == b"d"


def test_who_waits_as_another_thread_closes_the_client_is_told(served: ServedNode) -> None:
    log = connect_sync(served.url)
    log.__enter__()
    log.append(b"a")
    tail = log.tail(from_vlsn=FIRST)
    assert next(tail).value == b"a"
    told: list[BaseException] = []

    def wait() -> None:
        try:
            next(tail)
        except BaseException as error:
            told.append(error)

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    time.sleep(0.2)
    log.close()
    waiting.join(60.0)
    assert not waiting.is_alive() and isinstance(told[0], LogClosed)


class SlowLine(Line):
    """A line that closes like a socket: not in the same loop turn."""

    async def close(self, code: int = 1000) -> None:
        await asyncio.sleep(0.1)
        await super().close()


class Connected(Destinations):
    """Destinations of a node that sends nothing after its first message."""

    def __init__(self) -> None: ...

    async def connect(self, name: str, most: int, together: int, lost: Lost) -> DestinationStream:
        line = SlowLine()
        line.tell(head(HELLO) + b"aaaaaaaaaaaaaaaa")
        return await DestinationStream.open(line, lost)


def test_a_worker_that_waits_is_interrupted(served: ServedNode) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with connect_sync(served.url) as log:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                next(iter(SyncDestination(log, Destination(Connected(), "orders"))))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
