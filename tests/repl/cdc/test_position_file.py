"""The position file: the position after any stop of the disk, and refused slots."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl.cdc.position_file import SLOT_BYTES, PositionFile, StoredPosition
from vlsn.errors import BadBody, Damaged, LogFailed, WrongVersion
from vlsn.format.checksum import crc
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere

PATH = "/d/cdc/orders.position"


def first(next_vlsn: int = 1) -> StoredPosition:
    return StoredPosition(group="g", name="orders", next=next_vlsn)


def read(disk: FakeDisk) -> StoredPosition | None:
    file = PositionFile.open(disk, "/d", "orders")
    if file is None:
        return None
    try:
        return file.position
    finally:
        file.close()


def made(disk: FakeDisk) -> PositionFile:
    disk.make_directory("/d")
    disk.sync_directory("/")
    return PositionFile.create(disk, "/d", first())


def test_what_was_stored_is_read_again() -> None:
    disk = FakeDisk()
    disk.make_directory("/d")
    assert read(disk) is None
    file = made(disk)
    for next_vlsn in (5, 6, 1 << 40, 7):
        file.store(next_vlsn, 3)
        assert file.position == read(disk)
    assert read(disk) == StoredPosition(group="g", name="orders", next=7, term=3, sequence=5)


@pytest.mark.parametrize("seed", range(8))
def test_a_name_that_a_dead_process_did_not_sync_outlives_a_power_cut(seed: int) -> None:
    disk = FakeDisk()
    disk.make_directory("/d")
    disk.sync_directory("/")
    disk.stop_at(lambda call: call.name == "rename", moment="after")
    with pytest.raises(StopHere):
        PositionFile.create(disk, "/d", first())
    disk.process_kill()
    file = PositionFile.open(disk, "/d", "orders")
    assert file is not None
    file.store(7, 1)
    disk.power_cut(Random(seed))
    found = read(disk)
    assert found is not None and found.next == 7


@pytest.mark.parametrize("stop", range(1, 40))
@pytest.mark.parametrize("torn", [False, True])
def test_any_cut_keeps_what_was_stored_last_or_was_being_stored(stop: int, torn: bool) -> None:
    disk = FakeDisk(rng=Random(stop))
    file = made(disk)
    told, asked = 1, 1
    disk.stop_at(len(disk.calls) + stop, moment="during" if torn else "before")
    try:
        for asked in range(2, 12):
            file.store(asked, 1)
            told = asked
    except StopHere:
        pass
    disk.power_cut(Random(stop), tear=torn)
    found = read(disk)
    assert found is not None and found.next in (told, asked)
    again = PositionFile.open(disk, "/d", "orders")
    assert again is not None
    again.store(100, 1)  # on either slot
    disk.power_cut(Random(stop))
    now = read(disk)
    assert now is not None and (now.next, now.sequence) == (100, found.sequence + 1)


@pytest.mark.parametrize("stop", range(1, 9))
def test_any_cut_of_the_first_one_leaves_none_or_a_whole_one(stop: int) -> None:
    disk = FakeDisk(rng=Random(stop))
    disk.make_directory("/d")
    disk.sync_directory("/")
    disk.stop_at(len(disk.calls) + stop)
    returned = False
    try:
        PositionFile.create(disk, "/d", first(9))
        returned = True
    except StopHere:
        pass
    disk.power_cut(Random(stop))
    assert read(disk) == first(9) if returned else read(disk) in (None, first(9))
    PositionFile.create(disk, "/d", first(10)) if read(disk) is None else None
    assert read(disk) in (first(9), first(10))


@settings(max_examples=100)
@given(st.integers(0, 2 * SLOT_BYTES * 8 - 1), st.integers(0, 3))
def test_a_flipped_bit_costs_one_commit_at_most(bit: int, stores: int) -> None:
    disk = FakeDisk()
    file = made(disk)
    for number in range(stores):
        file.store(10 + number, 1)
    places = [1, *range(10, 10 + stores)]
    disk.flip_bit(PATH, bit // 8, bit % 8)
    found = read(disk)
    assert found is not None and found.next in places[-2:]


def test_a_file_of_which_nothing_can_be_read_is_never_begun_anew() -> None:
    disk = FakeDisk()
    made(disk).store(5, 1)
    for slot in (0, 1):
        disk.flip_bit(PATH, SLOT_BYTES * slot + 20, 3)
    with pytest.raises(Damaged):
        read(disk)


@pytest.mark.parametrize("stop", range(1, 20))
@pytest.mark.parametrize("torn", [False, True])
def test_any_cut_keeps_a_persons_orders_or_has_the_new_one_whole(stop: int, torn: bool) -> None:
    disk = FakeDisk(rng=Random(stop))
    file = made(disk)
    orders: list[tuple[Callable[[], None], tuple[int, int, int]]] = [
        (lambda: file.pause(70), (1, 70, 0)),
        (lambda: file.store(5, 1), (5, 70, 0)),
        (lambda: file.place(3, 1, 80), (3, 70, 80)),
        (lambda: file.pause(0), (3, 0, 80)),
        (lambda: file.pause(90), (3, 90, 80)),
        (lambda: file.store(9, 1), (9, 90, 0)),
        (lambda: file.pause(0), (9, 0, 0)),
    ]
    told = asked = (1, 0, 0)
    disk.stop_at(len(disk.calls) + stop, moment="during" if torn else "before")
    try:
        for order, asked in orders:
            order()
            told = asked
    except StopHere:
        pass
    disk.power_cut(Random(stop), tear=torn)
    found = read(disk)
    assert found is not None and (found.next, found.paused_us, found.moved_us) in (told, asked)


def test_a_slot_has_the_version_that_its_orders_need_and_no_other() -> None:
    for paused_us, moved_us, version in ((0, 0, 1), (7, 0, 2), (0, 7, 2)):
        page = replace(first(), paused_us=paused_us, moved_us=moved_us).encode()
        assert page[8] == version
        wrong = page[:8] + bytes([3 - version]) + page[9:-4]
        with pytest.raises(BadBody, match="more than it should hold, or less"):
            StoredPosition.decode(wrong + crc(wrong).to_bytes(4, "little"))


def test_a_file_of_a_later_version_is_refused() -> None:
    disk = FakeDisk()
    made(disk)
    page = bytearray(disk.content(PATH)[: SLOT_BYTES - 4])
    page[8] = 3
    disk.write_content(PATH, bytes(page) + crc(bytes(page)).to_bytes(4, "little") + bytes(SLOT_BYTES))
    with pytest.raises(WrongVersion):
        read(disk)


def test_after_a_failed_sync_nothing_is_stored_any_more() -> None:
    disk = FakeDisk()
    file = made(disk)
    disk.fail_at(lambda call: call.name == "sync")
    with pytest.raises(LogFailed):
        file.store(5, 1)
    with pytest.raises(LogFailed):
        file.store(6, 1)
