"""Buckets: bytes, lookups, cuts."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlsn.errors import Damaged, WrongVersion
from vlsn.ids import Lsn, Vlsn, lsn
from vlsn.index.bucket import Bucket, bucket_key, decode, single

GOLDEN = Bucket(7, Vlsn(101), Vlsn(140), [0, 10, 32], [4096, 9000, 20_008])
GOLDEN_BYTES = bytes.fromhex(
    "0100 0000 07000000 03000000 27000000 6500000000000000 00000000 0a000000 20000000 00100000 28230000 284e0000"
)


@st.composite
def buckets(draw: st.DrawFn) -> Bucket:
    first = draw(st.integers(1, 1 << 40))
    deltas = sorted(draw(st.sets(st.integers(1, 1 << 20), max_size=30)))
    offsets = sorted(draw(st.sets(st.integers(4096, 1 << 31), min_size=len(deltas) + 1, max_size=len(deltas) + 1)))
    deltas = [0, *deltas]
    return Bucket(
        draw(st.integers(1, 1 << 32 - 1)),
        Vlsn(first),
        Vlsn(first + deltas[-1] + draw(st.integers(0, 99))),
        deltas,
        offsets,
    )


def test_golden_bytes() -> None:
    assert GOLDEN.encode() == GOLDEN_BYTES
    found = decode(b"b\0\0\0\0\0\0\0\x65", GOLDEN_BYTES)
    assert list(found.mappings()) == [(101, lsn(7, 4096)), (111, lsn(7, 9000)), (133, lsn(7, 20_008))]
    assert (found.file, found.first, found.last) == (7, 101, 140)


@given(bucket=buckets())
def test_a_bucket_comes_back_as_it_was(bucket: Bucket) -> None:
    found = decode(bucket_key(bucket.first), bucket.encode())
    assert list(found.mappings()) == list(bucket.mappings())
    assert (found.file, found.first, found.last) == (bucket.file, bucket.first, bucket.last)
    assert found.encode() == bucket.encode()
    found.verify()


def test_keys_sort_as_vlsns_do() -> None:
    vlsns = [1, 2, 255, 256, 65_535, 1 << 32, (1 << 63) - 1]
    assert sorted(bucket_key(Vlsn(each)) for each in vlsns) == [bucket_key(Vlsn(each)) for each in vlsns]


@given(bucket=buckets(), data=st.data())
def test_lookups_find_the_closest_on_their_side(bucket: Bucket, data: st.DataObject) -> None:
    mapped = dict(bucket.mappings())
    vlsn = Vlsn(data.draw(st.integers(bucket.first, bucket.last)))
    before, after = bucket.at_or_before(vlsn), bucket.at_or_after(vlsn)
    assert before == max(item for item in mapped.items() if item[0] <= vlsn)
    assert after == min((item for item in mapped.items() if item[0] >= vlsn), default=None)


@given(bucket=buckets(), data=st.data())
def test_a_cut_tail_keeps_what_lies_before_and_ends_with_its_cap(bucket: Bucket, data: st.DataObject) -> None:
    last = Vlsn(data.draw(st.integers(bucket.first, bucket.last)))
    kept = [item for item in bucket.mappings() if item[0] <= last]
    uncapped = bucket.cut_tail(last, None)
    assert (list(uncapped.mappings()), uncapped.last) == (kept, last)
    capped = bucket.cut_tail(last, kept[-1])
    assert (list(capped.mappings()), capped.last) == (kept, last)


@given(bucket=buckets(), data=st.data())
def test_a_cut_head_begins_with_its_cap(bucket: Bucket, data: st.DataObject) -> None:
    first = Vlsn(data.draw(st.integers(bucket.first, bucket.last)))
    at = bucket.at_or_before(first)[1]
    cut = bucket.cut_head((first, at))
    assert list(cut.mappings()) == [(first, at), *(item for item in bucket.mappings() if item[0] > first)]
    assert (cut.first, cut.last) == (first, bucket.last)


def test_one_block_is_a_bucket() -> None:
    bucket = single(Vlsn(5), Vlsn(9), lsn(3, 4096))
    assert list(bucket.mappings()) == [(5, lsn(3, 4096))]
    assert bucket.at_or_before(Vlsn(9)) == (5, lsn(3, 4096))
    assert bucket.at_or_after(Vlsn(6)) is None


WRONG = {
    "short": GOLDEN_BYTES[:20],
    "cut": GOLDEN_BYTES[:-4],
    "long": GOLDEN_BYTES + b"\0",
    "version": b"\x00" + GOLDEN_BYTES[1:],
    "zero": GOLDEN_BYTES[:2] + b"\x01" + GOLDEN_BYTES[3:],
    "no mapping": GOLDEN_BYTES[:8] + struct.pack("<I", 0) + GOLDEN_BYTES[12:24],
    "count": GOLDEN_BYTES[:8] + struct.pack("<I", 0xFFFF_FFFF) + GOLDEN_BYTES[12:],
    "last before a mapping": GOLDEN_BYTES[:12] + struct.pack("<I", 31) + GOLDEN_BYTES[16:],
    "another first": GOLDEN_BYTES[:16] + struct.pack("<Q", 102) + GOLDEN_BYTES[24:],
    "not from its first": GOLDEN_BYTES[:24] + struct.pack("<I", 1) + GOLDEN_BYTES[28:],
}


@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG.keys())
def test_what_is_no_bucket_is_damage(value: bytes) -> None:
    with pytest.raises(Damaged):
        decode(bucket_key(Vlsn(101)), value)


@given(key=st.one_of(st.binary(max_size=12), st.just(bucket_key(Vlsn(101)))), value=st.binary(max_size=80))
def test_no_bytes_do_more_than_raise_damage(key: bytes, value: bytes) -> None:
    try:
        bucket = decode(key, value)
    except (Damaged, WrongVersion):
        return
    assert bucket_key(bucket.first) == key


@pytest.mark.parametrize("column", ["deltas", "offsets"])
def test_mappings_that_do_not_rise_are_damage(column: str) -> None:
    columns = {"deltas": [0, 10, 32], "offsets": [4096, 9000, 20_008], column: [0, 32, 32]}
    bucket = Bucket(7, Vlsn(101), Vlsn(140), columns["deltas"], columns["offsets"])
    with pytest.raises(Damaged, match="do not rise"):
        bucket.verify()


def test_the_lsn_of_a_mapping_is_a_full_one() -> None:
    assert single(Vlsn(1), Vlsn(1), Lsn(0xFFFF_FFFF_8000_0000)).at_or_before(Vlsn(1)) == (1, 0xFFFF_FFFF_8000_0000)
