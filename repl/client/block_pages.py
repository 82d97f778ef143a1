"""Pages of whole blocks, for a reader that works by columns: the blocks are checked, but not split into entries.

    body     |hdr|offsets| a | bc |  | hdr |offsets| d |      at   0 88 …
    page.rows.vlsns(), .kinds(), .value_cuts() …              an array each, a row an entry

A page is a node's answer to one read request, checked by ``block_rows``. These pages need NumPy, and nothing else of a
client does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from repl.client.endpoints import Endpoints
from repl.client.page import Page, VlsnPlace
from repl.client.reader import Reader
from vlsn.errors import BadBody
from vlsn.format.arrays import need_numpy

if TYPE_CHECKING:
    from vlsn.format.rows import Rows


@dataclass(frozen=True, slots=True)
class BlocksPage(Page):
    """A page of whole blocks; ``entries`` stays empty. ``rows`` is None if the page has no block. Because blocks are
    not cut, ``rows`` may begin before the requested VLSN, or end after the last requested VLSN."""

    rows: Rows | None = None


class BlockReader(Reader):
    """A ``Reader`` that yields pages of whole blocks instead of entries. Raises ``ModuleNotFoundError`` without
    NumPy."""

    def __init__(self, endpoints: Endpoints, *, give_up_s: float) -> None:
        super().__init__(endpoints, give_up_s=give_up_s)
        need_numpy("block_pages")
        from repl.client.block_rows import checked_rows

        self._checked_rows = checked_rows

    def _page_with(
        self, body: memoryview, place: VlsnPlace, next_vlsn: int, durable: int, kinds: frozenset[int] | None
    ) -> Page:
        rows = self._checked_rows(body)
        if rows is None:
            return BlocksPage([], next_vlsn, durable)
        first, end = int(rows.headers["first_vlsn"][0]), int(rows.headers["first_vlsn"][-1]) + int(rows.count[-1])
        if next_vlsn != end or (place.vlsn is not None and not first <= place.vlsn < end):
            raise BadBody(f"a page of VLSN {first} to {end - 1} for one from {place.vlsn} to {next_vlsn - 1}")
        return BlocksPage([], next_vlsn, durable, int(rows.headers["term"][-1]), rows)
