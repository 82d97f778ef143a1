"""Paging against a plain model, and cut at every disk call: pages hold what the log may lose, once."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.random import SeededRandom
from tests.vlsn.format.test_rows import stories
from tests.vlsn.logs import DIRECTORY, SMALL, Machine, Opened, Waiting
from tests.vlsn.pages.paging import PAGE_BYTES, Destination, Pager, held_in, keyed
from tests.vlsn.pages.test_record import windows_of
from vlsn.errors import BadBody
from vlsn.format.block import Entry, EntryKind
from vlsn.ids import Vlsn
from vlsn.pages.opening import read_about
from vlsn.pages.page import HEADER_BYTES, STRIDE, PageHeader, page_name, read_page
from vlsn.pages.record import Record, record_of
from vlsn.pages.store import ABOUT_NAME, About, Change, PagingStore
from vlsn.real.disk import PosixDisk
from vlsn.state.options import LogOptions
from vlsn.verify.pages import page_faults
from vlsn.verify.segment_chain import read_stated
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere

LOG: LogOptions = replace(SMALL, block_bytes_max=4 << 10)
KEYS = [b"", b"a-1", b"a-22", b"b-1", b"a-dead"]
SPARE = 1
"""Every second call is looked at in each of the ways in which it can be cut."""
A, B, ALL = "aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc"


def filled(machine: Machine, rng: Random, count: int = 60) -> tuple[Opened, dict[int, Entry]]:
    """A log of several segments with keys of three kinds and without, and its DATA entries."""
    opened = Opened(machine, LOG)
    held: dict[int, Entry] = {}
    for number in range(count):
        size = rng.choice([1, 1, 3, 12])
        keys = [rng.choice(KEYS) for _ in range(size)]
        sizes = [rng.choice([8, 300, 900]) for _ in range(size)]
        pairs = [(key, f"{number}:{at}".encode().ljust(at, b".")) for key, at in zip(keys, sizes, strict=True)]
        pending = Waiting([], submission=keyed(*pairs))
        opened.log.append(pending)
        assert pending.synced
        for offset, (key, value) in enumerate(pairs):
            vlsn = pending.first + offset
            held[vlsn] = Entry(vlsn, 1, 0, 0, 0, key or None, value)  # type: ignore[arg-type]
    opened.log.care.checkpointer.run()
    return opened, held


class Paged(NamedTuple):
    """A log with a pager, and one destination that wants all of it."""

    machine: Machine
    opened: Opened
    held: dict[int, Entry]
    last: int
    pager: Pager
    whole: Destination


def paged(seed: int, share: float = 1.0, *, count: int = 60, page_bytes: int = PAGE_BYTES) -> Paged:
    """Pages ``share`` of a log."""
    machine = Machine(seed)
    opened, held = filled(machine, Random(seed), count)
    last = int(opened.log.view.range.last)
    pager, whole = Pager(opened, page_bytes=page_bytes), Destination(ALL)
    if share:
        pager.page([whole], block_end(opened, int(last * share)))
    return Paged(machine, opened, held, last, pager, whole)


def some_destinations(rng: Random, last: int) -> list[Destination]:
    return [
        Destination(A, b"a-", b"a-dead", acked=set(rng.sample(range(1, last + 1), last // 4))),
        Destination(B, b"b-", acked=set(range(1, 20))),
        Destination(ALL),
    ]


def same(found: Entry | None, held: Entry) -> bool:
    return found is not None and (found.vlsn, found.key, found.value) == (held.vlsn, held.key, held.value)


def check(pager: Pager, destinations: list[Destination], held: dict[int, Entry], upto: int) -> None:
    """All that they want up to ``upto`` lies in pages, once, and nothing that is not theirs."""
    for each in destinations:
        found = pager.held(each.uuid)
        for vlsn, entry in held.items():
            if vlsn <= upto and each.has(entry) and vlsn not in each.acked:
                assert same(found.get(vlsn), entry), (each.uuid, vlsn)
        for vlsn, entry in found.items():
            assert each.has(entry), vlsn
            assert same(entry, held[vlsn])


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 1 << 30), st.data())
def test_passes_page_what_is_wanted_once(seed: int, data: st.DataObject) -> None:
    rng = Random(seed)
    machine = Machine(seed)
    opened, held = filled(machine, rng, 25)
    last = opened.log.view.range.last
    destinations = some_destinations(rng, last)
    pager = Pager(opened)
    at = 0
    while at < last:
        at = upto = block_end(opened, data.draw(st.integers(at + 1, last)))
        pager.page(destinations, upto)
        check(pager, destinations, held, upto)
        if data.draw(st.booleans()):
            for each in destinations:
                each.acked |= set(rng.sample(range(1, upto + 1), upto // 3))
        if data.draw(st.booleans()):
            pager.manager.close()
            pager = Pager(opened)
            assert not pager.notes
            check(pager, destinations, held, upto)
    for each in destinations:
        each.acked |= set(range(1, last + 1))
    pager.done(destinations)
    assert not any(store.paging for store in pager.manager.stores.values())
    for each in destinations:
        place = f"{DIRECTORY}/pages/{each.uuid}"
        assert [name for name in machine.disk.list(place) if name.endswith(".page")] == []


def block_end(opened: Opened, vlsn: int) -> int:
    """The last VLSN of the block that holds ``vlsn``."""
    mapping = opened.log.view.index.at_or_before(vlsn)  # type: ignore[arg-type]
    assert mapping is not None
    reader = opened.log.view.reader()
    run = reader.blocks(vlsn, start=mapping[1], upto_vlsn=opened.log.view.range.last, bytes_max=1)
    reader.close()
    return int(run.last)


def test_pages_are_of_the_size_asked_for_and_a_new_one_begins_when_one_is_full() -> None:
    machine, _, held, last, pager, whole = paged(1)
    store = pager.manager.stores[ALL]
    assert len(store.pages) > 5
    assert list(store.pages) == list(range(1, len(store.pages) + 1))
    for number, row in store.pages.items():
        contents = read_page(machine.disk, store.path(number), ALL, number, row.end)
        assert row.end <= PAGE_BYTES or len(contents.pieces) == 1
    check(pager, [whole], held, last)


def operation(machine: Machine, *, again: bool = False) -> Pager:
    """Two passes with acknowledgements between them, and pages that go; with ``again`` what fails is done once more."""
    opened, _ = filled(machine, Random(7), 30)
    last = opened.log.view.range.last
    machine.begin()
    pager = Pager(opened)
    destinations = some_destinations(Random(7), last)

    def acknowledge() -> None:
        for each in destinations:
            each.acked |= set(range(1, last // 3))

    half = block_end(opened, last // 2)
    steps: list[Callable[[], None]] = [
        lambda: pager.page(destinations, half),
        acknowledge,
        lambda: pager.done(destinations),
        lambda: pager.page(destinations, last),
    ]
    for step in steps:
        try:
            step()
        except OSError:
            if not again:
                raise
            step()
    return pager


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_pass_stopped_at_any_disk_call_loses_nothing(power: bool, moment: str) -> None:
    clean = Machine(3)
    operation(clean)
    calls = [call for call in clean.disk.calls[clean.begun :] if call.changes]
    assert len(calls) > 40
    held = filled(Machine(3), Random(7), 30)[1]
    for call in calls[:: 1 + SPARE] if power else calls[SPARE :: 1 + SPARE]:
        machine = Machine(3)
        machine.disk.stop_at(call.number, moment=moment)  # type: ignore[arg-type]
        with pytest.raises(StopHere):
            operation(machine)
        if power:
            machine.power_cut()
        else:
            machine.kill()
        opened = Opened(machine, LOG)
        last = max(held)
        pager = Pager(opened)
        destinations = some_destinations(Random(7), last)
        for each in destinations:
            store = pager.manager.stores.get(each.uuid)
            if store is None:
                continue
            assert not store.missing, call
            found = held_in(machine, store)
            acked = each.acked | set(range(1, last // 3))
            for vlsn, entry in held.items():
                if vlsn <= store.paged_to and each.has(entry) and vlsn not in acked:
                    assert same(found.get(vlsn), entry), (call, vlsn)
            for vlsn, entry in found.items():
                assert each.has(entry)
                assert same(entry, held[vlsn])
            names = [name for name in machine.disk.list(store.directory) if name.endswith(".page")]
            assert names == [page_name(number) for number in store.pages]
        for each in destinations:
            each.acked |= set(range(1, last // 3))
        pager.page(destinations, last)
        check(pager, destinations, held, last)


@pytest.mark.long
def test_a_failed_call_of_a_pass_ends_it_and_the_next_one_does_it_again() -> None:
    clean = Machine(3)
    operation(clean)
    held = filled(Machine(3), Random(7), 30)[1]
    names = ("write", "sync", "create", "sync_directory", "make_directory", "rename", "remove")
    calls = [call for call in clean.disk.calls[clean.begun :] if call.name in names and "/pages" in call.path]
    assert len(calls) > 25
    for call, code in [(call, code) for call in calls for code in (errno.EIO, errno.ENOSPC)][:: 1 + SPARE]:
        machine = Machine(3)
        machine.disk.fail_at(call.number, code=code)
        pager = operation(machine, again=True)
        last = max(held)
        destinations = some_destinations(Random(7), last)
        for each in destinations:
            each.acked |= set(range(1, last // 3))
        check(pager, destinations, held, last)
        pager.manager.close()
        again = Pager(pager.opened)
        check(again, destinations, held, last)
        for each in destinations:
            store = again.manager.stores[each.uuid]
            files = [name for name in machine.disk.list(store.directory) if name.endswith(".page")]
            assert files == [page_name(number) for number in store.pages]


def test_a_lost_page_table_is_made_anew_from_the_pages() -> None:
    machine = Machine(5)
    opened, held = filled(machine, Random(5))
    last = opened.log.view.range.last
    destinations = some_destinations(Random(5), last)
    pager = Pager(opened)
    pager.page(destinations, block_end(opened, last // 2))
    pager.page(destinations, last)
    before = {each.uuid: pager.held(each.uuid) for each in destinations}
    pager.manager.close()
    pager.table._store.write(delete_ranges=[(b"g", b"h")])
    again = Pager(opened)
    assert len(again.notes) == 3
    check(again, destinations, held, block_end(opened, last // 2))
    assert {each.uuid: again.held(each.uuid) for each in destinations} == before
    again.page(destinations, last)
    check(again, destinations, held, last)
    once_more = Pager(opened)
    assert not once_more.notes


@pytest.mark.parametrize("number", [None, 2, 4])
def test_of_a_destination_whose_row_has_rotted_the_pages_say_what_they_hold(number: int | None) -> None:
    """``number``: of the page whose row it is; the destination's own otherwise."""
    machine = Machine(5)
    opened, held = filled(machine, Random(5))
    last = opened.log.view.range.last
    destinations = some_destinations(Random(5), last)
    pager = Pager(opened)
    pager.page(destinations, last)
    before = {each.uuid: pager.held(each.uuid) for each in destinations}
    pager.manager.close()
    key = b"g" + bytes.fromhex(ALL) + (number.to_bytes(4, "big") if number is not None else b"")
    machine.stores.corrupt(f"{DIRECTORY}/state", key, bit=13)
    (fault,) = page_faults(machine.disk, DIRECTORY, read_stated(machine.stores, DIRECTORY, live=True))
    assert fault[0] == f"pages/{ALL}" and "cannot be read" in fault[3]
    again = Pager(opened)
    assert len(again.notes) == 1 and "a row of the page table cannot be read" in again.notes[0]
    check(again, destinations, held, last)
    assert {each.uuid: again.held(each.uuid) for each in destinations} == before
    assert not Pager(opened).notes, "it is made anew"


