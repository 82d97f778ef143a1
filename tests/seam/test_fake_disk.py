"""The fake disk beyond the seam: it forgets, fails and stops like real ones."""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from vlsn.errors import LogFailed, LogInUse
from vlsnlog.testing.fakes.disk import Call, FakeDisk, FakeFile, StopHere
from vlsnlog.testing.fakes.inodes import SECTOR_BYTES
from vlsnlog.testing.fakes.kv import FakeStores

SEEDS = range(300)


def a_file(disk: FakeDisk, path: str = "/d/a", content: bytes = b"") -> FakeFile:
    """Opens a file for writing; its name and content are synced."""
    disk.make_directory("/d")
    disk.write_content(path, content)
    disk.settle()
    return disk.open(path, write=True)


def images(prepare: Callable[[FakeDisk], object], *, tear: bool = False) -> set[bytes]:
    """Returns all contents of /d/a after power cuts of many seeds."""
    found = set()
    for seed in SEEDS:
        disk = FakeDisk()
        prepare(disk)
        disk.power_cut(Random(seed), tear=tear)
        found.add(disk.content("/d/a"))
    return found


def test_a_power_cut_keeps_what_was_synced() -> None:
    def prepare(disk: FakeDisk) -> None:
        file = a_file(disk)
        file.write(0, [b"synced" * 1000])
        file.sync()

    assert images(prepare) == {b"synced" * 1000}
    assert images(prepare, tear=True) == {b"synced" * 1000}


def test_a_power_cut_keeps_any_subset_of_unsynced_sectors() -> None:
    old = b"o" * 3 * SECTOR_BYTES

    def prepare(disk: FakeDisk) -> None:
        a_file(disk, content=old).write(0, [b"n" * 3 * SECTOR_BYTES])

    wanted = {"".join(sectors) for sectors in [(a, b, c) for a in "on" for b in "on" for c in "on"]}
    assert {image[::SECTOR_BYTES].decode() for image in images(prepare)} == wanted
    assert all(len(set(image[at : at + SECTOR_BYTES])) == 1 for image in images(prepare) for at in (0, 512, 1024))


def test_a_sector_written_twice_may_keep_its_first_version() -> None:
    def prepare(disk: FakeDisk) -> None:
        file = a_file(disk, content=b"0")
        file.write(0, [b"1"])
        file.write(0, [b"2"])

    assert images(prepare) == {b"0", b"1", b"2"}


def test_a_torn_sector_keeps_a_part_of_its_new_bytes() -> None:
    def prepare(disk: FakeDisk) -> None:
        a_file(disk, content=b"o" * 100).write(0, [b"n" * 100])

    whole = {b"o" * 100, b"n" * 100}
    assert images(prepare) == whole
    torn = images(prepare, tear=True) - whole
    assert torn
    assert all(image == b"n" * (cut := image.count(b"n")) + b"o" * (100 - cut) for image in torn)


def test_a_size_that_was_not_synced_may_be_lost() -> None:
    def prepare(disk: FakeDisk) -> None:
        file = a_file(disk, content=b"x" * 10)
        file.write(10, [b"y" * 10])
        file.allocate(100)

    assert {len(image) for image in images(prepare)} == {10, 20, 100}


def test_what_follows_a_sync_is_unsynced_again() -> None:
    def prepare(disk: FakeDisk) -> None:
        file = a_file(disk)
        file.write(0, [b"1"])
        file.sync()
        file.write(1, [b"2"])

    assert images(prepare) == {b"1", b"1\0", b"12"}  # the size alone may have been kept


def names_after(prepare: Callable[[FakeDisk], object]) -> set[tuple[str, ...]]:
    found = set()
    for seed in SEEDS:
        disk = FakeDisk()
        disk.make_directory("/d")
        disk.settle()
        prepare(disk)
        disk.power_cut(Random(seed))
        found.add(tuple(disk.list("/d")))
    return found


def test_a_name_is_durable_with_its_directory_only() -> None:
    def create(disk: FakeDisk) -> None:
        file = disk.open("/d/a", create=True)
        file.write(0, [b"x"])
        file.sync()

    def create_and_sync(disk: FakeDisk) -> None:
        create(disk)
        disk.sync_directory("/d")

    assert names_after(create) == {(), ("a",)}
    assert names_after(create_and_sync) == {("a",)}


def test_removals_and_creations_are_kept_one_by_one() -> None:
    def prepare(disk: FakeDisk) -> None:
        disk.open("/d/old", create=True)
        disk.sync_directory("/d")
        disk.open("/d/new", create=True)
        disk.remove("/d/old")

    assert names_after(prepare) == {("old",), ("new",), (), ("new", "old")}


