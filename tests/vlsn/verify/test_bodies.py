"""Bodies with right checksums, of many blocks at once: the same verdict as on each alone, whatever lies in them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vlsn.errors import BadBody
from vlsn.format import scan
from vlsn.format.block import BLOCK_BYTES, build, check_body, columns_of, decode_header, seal_body
from vlsn.format.checksum import crc
from vlsn.format.frame import FRAME_BYTES
from vlsn.verify.inspection import _columns_bad

ENTRY = st.tuples(st.none() | st.binary(min_size=1, max_size=9), st.binary(max_size=9))
CHANGE = st.none() | st.tuples(st.integers(0, 300), st.integers(0, 7), st.booleans())
"""Byte and bit of the body that are changed, and whether the checksum is made anew."""


def block(entries: list[tuple[bytes | None, bytes]], first: int, change: tuple[int, int, bool] | None) -> bytes:
    keys = [key or b"" for key, _ in entries]
    columns = columns_of([value for _, value in entries], keys if any(keys) else None)
    data = build(term=1, first_vlsn=first, dtvlsn=0, clock_us=5, kind=0, columns=columns, submissions=1)
    header = decode_header(data)
    if change is None:
        return data
    body = bytearray(data[BLOCK_BYTES:])
    body[change[0] % len(body)] ^= 1 << change[1]
    return seal_body(
        [bytes(body)],
        None if change[2] else header.body_crc,
        flags=header.flags,
        kind=0,
        count=header.count,
        term=1,
        first_vlsn=first,
        dtvlsn=0,
        clock_us=5,
        submissions=1,
        key_bytes=header.key_bytes,
        value_bytes=header.value_bytes,
    )


def is_bad(data: bytes) -> bool:
    try:
        check_body(data, decode_header(data))
    except BadBody:
        return True
    return False


def is_summed(data: bytes) -> bool:
    header = decode_header(data)
    return crc(data[BLOCK_BYTES:]) == header.body_crc


@given(st.lists(st.tuples(st.lists(ENTRY, min_size=1, max_size=9), CHANGE, st.booleans()), min_size=1, max_size=9))
def test_bodies_are_judged_as_each_alone(
    written: list[tuple[list[tuple[bytes | None, bytes]], tuple[int, int, bool] | None, bool]],
) -> None:
    buf, offsets, model, passed_over = bytearray(), [], [], []
    for first, (entries, change, skipped) in enumerate(written, 1):
        data = block(entries, first, change)
        offsets.append(len(buf))
        passed_over.append(skipped or not is_summed(data))
        model.append(not passed_over[-1] and is_bad(data))
        buf += bytes(FRAME_BYTES) + data + bytes(-len(data) & 7)
    places = np.array(offsets, np.int64)
    heads = scan.block_headers(buf, 0, places)
    assert _columns_bad(bytes(buf), places, heads, skip=np.array(passed_over)).tolist() == model
