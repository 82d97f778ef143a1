"""LMDB's pages: every file that LMDB leaves is good, and none that rotted ends the process."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlsn.errors import Damaged
from vlsn.real.lmdb_pages import META, PAGE, TAIL, TREE, check_pages
from vlsn.real.lmdb_store import LmdbStores

KEYS = st.integers(0, 400)
WRITES = st.lists(
    st.tuples(
        st.lists(st.tuples(KEYS, st.sampled_from([0, 1, 40, 900, 2_100, 5_000, 30_000])), max_size=60),
        st.lists(st.tuples(KEYS, st.integers(0, 200)), max_size=2),
    ),
    min_size=1,
    max_size=12,
)


@given(writes=WRITES)
@settings(max_examples=max(1, settings().max_examples // 5))  # each commit is a sync of the disk
def test_whatever_is_written_its_pages_are_good_after_each_commit(
    writes: list[tuple[list[tuple[int, int]], list[tuple[int, int]]]],
) -> None:
    with tempfile.TemporaryDirectory(prefix="vlsnlog-pages-") as directory:
        store = LmdbStores().open(f"{directory}/s", map_bytes=1 << 16)
        check_pages(f"{directory}/s/data.mdb")
        held: dict[bytes, bytes] = {}
        for puts, ranges in writes:
            pairs = [(b"%09d" % key, bytes(size)) for key, size in puts]
            gone = [(b"%09d" % start, b"%09d" % (start + length)) for start, length in ranges]
            store.write(pairs, delete_ranges=gone)
            held = {key: value for key, value in held.items() if not any(low <= key < high for low, high in gone)}
            held.update(pairs)
            check_pages(f"{directory}/s/data.mdb")
        assert dict(store.items(b"0", b":")) == held
        store.close()


@pytest.mark.parametrize("seed", [20, 80, 87, 149, *range(10)])
def test_free_pages_that_the_file_ends_before_are_no_damage(tmp_path: Path, seed: int) -> None:
    """A history as an index has it: LMDB never writes a page that one transaction took and gave back."""
    rng = Random(seed)
    store = LmdbStores().open(str(tmp_path / "s"), map_bytes=1 << 20)
    last = first = 0
    for _ in range(40):
        way, gone = rng.random(), []
        puts = []
        for _ in range(rng.randrange(1, 12)):
            last += 1
            puts.append((b"%09d" % last, bytes(rng.choice([60, 200, 800, 1900]))))
        if way < 0.25:
            gone = [(b"%09d" % rng.randrange(first, last), b"9" * 9)]
        elif way < 0.5:
            first = rng.randrange(first, last + 1)
            gone = [(b"0", b"%09d" % first)]
        store.write([*puts, (b"record", bytes(50))], delete_ranges=gone)
        check_pages(str(tmp_path / "s" / "data.mdb"))
    store.close()
    LmdbStores().open(str(tmp_path / "s"), map_bytes=1 << 20).close()


FLIPS = """
import os, random, shutil, sys
from vlsn.errors import Damaged, LogFailed
from vlsn.real.lmdb_store import LmdbStores

