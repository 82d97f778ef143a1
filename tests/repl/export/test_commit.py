"""The commit protocol on a disk that stops at each of its calls: readers see whole rows, each once, and a restart goes
on exactly where the last manifest ends.

The log here is the numbers from 1 on, and a file is the numbers of its rows.  A bare reader lists the target's folders
and reads what has a data file's ending, as DuckDB's ``**/*.parquet`` does; it knows nothing of manifests.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from repl.export.commit import Committer, difference
from repl.export.manifest import (
    BadTarget,
    DataFile,
    Fenced,
    Gap,
    Kind,
    Manifest,
    Mark,
    Settings,
    decode,
    encode,
    name_of,
    number_of,
)
from repl.export.objects import Target
from repl.export.target import LocalTarget
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere

SETTINGS = Settings("g", "parquet", "", "", "")
MARK = Mark(3, 4, 5)
PATH = "/lake"


class Exporter:
    """One start of an export of the numbers up to ``end``, ``size`` a batch and up to 3 a file, over two folders."""

    def __init__(self, disk: FakeDisk, name: str) -> None:
        self.target: Target = LocalTarget(PATH, disk=disk)
        self.name, self._files = name, 0
        self.committer = Committer(self.target, name, lambda: 7)

    def run(self, end: int, size: int, *, gap: Gap | None = None) -> None:
        self.committer.open()
        last = self.committer.claim(SETTINGS, 1).last
        while last < end:
            self.batch(last + 1, min(last + size, end))
            last = min(last + size, end)
        self.committer.close()

    def batch(self, first: int, last: int) -> None:
        self.committer.commit(first, last, MARK, list(self.staged(first, last)))

    def staged(self, first: int, last: int) -> Iterator[DataFile]:
        for start in range(first, last + 1, 3):
            rows = range(start, min(start + 3, last + 1))
            folder = f"part={start % 2}"
            self._files += 1
            staged = self.target.staged_name(folder, self.name, f"{self.name}{self._files}")
            file, data = self.target.new_file(staged), ",".join(map(str, rows)).encode()
            file.write(data[:1])
            file.write(data[1:])
            file.close()
            name = f"{folder}/{rows[0]:020}-{rows[-1]:020}.parquet"
            yield DataFile(name, staged, rows[0], rows[-1], len(rows), len(data), 0)


def bare_rows(disk: FakeDisk) -> list[int]:
    """Returns the rows that a reader finds who takes every data file there is."""
    paths = [path for folder in ("", "/part=0", "/part=1") for path in disk.files(PATH + folder)]
    texts = [disk.content(path).decode() for path in paths if path.endswith(".parquet")]
    return sorted(int(row) for text in texts for row in text.split(","))


def manifests(disk: FakeDisk) -> list[Manifest]:
    paths = [path for path in disk.files(f"{PATH}/_manifests") if number_of(path)]
    return [decode(disk.content(path), path) for path in paths]


def listed_rows(disk: FakeDisk) -> list[int]:
    """Returns the rows of a reader who follows the manifests, in their order; a file not in place yet is read where it
    was staged."""
    rows: list[int] = []
    for manifest in manifests(disk):
        for file in manifest.files:
            there = f"{PATH}/{file.name}" in disk.files(f"{PATH}/{file.name.partition('/')[0]}")
            place = file.name if there else file.staged
            rows += map(int, disk.content(f"{PATH}/{place}").decode().split(","))
    return rows


def check_whole(disk: FakeDisk) -> None:
    """Checks the rules that hold at any moment, wherever an export was stopped."""
    held = manifests(disk)
    assert [manifest.number for manifest in held] == list(range(1, len(held) + 1))
    last = held[-1].last if held else 0
    assert listed_rows(disk) == list(range(1, last + 1))
    seen = bare_rows(disk)
    assert len(seen) == len(set(seen))
    assert set(seen) <= set(range(1, last + 1))
    settled = [file for manifest in held[:-1] for file in manifest.files]
    assert {row for file in settled for row in range(file.first, file.last + 1)} <= set(seen)


def calls_of_a_run() -> int:
    disk = FakeDisk()
    Exporter(disk, "a").run(10, 5)
    Exporter(disk, "b").run(20, 5)
    return len(disk.calls)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("power", [False, True])
def test_a_stop_at_any_call_loses_and_doubles_nothing(moment: str, power: bool) -> None:
    for call in range(1, calls_of_a_run() + 1):
        for seed in range(3 if power else 1):
            disk, rng = FakeDisk(rng=Random(seed)), Random(1000 * call + seed)
            disk.stop_at(call, moment=moment)  # type: ignore[arg-type]
            try:
                Exporter(disk, "a").run(10, 5)
                Exporter(disk, "b").run(20, 5)
            except StopHere:
                pass
            if power:
                disk.power_cut(rng, tear=True)
            else:
                disk.process_kill()
            check_whole(disk)
            Exporter(disk, "c").run(23, 5)
            assert bare_rows(disk) == listed_rows(disk) == list(range(1, 24)), (call, seed)
            assert [path for path in disk.files(f"{PATH}/part=0") if not path.endswith(".parquet")] == []


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9), st.booleans()), max_size=8), st.integers(0, 1 << 30))
def test_many_stops_in_a_row(stops: list[tuple[int, int, bool]], seed: int) -> None:
    disk, rng = FakeDisk(rng=Random(seed)), Random(seed)
    for at, (calls, size, power) in enumerate(stops):
        disk.stop_at(len(disk.calls) + calls, moment=rng.choice(["before", "during", "after"]))
        try:
            Exporter(disk, f"e{at}-").run(40, size)
        except StopHere:
            pass
        disk.power_cut(rng) if power else disk.process_kill()
        check_whole(disk)
    Exporter(disk, "last").run(40, 7)
    assert bare_rows(disk) == listed_rows(disk) == list(range(1, 41))


def test_what_a_call_that_fails_leaves_is_gone_on_with() -> None:
    for call in range(1, calls_of_a_run() + 1):
        disk = FakeDisk(rng=Random(call))
        disk.fail_at(call)
        try:
            Exporter(disk, "a").run(10, 5)
            Exporter(disk, "b").run(20, 5)
        except OSError:
            pass
        disk.process_kill()
        check_whole(disk)
        Exporter(disk, "c").run(23, 5)
        assert bare_rows(disk) == list(range(1, 24)), call


class NoLock(LocalTarget):
    """A store whose lock holds nobody off, as an object store's."""

    def lock(self) -> None: ...


