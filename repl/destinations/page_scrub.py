"""The scrub of pages: reads each page (a file of messages) whole, to find damage before a delivery needs the page."""

from __future__ import annotations

from repl.destinations.pager import Pager
from repl.offload import Offload
from vlsn.pages.page import PageContents, read_page
from vlsn.seams import Disk


class PageScrub:
    """Reads the pages of one node, for the node's scrub (``repl.repair.scrub.Pages``)."""

    def __init__(self, pager: Pager, disk: Disk, on_scrub: Offload) -> None:
        self._pager = pager
        self._disk = disk
        self._on_scrub = on_scrub

    def listed(self) -> list[tuple[str, int]]:
        stores = self._pager.manager.stores
        return [
            (uuid, number)
            for uuid, store in sorted(stores.items())
            for number, row in store.pages.items()
            if not row.superseded
        ]

    async def look(self, uuid: str, number: int) -> tuple[int, bool]:
        store = self._pager.manager.stores.get(uuid)
        row = store.pages.get(number) if store is not None else None
        if store is None or row is None or row.superseded:
            return 0, True  # the page was removed meanwhile
        disk, path = self._disk, store.path(number)

        def read() -> PageContents:
            file = disk.open(path)
            try:
                file.drop_cache()
            finally:
                file.close()
            return read_page(disk, path, uuid, number, row.end)

        try:
            contents = await self._on_scrub(read)
            fault = contents.fault
        except FileNotFoundError:
            if number not in store.pages:
                return 0, True
            fault = "the file is gone"
        if not fault or number not in store.pages:
            return row.end, True
        await self._pager.salvage(store, number)
        return row.end, False
