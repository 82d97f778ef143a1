"""A stream: what becomes durable, a micro-batch at a time, each entry once; ``stream_copies``: of directories.

    offset {"vlsn": 412, "term": 3}     everything below VLSN 412 was read, and the entry before it was of term 3

The term goes out with every question (``after_term``): nodes whose log does not hold that entry, because a person gave
durable entries up, say so, and nothing is read past the place.  Where the log was cleaned beyond an offset, the query
ends, or goes on at what is left (``failOnTrim``): then ``skipped`` in the offset counts the VLSNs that it never saw.

The driver asks where the log may be cut (``Client.spans``) and reads nothing.  A task reads its run from any node, and
goes on at another one where that fails.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from repl.api import Spans
from repl.client.sync import SyncClient, connect_sync
from repl.spark.columns import batch_of
from repl.spark.errors import each_one_line, one_line
from repl.spark.options import Place
from repl.spark.stream_options import StreamOptions
from repl.spark.tell import tell
from vlsn.errors import Damaged, Trimmed, VlsnLogError
from vlsn.format.key_filter import KeyFilter
from vlsn.ids import NUMBER_MAX
from vlsn.limits import MIB

PARTITIONS: Final = 8
"""Partitions of a micro-batch, unless ``partitionBytes`` makes it more …"""
PARTITION_BYTES_MIN: Final = MIB
"""… or they would be smaller than this."""
PARTITIONS_MAX: Final = 256
ASK_S: Final = 60.0
"""Seconds for which a question goes from node to node before the query fails, and Spark starts the task again."""

Offset = dict[str, int]
"""``vlsn``, ``term``, and ``skipped`` where that is not 0."""


@dataclass
class RunPartition(InputPartition):  # type: ignore[misc]
    """VLSN ``first`` to ``last``, inclusive; ``term`` is that of the entry before ``first``, 0 where none is known."""

    first: int
    last: int
    term: int


class Followed(Protocol):
    """The log as the driver asks for it: a group's nodes, or copies of their directories."""

    def vlsn_at(self, time_us: int) -> int: ...

    def first_vlsn(self) -> int: ...

    def spans(
        self,
        from_vlsn: int,
        to_vlsn: int = NUMBER_MAX,
        /,
        *,
        bytes_each: int = NUMBER_MAX,
        entries_each: int = NUMBER_MAX,
        after_term: int | None = None,
    ) -> Spans:
        """Cuts as ``Client.spans``. Raises ``Trimmed``, ``NotInLog``."""
        ...


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """``spark.readStream.format("vlsnlog")``."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._until = NUMBER_MAX
        """The VLSN behind the last one of a query that ends by itself (``Trigger.AvailableNow``)."""
        self._latest: Offset | None = None

    @one_line
    def initialOffset(self) -> Offset:  # noqa: N802
        log, begin = self._log(), self._options.from_vlsn
        if self._options.since_us is not None:
            return _offset(log.vlsn_at(self._options.since_us), 0)
        if begin is Place.START:
            return _offset(log.first_vlsn(), 0)
        if begin is Place.END:
            durable = self._spans(NUMBER_MAX).durable
            if not durable:
                return _offset(1, 0)
            return _offset(durable + 1, log.spans(durable, durable).spans[-1].term)
        return _offset(begin, 0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.bytes_per_trigger)

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._spans(NUMBER_MAX).durable + 1

    @one_line
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        everything = isinstance(limit, ReadAllAvailable)
        bytes_each = NUMBER_MAX if everything else self._options.bytes_per_trigger
        entries_each = NUMBER_MAX if everything else self._options.entries_per_trigger
        begin, skipped = start["vlsn"], 0
        while True:
            if begin >= self._until:
                return start
            term = None if skipped else start["term"] or None
            try:
                found = self._spans(
                    begin, self._until - 1, bytes_each=bytes_each, entries_each=entries_each, after_term=term
                )
            except Trimmed as error:
                begin = self._left(begin, error)
                skipped = begin - start["vlsn"]
                continue
            self._latest = _offset(max(found.durable + 1, start["vlsn"]), 0)
            if not found.spans:
                return start
            return _offset(found.spans[0].next, found.spans[0].term, start.get("skipped", 0) + skipped)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._latest

    @one_line
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        log, last = self._client(), end["vlsn"] - 1
        skipped = end.get("skipped", 0) - start.get("skipped", 0)
        begin, term = start["vlsn"] + skipped, 0 if skipped else start["term"]
        found: list[InputPartition] = []
        target = 0
        while begin <= last:
            try:
                if not target:
                    size = log.spans(begin, last, after_term=term or None).spans
                    most = max(size[0].bytes // PARTITIONS if size else 0, PARTITION_BYTES_MIN)
                    target = min(most, self._options.partition_bytes)
                cut = log.spans(begin, last, bytes_each=target, limit=PARTITIONS_MAX, after_term=term or None)
            except Trimmed as error:
                begin, term = self._left(begin, error), 0
                continue
            if not cut.spans:  # whoever was asked is behind: a task waits for one that is not
                found.append(RunPartition(begin, last, term))
                break
            for span in cut.spans:
                found.append(RunPartition(begin, span.next - 1, term))
                begin, term = span.next, span.term
        return found

    @each_one_line
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, RunPartition):
            return  # what Spark makes of no partitions
        keys = KeyFilter.of(None, self._options.key_prefix)
        at, term, last = partition.first, partition.term, partition.last
        while at <= last:
            try:
                for page in self._client().block_pages(at, last, after_term=term or None, at_least=last):
                    batch = batch_of(page.rows, at, last, self._names, keys) if page.rows is not None else None
                    at, term = page.next_vlsn, page.term
                    if batch is not None:
                        yield batch
                if at <= last:
                    raise Damaged(f"VLSN {at} is durable, but no node gives it", vlsn=at)
            except Trimmed as error:
                at, term = self._left(at, error), 0

    def commit(self, end: Offset) -> None:
        """Does nothing: what was read is in Spark's checkpoint."""

    def stop(self) -> None:
        close_clients()

    def _log(self) -> Followed:
        return self._client()

    @property
    def _spans(self) -> Callable[..., Spans]:
        """Cuts as ``Followed.spans``, at a node that is as new as the options ask."""
        options = self._options
        asked = {"at_least": options.at_least or None, "lag_max_s": options.lag_max_s}
        return partial(self._log().spans, **{name: value for name, value in asked.items() if value is not None})

    def _client(self) -> SyncClient[Any]:
        return client_of(",".join(self._options.sources))

    def _left(self, vlsn: int, error: Trimmed) -> int:
        """Returns where the log begins by now, which a person is told. Raises ``Trimmed`` unless it may be left out."""
        gone = f"VLSN {vlsn} was cleaned away before this stream has read it; the log begins at VLSN {error.first}"
        if self._options.fail_on_trim:
            raise Trimmed(
                f"{gone}: a new checkpoint with .option('from', {error.first}) reads from there, and "
                ".option('failOnTrim', false) leaves out what is gone",
                first=error.first,
            ) from None
        tell(f"{gone}: {error.first - vlsn} VLSNs are left out")
        assert error.first > vlsn
        return error.first


class RefusedReader(DataSourceStreamReader):  # type: ignore[misc]
    """A reader that was asked for what there is not, and says so at the first question: an error that ``streamReader``
    raises itself is lost in PySpark 4.3's own, of a reader that it has not got."""

    def __init__(self, error: VlsnLogError) -> None:
        self._error = error

    @one_line
    def initialOffset(self) -> Offset:  # noqa: N802
        raise self._error

    @one_line
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        raise self._error

    @one_line
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error


def _offset(vlsn: int, term: int, skipped: int = 0) -> Offset:
    return {"vlsn": vlsn, "term": term, **({"skipped": skipped} if skipped else {})}


_clients: dict[str, SyncClient[Any]] = {}
"""This process's clients, by their URLs: a worker serves many triggers and tasks."""


def client_of(urls: str) -> SyncClient[Any]:
    """Returns the client of this process, opened at the first call. Raises ``BadArgument``."""
    client = _clients.get(urls)
    if client is None:
        client = connect_sync(urls, timeout_s=ASK_S)
        client.__enter__()
        _clients[urls] = client
        if len(_clients) == 1:
            atexit.register(close_clients)
    return client


def close_clients() -> None:
    while _clients:
        _clients.popitem()[1].close(flush=False)