def test_a_row_that_has_rotted_of_a_destination_without_pages_goes() -> None:
    machine, opened, _, last, pager, whole = paged(13)
    pager.done([replace(whole, acked=set(range(1, last + 1)))])
    pager.manager.close()
    key = b"g" + bytes.fromhex(ALL)
    machine.stores.corrupt(f"{DIRECTORY}/state", key, bit=13)
    again = Pager(opened)
    assert again.table.read() == {} and again.manager.stores[ALL].row is None
    again.commit(again.manager.reconciled([whole.subscription()], Vlsn(last + 1)))
    assert again.manager.stores[ALL].missing == [(1, last)]


def test_a_page_that_is_gone_is_missing_and_a_short_one_is_to_be_salvaged() -> None:
    machine, opened, _, _, pager, _ = paged(6)
    store = pager.manager.stores[ALL]
    rows = dict(store.pages)
    pager.manager.close()
    machine.disk.remove(store.path(2))
    machine.disk.write_content(store.path(4), machine.disk.content(store.path(4))[:-8])
    again = Pager(opened)
    found = again.manager.stores[ALL]
    assert found.missing == [(rows[2].covers_from, rows[2].covers_to)]
    assert found.pages == {number: row for number, row in rows.items() if number != 2}
    assert again.aside == [(ALL, 4)]
    assert Pager(opened).manager.stores[ALL].missing == found.missing


