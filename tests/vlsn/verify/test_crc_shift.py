"""Joined checksums against those of the joined bytes, and the fast CRC-32 against zlib's."""

from __future__ import annotations

import zlib
from zlib import crc32

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vlsn.format.checksum import crc
from vlsn.verify.crc_shift import followed, shifted

LENGTHS = st.sampled_from([0, 1, 7, 255, 256, 257, 65_535, 65_536, 1 << 20, (1 << 24) + 3])


@given(st.lists(st.tuples(st.binary(max_size=80), LENGTHS, st.binary(max_size=20)), max_size=6))
def test_a_crc_with_bytes_behind_it_is_that_of_the_whole(pieces: list[tuple[bytes, int, bytes]]) -> None:
    behind = [bytes(length) + tail for _, length, tail in pieces]
    joined = shifted(np.array([crc(head) for head, _, _ in pieces], np.uint32), np.array([*map(len, behind)], np.int64))
    joined ^= np.array([crc(each) for each in behind], np.uint32)
    assert joined.tolist() == [crc(head + each) for (head, _, _), each in zip(pieces, behind, strict=True)]


@given(st.lists(st.tuples(st.binary(max_size=80), st.binary(min_size=4, max_size=4)), min_size=1))
def test_a_crc_goes_on_with_columns_of_bytes(rows: list[tuple[bytes, bytes]]) -> None:
    columns = np.frombuffer(b"".join(tail for _, tail in rows), np.uint8).reshape(-1, 4)
    found = followed(np.array([crc(head) for head, _ in rows], np.uint32), columns)
    assert found.tolist() == [crc(head + tail) for head, tail in rows]


@given(st.binary(max_size=10_000), st.integers(0, 2**32 - 1))
def test_both_libraries_have_one_crc32(data: bytes, seed: int) -> None:
    assert crc32(data) == zlib.crc32(data)
    assert crc32(memoryview(data), seed) == zlib.crc32(data, seed)
