"""A stream: new durable entries, one micro-batch at a time, each entry once. ``stream_copies`` streams directories.

    offset {"vlsn": 412, "term": 3, "group": "9f1c04aa52b0e371-1"}
                  everything below VLSN 412 of that group was read, and the entry before it was of term 3

Every request names the offset's term and group. A node refuses the request if it belongs to another group. A node also
refuses if its log has another entry before the offset, because an operator discarded durable entries. After a refusal
nothing is read. Offsets of earlier versions name no group. If the log was cleaned beyond an offset, the query ends, or
continues at the first remaining entry (``failOnTrim``). If the query continues, ``skipped`` in the offset counts the
VLSNs that were left out.

The driver asks at which VLSNs the log can be divided (``Client.spans``) and reads no entries. A task reads its VLSNs
from any node; if that node fails, it continues at another node.
"""

from __future__ import annotations

import asyncio
import atexit
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow

from repl.api import Spans
from repl.client.connect import connect, real_network
from repl.client.one_log import OneLog
from repl.client.reader import LINEARIZABLE
from repl.client.sync import SyncClient
from repl.spark.columns import batch_of
from repl.spark.errors import each_one_line, one_line, tell
from repl.spark.group_of import group_of_nodes
from repl.spark.options import Asked, Place
from repl.spark.stream_options import StreamOptions
from repl.tls_files import or_environment
from vlsn.errors import Damaged, NotInLog, Trimmed, Unreachable, VlsnLogError, WrongGroup
from vlsn.format.key_filter import KeyFilter
from vlsn.ids import NUMBER_MAX
from vlsn.limits import MIB

T = TypeVar("T")

PARTITIONS: Final = 8
"""The number of partitions of a micro-batch, within the limits of ``partitionBytes`` and ``PARTITION_BYTES_MIN``."""
PARTITION_BYTES_MIN: Final = MIB
"""The smallest size of a partition in bytes. A small micro-batch has fewer partitions instead."""
PARTITIONS_MAX: Final = 256
ASK_S: Final = 60.0
"""A request is repeated for this many seconds, from node to node, before the query fails and Spark starts the task
again. ``giveUpSeconds`` overrides it."""
OWN_SHARE: Final = 0.75
"""The client itself fails after this share of the time for a request. Its error includes the reason that a node
gave, if any answered."""

Offset = dict[str, Any]
"""The offset of a stream: ``vlsn``, ``term``, ``skipped`` if not 0, and ``group`` if known."""


@dataclass
class RunPartition(InputPartition):  # type: ignore[misc]
    """The VLSNs ``first`` to ``last`` (inclusive) that one task reads. ``term`` is the term of the entry before
    ``first``, 0 if unknown; ``group`` is the group of the log."""

    first: int
    last: int
    term: int
    group: str = ""