def test_a_rename_happens_whole_or_not_at_all() -> None:
    def prepare(disk: FakeDisk) -> None:
        disk.write_content("/d/new", b"new")
        disk.write_content("/d/a", b"old")
        disk.settle()
        disk.rename("/d/new", "/d/a")

    assert names_after(prepare) == {("a", "new"), ("a",)}
    for seed in SEEDS:
        disk = FakeDisk()
        disk.make_directory("/d")
        prepare(disk)
        disk.power_cut(Random(seed))
        assert disk.content("/d/a") == (b"old" if disk.exists("/d/new") else b"new")


def test_a_directory_that_was_not_synced_takes_its_files_with_it() -> None:
    lost = 0
    for seed in SEEDS:
        disk = FakeDisk()
        disk.make_directory("/d")
        disk.open("/d/a", create=True).sync()
        disk.sync_directory("/d")
        disk.power_cut(Random(seed))
        lost += not disk.exists("/d/a")
    assert 0 < lost < len(SEEDS)


def test_a_process_kill_keeps_everything_but_what_was_open() -> None:
    disk = FakeDisk()
    file = a_file(disk)
    file.write(0, [b"unsynced"])
    disk.open("/d/b", create=True)
    disk.lock("/d/LOCK")
    with pytest.raises(LogInUse):
        disk.lock("/d/LOCK")
    disk.process_kill()
    assert disk.content("/d/a") == b"unsynced"
    assert disk.list("/d") == ["LOCK", "a", "b"]
    with pytest.raises(StopHere):
        file.read(0, 1)
    file.close()
    disk.lock("/d/LOCK").release()
    disk.power_cut(Random(0))
    assert len(disk.content("/d/a")) in (0, 8), "a kill has synced nothing"


def test_the_process_ends_at_the_call_that_was_named_and_stays_dead() -> None:
    disk = FakeDisk()
    file = a_file(disk)
    number = len(disk.calls)
    disk.stop_at(number + 2)
    file.write(0, [b"first"])
    with pytest.raises(StopHere, match=f"before disk call {number + 2}: write /d/a"):
        file.write(0, [b"other"])
    for call in (file.sync, lambda: disk.exists("/d"), lambda: disk.open("/d/a")):
        with pytest.raises(StopHere):
            call()
    file.close()
    disk.process_kill()
    assert disk.content("/d/a") == b"first"
    assert disk.calls[number + 1] == Call(number + 2, "write", "/d/a", 0, 5)


@pytest.mark.parametrize(("moment", "wanted"), [("before", {b"old"}), ("after", {b"new"})])
def test_a_stop_is_before_or_after_the_call(moment: str, wanted: set[bytes]) -> None:
    disk = FakeDisk()
    file = a_file(disk, content=b"old")
    disk.stop_at(lambda call: call.name == "write", moment="before" if moment == "before" else "after")
    with pytest.raises(StopHere):
        file.write(0, [b"new"])
    disk.process_kill()
    assert {disk.content("/d/a")} == wanted


def test_a_stop_during_a_write_leaves_a_part_of_it() -> None:
    found = set()
    for seed in SEEDS:
        disk = FakeDisk(rng=Random(seed))
        file = a_file(disk)
        disk.stop_at(lambda call: call.name == "write", moment="during")
        with pytest.raises(StopHere):
            file.write(0, [b"abc"])
        disk.process_kill()
        found.add(disk.content("/d/a"))
    assert found == {b"", b"a", b"ab", b"abc"}


def test_every_call_of_an_operation_can_be_its_last() -> None:
    """Crash points are enumerated by number: count the calls once, then stop at each."""

    def operation(disk: FakeDisk) -> None:
        file = disk.open("/d/new", create=True)
        file.write(0, [b"whole"])
        file.sync()
        file.close()
        disk.rename("/d/new", "/d/a")
        disk.sync_directory("/d")

    start = FakeDisk()
    a_file(start, content=b"old").close()
    counted = start.clone()
    operation(counted)
    last = len(counted.calls)
    assert [call.name for call in counted.calls] == ["create", "write", "sync", "close", "rename", "sync_directory"]
    for number in range(1, last + 1):
        for seed in range(20):
            disk = start.clone()
            disk.stop_at(number)
            with pytest.raises(StopHere):
                operation(disk)
            disk.power_cut(Random(seed), tear=True)
            assert disk.content("/d/a") in (b"old", b"whole")
    operation(counted_again := start.clone())
    counted_again.power_cut(Random(0))
    assert counted_again.content("/d/a") == b"whole"


