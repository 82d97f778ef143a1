"""The work on long columns: with NumPy and without it, results and errors are the same."""

from __future__ import annotations

import subprocess
import sys
from array import array
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.vlsn.strategies import flips
from vlsn.errors import BadBody, BadTransaction, TooLarge, VlsnLogError
from vlsn.format import arrays, by_numpy, by_python
from vlsn.format.arrays import SMALL_COLUMN
from vlsn.format.columns import offsets_of
from vlsn.format.transactions import COMMIT, DATA
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import NUMBER_MAX

i32 = st.integers(-(2**31), 2**31 - 1)
lengths = st.lists(st.integers(0, 300), min_size=1, max_size=200)
vlsns = st.lists(st.integers(1, 400), max_size=200) | st.lists(st.integers(1, 2**60), max_size=100)


def outcome(work: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return work(*arguments)
    except VlsnLogError as error:
        return type(error), str(error)


def same(name: str, *arguments: Any) -> Any:
    """Returns what both modules return."""
    found = outcome(getattr(by_numpy, name), *arguments)
    assert outcome(getattr(by_python, name), *arguments) == found
    return found


def offsets(sizes: list[int]) -> bytes:
    return array("i", accumulate(sizes, initial=0)).tobytes()


@given(lengths, st.binary(max_size=9))
def test_offsets_that_rise_are_right(sizes: list[int], before: bytes) -> None:
    assert same("check_offsets", before + offsets(sizes), len(before), len(sizes), sum(sizes)) == max(sizes)


@given(st.lists(st.integers(0, 300), min_size=1, max_size=10))
def test_offsets_with_a_bit_changed_are_judged_the_same(sizes: list[int]) -> None:
    for changed in flips(offsets(sizes)):
        same("check_offsets", changed, 0, len(sizes), sum(sizes))


@given(st.lists(i32, min_size=2, max_size=100), i32)
def test_any_offsets_are_judged_the_same(numbers: list[int], length: int) -> None:
    same("check_offsets", array("i", numbers).tobytes(), 0, len(numbers) - 1, length)


def test_offsets_whose_difference_wraps_round_are_bad() -> None:
    numbers = array("i", [0, 2**31 - 1, -(2**31), 5]).tobytes()
    assert same("check_offsets", numbers, 0, 3, 5)[0] is BadBody


@given(st.data())
def test_as_many_entries_fit(data: st.DataObject) -> None:
    sizes = data.draw(lengths)
    keys = data.draw(st.lists(st.integers(0, 9), min_size=len(sizes), max_size=len(sizes)))
    skip = data.draw(st.integers(0, len(sizes) - 1))
    count = data.draw(st.integers(1, len(sizes) - skip))
    most = data.draw(st.integers(0, sum(sizes)))
    body = offsets(sizes) + offsets(keys)
    for columns, each in ([0], sizes), ([0, 4 * len(sizes) + 4], [a + b for a, b in zip(sizes, keys, strict=True)]):
        fits, size = same("fitting", body, columns, skip, count, most)
        assert size == sum(each[skip : skip + fits]) and (size <= most or fits == 1)
        assert fits == count or size + each[skip + fits] > most


@given(st.lists(st.sampled_from([DATA, DATA, DATA, COMMIT]), min_size=1, max_size=150), st.integers(1, 2**62))
def test_the_ids_of_whole_transactions_are_the_same(kinds: list[int], first: int) -> None:
    ids = same("whole_transactions", bytes(kinds), first)
    assert (ids == b"") == (kinds[-1] != COMMIT)
    if ids:
        assert same("check_transactions", ids, bytes(kinds), first) is None


@given(st.binary(min_size=1, max_size=100), st.integers(1, 2**62))
def test_ids_of_any_kinds_are_the_same(kinds: bytes, first: int) -> None:
    same("whole_transactions", kinds, first)


@given(st.data())
def test_broken_transactions_are_judged_the_same(data: st.DataObject) -> None:
    kinds = bytes(data.draw(st.lists(st.sampled_from([DATA, DATA, COMMIT, 1]), min_size=1, max_size=80)))
    first = data.draw(st.integers(1, 2**40))
    some = st.sampled_from([0, first, first + 1, first + len(kinds) // 2, first + len(kinds) - 1])
    ids = data.draw(st.lists(some, min_size=len(kinds), max_size=len(kinds)))
    found = same("check_transactions", array("Q", ids).tobytes(), kinds, first)
    assert found is None or found[0] is BadTransaction


def test_a_transaction_that_begins_with_another_vlsn_and_one_without_an_end_are_bad() -> None:
    ids = array("Q", [0, 11, 11, 12]).tobytes()
    assert "does not begin" in same("check_transactions", ids, bytes([DATA, DATA, COMMIT, COMMIT]), 10)[1]
    ids = array("Q", [0, 11, 11]).tobytes()
    assert "one COMMIT at its end" in same("check_transactions", ids, bytes([DATA, DATA, DATA]), 10)[1]


@given(st.lists(st.integers(1, NUMBER_MAX), max_size=100))
def test_numbers_that_ascend_are_told_apart(numbers: list[int]) -> None:
    for each in numbers, sorted(numbers), sorted(set(numbers)):
        column = memoryview(array("q", each))
        assert same("ascends", column) == (each == sorted(set(each)))


@given(vlsns)
@example([7, 8, 9, 11, 12])
@example([*range(200, 100, -1), 300, 300])
def test_sets_are_packed_the_same(numbers: list[int]) -> None:
    packed = same("pack_vlsns", memoryview(array("q", numbers)))
    assert VlsnSet.unpack(packed) == VlsnSet.of(numbers) and same("pack_vlsns", numbers) == packed


def test_short_columns_are_left_to_python_and_long_ones_to_numpy() -> None:
    assert arrays.works_for(SMALL_COLUMN) is by_python
    assert arrays.works_for(SMALL_COLUMN + 1) is arrays.works() is by_numpy


@pytest.mark.parametrize("count", [SMALL_COLUMN, SMALL_COLUMN + 1])
def test_a_column_over_2_gib_is_refused(count: int) -> None:
    piece = bytes(2**31 // count + 1)
    with pytest.raises(TooLarge, match="2 GiB"):
        offsets_of([piece] * count)


ALONE = """\
import sys
sys.modules["numpy"] = None
from vlsn.format import arrays
assert arrays.works().__name__ == arrays.works_for(1000).__name__ == "vlsn.format.by_python"
try:
    arrays.need_numpy("block_pages")
except ModuleNotFoundError as error:
    print(error.name, error)
"""
APPENDS = """\
import sys
import repl.client.connect, repl.client.sync
from vlsn.format.batch import encode
encode([b"value"] * 1000, [b"key"] * 1000, producer=(7, 1))
print(sorted({"numpy", "lmdb"} & set(sys.modules)))
"""


def told(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_without_numpy_the_work_is_done_in_python_and_what_needs_it_names_the_extra() -> None:
    assert told(ALONE) == "numpy block_pages needs NumPy; install it with: pip install 'vlsnlog-client[numpy]'\n"


def test_a_client_that_only_appends_does_not_import_numpy() -> None:
    assert told(APPENDS) == "[]\n"
