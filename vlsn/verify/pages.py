"""Lists the page files of destinations in a directory, record by record. A page file has the messages of cleaned
segments that a destination still needs. Each record gets a verdict, which depends on the page table and the
acknowledgements.

    ACK            every message of the record is acknowledged; ACK 3/8: three of eight messages are acknowledged
    COMPLETE       (for a page) every message in the page is acknowledged, and its file will be removed
    TX_NOT_FOUND   the record was written, but never entered in the page table:
                   its messages are not delivered from this page, and are still in the log

The listing uses the acknowledgements of the last checkpoint. A node that was killed knows of later ones from its log.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from vlsn.pages.opening import PAGE_FILE, UUID, listed_anew
from vlsn.pages.page import PageContents, PageRow, read_page
from vlsn.pages.store import DIRECTORY, StoreRow
from vlsn.seams import Disk
from vlsn.state.acks import Acked
from vlsn.state.destinations import settings_in
from vlsn.verify.segment_chain import Stated

ACK, COMPLETE, TX_NOT_FOUND, DAMAGED = "ACK", "COMPLETE", "TX_NOT_FOUND", "DAMAGED"


class PageLine(msgspec.Struct, frozen=True):
    """One record of a page file. If ``record`` is false, the line is about the page itself, and comes before its
    records."""

    destination: str
    uuid: str
    file: str
    record: bool
    offset: int
    first: int
    last: int
    count: int
    bytes: int
    """The bytes of all keys and values in the record."""
    acked: int
    transactions: int
    whole: bool
    """True if the record consists of whole blocks of the log."""
    marks: list[str]
    detail: str = ""


def page_lines(disk: Disk, directory: str, stated: Stated) -> Iterator[PageLine]:
    """Yields the pages and their records, by destination and page number. Only one page is in memory at a time. Raises
    ``OSError``."""
    base = f"{directory}/{DIRECTORY}"
    if not disk.exists(base):
        return
    names, acked = _destinations(stated)
    for uuid in filter(UUID.match, disk.list(base)):
        store, rows = stated.pages.get(uuid, (StoreRow(), {}))
        done = acked.get(uuid)
        for file in disk.list(f"{base}/{uuid}"):
            match = PAGE_FILE.match(file)
            if match is None:
                continue
            number = int(match[1])
            contents = read_page(disk, f"{base}/{uuid}/{file}", uuid, number, None)
            row = rows.get(number) if match[2] is None else None
            finished = store is not None and number <= store.done
            yield from _page(names.get(uuid, ""), uuid, file, contents, row, done, finished=finished)


def _destinations(stated: Stated) -> tuple[dict[str, str], dict[str, Acked]]:
    """Returns the names and the acknowledgements of the destinations, both by uuid."""
    record = stated.record
    if record is None:
        return {}, {}
    names = {placed.settings.uuid: name for name, placed in settings_in(record.small.kept()).items()}
    return names, {uuid: Acked.of(table) for uuid, table in record.acks.tables.items()}


def _page(
    name: str, uuid: str, file: str, contents: PageContents, row: PageRow | None, done: Acked | None, *, finished: bool
) -> Iterator[PageLine]:
    lines = []
    end = row.end if row is not None else 0
    for piece in sorted(contents.pieces, key=lambda piece: piece.head.offset):
        head, messages = piece.head, piece.messages
        acked = int(done.lets_go(messages.vlsns).sum()) if done is not None else 0
        marks = [ACK if acked == head.count else f"{ACK} {acked}/{head.count}"] if acked else []
        if head.end > end and not (finished and row is None):
            marks.append(TX_NOT_FOUND)
        transactions = len(set(messages.txns[messages.txns > 0].tolist()))
        size = head.key_bytes + head.value_bytes
        whole = bool(head.flags & 1)
        span = head.offset, head.first, head.last, head.count
        lines.append(PageLine(name, uuid, file, True, *span, size, acked, transactions, whole, marks))
    counted = [line for line in lines if TX_NOT_FOUND not in line.marks]
    marks = [COMPLETE] if counted and all(line.acked == line.count for line in counted) else []
    if finished and row is None:
        marks = [COMPLETE]
    if row is not None and contents.fault and contents.fault_at < end:
        marks = [DAMAGED]
    yield PageLine(
        name, uuid, file, False, 0,
        min((line.first for line in counted), default=0),
        max((line.last for line in counted), default=0),
        sum(line.count for line in counted),
        sum(line.bytes for line in counted),
        sum(line.acked for line in counted),
        sum(line.transactions for line in counted),
        False, marks, contents.fault if DAMAGED in marks else "",
    )  # fmt: skip
    yield from lines


def page_faults(disk: Disk, directory: str, stated: Stated) -> Iterator[tuple[str, int, int, str]]:
    """Yields the file, offset, VLSN and fault of each bad page: one that the table needs but that does not read back in
    full, or that has no row in the table. If a row of a destination cannot be read, it is not known which pages are
    needed."""
    acked = _destinations(stated)[1]
    for uuid, (store, rows) in sorted(stated.pages.items()):
        if store is None:
            yield f"{DIRECTORY}/{uuid}", 0, 0, "a row of the page table cannot be read; the next open makes it anew"
        for number, row in rows.items():
            file = f"{DIRECTORY}/{uuid}/{number:09d}.page"
            try:
                contents = read_page(disk, f"{directory}/{file}", uuid, number, row.end)
            except FileNotFoundError:
                yield file, 0, row.first, "the page is missing"
                continue
            if contents.fault:
                vlsn = max((piece.head.covers_to + 1 for piece in contents.pieces), default=row.first)
                yield file, contents.fault_at, vlsn, contents.fault
            elif sum(piece.head.count for piece in contents.pieces) != row.count:
                yield file, 0, row.first, f"{len(contents.vlsns)} messages, where the page table counts {row.count}"
        if store is not None:
            yield from _without_row(disk, directory, uuid, store, rows, acked.get(uuid))


def _without_row(
    disk: Disk, directory: str, uuid: str, store: StoreRow, rows: dict[int, PageRow], acked: Acked | None
) -> Iterator[tuple[str, int, int, str]]:
    """Yields the pages that must have a row in the table but have none. No other page has the messages of a page
    without a row."""
    place = f"{DIRECTORY}/{uuid}"
    for name in disk.list(f"{directory}/{place}") if disk.exists(f"{directory}/{place}") else ():
        match = PAGE_FILE.match(name)
        if match is None or match[2] is not None or int(match[1]) in rows:
            continue
        contents = read_page(disk, f"{directory}/{place}/{name}", uuid, int(match[1]), None)
        row = listed_anew(contents, store, rows)[0] if contents.header.since == store.since else None
        if row is not None and not (acked is not None and acked.lets_go(contents.vlsns).all()):
            yield f"{place}/{name}", 0, row.first, "the page table has no row of it; the next open reads the page"