@pytest.mark.parametrize("number", [1, 3, None])
@pytest.mark.parametrize("torn", [False, True])
def test_a_page_whose_row_has_vanished_is_listed_anew(number: int | None, torn: bool) -> None:
    """``number``: of the page; the last one otherwise. ``torn``: its last record does not read back either."""
    machine, opened, held, last, pager, whole = paged(6, 0.5)
    pager.page([whole], last)
    store = pager.manager.stores[ALL]
    rows, number = dict(store.pages), number or max(store.pages)
    row = rows[number]
    pager.manager.close()
    if torn:
        machine.disk.write_content(store.path(number), machine.disk.content(store.path(number))[: row.end - 8])
    pager.table._store.write(deletes=[b"g" + bytes.fromhex(ALL) + number.to_bytes(4, "big")])
    fault = next(page_faults(machine.disk, DIRECTORY, read_stated(machine.stores, DIRECTORY, live=True)))
    assert fault[0].endswith(f"{number:09d}.page") and "no row of it" in fault[3]
    again = Pager(opened)
    found = again.manager.stores[ALL]
    if torn:
        assert set(found.pages) == set(rows) and found.pages[number].covers_from == row.covers_from
        assert found.missing == [(found.pages[number].covers_to + 1, row.covers_to)]
    else:
        assert found.pages == rows and not found.missing
        check(again, [whole], held, last)
    assert not Pager(opened).notes, "it is in the table again"


