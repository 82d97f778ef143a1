"""Equality of submissions, in every form that they come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.strategies import content, entry_lists, submissions
from vlsn.format.batch import decode, encode
from vlsn.format.same_submission import lies_in, same
from vlsn.format.seal import seal
from vlsn.format.submission import Submission, Values
from vlsn.ids import Vlsn


def forms(values: list[bytes], keys: list[bytes | None] | None, producer: tuple[int, int]) -> list[Submission]:
    named = producer if producer[0] else None
    return [Values(values, keys, producer), decode(encode(values, keys, producer=named))]


@given(entry_lists(), st.sampled_from([(0, 0), (7, 3)]), st.data())
def test_two_forms_of_the_same_entries_are_the_same(
    entries: tuple[list[bytes], list[bytes | None] | None], producer: tuple[int, int], data: st.DataObject
) -> None:
    values, keys = entries
    for one in forms(values, keys, producer):
        for other in forms(values, keys, (9, 1)):
            assert same(one, other)
    # One entry with a byte more in its value, or with another key.
    at = data.draw(st.integers(0, len(values) - 1))
    longer = [*values[:at], values[at] + b"x", *values[at + 1 :]]
    keyed = [*(keys or [None] * len(values))]
    keyed[at] = (keyed[at] or b"") + b"x"
    moved = [values[0][:-1], values[0][-1:] + values[1], *values[2:]] if len(values) > 1 and values[0] else longer
    for one in forms(values, keys, producer):
        for different in (
            *forms(longer, keys, producer),
            *forms(values, keyed, producer),
            *forms(moved, keys, producer),
        ):
            assert not same(one, different)
            assert not same(different, one)


@given(st.lists(submissions(), min_size=1, max_size=5), st.data())
def test_a_submission_is_found_where_it_was_sealed_and_no_other(runs: list[Submission], data: st.DataObject) -> None:
    at = 100
    blocks = seal(runs, term=3, first_vlsn=at, dtvlsn=50, clock_us=1)
    for one in runs:
        block = next(each for each in blocks if each.first_vlsn <= at <= each.last_vlsn)
        assert lies_in(block.data, Vlsn(at), one)
        other = data.draw(submissions())
        if one.count == other.count:
            assert lies_in(block.data, Vlsn(at), other) == (content(one) == content(other))
        assert not lies_in(block.data, Vlsn(block.last_vlsn + 1), one)
        assert not lies_in(block.data, Vlsn(block.first_vlsn - 1), one)
        at += one.count