source, directory, start, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
whole = open(source, "rb").read()
good = {b"%06d" % number: bytes([number % 251]) * (number % 7 * 700 + 9) for number in range(500)}
refused = 0
for seed in range(start, start + count):
    rng = random.Random(seed)
    print(seed, flush=True)
    data = bytearray(whole)
    limit = (128 + 16) if seed % 3 == 0 else len(data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(limit) + (4096 * rng.randrange(2) if seed % 3 == 0 else 0)
        if seed % 3 == 1:
            at = at // 4096 * 4096 + rng.randrange(200)  # a page's own header and the places of its nodes
        data[at] ^= 1 << rng.randrange(8)
    path = f"{directory}/{seed}"
    os.mkdir(path)
    with open(path + "/data.mdb", "wb") as file:
        file.write(data)
    try:
        store = LmdbStores().open(path, map_bytes=1 << 22)
    except Damaged:
        refused += 1
        shutil.rmtree(path)
        continue
    for key, value in rng.sample(sorted(good.items()), 120):
        for read in (store.get, store.at_or_before, store.at_or_after):
            try:
                found = read(key)
            except Damaged:
                continue
            assert found in (value, (key, value)), (seed, key)
    try:
        store.write([(b"new", bytes(9000)), (b"%06d" % 3, b"")], delete_ranges=[(b"000100", b"000300")])
        store.write([(b"more", bytes(40000))])
    except LogFailed:
        pass
    store.close()
    shutil.rmtree(path)
print("refused", refused)
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns an environment with branches, overflow pages and free pages."""
    path = tmp_path_factory.mktemp("whole") / "s"
    store = LmdbStores().open(str(path), map_bytes=1 << 22)
    items = [(b"%06d" % number, bytes([number % 251]) * (number % 7 * 700 + 9)) for number in range(500)]
    for start in range(0, 500, 100):
        store.write([(key, bytes(3000)) for key, _ in items[start : start + 100]])
        store.write(items[start : start + 100])
    store.close()
    return path / "data.mdb"


SEEDS = int(os.environ.get("SEEDS", "150"))


def test_flipped_bits_end_no_process_and_give_no_wrong_value(environment: Path, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FLIPS, str(environment), str(tmp_path), "0", str(SEEDS)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    told = ran.stdout.split()
    assert ran.returncode == 0, f"status {ran.returncode} at seed {told[-2:]}: {ran.stderr}"
    assert int(ran.stdout.split()[-1]) > SEEDS // 10, "the pages' own fields were hit"


def test_every_flipped_bit_of_the_newest_meta_page_is_noticed_where_it_means_something(tmp_path: Path) -> None:
    store = LmdbStores().open(str(tmp_path / "s"), map_bytes=1 << 20)
    for number in range(5):
        store.write([(b"%d" % number, bytes(number * 3_000))])
    store.close()
    path = tmp_path / "s" / "data.mdb"
    whole = path.read_bytes()
    newest = 4096 * max((0, 1), key=lambda page: int.from_bytes(whole[page * 4096 + 144 : page * 4096 + 152], "little"))
    unnoticed = set()
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * 152):
            at = newest + bit // 8
            os.pwrite(file.fileno(), bytes([whole[at] ^ 1 << bit % 8]), at)
            try:
                check_pages(str(path))
                unnoticed.add(bit // 8)
            except Damaged:
                pass
            os.pwrite(file.fileno(), whole[at : at + 1], at)
    unused = {8, 9, *range(12, 16), *range(24, 40), *range(88, 92)}  # page pad, bounds; map address, size; tree pad
    assert unnoticed <= unused


@pytest.mark.parametrize("size", [1, 15, 4096, 4097, 8191])
def test_a_file_that_ends_within_its_meta_pages_is_damage(environment: Path, tmp_path: Path, size: int) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes(environment.read_bytes()[:size])
    with pytest.raises(Damaged):
        check_pages(str(path))


def test_a_first_commit_that_failed_leaves_an_empty_store(tmp_path: Path) -> None:
    """LMDB takes the transaction's number back from the meta page that it could not write, and nothing else. It reads
    the first of two pages with one number."""
    store = LmdbStores().open(str(tmp_path / "s"), map_bytes=1 << 16)
    store.write([(b"k", b"v")])
    store.close()
    path = tmp_path / "s" / "data.mdb"
    data = bytearray(path.read_bytes())
    TAIL.pack_into(data, 4096 + PAGE.size + META.size + 2 * TREE.size, 1, 0)
    path.write_bytes(data)
    check_pages(str(path))
    store = LmdbStores().open(str(tmp_path / "s"), map_bytes=1 << 16)
    assert store.get(b"k") is None
    store.write([(b"k", b"w")])
    assert store.get(b"k") == b"w"
    store.close()