def test_a_page_of_a_pass_that_never_counted_is_not_listed() -> None:
    _, opened, held, last, pager, whole = paged(6, 0.5)
    half = block_end(opened, last // 2)
    counted = pager.table.read()[ALL]
    pager.page([whole], last)
    pager.manager.close()
    pager.table._store.write(delete_ranges=[(b"g", b"h")])
    pager.table.write([Change(ALL, counted[0], counted[1])])
    again = Pager(opened)
    assert again.manager.stores[ALL].pages == counted[1] and not again.notes
    check(again, [whole], held, half)


def test_bytes_past_what_counts_are_no_messages_and_nothing_is_written_behind_them() -> None:
    machine, opened, held, last, pager, whole = paged(8, 0.5)
    store = pager.manager.stores[ALL]
    number = max(store.pages)
    path, row = store.path(number), store.pages[number]
    raw = machine.disk.content(path)
    machine.disk.write_content(path, raw[: row.end] + raw[HEADER_BYTES : HEADER_BYTES + 500])
    pager.manager.close()
    again = Pager(opened)
    again.page([whole], last)
    assert again.manager.stores[ALL].pages[number] == row
    check(again, [whole], held, last)


def test_a_pass_shares_no_page_of_the_cache_with_what_was_synced_before() -> None:
    machine, opened, _, _, pager, whole = paged(9, 0, page_bytes=1 << 20)
    ends = []
    for upto in (10, 40, 80, 120):
        pager.page([whole], block_end(opened, upto))
        ends.append(pager.manager.stores[ALL].pages[1].end)
    assert ends == sorted(set(ends))
    contents = read_page(machine.disk, pager.manager.stores[ALL].path(1), ALL, 1, ends[-1])
    starts = {piece.head.offset for piece in contents.pieces}
    for end in ends[:-1]:
        assert -(-end // STRIDE) * STRIDE in starts


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_readable_records_of_a_damaged_page_are_told(data: st.DataObject) -> None:
    machine, _, held, _, pager, _ = paged(10, count=25, page_bytes=1 << 20)
    store = pager.manager.stores[ALL]
    row, path = store.pages[1], store.path(1)
    at = data.draw(st.integers(0, row.end - 1))
    machine.disk.flip_bit(path, at, data.draw(st.integers(0, 7)))
    whole_pieces = read_page(machine.disk, path, ALL, 1, row.end)
    assert whole_pieces.fault
    assert all(piece.head.end <= at for piece in whole_pieces.pieces)
    for piece in whole_pieces.pieces:
        for entry in piece.messages.entries(slice(None)):
            assert same(entry, held[entry.vlsn])


def test_a_header_of_another_page_is_refused() -> None:
    header = PageHeader(A, 3, 77)
    assert PageHeader.decode(header.encode()) == header
    for at in range(HEADER_BYTES):
        raw = bytearray(header.encode())
        raw[at] ^= 4
        with pytest.raises(BadBody):
            PageHeader.decode(bytes(raw))


def test_a_prefix_that_changed_and_a_destination_that_is_gone_lose_their_pages() -> None:
    machine = Machine(11)
    opened, _ = filled(machine, Random(11))
    last = opened.log.view.range.last
    one, other = Destination(A, b"a-"), Destination(B, b"b-")
    pager = Pager(opened)
    pager.page([one, other], last)
    first = block_end(opened, last // 2) + 1
    changed = replace(one, prefix=b"b-")
    pager.commit(pager.manager.reconciled([changed.subscription()], first))  # type: ignore[arg-type]
    assert list(pager.manager.stores) == [A]
    store = pager.manager.stores[A]
    assert (store.paging, store.missing) == (False, [(1, first - 1)])
    assert [name for name in machine.disk.list(f"{DIRECTORY}/pages/{B}") if name.endswith(".page")] == []
    assert pager.manager.uncovered([changed.subscription()], first, opened.log.view.range.first) == ""  # type: ignore[arg-type]


def moved_back() -> tuple[Opened, dict[int, Entry], Pager, Destination]:
    """A destination is moved back to VLSN 10, as its pages have what was wanted from 60 on, and the log ends there."""
    machine = Machine(12)
    opened, held = filled(machine, Random(12))
    whole = Destination(ALL, acked=set(range(1, 60)))
    pager = Pager(opened)
    pager.page([whole], opened.log.view.range.last)
    moved = replace(whole, acked=set(range(1, 10)), since=99)
    return opened, held, pager, moved


def test_of_a_destination_that_is_moved_back_all_below_the_log_is_missing_and_its_pages_are_superseded() -> None:
    opened, _, pager, moved = moved_back()
    last, store = opened.log.view.range.last, pager.manager.stores[ALL]
    rows = dict(store.pages)
    why = pager.manager.uncovered([moved.subscription()], Vlsn(last + 1), opened.log.view.range.first)
    assert "is paged up to VLSN 0 only" in why
    pager.commit(pager.manager.reconciled([moved.subscription()], Vlsn(last + 1)))
    assert store.missing == [(10, last)] and store.next_page(1) is None and store.messages == 0
    pager.done([moved])
    assert store.pages.keys() == rows.keys(), "they stay until others have all of it"
    pager.commit([store.filled({}, [(10, rows[2].covers_to)], moved.subscription().acknowledged)])
    pager.done([moved])
    assert store.pages.keys() == rows.keys() - {1, 2}
    pager.commit([store.filled({}, [(rows[2].covers_to + 1, last)], moved.subscription().acknowledged)])
    pager.done([moved])
    assert not store.paging and store.missing == []


def test_what_the_log_has_yet_is_paged_again_once_a_destination_was_moved() -> None:
    opened, held, pager, moved = moved_back()
    last, store = opened.log.view.range.last, pager.manager.stores[ALL]
    rows = dict(store.pages)
    pager.page([moved], last)
    pager.done([moved])
    assert not store.pages.keys() & rows.keys() and store.missing == []
    assert pager.held(ALL).keys() == {vlsn for vlsn in held if vlsn >= 10}


def test_a_page_of_before_a_move_whose_row_has_rotted_stays() -> None:
    """Its messages are missing: no other page has them yet."""
    opened, _, pager, moved = moved_back()
    pager.commit(pager.manager.reconciled([moved.subscription()], Vlsn(opened.log.view.range.last + 1)))
    rows = pager.manager.stores[ALL].pages
    pager.manager.close()
    opened.machine.stores.corrupt(f"{DIRECTORY}/state", b"g" + bytes.fromhex(ALL) + (2).to_bytes(4, "big"), bit=13)
    assert Pager(opened).manager.stores[ALL].pages.keys() == rows.keys()


@pytest.mark.parametrize("paged", [False, True])
def test_pages_of_before_a_move_are_known_though_the_page_table_is_lost(paged: bool) -> None:
    opened, _, pager, moved = moved_back()
    last, store = opened.log.view.range.last, pager.manager.stores[ALL]
    before = set(store.pages)
    first = block_end(opened, last // 2) + 1
    pager.commit(pager.manager.reconciled([moved.subscription()], Vlsn(first)))
    if paged:
        pager.page([moved], last)
    pager.table._store.write(delete_ranges=[(b"g", b"h")])
    again = Pager(opened)
    store = again.manager.stores[ALL]
    again.commit(again.manager.reconciled([moved.subscription()], Vlsn(first)))
    assert {number for number, row in store.pages.items() if row.superseded} == before
    assert store.missing == [(10, first - 1)]
    assert store.paged_to == first - 1, "the rest is in the log yet, and is paged again"


@settings(max_examples=10, deadline=None)
@given(stories(), st.integers(2, 5))
def test_several_writers_share_one_page(tmp_path_factory: pytest.TempPathFactory, story: object, writers: int) -> None:
    """Real threads and a real disk: each writes its share of the records, in its own order."""
    place = tmp_path_factory.mktemp("pages") / A
    store = PagingStore(PosixDisk(), threading.RLock(), SeededRandom(Random(1)).u32, str(place), A, page_bytes=4 << 10)
    place.parent.mkdir(exist_ok=True)
    store.make(About(A, "a"))
    records, expected = [], []
    for rows, entries in windows_of(story):  # type: ignore[arg-type]
        for entry in entries:
            if entry.kind == EntryKind.DATA:
                wanted = np.array([each.vlsn == entry.vlsn for each in entries])
                record = record_of(rows, wanted, covers_from=entry.vlsn, covers_to=entry.vlsn)  # type: ignore[arg-type]
                assert record is not None
                records.append(record)
                expected.append(entry)
    if not records:
        return
    store.begin_pass(0)

    def write(share: list[Record]) -> None:
        for each in share:
            store.page(each)

    threads = [threading.Thread(target=write, args=(records[number::writers],)) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pages = store.sync()
    found: list[Entry] = []
    for number, row in pages.items():
        contents = read_page(PosixDisk(), store.path(number), A, number, row.end)
        assert not contents.fault
        assert row.count == len(contents.vlsns)
        found += [entry for piece in contents.pieces for entry in piece.messages.entries(slice(None))]
    assert sorted(found, key=lambda entry: entry.vlsn) == expected
    assert store.paged(Destination(A).subscription(), pages, expected[-1].vlsn).pages == pages
    store.close()


def test_a_page_stays_until_the_last_of_its_messages_is_acknowledged() -> None:
    machine, _, _, _, pager, whole = paged(13)
    store = pager.manager.stores[ALL]
    rows = dict(store.pages)
    for number, row in rows.items():
        whole.acked |= set(range(1, row.last))
        pager.done([whole])
        assert min(store.pages) == number
        whole.acked.add(row.last)
        pager.done([whole])
        assert number not in store.pages
        assert not machine.disk.exists(store.path(number))
    assert not store.paging
    assert store.row is not None and store.row.done == max(rows)


def test_a_description_whose_text_is_no_utf_8_is_none_that_can_be_read() -> None:
    disk, place = FakeDisk(), "/d"
    disk.make_directory(place)
    plain = msgspec.json.encode(About("0" * 16, "orders", b"k1"))
    for data, found in ((plain, b"k1"), (plain.replace(b"orders", b"order\xff"), None)):
        disk.write_content(f"{place}/{ABOUT_NAME}", data)
        assert read_about(disk, place) == found
