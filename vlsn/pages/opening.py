"""Opens the page files (messages of destinations from segments that were cleaned away) with the log. Valid files stay,
other files are removed, and the messages of lost files are noted as missing. The page table has a row for each valid
page.

    row     file
    yes     complete, or longer     the file stays; nothing more is written to a longer one
    yes     none                    the VLSNs are missing: another member sends their messages
    yes     shorter                 the file is salvaged: the readable part stays, the rest is missing
    yes     only ``*.damaged``      a salvage was interrupted: it is repeated
    no      there                   it is finished, was never completed, or has lost its row: ``listed_anew`` decides
    no row of the destination at all, or an unreadable one, but files: rows are made from the records in the files

The functions run on the pager's thread. The functions' changes of files are durable on return. The changes of the page
table are returned to the caller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field

import msgspec

from vlsn.errors import BadBody
from vlsn.format.records import JSON_FAULTS
from vlsn.format.vlsn_set import Span, VlsnSet
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.limits import PAGE_BYTES
from vlsn.pages.page import HEADER_BYTES, NO_ROW, PageContents, PageHeader, PageRow, Salts, read_page
from vlsn.pages.store import ABOUT_NAME, DIRECTORY, About, Change, PagingStore, StoreRow
from vlsn.pages.table import PageTable
from vlsn.seams import Disk
from vlsn.segments.bad_sectors import is_unread

UUID = re.compile(r"[0-9a-f]{16}\Z")
PAGE_FILE = re.compile(r"([0-9]{9})\.page(\.damaged)?\Z")


@dataclass(slots=True)
class OpenedPages:
    """All paging stores of a directory, and the changes of the page table that must be made before the stores are
    used."""

    stores: dict[str, PagingStore]
    changes: list[Change] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    aside: list[tuple[str, int]] = field(default_factory=list)
    """The uuid and number of each page that has to be salvaged."""


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
    """Opens the pages of the log in ``directory``, which begins at VLSN ``first``. Raises ``OSError`` or
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
        else:
            change = _mended(disk, place, uuid, row, pages, numbers, opened.notes)
            if change is not None:
                assert change.row is not None
                row = change.row
                pages = {n: page for n, page in {**pages, **change.pages}.items() if n not in change.gone}
                opened.changes.append(change)
        opened.aside += [
            (uuid, number)
            for number, page in sorted(pages.items())
            if not page.superseded and (not numbers[number] or _is_short(disk, f"{place}/{number:09d}.page", page))
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


def _mended(
    disk: Disk,
    place: str,
    uuid: str,
    row: StoreRow,
    pages: dict[int, PageRow],
    numbers: dict[int, bool],
    notes: list[str],
) -> Change | None:
    """Returns the changes of the page table for lost page files and lost rows, or None if nothing is lost."""
    gone = [number for number in pages if number not in numbers]
    lost = [(page.covers_from, page.covers_to) for number in gone if not (page := pages[number]).superseded]
    row = msgspec.structs.replace(
        row, missing=VlsnSet.of_spans([*row.missing, *lost]).spans(), done=max(row.done, *gone, 0)
    )
    if gone:
        notes.append(f"pages of destination {uuid}: {len(gone)} are lost, and their VLSNs are missing here")
    found = dict[int, PageRow]()
    for number in sorted(number for number, plain in numbers.items() if plain and number not in pages):
        if _since(disk, place, number) != row.since:
            continue
        contents = read_page(disk, f"{place}/{number:09d}.page", uuid, number, None)
        anew, unread = listed_anew(contents, row, {**pages, **found})
        if anew is not None:
            found[number] = anew
            row = msgspec.structs.replace(row, missing=VlsnSet.of_spans([*row.missing, *unread]).spans())
    if found:
        disk.sync_directory(place)
        notes.append(f"pages of destination {uuid}: the page table has no row of {len(found)}, which are read")
    return Change(uuid, row, found, gone) if gone or found else None


def listed_anew(
    contents: PageContents, row: StoreRow, pages: Mapping[int, PageRow]
) -> tuple[PageRow | None, list[Span]]:
    """Returns a row for a page that has no row in the table, and the spans of VLSNs in the page that cannot be read.

    A record of the page is valid if its VLSNs are at or below ``paged_to``, are in no other page, and are not missing.
    Other records were never committed: they are from an interrupted pass (after ``paged_to``), or from an interrupted
    salvage or filling. For a page without valid records, None is returned. A page that was finished, but whose file was
    not removed, is valid again, and is finished again later.
    """
    live = [(page.covers_from, page.covers_to) for page in pages.values() if not page.superseded]
    covered, found = VlsnSet.of_spans([*live, *row.missing]), NO_ROW
    for piece in sorted(contents.pieces, key=lambda piece: piece.head.offset):
        head = piece.head
        if head.covers_to > row.paged_to or covered.count_in(head.covers_from, head.covers_to):
            break
        found = found.with_record(head, head.end)
    if not found.count:
        return None, []
    end = min((first - 1 for first, _ in covered.spans() if first > found.covers_to), default=row.paged_to)
    return found, [(found.covers_to + 1, end)] if contents.fault and found.covers_to < end else []


def _is_short(disk: Disk, path: str, row: PageRow) -> bool:
    """Returns whether a page file is shorter than its row in the page table says."""
    with closing(disk.open(path)) as file:
        return file.size() < row.end


def _rebuilt(
    disk: Disk, place: str, uuid: str, numbers: list[int], log_first: int
) -> tuple[StoreRow | None, dict[int, PageRow]]:
    """Makes rows from the valid records in a destination's page files, after syncing the files. A record that was
    written twice (by an interrupted pass and again by the next one) is used once. Records after a gap that the log can
    fill are not used, since the part of the log after a gap will be paged again. Records from before the destination
    was moved are marked as superseded."""
    prefix = read_about(disk, place)
    since = {number: _since(disk, place, number) for number in sorted(numbers)} if prefix is not None else {}
    newest = max(since.values(), default=0)
    rows, before, covered = dict[int, PageRow](), dict[int, PageRow](), VlsnSet()
    for number in since:
        row, is_newest = NO_ROW, since[number] == newest
        contents = read_page(disk, f"{place}/{number:09d}.page", uuid, number, None)
        for piece in sorted(contents.pieces, key=lambda piece: piece.head.offset):
            head = piece.head
            if is_newest and covered.count_in(head.covers_from, head.covers_to):
                break
            row = row.with_record(head, head.end)
        if row.count and is_newest:
            rows[number] = row
            covered = covered.union(VlsnSet.between(row.covers_from, row.covers_to))
        elif row.count:
            before[number] = msgspec.structs.replace(row, superseded=True)
    if prefix is None or not rows:
        return None, {}
    disk.sync_directory(place)
    paged_to = covered.last
    missing = covered.left([(1, paged_to)])
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
    """Syncs a page file, and returns its ``since``, or 0 if that cannot be read."""
    with closing(disk.open(f"{place}/{number:09d}.page", write=True)) as file:
        try:
            file.sync()
            return PageHeader.decode(file.read(0, min(file.size(), HEADER_BYTES))).since
        except (BadBody, OSError) as error:
            if isinstance(error, OSError) and not is_unread(error):
                raise
            return NULL_VLSN


def read_about(disk: Disk, place: str) -> bytes | None:
    """Returns the key prefix for which the pages in the directory ``place`` were written, or None if it cannot be
    read."""
    try:
        with closing(disk.open(f"{place}/{ABOUT_NAME}")) as file:
            about = msgspec.json.decode(file.read(0, file.size()), type=About)
        return about.prefix
    except (OSError, *JSON_FAULTS, BadBody):
        return None
