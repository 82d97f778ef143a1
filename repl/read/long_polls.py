"""Answers for readers that wait for entries (long-polls and tails). Each answer, a *page*, is made once for all readers
that wait at the same VLSN.

    readers at VLSN 101 ─► one wait, one read, one encoding ─► the same bytes to each of them, a slice a turn

If 1,000 readers follow the log, an append wakes one task, not 1,000. A waiting reader is only an element of a set.
Readers with equal requests (``Wanted``: VLSN, filter, form) wait together, as one *audience*.

1. A page is never older than a request for it. Readers that arrive while a page is being read join a new audience.
2. An audience of tails moves along the log. If two audiences arrive at the same VLSN, they become one.
3. A tail whose client does not take its bytes leaves its audience until the client has taken them. No page is made or
   kept for a tail that does not take its bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import nullcontext
from enum import IntEnum
from typing import NamedTuple, Protocol

from repl.group.member import Member
from repl.read.reads import reads_of
from repl.web import ndjson, problem
from repl.web.deadlines import Deadlines, Due
from repl.web.limits import (
    DELIVERIES_A_TURN,
    DELIVERY_BYTES,
    ENCODED_TIMES_MAX,
    PAGES_AT_ONCE_MAX,
    PIECE_COST,
    TAIL_PAGE_ENTRIES_MAX,
    WAITED_BYTES_MAX,
)
from repl.web.slices import Slices
from repl.web.types import DURABLE, Piece, Response
from vlsn.errors import VlsnLogError
from vlsn.format.block import Entry
from vlsn.format.key_filter import KeyFilter

BLOCKS = "application/x-vlsnlog-blocks"


class Form(IntEnum):
    """The encodings of a page."""

    LINES = 0
    BLOCKS = 1
    EVENTS = 2
    EVENTS_WITH_TERMS = 3


class Wanted(NamedTuple):
    """The request of a waiting reader. Readers with equal requests share each page."""

    from_vlsn: int | None
    form: Form
    limit: int = TAIL_PAGE_ENTRIES_MAX
    all_kinds: bool = False
    after_vlsn: int = 0
    after_term: int = 0
    """The term of the entry that the reader has read last; it is checked with each page. 0 means that the reader has
    read nothing, or does not send the term."""
    keys: KeyFilter | None = None
    txns: bool = False
    wait: bool = True
    """If False, an empty page is a valid answer."""


class Page:
    """One page, shared by all readers that wait for it."""

    __slots__ = ("_response", "durable", "form", "next_vlsn", "piece", "term")

    def __init__(self, form: Form, data: bytes, next_vlsn: int, durable: int, term: int = 0) -> None:
        """Makes a page. ``term`` is the term of the VLSN before ``next_vlsn``, or 0 if that term is not known."""
        self.form = form
        self.piece = Piece(data)
        self.next_vlsn = next_vlsn
        self.durable = durable
        self.term = term
        self._response: Response | None = None

    @property
    def headers(self) -> dict[str, str]:
        headers = {
            "Content-Type": BLOCKS if self.form is Form.BLOCKS else ndjson.CONTENT_TYPE,
            "Vlsnlog-Next": str(self.next_vlsn),
            DURABLE: str(self.durable),
        }
        if self.term:
            headers["Vlsnlog-Term"] = str(self.term)
        return headers

    @property
    def response(self) -> Response:
        """Returns the response for this page. All readers get the same object, so that its bytes are made only once."""
        if self._response is None:
            self._response = Response(200, self.headers, self.piece.data, shared=True)
        return self._response


class Reader(Due, Protocol):
    """A waiting reader, which is hashed by identity."""

    audience: Audience | None
    """The audience in which the reader waits. Only ``LongPolls`` sets and reads it."""

    def take(self, page: Page | VlsnLogError) -> bool:
        """Takes a page, or an error in its place. Returns whether the reader wants the next page now. It never
        raises."""
        ...


class Audience:
    """All readers that wait for the same page."""

    __slots__ = ("readers", "task", "wanted")

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.readers: dict[Reader, None] = {}
        self.task: asyncio.Task[None] | None = None


class LongPolls:
    def __init__(self, member: Member, pieces: Slices) -> None:
        """Makes the long-polls of one node. ``pieces`` shares each turn of the event loop among all encodings."""
        self._member = member
        self._pieces = pieces
        self._at_once = asyncio.Semaphore(PAGES_AT_ONCE_MAX)
        self._audiences: dict[Wanted, Audience] = {}
        """The audiences that readers can join, by request."""
        self._slices = Slices(DELIVERIES_A_TURN)
        self.deadlines = Deadlines()

    def join(self, wanted: Wanted, reader: Reader) -> None:
        """Adds ``reader`` to the audience of readers with equal requests. The result is passed to the reader's
        ``take``, but never within this call."""
        audience = self._audiences.get(wanted)
        if audience is None:
            audience = self._audiences[wanted] = Audience(wanted)
            audience.task = asyncio.create_task(self._serve(audience), name="page")
        audience.readers[reader] = None
        reader.audience = audience

    def leave(self, reader: Reader) -> None:
        """Removes ``reader`` from its audience, if it has one."""
        audience, reader.audience = reader.audience, None
        if audience is not None:
            audience.readers.pop(reader, None)
            if not audience.readers and audience.task is not None:
                self._close(audience)
                audience.task.cancel()
                audience.task = None  # otherwise task and audience would refer to each other

    async def get(self, wanted: Wanted, wait_s: float = 0.0) -> Page:
        """Returns the next page for ``wanted``. If ``wanted.wait`` is set, returns an empty page after ``wait_s``
        seconds."""
        waiting = _Awaited(self)
        self.join(wanted, waiting)
        if wanted.wait:
            self.deadlines.set(waiting, self.deadlines.now() + wait_s)
        try:
            return await waiting.page
        finally:
            self.deadlines.clear(waiting)
            self.leave(waiting)

    async def make(self, wanted: Wanted, bytes_max: int) -> Page:
        """Makes a page of the entries that are durable now; it is empty if there are none. Raises the same errors as
        ``Reads.page``, and ``NotInLog``."""
        reads = reads_of(self._member)
        if wanted.after_term:
            reads.check_place(wanted.after_vlsn, wanted.after_term)
        if wanted.form is Form.BLOCKS:
            blocks = await reads.blocks(wanted.from_vlsn, bytes_max=bytes_max)
            page = Page(wanted.form, b"".join(blocks.data), blocks.next_vlsn, blocks.durable)
        else:
            entries = await reads.page(
                wanted.from_vlsn,
                limit=wanted.limit,
                bytes_max=bytes_max,
                all_kinds=wanted.all_kinds,
                keys=wanted.keys,
            )
            data, count = await self._pieces.run(_encoded(entries.entries, wanted, ENCODED_TIMES_MAX * bytes_max))
            next_vlsn, term = entries.next_vlsn, entries.term
            if count < len(entries.entries):
                next_vlsn = entries.entries[count].vlsn
                term = reads.term_before(next_vlsn)
            page = Page(wanted.form, data, next_vlsn, entries.durable, term)
        if wanted.after_term:  # checked a second time, because the read may have used more of the log
            reads_of(self._member).check_place(wanted.after_vlsn, wanted.after_term)
        return page

    def nothing(self, reader: Reader) -> Page | VlsnLogError:
        """Makes an empty page for a reader whose wait is over."""
        assert reader.audience is not None
        form, at = reader.audience.wanted.form, reader.audience.wanted.from_vlsn
        assert at is not None
        try:
            reads = reads_of(self._member)
            return Page(form, b"", at, reads.durable, reads.term_before(at))
        except VlsnLogError as error:
            return error

    async def _serve(self, audience: Audience) -> None:
        """Serves ``audience`` as long as it has readers."""
        awaited = audience.wanted.from_vlsn or 1
        try:
            while audience.readers:
                reads = reads_of(self._member)
                waits = audience.wanted.wait and awaited > reads.durable
                if waits:
                    await reads.until(awaited)
                # New entries are in memory, so a reader of new entries need not wait for pages from the disk.
                async with nullcontext() if waits else self._at_once:
                    self._close(audience)
                    page = await self.make(audience.wanted, WAITED_BYTES_MAX)
                if page.piece.data or not audience.wanted.wait or _looked_for_nothing(page):
                    await self._deliver(audience, page)
                awaited = page.next_vlsn if page.next_vlsn != audience.wanted.from_vlsn else page.durable + 1
                self._move(audience, page.next_vlsn)
                if awaited <= page.durable:
                    # without this sleep, a reader that catches up from memory would never let other tasks run
                    await asyncio.sleep(0)
        except VlsnLogError as error:
            await self._deliver(audience, error)
        except Exception as fault:  # an unexpected error in the task of one audience is passed to its readers
            await self._deliver(audience, problem.internal(fault, "a page for readers"))
        finally:
            self._close(audience)

    async def _deliver(self, audience: Audience, page: Page | VlsnLogError) -> None:
        """Passes ``page`` to all readers of ``audience`` that have not left meanwhile. No reader can join the audience
        any more."""
        self._close(audience)
        cost = 1 if isinstance(page, VlsnLogError) else 1 + len(page.piece.data) // DELIVERY_BYTES
        readers = list(audience.readers)
        at_once = max(1, DELIVERIES_A_TURN // 2 // cost)
        for at in range(0, len(readers), at_once):
            those = readers[at : at + at_once]
            await self._slices.turn(cost * len(those))
            for reader in those:
                if reader.audience is audience and not reader.take(page) and reader.audience is audience:
                    reader.audience = None
                    del audience.readers[reader]

    def _move(self, audience: Audience, next_vlsn: int) -> None:
        """Moves an audience along the log. If another audience is already at the new VLSN, the readers join that
        audience."""
        wanted = audience.wanted = audience.wanted._replace(from_vlsn=next_vlsn)
        if not audience.readers:
            return
        other = self._audiences.setdefault(wanted, audience)
        if other is not audience:
            for reader in audience.readers:
                reader.audience = other
            other.readers |= audience.readers
            audience.readers = {}

    def _close(self, audience: Audience) -> None:
        """Closes ``audience``, so that no more readers join it."""
        if self._audiences.get(audience.wanted) is audience:
            del self._audiences[audience.wanted]


class _Awaited:
    """A reader that an asynchronous request waits for."""

    __slots__ = ("_pages", "audience", "page", "tick")

    def __init__(self, pages: LongPolls) -> None:
        self._pages = pages
        self.page: asyncio.Future[Page] = asyncio.get_running_loop().create_future()
        self.audience: Audience | None = None
        self.tick = 0

    def take(self, page: Page | VlsnLogError) -> bool:
        if not self.page.done():
            if isinstance(page, Page):
                self.page.set_result(page)
            else:
                self.page.set_exception(page)
        return False

    def due(self) -> None:
        if self.audience is not None:  # without an audience the reader has its page
            self.take(self._pages.nothing(self))


def _looked_for_nothing(page: Page) -> bool:
    """Returns whether a read with a key filter found no entry. A long-poll then answers how far the search came."""
    return page.form is Form.LINES and page.next_vlsn <= page.durable


def _encoded(entries: Sequence[Entry], wanted: Wanted, bytes_max: int) -> Generator[int, None, tuple[bytes, int]]:
    """Encodes entries until ``bytes_max`` is reached, at least one entry. Returns the bytes, and the number of entries
    that were encoded."""
    parts: list[bytes] = []
    size = count = 0
    for run in ndjson.runs(entries):
        part = yield from _encoded_run(run, wanted)
        if parts and size + len(part) > bytes_max:
            break
        parts.append(part)
        size += len(part)
        count += len(run)
        if size >= bytes_max:
            break
    return b"".join(parts), count


def _encoded_run(run: Sequence[Entry], wanted: Wanted) -> Generator[int, None, bytes]:
    kinds, txns = wanted.all_kinds, wanted.txns
    if ndjson.is_long(run[0]):
        each = [(yield from ndjson.encode_long(run[0], kinds=kinds, txns=txns))]
        if wanted.form is Form.LINES:
            return each[0] + b"\n"
    else:
        yield PIECE_COST + sum(map(ndjson.cost_of, run))
        if wanted.form is Form.LINES:
            return ndjson.encode(run, kinds=kinds, txns=txns)
        each = ndjson.encode_each(run, kinds=kinds, txns=txns)
    rows = zip(run, each, strict=True)
    if wanted.form is Form.EVENTS_WITH_TERMS:
        return b"".join([b"id: %d@%d\ndata: %b\n\n" % (entry.vlsn, entry.term, row) for entry, row in rows])
    return b"".join([b"id: %d\ndata: %b\n\n" % (entry.vlsn, row) for entry, row in rows])
