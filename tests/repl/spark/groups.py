"""Groups of real nodes for Spark's reads and writes, and queries that end by themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from repl import connect_sync
from repl.client.sync import SyncClient
from repl.cluster import Node, free_base_port, prepare
from repl.net.network import AiohttpNetwork
from repl.spark import VlsnLogDataSource
from repl.spark.stream import close_clients
from tests.e2e.group import Group

QUERY_S = 240
"""Seconds in which any query of these tests has ended, on a machine that does much else."""
OFTEN = {"checkpoint_period_s": 1, "cleaning_period_s": 1}
"""Settings of nodes that clean soon what retention wants gone."""


@contextmanager
def running(directory: Path, **settings: str | int | float) -> Iterator[Group]:
    """Three nodes that take appends."""
    group = Group(directory, **settings)
    try:
        group.start()
        yield group
    finally:
        group.end()


@contextmanager
def alone(directory: Path, count: int, **settings: object) -> Iterator[Node]:
    """A group of one node, with so many entries."""
    given = {"anonymous": "all", **settings}
    cluster = prepare(directory, AiohttpNetwork(), nodes=1, base_port=free_base_port(), settings=given)
    (node,) = cluster.nodes
    try:
        node.start()
        with connect_sync(node.url, timeout_s=60.0) as log:
            if count:
                log.append_many([b"%s %d" % (directory.name.encode(), number) for number in range(count)])
        yield node
    finally:
        node.kill()
        close_clients()


def urls(group: Group) -> str:
    return ",".join(group.urls.values())


def client(group: Group) -> SyncClient[Any]:
    return connect_sync(urls(group), exactly_once=True, timeout_s=60.0)


def entries(group: Group, key_prefix: bytes | None = None) -> list[tuple[bytes | None, bytes]]:
    """Key and value of every acknowledged entry."""
    with client(group) as log:
        found = log.read(consistency="linearizable", key_prefix=key_prefix)
        return [(entry.key, entry.value) for entry in found]


def source(spark: Any, group: Group, **options: object) -> Any:
    spark.dataSource.register(VlsnLogDataSource)
    return spark.readStream.format("vlsnlog").options(**options).load(urls(group))


def collected(stream: Any, checkpoint: Path, found: list[Any], **trigger: Any) -> Any:
    """Runs a query until it has read everything; its batches' rows come into ``found``."""

    def take(batch: Any, number: int) -> None:
        found.append((number, batch.collect()))

    query = stream.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    return ended(query.trigger(**(trigger or {"availableNow": True})))


def ended(writing: Any) -> Any:
    """Starts a query and waits for it, which may fail; it does not go on. Spark gives a worker ten seconds to come up,
    which on a machine that does much else is no failure of the query's: it is started again."""
    for left in reversed(range(4)):
        query = writing.start()
        try:
            query.awaitTermination(QUERY_S)
        except StreamingQueryException as error:
            if left and "failed to connect back" in str(error):
                continue
            raise
        finally:
            query.stop()
        return query
    raise AssertionError


def until(holds: Callable[[], bool], what: str, group: Group) -> None:
    group.until(holds, what)
