"""Rows by column against plain lists: cuts, pieces, digests, and the rows that are not logged yet."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from repl.client.batch_rows import ROW_OVERHEAD_BYTES, BatchRows, Chunk, RowsDigest, chunk_of, row_digest, without
from vlsn.format.batch import decode, decode_entries

Pair = tuple[bytes, bytes]
PAIRS = st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=6)), max_size=30)
CHUNKS = st.lists(PAIRS, max_size=6)


def chunk(pairs: list[Pair], *, shift: int = 0) -> Chunk:
    """Makes a chunk, without a key column if no row has a key; its offsets begin at ``shift``."""
    made = chunk_of([value for _, value in pairs], [key for key, _ in pairs])
    moved = Chunk(made.value_offsets + shift, bytes(shift) + bytes(made.values), made.key_offsets, made.keys)
    return moved if made.keys else Chunk(moved.value_offsets, moved.values)


def rows(chunks: list[list[Pair]]) -> BatchRows:
    return BatchRows([chunk(pairs, shift=number) for number, pairs in enumerate(chunks)])


def digest(*parts: BatchRows) -> str:
    made = RowsDigest()
    for part in parts:
        made.add(part)
    return made.hex()


@given(CHUNKS, st.integers(1, 100), st.integers(1, 5))
def test_parts_are_the_rows_in_their_order_within_the_limits(
    chunks: list[list[Pair]], bytes_max: int, entries_max: int
) -> None:
    given_rows, pairs = rows(chunks), [pair for pairs in chunks for pair in pairs]
    assert given_rows.count == len(pairs)
    assert list(given_rows.pairs()) == pairs
    cuts = given_rows.cuts(bytes_max, entries_max)
    assert cuts[0] == 0
    assert cuts[-1] == len(pairs)
    for start, end in pairwise(cuts):
        part = pairs[start:end]
        assert list(given_rows.only(start, end).pairs()) == part
        size = sum(len(key) + len(value) + ROW_OVERHEAD_BYTES for key, value in part)
        assert 1 <= len(part) <= entries_max
        assert size <= bytes_max or len(part) == 1
        if end < len(pairs) and len(part) < entries_max:
            key, value = pairs[end]
            assert size + len(key) + len(value) + ROW_OVERHEAD_BYTES > bytes_max, "as many as fit"


@given(CHUNKS, st.integers(1, 100))
def test_pieces_are_batches_that_the_log_takes(chunks: list[list[Pair]], bytes_max: int) -> None:
    found: list[Pair] = []
    for piece, count in rows(chunks).pieces(bytes_max):
        entries = decode_entries(decode(piece))
        assert len(entries) == count
        found += [(key or b"", value) for key, value in entries]
    assert found == [pair for pairs in chunks for pair in pairs]


@given(CHUNKS, st.integers(0, 180))
def test_a_digest_is_of_the_rows_and_not_of_how_they_are_cut(chunks: list[list[Pair]], at: int) -> None:
    given_rows = rows(chunks)
    at = min(at, given_rows.count)
    pairs = [pair for pairs in chunks for pair in pairs]
    assert digest(given_rows) == digest(given_rows.only(0, at), given_rows.only(at, given_rows.count))
    assert digest(given_rows) == digest(rows([pairs])) == digest(rows([[pair] for pair in pairs]))


@given(PAIRS, PAIRS)
def test_rows_with_one_digest_are_the_same_rows(one: list[Pair], other: list[Pair]) -> None:
    assert (digest(rows([one])) == digest(rows([other]))) == (one == other)
    for (a, b), (c, d) in zip(one, other, strict=False):
        assert (digest(rows([[(a, b)]])) == digest(rows([[(c, d)]]))) == ((a, b) == (c, d))


@given(PAIRS, st.randoms(use_true_random=False), st.integers(0, 30))
def test_what_is_logged_is_taken_out_as_often_as_it_is(pairs: list[Pair], chance: object, count: int) -> None:
    shuffled = list(pairs)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    logged = shuffled[:count]
    left = without(rows([pairs]), [row_digest(*pair) for pair in logged])
    assert left is not None
    found = list(left.pairs())
    assert Counter(found) + Counter(logged) == Counter(pairs)
    expected, gone = [], Counter(logged)
    for pair in pairs:  # of equal rows the first go, the others stay in their order
        if gone[pair]:
            gone[pair] -= 1
        else:
            expected.append(pair)
    assert found == expected


@given(PAIRS, PAIRS)
def test_a_logged_row_that_is_not_among_them_is_noticed(pairs: list[Pair], logged: list[Pair]) -> None:
    left = without(rows([pairs]), [row_digest(*pair) for pair in logged])
    assert (left is None) == bool(Counter(logged) - Counter(pairs))
