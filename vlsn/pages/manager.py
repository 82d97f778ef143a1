"""The paging manager has the paging stores of all destinations of one node. A paging store has a destination's page
files: its messages from segments that were cleaned away.

    subscriptions ─► reconciled ─► a pass ─► covers: the log may begin there ─► done: unneeded pages are dropped

The manager has the contents of the page table in memory. The manager does not decide when messages are written to
pages. It is used on the owner's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager

from vlsn.ids import Vlsn
from vlsn.limits import PAGE_BYTES
from vlsn.pages.opening import OpenedPages
from vlsn.pages.page import Salts
from vlsn.pages.store import DIRECTORY, Change, PagingStore
from vlsn.pages.subscription import Subscription
from vlsn.seams import Disk


class PagingManager:
    """The paging stores of one node, empty at first. ``adopt`` sets the stores that the opening of the log has
    found."""

    def __init__(
        self,
        disk: Disk,
        latch: Callable[[], AbstractContextManager[object]],
        salts: Salts,
        directory: str,
        *,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        self.stores: dict[str, PagingStore] = {}
        self._disk = disk
        self._latch = latch
        self._salts = salts
        self._directory = directory
        self._page_bytes = page_bytes

    def adopt(self, opened: OpenedPages) -> None:
        self.stores = dict(opened.stores)

    def store_of(self, subscription: Subscription) -> PagingStore:
        """Returns the paging store of a destination. A missing store is created without touching the disk."""
        uuid = subscription.uuid
        store = self.stores.get(uuid)
        if store is None:
            place = f"{self._directory}/{DIRECTORY}/{uuid}"
            store = PagingStore(self._disk, self._latch(), self._salts, place, uuid, page_bytes=self._page_bytes)
            self.stores[uuid] = store
        return store

    def reconciled(self, subscriptions: Sequence[Subscription], first: Vlsn) -> list[Change]:
        """Returns the changes of the page table that are needed before the log, which begins at ``first``, is cleaned
        or messages are delivered. The changes include those for destinations that were dropped."""
        listed = {subscription.uuid for subscription in subscriptions}
        changes = [
            Change(uuid, None, gone=list(store.pages)) for uuid, store in self.stores.items() if uuid not in listed
        ]
        for subscription in subscriptions:
            change = self.store_of(subscription).reconciled(subscription, first)
            if change is not None:
                changes.append(change)
        return changes

    def done(self, subscriptions: Iterable[Subscription], looked: dict[str, dict[int, bool]]) -> list[Change]:
        """Returns the changes that remove unneeded pages from the page table. ``looked`` has, by uuid, the pages that
        were read (``PagingStore.done``)."""
        found = []
        for subscription in subscriptions:
            store = self.stores.get(subscription.uuid)
            change = store.done(subscription.acknowledged, looked.get(store.uuid)) if store is not None else None
            if change is not None:
                found.append(change)
        return found

    def committed(self, changes: Iterable[Change]) -> list[tuple[PagingStore, Sequence[int]]]:
        """Notes that ``changes`` are in the page table, and returns the files to remove."""
        going = []
        for change in changes:
            store = self.stores[change.uuid]
            if change.row is None:
                del self.stores[change.uuid]
            else:
                store.committed(change)
            store.leave_page(change.gone)
            if change.gone:
                going.append((store, change.gone))
        return going

    def wants(self, subscriptions: Iterable[Subscription], upto: Vlsn) -> list[tuple[Subscription, PagingStore]]:
        """Returns the destinations whose messages up to ``upto`` are not all in pages yet, with their stores."""
        found = [(subscription, self.store_of(subscription)) for subscription in subscriptions]
        return [(subscription, store) for subscription, store in found if store.paged_to < upto]

    def uncovered(self, subscriptions: Iterable[Subscription], first: Vlsn, begin: Vlsn) -> str:
        """Returns the reason why a log that begins at ``begin`` may not begin at ``first`` instead: a wanted message is
        in no page. Returns an empty string if the log may begin at ``first``."""
        for subscription in subscriptions:
            store = self.stores.get(subscription.uuid)
            row = store.row if store is not None else None
            paged_to = row.paged_to if row is not None and row.since == subscription.since else 0
            low = max(paged_to + 1, begin)
            if low < first and not subscription.acknowledged.covers(low, first - 1):
                return f"destination {subscription.name} is paged up to VLSN {paged_to} only"
        return ""

    def close(self) -> None:
        for store in self.stores.values():
            store.close()
