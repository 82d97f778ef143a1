"""The page table in the ``state`` store. It says which page files (messages of destinations from cleaned segments) are
valid, and up to which offset.

    g ‖ uuid         {paged_to, done, missing, since, prefix}      one destination (``StoreRow``)
    g ‖ uuid ‖ u32   {end, first, last, count, bytes, …}           a page of it (``PageRow``), by number (big-endian)

One transaction is the commit point of a pass over all destinations. Pages and directories are synced before the
transaction, and the log is cleaned after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from vlsn.errors import Damaged
from vlsn.format.records import JSON_FAULTS
from vlsn.pages.page import PageRow
from vlsn.pages.store import Change, StoreRow
from vlsn.seams import KeyValue

PREFIX: Final = b"g"
"""The first byte of the page table's keys. No other key of the store begins with this byte."""
_END: Final = b"h"
_UUID_BYTES: Final = 8
T = TypeVar("T")


class PageTable:
    """The page table. Any thread may read it; ``write`` is called on the store's thread."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store

    def read(self) -> dict[str, tuple[StoreRow | None, dict[int, PageRow]]]:
        """Returns the whole table, by uuid. For a destination with an unreadable row, returns None and no pages. A page
        without a row would be ignored, so the destination's files must be read instead."""
        found: dict[str, tuple[StoreRow | None, dict[int, PageRow]]] = {}
        rotten = set[str]()
        for key in self._store.keys(PREFIX, _END):
            uuid, number = key[1 : 1 + _UUID_BYTES].hex(), int.from_bytes(key[1 + _UUID_BYTES :], "big")
            if len(key) == 1 + _UUID_BYTES:
                row = self._row(key, StoreRow)
                found[uuid] = (row, {})
                rotten |= {uuid} if row is None else set()
            elif (page := self._row(key, PageRow)) is not None and uuid in found:
                found[uuid][1][number] = page
            else:
                rotten.add(uuid)
        return found | dict.fromkeys(sorted(rotten), (None, {}))

    def write(self, changes: Iterable[Change]) -> None:
        """Commits ``changes`` together. The changes are durable on return. Raises ``LogFailed``."""
        puts: list[tuple[bytes, bytes]] = []
        deletes: list[bytes] = []
        ranges: list[tuple[bytes, bytes]] = []
        for change in changes:
            key = PREFIX + bytes.fromhex(change.uuid)
            if change.row is None or change.anew:
                ranges.append((key, _after(key)))
            if change.row is None:
                continue
            puts.append((key, msgspec.json.encode(change.row)))
            puts += [(_page_key(key, number), msgspec.json.encode(row)) for number, row in change.pages.items()]
            deletes += [_page_key(key, number) for number in change.gone]
        if puts or ranges:
            self._store.write(puts, deletes=deletes, delete_ranges=ranges)

    def _row(self, key: bytes, kind: type[T]) -> T | None:
        try:
            value = self._store.get(key)
            return msgspec.json.decode(value, type=kind) if value is not None else None
        except (Damaged, *JSON_FAULTS):
            return None


def _page_key(key: bytes, number: int) -> bytes:
    return key + number.to_bytes(4, "big")


def _after(key: bytes) -> bytes:
    """Returns the first key after all keys that begin with ``key``."""
    number = int.from_bytes(key, "big") + 1
    return number.to_bytes(len(key), "big")
