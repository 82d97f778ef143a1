"""The reads of a client: pages and entries of a range or without end, spans, and where the log is by now.

Calls go to the node that served last, and on to others where it fails (``repl.client.reader``).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime
from operator import index
from typing import Final, Generic, cast

from repl.api import ProducerAt, Spans
from repl.client.block_pages import BlockReader, BlocksPage
from repl.client.codec import Codec, V
from repl.client.endpoints import Endpoints
from repl.client.page import Page
from repl.client.reader import DURABLE, Consistency, Reader, freshness_of
from repl.client.starting import Begin, keys_of, limited, started
from vlsn.errors import BadArgument, LogClosed
from vlsn.format.block import Entry
from vlsn.ids import NUMBER_MAX
from vlsn.seams import Buffer
from vlsn.times import time_us as microseconds

NOT_OPEN: Final = "the client is not open; use it inside `async with connect(…)`"


class Reads(Generic[V]):
    """The part of a ``Client`` that reads; values and keys are of type ``V``."""

    _endpoints: Endpoints
    _reader: Reader

    def __init__(self, codec: Codec, timeout_s: float) -> None:
        self.codec = codec
        """The codec of appends that name no other, and of keys."""
        self._timeout_s = timeout_s
        self._gone = NOT_OPEN
        """The reason why it is not open; empty while it is."""

    def _check_open(self) -> None:
        if self._gone:
            raise LogClosed(self._gone)

    async def producer_at(self, producer: int) -> ProducerAt:
        """Returns the producer's last durable submission and the next one due. That is all that was acknowledged to it
        before the call, at least.

        Raises ``Unreachable``, and ``NotMaster`` or ``NotYet`` when no majority has confirmed it for ``timeout_s``."""
        self._check_open()
        return await self._reader.producer(index(producer))

    async def durable_vlsn(
        self, *, consistency: Consistency = DURABLE, at_least: int = 0, lag_max_s: float | None = None
    ) -> int:
        """Returns the highest VLSN that a node calls durable, or that this client knows to be. The node must be as new
        as for ``read``. Raises ``Unreachable``, and as ``read``."""
        self._check_open()
        return await self._reader.durable_vlsn(freshness_of(consistency, at_least, lag_max_s))

    async def vlsn_at(self, time_us: datetime | int) -> int:
        """Finds the first VLSN at which the highest block time so far is at or past ``time_us``: a ``datetime`` (UTC
        where it has no zone) or µs since the epoch. It is one past the durable end where none is. Entries bear their
        master's clock, so the answer is exact however far clocks of masters are apart. One question to a node, which
        reads about a MiB. Raises ``Unreachable``, ``Damaged``."""
        self._check_open()
        return await self._reader.vlsn_at(microseconds(time_us))

    async def read(
        self,
        from_vlsn: Begin = None,
        to_vlsn: int | None = None,
        *,
        at: datetime | int | None = None,
        key: V | Buffer | None = None,
        key_prefix: V | Buffer | None = None,
        limit: int | None = None,
        all_kinds: bool = False,
        consistency: Consistency = DURABLE,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[Entry, None]:
        """Yields DATA entries from ``from_vlsn`` (default: the first there is) to ``to_vlsn``, both included. The
        default end is what is durable when it starts. VLSNs rise, with gaps where the log keeps entries of its own. A
        read waits for every VLSN that this client knows to be durable, also from a node that lags.

        ``from_vlsn`` may be ``"start"`` or ``"end"``; ``at``, in its place, begins at a time as ``vlsn_at`` finds it.
        ``key`` or ``key_prefix``: only entries with that key, or one that begins so, chosen by the node; an empty
        ``key`` stands for entries without one. Entries that come by a key do not tell their transaction (``txn`` is 0).
        ``limit``: at most so many.

        ``consistency="linearizable"``: also every entry acknowledged to any client before the call, at the cost of a
        round trip between the nodes before the first page. ``at_least``: also that VLSN, which is durable.
        ``lag_max_s``: also every entry acknowledged until so many seconds before the call. The nodes confirm that once
        in such a time for all readers.

        Raises ``Trimmed``, ``Damaged``, ``Unreachable``, ``BadArgument``; ``TooFarBehind`` when no node has got as far
        for ``timeout_s``; and with ``linearizable`` ``NotMaster`` or ``NotYet`` when no majority has confirmed it.
        """
        pages = self.read_pages(
            from_vlsn,
            to_vlsn,
            at=at,
            key=key,
            key_prefix=key_prefix,
            limit=limit,
            all_kinds=all_kinds,
            consistency=consistency,
            at_least=at_least,
            lag_max_s=lag_max_s,
        )
        async for page in pages:
            for entry in page.entries:
                yield entry

    def read_pages(
        self,
        from_vlsn: Begin = None,
        to_vlsn: int | None = None,
        *,
        at: datetime | int | None = None,
        key: V | Buffer | None = None,
        key_prefix: V | Buffer | None = None,
        limit: int | None = None,
        all_kinds: bool = False,
        consistency: Consistency = DURABLE,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[Page, None]:
        """Yields pages as they come from a node, as ``read`` does entries: less work an entry."""
        self._check_open()
        keys = keys_of(self.codec.key(key), self.codec.key(key_prefix))
        wanted = freshness_of(consistency, at_least, lag_max_s)

        def pages(first: int | None) -> AsyncGenerator[Page, None]:
            return self._reader.pages(first, to_vlsn, consistency=wanted, all_kinds=all_kinds, keys=keys)

        return limited(started(self._reader, from_vlsn, at, pages), limit)

    def block_pages(
        self,
        from_vlsn: Begin = None,
        to_vlsn: int | None = None,
        *,
        at: datetime | int | None = None,
        consistency: Consistency = DURABLE,
        after_term: int | None = None,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[BlocksPage, None]:
        """Yields pages of whole blocks, checked, for readers of columns (``page.rows``). They hold the entries that
        ``read`` yields, and the log's own. Blocks are not cut where ``from_vlsn`` or ``to_vlsn`` lies within one.
        ``after_term`` as for ``tail``. ``read_arrow`` makes tables of them. Raises as ``read``, and ``NotInLog``."""
        self._check_open()
        wanted = freshness_of(consistency, at_least, lag_max_s)
        if after_term is not None and not isinstance(from_vlsn, int):
            raise BadArgument("after_term is of the VLSN before from_vlsn, which must be a number")
        reader = BlockReader(self._endpoints, give_up_s=self._timeout_s)

        def pages(first: int | None) -> AsyncGenerator[Page, None]:
            return reader.pages(first, to_vlsn, consistency=wanted, after_term=after_term or 0)

        return cast("AsyncGenerator[BlocksPage, None]", started(self._reader, from_vlsn, at, pages))

    async def spans(
        self,
        from_vlsn: int | None = None,
        to_vlsn: int | None = None,
        *,
        bytes_each: int = NUMBER_MAX,
        entries_each: int = NUMBER_MAX,
        limit: int = 1,
        after_term: int | None = None,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> Spans:
        """Cuts what is durable of a range, both ends included, into ``limit`` runs at most, of about ``bytes_each``
        bytes of files and ``entries_each`` VLSNs at most: for readers that share it out. Nothing is read for it.
        ``at_least`` and ``lag_max_s`` as for ``read``.  Raises ``Trimmed``, ``NotInLog``, ``Unreachable``,
        ``TooFarBehind``, ``BadArgument``."""
        self._check_open()
        return await self._reader.spans(
            from_vlsn,
            to_vlsn,
            bytes_each=bytes_each,
            entries_each=entries_each,
            limit=limit,
            after_term=after_term or 0,
            consistency=freshness_of(DURABLE, at_least, lag_max_s),
        )

    async def tail(
        self,
        from_vlsn: Begin = None,
        *,
        at: datetime | int | None = None,
        key: V | Buffer | None = None,
        key_prefix: V | Buffer | None = None,
        limit: int | None = None,
        after_term: int | None = None,
        all_kinds: bool = False,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[Entry, None]:
        """Yields DATA entries from ``from_vlsn`` (default: the first there is) on, for ever, each as soon as it is
        durable. It goes on through the loss of nodes and changes of the master, with no gap and no repeat. The
        arguments for the begin and the filter are those of ``read``; behind ``limit`` entries it ends. ``"end"`` is
        behind all that was acknowledged to anybody before the first entry is asked for: the nodes confirm it.

        ``at_least`` and ``lag_max_s``: it reads from nodes alone that have that VLSN, and that lag no more, whenever
        they are asked for more; it waits for one. ``after_term``: the term of the entry at ``from_vlsn - 1``, for a
        reader that goes on from an earlier read. Raises ``Trimmed``, and ``NotInLog`` when what was read is in the log
        no more, which takes a person who gave durable entries up."""
        pages = self.tail_pages(
            from_vlsn,
            at=at,
            key=key,
            key_prefix=key_prefix,
            limit=limit,
            after_term=after_term,
            all_kinds=all_kinds,
            at_least=at_least,
            lag_max_s=lag_max_s,
        )
        async for page in pages:
            for entry in page.entries:
                yield entry

    def tail_pages(
        self,
        from_vlsn: Begin = None,
        *,
        at: datetime | int | None = None,
        key: V | Buffer | None = None,
        key_prefix: V | Buffer | None = None,
        limit: int | None = None,
        after_term: int | None = None,
        all_kinds: bool = False,
        at_least: int = 0,
        lag_max_s: float | None = None,
    ) -> AsyncGenerator[Page, None]:
        """Yields pages, as ``tail`` does entries."""
        self._check_open()
        keys = keys_of(self.codec.key(key), self.codec.key(key_prefix))
        wanted = freshness_of(DURABLE, at_least, lag_max_s)
        if after_term is not None and not isinstance(from_vlsn, int):
            raise BadArgument("after_term is of the VLSN before from_vlsn, which must be a number")

        def pages(first: int | None) -> AsyncGenerator[Page, None]:
            return self._reader.follow(first, after_term=after_term, all_kinds=all_kinds, keys=keys, consistency=wanted)

        return limited(started(self._reader, from_vlsn, at, pages), limit)

    async def group_name(self) -> str:
        """Returns the name of the group that the nodes are of. Raises ``Unreachable``."""
        self._check_open()
        return await self._reader.group()

    async def first_vlsn(self) -> int:
        """Returns the first VLSN that a node still has; one past the durable end where there is none. Raises
        ``Unreachable``."""
        self._check_open()
        return await self._reader.first_vlsn()