def two_unlocked() -> tuple[FakeDisk, Exporter, Exporter]:
    """Two exporters to one directory, of which the first has claimed it."""
    disk = FakeDisk()
    first, second = Exporter(disk, "a"), Exporter(disk, "b")
    for each in (first, second):
        each.target = NoLock(PATH, disk=disk)
        each.committer = Committer(each.target, each.name, lambda: 7)
    first.committer.open()
    first.committer.claim(SETTINGS, 1)
    return disk, first, second


def test_two_exporters_where_no_lock_holds() -> None:
    disk, first, second = two_unlocked()
    first.batch(1, 5)
    files = list(first.staged(6, 9))
    second.committer.open()
    second.committer.claim(SETTINGS, 1)
    with pytest.raises(Fenced, match=r"export b has taken over at _manifests/0*3.json"):
        first.committer.commit(6, 9, MARK, files)
    with pytest.raises(Fenced, match="export b"):
        first.committer.check_not_fenced()
    second.batch(6, 10)
    assert bare_rows(disk) == listed_rows(disk) == list(range(1, 11))
    held = manifests(disk)[-1]
    assert (held.exporter, held.rows, held.rows_total) == ("b", 5, 10)


def test_a_claim_that_comes_while_another_commits_is_made_again() -> None:
    disk, first, second = two_unlocked()
    second.committer.open()
    first.batch(1, 5)  # the number that the second one means to take
    assert second.committer.claim(SETTINGS, 1).last == 5
    with pytest.raises(Fenced):
        first.batch(6, 7)
    second.batch(6, 7)
    assert bare_rows(disk) == listed_rows(disk) == list(range(1, 8))


def test_the_second_exporter_of_a_directory_is_refused() -> None:
    disk = FakeDisk()
    Exporter(disk, "a").committer.open()
    with pytest.raises(Fenced, match="another export writes there now"):
        Exporter(disk, "b").committer.open()


def test_a_directory_with_something_else_is_refused() -> None:
    disk = FakeDisk()
    disk.make_directory(PATH)
    disk.write_content(f"{PATH}/photo.jpg", b"jpg")
    with pytest.raises(BadTarget, match=r"holds photo.jpg and no manifest"):
        Exporter(disk, "a").committer.open()
    with pytest.raises(BadTarget, match=r"holds photo.jpg"):  # the lock was given back
        Exporter(disk, "a").committer.open()


def test_a_damaged_manifest_is_named() -> None:
    disk = FakeDisk()
    Exporter(disk, "a").run(5, 5)
    path = f"{PATH}/{name_of(2)}"
    whole = disk.content(path)
    moved, short = whole.replace(b'"number": 2', b'"number": 3'), whole.replace(b'"rows": 5', b'"rows": 6')
    for wrong in (whole[:-9], b"{}", moved, short):
        disk.write_content(path, wrong)
        with pytest.raises(BadTarget, match=f"{name_of(2)}|manifest 3"):
            Exporter(disk, "b").committer.open()


def test_a_file_that_is_gone_is_named() -> None:
    disk = FakeDisk()
    Exporter(disk, "a").run(5, 5)
    (gone, *_) = [path for path in disk.files(f"{PATH}/part=1") if path.endswith(".parquet")]
    disk.remove(gone)
    with pytest.raises(BadTarget, match="names this file, and it is gone"):
        Exporter(disk, "b").committer.open()


def test_a_staged_file_that_the_driver_cannot_see_commits_nothing() -> None:
    disk = FakeDisk()
    exporter = Exporter(disk, "a")
    exporter.committer.open()
    exporter.committer.claim(SETTINGS, 1)
    files = list(exporter.staged(1, 5))
    exporter.target.remove(files[0].staged)
    with pytest.raises(BadTarget, match="a directory that all Spark workers share"):
        exporter.committer.commit(1, 5, MARK, files)
    assert [manifest.kind for manifest in manifests(disk)] == [Kind.CLAIM]


def test_a_gap_is_in_the_manifest() -> None:
    disk = FakeDisk()
    exporter = Exporter(disk, "a")
    exporter.committer.open()
    exporter.committer.claim(SETTINGS, 1)
    exporter.batch(1, 3)
    made = exporter.committer.commit(8, 9, MARK, list(exporter.staged(8, 9)), gap=Gap(4, 7))
    assert decode(encode(made), name_of(3)).gap == Gap(4, 7)


def test_settings_that_differ_are_named() -> None:
    other = Settings("g", "json", "date", "", "12")
    assert difference(SETTINGS, SETTINGS) == ""
    assert difference(other, Settings("g", "json", "date", "", "")) == ""
    said = difference(SETTINGS, other)
    assert said == "--format parquet, not json; --partition-by (none), not date; --from (none), not 12"
