"""One pass of the pager. Before segments are cleaned away, their entries that destinations still want are written to
page files.

    1  the log is read in windows of a MiB, from the lowest VLSN that some destination does not have in pages
    2  for each destination, its messages in a window are selected by column, and written as one record
    3  after a number of bytes of the log, the pages are synced, and for new pages also their directories
    4  one transaction updates the page table                                         ◄ commit point
    5  the steps are repeated until ``upto``; only then may the log be cleaned up to there

After a crash before step 4, the pages have bytes that are not valid, and the log has all messages. After step 4, the
log and the pages both have the messages. A failed write or sync ends the pass: valid records stay, and the other
records are written again to other pages.

Each step is one job on the pager's thread. No other thread waits for a step longer than for one call of NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vlsn.errors import Damaged
from vlsn.format.messages import MessageFilter
from vlsn.format.rows import EntryRows, Mask
from vlsn.ids import NULL_LSN, Vlsn
from vlsn.index.index import VlsnIndex
from vlsn.limits import PAGING_STRIDE_BYTES, PAGING_WINDOW_BYTES
from vlsn.pages.page import PageWriter
from vlsn.pages.record import record_of
from vlsn.pages.store import About, Change, PagingStore
from vlsn.pages.subscription import Subscription
from vlsn.segments.reader import LogReader


class Selector:
    """Selects the messages of one destination."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._messages = MessageFilter(subscription.name, subscription.prefix, subscription.letters)

    def wanted(self, rows: EntryRows, from_vlsn: int, to_vlsn: int) -> Mask | None:
        """Returns marks for the unacknowledged messages from ``from_vlsn`` to ``to_vlsn``, or None if there are no such
        messages."""
        first = rows.first_vlsn
        low, high = max(from_vlsn - first, 0), min(to_vlsn - first + 1, rows.rows)
        if low >= high or self._subscription.acknowledged.covers(first + low, first + high - 1):
            return None
        wanted = self._messages.mask(rows)
        wanted[:low] = False
        wanted[high:] = False
        if not wanted.any():
            return None
        vlsns = np.arange(first, first + rows.rows, dtype=np.int64)
        wanted &= ~self._subscription.acknowledged.has(vlsns)
        return wanted if wanted.any() else None


@dataclass(slots=True)
class Want:
    """The state of one destination in a pass. ``covers_from`` is the first VLSN after the VLSNs that the destination's
    last record covers."""

    subscription: Subscription
    store: PagingStore
    selector: Selector
    covers_from: int
    records: int = 0


class PagingPass:
    """A pass up to ``upto``, the last VLSN of a block. ``step``, ``sync`` and ``discard`` are called on the pager's
    thread, the other methods on the owner's thread. ``index`` finds the blocks of the log."""

    def __init__(
        self,
        wants: Sequence[tuple[Subscription, PagingStore]],
        reader: LogReader,
        index: VlsnIndex,
        upto: Vlsn,
        *,
        first: Vlsn,
        stride_bytes: int = PAGING_STRIDE_BYTES,
        window_bytes: int = PAGING_WINDOW_BYTES,
    ) -> None:
        self._wants = [
            Want(subscription, store, Selector(subscription), max(store.paged_to + 1, first))
            for subscription, store in wants
            if store.paged_to < upto
        ]
        self._reader = reader
        self._index = index
        self._upto = upto
        self._stride_bytes = stride_bytes
        self._window_bytes = window_bytes
        self._at = min((want.covers_from for want in self._wants), default=int(upto) + 1)
        self._lsn = NULL_LSN
        self.looked_bytes = 0
        """The bytes of the log that were read since the last sync."""
        self._begun = False

    @property
    def over(self) -> bool:
        return self._at > self._upto

    @property
    def paged_to(self) -> Vlsn:
        """The VLSN up to which all wanted messages are in pages, synced or not."""
        return Vlsn(self._at - 1)

    @property
    def due(self) -> bool:
        """True if the written records must be synced and committed before the next step."""
        return self.over or self.looked_bytes >= self._stride_bytes

    def step(self) -> None:
        """Writes the wanted messages of one window of the log to pages. Raises ``OSError``, ``Damaged`` or
        ``Trimmed``."""
        if not self._begun:
            self._begun = True
            for want in self._wants:
                want.store.begin_pass(want.subscription.since)
        if not self._lsn:
            mapping = self._index.at_or_before(Vlsn(self._at))
            if mapping is None:
                raise Damaged(f"the index does not find VLSN {self._at}, which is to be paged", vlsn=self._at)
            self._lsn = mapping[1]
        run = self._reader.rows(self._at, start=self._lsn, upto_vlsn=self._upto, bytes_max=self._window_bytes)
        if run.next_vlsn <= self._at:
            raise Damaged(f"VLSN {self._at}, which is to be paged, cannot be read yet", vlsn=self._at)
        for rows in run.windows:
            last = rows.first_vlsn + rows.rows - 1
            self.looked_bytes += int(rows.headers["body_bytes"].sum())
            for want in self._wants:
                self._page(want, rows, last)
        self._at, self._lsn = run.next_vlsn, run.next_lsn

    def _page(self, want: Want, rows: EntryRows, last: int) -> None:
        wanted = want.selector.wanted(rows, want.covers_from, self._upto)
        if wanted is None:
            return
        record = record_of(rows, wanted, covers_from=want.covers_from, covers_to=last)
        assert record is not None
        about = About(want.store.uuid, want.subscription.name, want.subscription.prefix)
        if want.store.made != about:
            want.store.make(about)
        want.store.page(record)
        want.records += 1
        want.covers_from = last + 1

    def full_pages(self) -> list[PageWriter]:
        """Returns the full pages that are not synced yet. Another thread may sync the full pages before ``sync``."""
        return [writer for want in self._wants for writer in want.store.full_pages()]

    def sync(self) -> list[Change]:
        """Syncs the written records, and returns the changes of the page table that make them valid. Raises
        ``OSError``."""
        paged_to = self.paged_to
        changes = []
        for want in self._wants:
            pages = want.store.sync() if want.records else {}
            want.records = 0
            changes.append(want.store.paged(want.subscription, pages, paged_to))
        self.looked_bytes = 0
        return changes

    def committed(self, changes: Sequence[Change]) -> None:
        """Notes that ``changes`` are in the page table."""
        wants = {want.store.uuid: want for want in self._wants}
        for change in changes:
            store = wants[change.uuid].store
            store.committed(change)
            store.begin_pass(wants[change.uuid].subscription.since)

    def discard(self) -> None:
        """Discards all records that are not in the page table yet."""
        for want in self._wants:
            want.store.discard()

    def close(self) -> None:
        self._reader.close()
