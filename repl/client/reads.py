"""The reads of a client: pages and entries of a range or without end, spans, and the current ends of the log.

Each call is sent to the node that answered last. If that node fails, the call is sent to another node
(``repl.client.reader``).
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
    """The part of a ``Client`` that reads. Values and keys are of type ``V``."""

    _endpoints: Endpoints
    _reader: Reader

    def __init__(self, codec: Codec, timeout_s: float) -> None:
        self.codec = codec
        """The default codec: for keys, and for appends that name no codec."""
        self._timeout_s = timeout_s
        self._gone = NOT_OPEN
        """The reason why the client is not open; empty while it is open."""

    def _check_open(self) -> None:
        if self._gone:
            raise LogClosed(self._gone)

    async def producer_at(self, producer: int) -> ProducerAt:
        """Returns the producer's last durable submission and the sequence that is due next. The answer includes
        every submission that was acknowledged to the producer before the call. Raises ``Unreachable``, and
        ``NotMaster`` or ``NotYet`` if no majority has confirmed the answer for ``timeout_s``."""
        self._check_open()
        return await self._reader.producer(index(producer))

    async def durable_vlsn(
        self, *, consistency: Consistency = DURABLE, at_least: int = 0, lag_max_s: float | None = None
    ) -> int:
        """Returns the highest VLSN that a node reports as durable, or a higher one that this client knows to be
        durable. The arguments require how new the node is, as for ``read``. Raises ``Unreachable``, and the errors
        of ``read``."""
        self._check_open()
        return await self._reader.durable_vlsn(freshness_of(consistency, at_least, lag_max_s))

    async def vlsn_at(self, time_us: datetime | int) -> int:
        """Finds the first VLSN at which the highest block time so far is at or past ``time_us``: a ``datetime`` (UTC if
        it has no time zone) or microseconds since the epoch. Returns one past the durable end if there is no such VLSN.

        Each entry has the time of its master's clock, so the answer is exact even if the masters' clocks differ. The
        call asks one node, which reads about 1 MiB. Raises ``Unreachable``, ``Damaged``.
        """
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
        """Yields DATA entries from ``from_vlsn`` (default: the log's first) to ``to_vlsn``, both included. The
        default for ``to_vlsn`` is the durable end when the read starts. VLSNs rise, with gaps where the log has
        entries of its own. If a node lags, the read waits for every VLSN that this client knows to be durable.

        ``from_vlsn`` may be ``"start"`` or ``"end"``. ``at`` replaces ``from_vlsn``: the read begins at a time, as
        ``vlsn_at`` finds it. With ``key`` or ``key_prefix`` the node sends only entries with this key, or with a key
        that begins with this prefix. An empty ``key`` selects entries without a key. Entries that are selected by
        key have ``txn`` 0, even if they belong to a transaction. ``limit`` is the most entries to yield.

        With ``consistency="linearizable"`` the read also shows every entry that was acknowledged to any client before
        the call. A linearizable read costs a round trip between the nodes before the first page. With ``at_least`` the
        read also shows this VLSN, which must be durable. With ``lag_max_s`` the read also shows every entry that was
        acknowledged ``lag_max_s`` seconds or longer before the call. For all readers together, the nodes confirm this
        once in ``lag_max_s`` seconds.

        Raises ``Trimmed``, ``Damaged``, ``Unreachable``, ``BadArgument``. Raises ``TooFarBehind`` if no node has
        reached the wanted VLSN for ``timeout_s``. With ``linearizable``, raises ``NotMaster`` or ``NotYet`` if no
        majority has confirmed the read.
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
        """Yields whole pages (the entries of one answer), where ``read`` yields single entries. Whole pages are less
        work for each entry."""
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
        """Yields pages of whole, checked blocks, for readers by column (``page.rows``). The pages hold the entries
        that ``read`` yields, and the log's own entries. Blocks are not cut, even if ``from_vlsn`` or ``to_vlsn`` is
        inside a block. ``after_term`` works as for ``tail``. ``read_arrow`` makes tables of these pages. Raises the
        same errors as ``read``, ``NotInLog``, and ``ModuleNotFoundError`` without NumPy."""
        self._check_open()
        wanted = freshness_of(consistency, at_least, lag_max_s)
        if after_term is not None and not isinstance(from_vlsn, int):
            raise BadArgument("after_term is the term of the VLSN before from_vlsn, so from_vlsn must be a number")
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
        """Divides the durable entries of a range, both ends included, into at most ``limit`` spans, so that several
        readers can share the range. Each span takes about ``bytes_each`` bytes in segment files, and has at most
        ``entries_each`` VLSNs. The nodes read no entries for this call. ``at_least`` and ``lag_max_s`` work as for
        ``read``. Raises ``Trimmed``, ``NotInLog``, ``Unreachable``, ``TooFarBehind``, ``BadArgument``."""
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
        """Yields DATA entries from ``from_vlsn`` (default: the log's first) on, without end, each as soon as it is
        durable. The tail continues through the loss of nodes and changes of the master, with no gap and no repeat.

        The arguments for the begin and the filter work as for ``read``. After ``limit`` entries the tail ends. With
        ``"end"`` the tail begins just after every entry that was acknowledged to any client before the first request;
        the nodes confirm this. With ``at_least`` or ``lag_max_s`` the tail reads only from a node that has the VLSN
        ``at_least``, or that lags at most ``lag_max_s``, and waits until there is one. ``after_term`` is the term of
        the entry at ``from_vlsn - 1``, for a reader that continues an earlier read.

        Raises ``Trimmed``. Raises ``NotInLog`` if entries that were read are no longer in the log, which happens only
        after a person gave up durable entries. If for ``timeout_s`` every node refuses it because of TLS, raises
        ``Unreachable`` or ``Misdirected``.
        """
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
        """Yields whole pages (the entries of one answer), where ``tail`` yields single entries."""
        self._check_open()
        keys = keys_of(self.codec.key(key), self.codec.key(key_prefix))
        wanted = freshness_of(DURABLE, at_least, lag_max_s)
        if after_term is not None and not isinstance(from_vlsn, int):
            raise BadArgument("after_term is the term of the VLSN before from_vlsn, so from_vlsn must be a number")

        def pages(first: int | None) -> AsyncGenerator[Page, None]:
            return self._reader.follow(first, after_term=after_term, all_kinds=all_kinds, keys=keys, consistency=wanted)

        return limited(started(self._reader, from_vlsn, at, pages), limit)

    async def group_name(self) -> str:
        """Returns the name of the nodes' group. Raises ``Unreachable``."""
        self._check_open()
        return await self._reader.group()

    async def first_vlsn(self) -> int:
        """Returns the first VLSN that a node still has, or one past its durable end if it has none. Raises
        ``Unreachable``."""
        self._check_open()
        return await self._reader.first_vlsn()