def test_a_failed_write_raises_and_leaves_a_part() -> None:
    disk = FakeDisk(rng=Random(1))
    file = a_file(disk)
    disk.fail_at(lambda call: call.name == "write", code=errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        file.write(0, [b"x" * 1000])
    assert file.size() < 1000
    file.write(0, [b"x" * 1000])
    assert file.size() == 1000


def test_a_failed_sync_loses_pages_that_the_next_one_does_not_write() -> None:
    lost = 0
    for seed in SEEDS:
        disk = FakeDisk(rng=Random(seed))
        file = a_file(disk)
        disk.fail_at(lambda call: call.name == "sync")
        file.write(0, [b"x" * 10])
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.sync()
        assert file.read(0, 10) == b"x" * 10, "the cache still shows it"
        file.drop_cache()
        lost += file.read(0, 10) == bytes(10)
    assert 0 < lost < len(SEEDS)


def test_dropped_cache_shows_what_the_medium_has_and_keeps_what_is_dirty() -> None:
    disk = FakeDisk()
    file = a_file(disk, content=b"a" * 2 * SECTOR_BYTES)
    file.write(0, [b"b"])
    file.drop_cache()
    assert file.read(0, 2) == b"ba"
    file.sync()
    file.drop_cache()
    assert file.read(0, 2) == b"ba"


def test_a_flipped_bit_stays_flipped() -> None:
    disk = FakeDisk()
    file = a_file(disk, content=b"\0" * 10)
    disk.flip_bit("/d/a", 3, bit=2)
    assert file.read(0, 10) == b"\0\0\0\4" + bytes(6)
    file.drop_cache()
    assert file.read(3, 1) == b"\4"
    file.write(7, [b"\1"])
    disk.flip_bit("/d/a", 7, bit=1)
    file.sync()
    disk.power_cut(Random(0))
    assert disk.content("/d/a") == b"\0\0\0\4\0\0\0\3\0\0"


def test_a_full_disk_takes_what_fits() -> None:
    disk = FakeDisk(capacity_bytes=1000)
    file = a_file(disk, content=b"x" * 600)
    assert disk.free_bytes("/d") == 400
    file.write(0, [b"y" * 600])
    with pytest.raises(OSError, match="No space left"):
        file.write(500, [b"z" * 600])
    assert file.size() == 1000
    assert disk.free_bytes("/d") == 0
    with pytest.raises(OSError, match="No space left"):
        file.allocate(1001)
    disk.remove("/d/a")
    assert disk.free_bytes("/d") == 1000


def test_a_clone_is_another_disk() -> None:
    disk = FakeDisk()
    file = a_file(disk, content=b"old")
    disk.lock("/d/LOCK")
    file.write(0, [b"new"])
    other = disk.clone()
    file.write(0, [b"xxx"])
    assert other.content("/d/a") == b"new"
    assert not other.is_locked("/d/LOCK")
    other.power_cut(Random(1))
    assert disk.content("/d/a") == b"xxx"


def test_a_hook_sees_each_call_before_it_happens() -> None:
    disk = FakeDisk()
    file = a_file(disk)
    seen: list[tuple[str, bytes]] = []
    disk.hook = lambda call: seen.append((call.name, disk.content("/d/a")))
    file.write(0, [b"x"])
    file.sync()
    assert seen == [("write", b""), ("sync", b"x")]


def test_latency_is_owed_until_it_is_taken() -> None:
    disk = FakeDisk()
    file = a_file(disk)
    disk.latency = lambda call: 2.0 if call.name == "sync" else 0.5
    file.write(0, [b"x"])
    file.sync()
    assert disk.take_latency() == 2.5
    assert disk.take_latency() == 0.0


def test_a_commit_that_fails_has_happened_or_not_and_is_the_last_one() -> None:
    found: set[bytes | None] = set()
    for seed in range(20):
        disk = FakeDisk(rng=Random(seed))
        stores = FakeStores(disk)
        store = stores.open("/s", map_bytes=1 << 20)
        store.write(puts=[(b"a", b"1")])
        disk.fail_at(lambda call: call.name == "commit")
        for _ in range(2):
            with pytest.raises(LogFailed):
                store.write(puts=[(b"a", b"2"), (b"b", b"3")])
        store.close()
        store = stores.open("/s", map_bytes=1 << 20)
        assert (store.get(b"a"), store.get(b"b")) in ((b"1", None), (b"2", b"3"))
        found.add(store.get(b"b"))
    assert found == {None, b"3"}


def test_a_store_whose_open_fails_is_as_it_was() -> None:
    stores = FakeStores()
    stores.open("/s", map_bytes=1 << 20).write(puts=[(b"a", b"1")])
    stores.abandon()
    stores.fail_opens["/s"] = 1
    with pytest.raises(LogFailed):
        stores.open("/s", map_bytes=1 << 20)
    assert stores.open("/s", map_bytes=1 << 20).get(b"a") == b"1"
