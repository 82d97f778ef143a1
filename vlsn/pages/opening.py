"""Pages found when a log is opened: what counts stays, what does not goes, what is gone is missing.

    row     file
    yes     whole, or longer        stays; a longer one takes no more
    yes     none, or shorter        its VLSNs are missing: another member gives them
    yes     only ``*.damaged``      a salvage was stopped: it is done again
    no      there                   done, or never finished: it goes
    no destination in the table at all, or a row of it that cannot be read, but files: their records say what they hold.

On the pager's thread; durable on return, but for the table's own part, which is returned as changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

import msgspec

from vlsn.errors import BadBody
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.limits import PAGE_BYTES
from vlsn.pages.page import HEADER_BYTES, NO_ROW, PageHeader, PageRow, Salts, read_page
from vlsn.pages.store import ABOUT_NAME, DIRECTORY, About, Change, PagingStore, StoreRow, union
from vlsn.pages.subscription import Acknowledged, Span
from vlsn.pages.table import PageTable
from vlsn.seams import Disk
from vlsn.segments.bad_sectors import is_unread

UUID = re.compile(r"[0-9a-f]{16}\Z")
PAGE_FILE = re.compile(r"([0-9]{9})\.page(\.damaged)?\Z")


@dataclass(slots=True)
class OpenedPages:
    """All paging stores of a directory, and what its page table is to say before they are used."""

    stores: dict[str, PagingStore]
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    aside: list[tuple[str, int]] = field(default_factory=list)
    """Pages that count, and of which there is only what was put aside: uuid and number."""


def open_pages(
    disk: Disk,
    latch: Callable[[], AbstractContextManager[object]],
    salts: Salts,
    directory: str,
    table: PageTable,
    *,
    first: int,
    page_bytes: int = PAGE_BYTES,
) -> OpenedPages:
    """Opens the pages of the log in ``directory``, which begins at VLSN ``first``. Raises ``OSError``,
    ``WrongVersion``."""
    opened = OpenedPages({})
    rows = table.read()
    base = f"{directory}/{DIRECTORY}"
    there = [name for name in disk.list(base) if UUID.match(name)] if disk.exists(base) else []
    for uuid in sorted({*there, *rows}):
        place = f"{base}/{uuid}"
        names = disk.list(place) if uuid in there else []
        numbers: dict[int, bool] = {}
        for match in filter(None, map(PAGE_FILE.match, names)):
            numbers[int(match[1])] = numbers.get(int(match[1]), False) or match[2] is None
        row, pages = rows.get(uuid, (None, {}))
        if row is None:
            row, pages = _rebuilt(disk, place, uuid, [number for number, plain in numbers.items() if plain], first)
            if row is not None or uuid in rows:
                why = "a row of the page table cannot be read" if uuid in rows else "the page table has none"
                opened.notes.append(f"pages of destination {uuid}: {why}, {len(pages)} files are read")
                opened.changes.append(Change(uuid, row, pages, anew=True))
        elif lost := _lost(disk, place, pages, numbers):
            lost_rows = [pages[number] for number in lost if not pages[number].superseded]
            spans = [(page.covers_from, page.covers_to) for page in lost_rows]
            row = msgspec.structs.replace(row, missing=union([*row.missing, *spans]), done=max(row.done, *lost))
            pages = {number: page for number, page in pages.items() if number not in lost}
            opened.notes.append(f"pages of destination {uuid}: {len(lost)} are gone, their VLSNs are missing here")
            opened.changes.append(Change(uuid, row, gone=lost))
        opened.aside += [
            (uuid, number) for number, page in pages.items() if numbers.get(number) is False and not page.superseded
        ]
        unused = [number for number, plain in numbers.items() if plain and number not in pages]
        for number in unused:
            with suppress(FileNotFoundError):
                disk.remove(f"{place}/{number:09d}.page")
        if unused:
            disk.sync_directory(place)
        opened.stores[uuid] = PagingStore(
            disk, latch(), salts, place, uuid, row, pages,
            page_bytes=page_bytes, number=max(numbers, default=0),
        )  # fmt: skip
    return opened


def _lost(disk: Disk, place: str, pages: dict[int, PageRow], numbers: dict[int, bool]) -> list[int]:
    """Lists the pages that count and are not there, as far as they count."""
    lost = []
    for number, row in pages.items():
        if number not in numbers:
            lost.append(number)
        elif numbers[number]:
            file = disk.open(f"{place}/{number:09d}.page")
            try:
                if file.size() < row.end:
                    lost.append(number)
            finally:
                file.close()
    return lost


def _rebuilt(
    disk: Disk, place: str, uuid: str, numbers: list[int], log_first: int
) -> tuple[StoreRow | None, dict[int, PageRow]]:
    """Reads what the files say, as far as they are whole; what is taken was synced first. What was written twice, by a
    pass that never counted and by the one after it, is taken once. Nothing is taken behind a gap that the log fills: it
    is paged again. Those of before the destination was moved are superseded."""
    prefix = read_about(disk, place)
    since = {number: _since(disk, place, number) for number in sorted(numbers)} if prefix is not None else {}
    newest = max(since.values(), default=0)
    rows, before, covered = dict[int, PageRow](), dict[int, PageRow](), list[Span]()
    for number in since:
        row, is_newest = NO_ROW, since[number] == newest
        contents = read_page(disk, f"{place}/{number:09d}.page", uuid, number, None)
        for piece in sorted(contents.pieces, key=lambda piece: piece.head.offset):
            head = piece.head
            if is_newest and Acknowledged.of(0, covered).count(head.covers_from, head.covers_to):
                break
            row = row.with_record(head, head.end)
        if row.count and is_newest:
            rows[number] = row
            covered = union([*covered, (row.covers_from, row.covers_to)])
        elif row.count:
            before[number] = msgspec.structs.replace(row, superseded=True)
    if prefix is None or not rows:
        return None, {}
    disk.sync_directory(place)
    paged_to = covered[-1][1]
    missing = Acknowledged.of(0, covered).left([(1, paged_to)])
    for low, high in missing:
        if high >= log_first:
            paged_to = low - 1
            break
    rows = {number: row for number, row in rows.items() if row.covers_to <= paged_to}
    missing = [span for span in missing if span[1] <= paged_to]
    if not paged_to and not before:
        return None, {}
    return StoreRow(paged_to, max(numbers), missing, Vlsn(newest), prefix), {**rows, **before}


def _since(disk: Disk, place: str, number: int) -> int:
    """Syncs a page, and reads what it was written for; 0 where that cannot be read."""
    file = disk.open(f"{place}/{number:09d}.page", write=True)
    try:
        file.sync()
        return PageHeader.decode(file.read(0, min(file.size(), HEADER_BYTES))).since
    except (BadBody, OSError) as error:
        if isinstance(error, OSError) and not is_unread(error):
            raise
        return NULL_VLSN
    finally:
        file.close()


def read_about(disk: Disk, place: str) -> bytes | None:
    """Returns the prefix that the pages in ``place`` were written for; None where that cannot be read."""
    try:
        file = disk.open(f"{place}/{ABOUT_NAME}")
        try:
            about = msgspec.json.decode(file.read(0, file.size()), type=About)
        finally:
            file.close()
        return about.prefix
    except (OSError, msgspec.MsgspecError, BadBody):
        return None