class Followed(Protocol):
    """The log as the driver reads it: from a group's nodes, or from copies of their directories."""

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
        """Divides the log like ``Client.spans``. Raises ``Trimmed``, ``NotInLog``."""
        ...


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """``spark.readStream.format("vlsnlog")``."""

    def __init__(self, options: StreamOptions, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._until = NUMBER_MAX
        """For a query that ends by itself (``Trigger.AvailableNow``): the VLSN after the last one to read."""
        self._latest: Offset | None = None
        self._known: str | None = None
        """The group of the sources: empty if they do not report it, and None before the first request."""

    @one_line
    def initialOffset(self) -> Offset:  # noqa: N802
        group, begin = self._group(), self._options.from_vlsn
        log = self._log(group)
        if self._options.since_us is not None:
            return _offset(log.vlsn_at(self._options.since_us), 0, group=group)
        if begin is Place.START:
            return _offset(log.first_vlsn(), 0, group=group)
        if begin is Place.END:
            durable = self._spans(group)(NUMBER_MAX).durable
            if not durable:
                return _offset(1, 0, group=group)
            return _offset(durable + 1, log.spans(durable, durable).spans[-1].term, group=group)
        return _offset(begin, 0, group=group)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxBytes(self._options.bytes_per_trigger)

    @one_line
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._until = self._spans(self._group())(NUMBER_MAX).durable + 1

    @one_line
    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        everything = isinstance(limit, ReadAllAvailable)
        bytes_each = NUMBER_MAX if everything else self._options.bytes_per_trigger
        entries_each = NUMBER_MAX if everything else self._options.entries_per_trigger
        group = self._group_of(start)
        begin, skipped = start["vlsn"], 0
        if begin > self._until:
            self._check_reached(group, start)
        while True:
            if begin >= self._until:
                return start
            term = None if skipped else start["term"] or None
            try:
                found = self._spans(group)(
                    begin, self._until - 1, bytes_each=bytes_each, entries_each=entries_each, after_term=term
                )
            except Trimmed as error:
                begin = self._left(begin, error)
                skipped = begin - start["vlsn"]
                continue
            self._latest = _offset(max(found.durable + 1, start["vlsn"]), 0)
            if not found.spans:
                if found.durable + 1 < begin:
                    self._check_reached(group, start)
                return start
            return _offset(found.spans[0].next, found.spans[0].term, start.get("skipped", 0) + skipped, group)

    def reportLatestOffset(self) -> Offset | None:  # noqa: N802
        return self._latest

    @one_line
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        group = self._group_of(end)
        log, last = self._client(group), end["vlsn"] - 1
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
            if not cut.spans:  # this node lags, so a task waits for another node
                self._check_reached(group, end)
                found.append(RunPartition(begin, last, term, group))
                break
            for span in cut.spans:
                found.append(RunPartition(begin, span.next - 1, term, group))
                begin, term = span.next, span.term
        return found

    @each_one_line
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, RunPartition):
            return  # without partitions, Spark runs one empty task
        keys = KeyFilter.of(None, self._options.key_prefix)
        at, term, last = partition.first, partition.term, partition.last
        client = self._client(partition.group)
        while at <= last:
            try:
                for page in client.block_pages(at, last, after_term=term or None, at_least=last):
                    batch = batch_of(page.rows, at, last, self._names, keys) if page.rows is not None else None
                    at, term = page.next_vlsn, page.term
                    if batch is not None:
                        yield batch
                if at <= last:
                    raise Damaged(f"VLSN {at} is durable, but no node gives it", vlsn=at)
            except Trimmed as error:
                at, term = self._left(at, error), 0

    def commit(self, end: Offset) -> None:
        """Does nothing: Spark's checkpoint has the offset."""

    def stop(self) -> None:
        close_clients()

    def _log(self, group: str) -> Followed:
        return self._client(group)

    def _spans(self, group: str) -> Callable[..., Spans]:
        """Returns the function ``spans`` for a node that is as current as the options require."""
        options = self._options
        asked = {"at_least": options.at_least or None, "lag_max_s": options.lag_max_s}
        return partial(self._log(group).spans, **{name: value for name, value in asked.items() if value is not None})

    def _client(self, group: str) -> SyncClient[Any]:
        asked = self._options.asked
        asked = replace(asked, group=group, give_up_s=asked.give_up_s or ASK_S)
        return client_of(",".join(self._options.sources), asked)

    def _group(self) -> str:
        """Returns the group that the sources reported at this reader's first request; empty if they do not report
        it. Raises ``WrongGroup``, ``BadArgument`` for sources of several groups, ``Unreadable``."""
        if self._known is None:
            self._known = self._asked_group()
        return self._known

    def _asked_group(self) -> str:
        asked = self._options.asked
        return group_of_nodes(self._options.sources, replace(asked, give_up_s=asked.give_up_s or ASK_S))

    def _group_of(self, offset: Offset) -> str:
        """Returns the group of ``offset``, after a check that the sources belong to it. Raises as ``_group``."""
        named, own = offset.get("group", ""), self._group()
        if named and own not in ("", named):
            raise WrongGroup(
                f"the checkpoint of this stream is of the group that was founded as {named}, and "
                f"{', '.join(self._options.sources)} of the one that was founded as {own}: name the nodes of its own, "
                "or stream this one with a new checkpoint"
            )
        return named or own

    def _check_reached(self, group: str, at: Offset) -> None:
        """Raises ``NotInLog`` if the log ends before the last entry that the stream has read. A majority confirms
        the log's end, because one node may lag."""
        read = at["vlsn"] - 1
        if not at["term"]:
            return  # the stream has read no entry yet
        end = next(iter(self._client(group).block_pages(read, read, consistency=LINEARIZABLE))).durable
        if end < read:
            raise NotInLog(
                f"this stream has read up to VLSN {read}, of term {at['term']}, and the log of "
                f"{', '.join(self._options.sources)} ends with VLSN {end}: it is another group, or was founded anew; "
                "stream it with a new checkpoint",
                vlsn=read,
                term=at["term"],
                found=0,
            )

    def _left(self, vlsn: int, error: Trimmed) -> int:
        """Returns the log's present first VLSN, and reports that entries are left out. Raises ``Trimmed`` unless
        ``failOnTrim`` is false."""
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
    """A reader for an invalid request. It raises the error at Spark's first call, because PySpark 4.3 hides an error
    of ``streamReader`` behind another error."""

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


def _offset(vlsn: int, term: int, skipped: int = 0, group: str = "") -> Offset:
    more = {"skipped": skipped} if skipped else {}
    return {"vlsn": vlsn, "term": term, **more, **({"group": group} if group else {})}


class Asking(SyncClient[Any]):
    """A client whose calls fail after ``asked.give_up_s``. If ``asked`` names a group, the client calls only that
    group."""

    def __init__(self, urls: str, asked: Asked) -> None:
        self._asked, self._urls = asked, urls
        network = real_network(or_environment(asked.tls))
        self._network = OneLog(network, asked.group) if asked.group else network
        timeout_s, token_file = asked.give_up_s * OWN_SHARE, asked.token_file or None
        super().__init__(connect(urls, timeout_s=timeout_s, network=self._network, token_file=token_file))

    def close(self, *, flush: bool = True) -> None:
        if self._loop is not None:
            self.run(self._network.close())
        super().close(flush=flush)

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return super()._begin(self._in_time(work))

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        limit = asyncio.timeout(self._asked.give_up_s)
        try:
            async with limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise Unreachable(f"no node answers at {self._urls}: silence for {self._asked.give_up_s:g} s") from None


_clients: dict[tuple[str, Asked], Asking] = {}
"""The clients of this process, kept because a worker serves many triggers and tasks."""


def client_of(urls: str, asked: Asked) -> SyncClient[Any]:
    """Returns this process's client for ``urls``; the first call opens it. Raises ``BadArgument``."""
    client = _clients.get((urls, asked))
    if client is None:
        client = Asking(urls, asked)
        client.__enter__()
        _clients[urls, asked] = client
        if len(_clients) == 1:
            atexit.register(close_clients)
    return client


def close_clients() -> None:
    while _clients:
        _clients.popitem()[1].close(flush=False)
