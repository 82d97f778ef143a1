"""A group none of whose nodes answers, or that stops to: the read or write fails within the time that is asked for."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from repl.client.sink_batch import Batch
from repl.spark.batch import VisibleReader
from repl.spark.datasource import VlsnLogDataSource
from repl.spark.options import Use, read_options
from repl.spark.schemas import PHYSICAL, VISIBLE
from repl.spark.sink import _written
from repl.spark.stream import RunPartition, close_clients
from repl.spark.stream_options import sink_options
from tests.repl.audit.logs import STORY, Copy
from tests.repl.audit.test_live import served
from tests.repl.client.test_batch_rows import rows
from vlsn.errors import VlsnLogError

GIVE_UP_S = 1
LIMIT_S = 40.0
"""Far above the time that is asked for, on a machine that does much else, and below what is usual without it."""
NODES = 64


@pytest.fixture
def silent() -> Iterator[str]:
    """URLs of nodes that take connections and answer nothing: one after the other they take longer than that."""
    with ExitStack() as stack:
        listening = [stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64)) for _ in range(NODES)]
        yield ",".join(f"http://127.0.0.1:{each.getsockname()[1]}" for each in listening)
        close_clients()


def stream(urls: str) -> Any:
    return VlsnLogDataSource({"path": urls, "giveUpSeconds": str(GIVE_UP_S)}).streamReader(VISIBLE)


def batch(urls: str, **more: str) -> Any:
    given = {"path": urls, "giveUpSeconds": str(GIVE_UP_S), **more}
    return VlsnLogDataSource(given).reader(PHYSICAL if "mode" in more else VISIBLE)


def known(reader: Any) -> Any:
    """The reader of a stream that has asked for its group before the nodes fell silent."""
    reader._known = ""
    return reader


def written(urls: str, query: Batch | None) -> object:
    options = sink_options({"url": urls, "sink": "s", "giveUpSeconds": str(GIVE_UP_S)}, Use.SINK, overwrite=False)
    return asyncio.run(_written(options, query, rows([[(b"k", b"v")]])))


CALLS: dict[str, Callable[[str], object]] = {
    "a batch": lambda urls: batch(urls).partitions(),
    "a batch up to a VLSN": lambda urls: batch(urls, to="5").partitions(),
    "a batch of a lag": lambda urls: batch(urls, lagMaxSeconds="5").partitions(),
    "a batch since a time": lambda urls: batch(urls, since="2026-01-01").partitions(),
    "every frame": lambda urls: batch(urls.partition(",")[0], mode="physical").partitions(),
    "a stream": lambda urls: stream(urls).initialOffset(),
    "a stream that goes on": lambda urls: stream(urls).latestOffset({"vlsn": 5, "term": 1}, None),
    "a stream's next batch": lambda urls: known(stream(urls)).latestOffset({"vlsn": 5, "term": 1}, None),
    "a stream's plan": lambda urls: known(stream(urls)).partitions({"vlsn": 5, "term": 1}, {"vlsn": 9, "term": 1}),
    "a stream's task": lambda urls: list(stream(urls).read(RunPartition(1, 5, 0))),
    "a sink": lambda urls: written(urls, Batch("s", "q", 0, 1)),
    "a write": lambda urls: written(urls, None),
}


@pytest.mark.long
@pytest.mark.parametrize("what", CALLS)
def test_a_dead_group_is_told_within_the_time_that_is_asked_for(silent: str, what: str) -> None:
    began = time.monotonic()
    with pytest.raises(VlsnLogError, match=r"is the node up|no (node answers at|answer in time of) http"):
        CALLS[what](silent)
    assert GIVE_UP_S / 2 < time.monotonic() - began < LIMIT_S


@pytest.mark.long
def test_a_task_whose_nodes_fall_silent_tells_it_in_time(silent: str, tmp_path: Path) -> None:
    with served(Copy(tmp_path / "n1", "n1").add(*STORY).write()) as server:
        reader = batch(server.url)
        (part,) = reader.partitions()
    options = read_options({"path": silent, "giveUpSeconds": str(GIVE_UP_S)}, Use.BATCH)
    began = time.monotonic()
    with pytest.raises(VlsnLogError, match="is the node up"):
        list(VisibleReader(options, ("vlsn",)).read(part))
    assert time.monotonic() - began < LIMIT_S
