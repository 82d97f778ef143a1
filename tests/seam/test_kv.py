"""The key-value seam: LMDB and the model pass one suite."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vlsn.errors import Damaged, LogClosed, LogInUse
from vlsn.real.lmdb_store import LmdbStores
from vlsn.seams import KeyValue, Stores
from vlsnlog.testing.fakes.kv import FakeStores

MAP_BYTES = 1 << 20

Flip = Callable[[str, bytes], None]


def flip_in_lmdb(path: str, key: bytes) -> None:
    """Flips a bit of the value of ``key``, bypassing the store's checksum; the store must be closed."""
    with lmdb.open(path, map_size=MAP_BYTES) as environment, environment.begin(write=True) as transaction:
        value = bytearray(transaction.get(key) or b"")
        value[-1] ^= 1
        transaction.put(key, bytes(value))


@pytest.fixture(params=["lmdb", "model"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Stores, str, Flip]:
    path = str(tmp_path / "store")
    if request.param == "lmdb":
        return LmdbStores(), path, flip_in_lmdb
    model = FakeStores()
    return model, path, lambda path, key: model.corrupt(path, key)


@pytest.fixture
def store(world: tuple[Stores, str, Flip]) -> Iterator[KeyValue]:
    stores, path, _ = world
    opened = stores.open(path, map_bytes=MAP_BYTES)
    yield opened
    opened.close()


def test_get_gives_what_was_put_and_none_for_what_was_not(store: KeyValue) -> None:
    store.write([(b"k", b"value"), (b"empty", b"")])
    assert store.get(b"k") == b"value"
    assert store.get(b"empty") == b""
    assert store.get(b"other") is None


def test_a_closed_store_says_so_also_once_its_path_is_open_again(world: tuple[Stores, str, Flip]) -> None:
    stores, path, _ = world
    closed = stores.open(path, map_bytes=MAP_BYTES)
    closed.write([(b"k", b"value")])
    closed.close()
    with pytest.raises(LogClosed):
        closed.get(b"k")
    again = stores.open(path, map_bytes=MAP_BYTES)
    try:
        with pytest.raises(LogClosed):
            closed.at_or_before(b"k")
        closed.close()
        assert again.get(b"k") == b"value"
        with pytest.raises(LogInUse):
            stores.open(path, map_bytes=MAP_BYTES)
    finally:
        again.close()


def test_a_later_put_of_one_write_wins(store: KeyValue) -> None:
    store.write([(b"k", b"1"), (b"k", b"2")])
    assert store.get(b"k") == b"2"


def test_at_or_before_and_at_or_after_find_the_neighbours(store: KeyValue) -> None:
    assert store.at_or_before(b"x") is None
    assert store.at_or_after(b"\x00") is None
    store.write([(b"b", b"1"), (b"d", b"2")])
    assert store.at_or_before(b"a") is None
    assert store.at_or_before(b"b") == (b"b", b"1")
    assert store.at_or_before(b"c") == (b"b", b"1")
    assert store.at_or_before(b"z") == (b"d", b"2")
    assert store.at_or_after(b"a") == (b"b", b"1")
    assert store.at_or_after(b"c") == (b"d", b"2")
    assert store.at_or_after(b"d") == (b"d", b"2")
    assert store.at_or_after(b"e") is None


def test_items_ascend_and_leave_the_end_out(store: KeyValue) -> None:
    store.write([(key, key * 2) for key in (b"d", b"a", b"c", b"b")])
    assert store.items(b"b", b"d") == [(b"b", b"bb"), (b"c", b"cc")]
    assert store.items(b"e", b"z") == []
    assert len(store.items(b"\x00", b"\xff")) == 4


def test_a_write_deletes_ranges_and_keys_before_it_puts(store: KeyValue) -> None:
    store.write([(bytes([key]), b"old") for key in range(1, 8)])
    store.write([(b"\x03", b"new")], deletes=[b"\x06", b"missing"], delete_ranges=[(b"\x02", b"\x05")])
    assert store.items(b"\x00", b"\xff") == [(b"\x01", b"old"), (b"\x03", b"new"), (b"\x05", b"old"), (b"\x07", b"old")]


def test_a_delete_of_everything_leaves_nothing(store: KeyValue) -> None:
    store.write([(bytes([key]), b"x") for key in range(1, 200)])
    store.write(delete_ranges=[(b"\x00", b"\xff\xff")])
    assert store.items(b"\x00", b"\xff\xff") == []
    assert store.at_or_before(b"\xff") is None


def test_what_was_written_is_there_after_a_new_open(world: tuple[Stores, str, Flip]) -> None:
    stores, path, _ = world
    assert not stores.exists(path)
    first = stores.open(path, map_bytes=MAP_BYTES)
    first.write([(b"k", b"v")])
    first.close()
    assert stores.exists(path)
    again = stores.open(path, map_bytes=MAP_BYTES)
    assert again.get(b"k") == b"v"
    again.close()
    again.close()


def test_a_flipped_bit_is_damage_for_every_read_that_meets_it(world: tuple[Stores, str, Flip]) -> None:
    stores, path, flip = world
    store = stores.open(path, map_bytes=MAP_BYTES)
    store.write([(b"a", b"good"), (b"b", b"rotten"), (b"c", b"good")])
    store.close()
    flip(path, b"b")
    store = stores.open(path, map_bytes=MAP_BYTES)
    reads: list[Callable[[], object]] = [
        lambda: store.get(b"b"),
        lambda: store.at_or_before(b"bb"),
        lambda: store.at_or_after(b"aa"),
        lambda: store.items(b"a", b"d"),
    ]
    for read in reads:
        with pytest.raises(Damaged, match="key 62"):
            read()
    assert store.get(b"a") == b"good"
    store.write([(b"b", b"mended")])
    assert store.get(b"b") == b"mended"
    store.close()


def test_a_store_is_open_once_in_a_process(world: tuple[Stores, str, Flip]) -> None:
    stores, path, _ = world
    store = stores.open(path, map_bytes=MAP_BYTES)
    with pytest.raises(LogInUse):
        stores.open(path, map_bytes=MAP_BYTES)
    store.close()
    stores.open(path, map_bytes=MAP_BYTES).close()


def test_reading_only_needs_a_store_and_never_writes(world: tuple[Stores, str, Flip]) -> None:
    stores, path, _ = world
    with pytest.raises(FileNotFoundError):
        stores.open(path, map_bytes=MAP_BYTES, read_only=True)
    assert not stores.exists(path)
    store = stores.open(path, map_bytes=MAP_BYTES)
    store.write([(b"k", b"v")])
    store.close()
    reader = stores.open(path, map_bytes=MAP_BYTES, read_only=True)
    assert reader.get(b"k") == b"v"
    with pytest.raises(AssertionError):
        reader.write([(b"k", b"w")])
    reader.close()


def test_set_aside_keeps_the_store_under_a_free_name(world: tuple[Stores, str, Flip]) -> None:
    stores, path, _ = world
    stores.set_aside(path)
    asides = []
    for content in (b"one", b"two"):
        store = stores.open(path, map_bytes=MAP_BYTES)
        assert store.get(b"k") is None
        store.write([(b"k", content)])
        store.close()
        asides.append(stores.set_aside(path))
        assert not stores.exists(path)
    assert len(set(asides)) == 2
    for aside, content in zip(asides, (b"one", b"two"), strict=True):
        store = stores.open(aside, map_bytes=MAP_BYTES)
        assert store.get(b"k") == content
        store.close()


def test_a_second_thread_may_read_but_not_write(store: KeyValue) -> None:
    store.write([(b"k", b"v")])
    seen: list[object] = []

    def other() -> None:
        seen.append(store.get(b"k"))
        try:
            store.write([(b"k", b"w")])
        except AssertionError as refused:
            seen.append(refused)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen[0] == b"v"
    assert isinstance(seen[1], AssertionError)
    assert store.get(b"k") == b"v"


KEYS = st.binary(min_size=1, max_size=3)
WRITES = st.tuples(
    st.lists(st.tuples(KEYS, st.binary(max_size=40)), max_size=6),
    st.lists(KEYS, max_size=3),
    st.lists(st.tuples(KEYS, KEYS), max_size=2),
)


@given(writes=st.lists(WRITES, max_size=8), probes=st.lists(KEYS, max_size=8))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_writes_leave_what_a_dict_would_hold(
    store: KeyValue,
    writes: list[tuple[list[tuple[bytes, bytes]], list[bytes], list[tuple[bytes, bytes]]]],
    probes: list[bytes],
) -> None:
    store.write(delete_ranges=[(b"\x00", b"\xff" * 8)])
    held: dict[bytes, bytes] = {}
    for puts, deletes, ranges in writes:
        store.write(puts, deletes, ranges)
        held = {key: held[key] for key in held if not any(start <= key < end for start, end in ranges)}
        held = {key: held[key] for key in held if key not in deletes}
        held.update(puts)
    assert store.items(b"\x00", b"\xff" * 8) == sorted(held.items())
    for probe in probes:
        assert store.get(probe) == held.get(probe)
        assert store.at_or_before(probe) == max(((k, v) for k, v in held.items() if k <= probe), default=None)
        assert store.at_or_after(probe) == min(((k, v) for k, v in held.items() if k >= probe), default=None)


def test_a_copy_is_what_was_committed_and_stays_while_the_store_is_written(world: tuple[Stores, str, Flip]) -> None:
    stores, path, _ = world
    with pytest.raises(FileNotFoundError):
        stores.open_copy(path, map_bytes=MAP_BYTES)
    store = stores.open(path, map_bytes=MAP_BYTES)
    store.write([(b"k", b"1")])
    copy = stores.open_copy(path, map_bytes=MAP_BYTES)
    store.write([(b"k", b"2"), (b"l", b"3")])
    assert (copy.get(b"k"), copy.get(b"l")) == (b"1", None)
    again = stores.open_copy(path, map_bytes=MAP_BYTES)
    assert (again.get(b"k"), copy.get(b"k")) == (b"2", b"1")
    copy.close()
    again.close()
    store.close()


def test_copies_under_constant_writes_are_each_one_committed_state(tmp_path: Path) -> None:
    stores = LmdbStores()
    path = str(tmp_path / "store")
    store = stores.open(path, map_bytes=MAP_BYTES)
    store.write([(b"%d" % key, b"0") for key in range(50)])
    store.close()
    stop = threading.Event()

    def write() -> None:
        written = stores.open(path, map_bytes=MAP_BYTES)
        number = 0
        while not stop.is_set():
            number += 1
            written.write([(b"%d" % key, b"%d" % number) for key in range(50)])
            stop.wait(0.0005)
        written.close()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    try:
        for _ in range(200):
            try:
                copy = stores.open_copy(path, map_bytes=MAP_BYTES)
            except LogInUse:
                continue  # a commit in each attempt: it says so
            values = {copy.get(b"%d" % key) for key in range(50)}
            copy.close()
            assert len(values) == 1, values
            seen |= values
    finally:
        stop.set()
        writer.join()
    assert seen
