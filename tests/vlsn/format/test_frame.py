"""Frames: what is built is read back, and nothing else passes for a frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.strategies import flips, u32
from vlsn.format.checksum import crc
from vlsn.format.frame import (
    FLAG_AT,
    MAGIC,
    OVERMARKED,
    FrameKind,
    build_header,
    check_frame,
    decode_header,
)
from vlsn.format.scan import FRAME_DTYPE

PAYLOAD = b"a payload of 23 bytes.."
SALT = 0x1234_5678


def frame(payload: bytes = PAYLOAD, *, kind: int = FrameKind.BLOCK, offset: int = 4096, salt: int = SALT) -> bytes:
    header = build_header(kind, payload, offset=offset, prev=48, synced=4096, salt=salt)
    return header + payload + bytes(-len(payload) % 8)


@given(st.sampled_from(FrameKind), st.binary(max_size=100), u32, u32, u32, u32, st.integers(0, 40))
def test_header_round_trip(
    kind: FrameKind, payload: bytes, offset: int, prev: int, synced: int, salt: int, at: int
) -> None:
    built = build_header(kind, payload, offset=offset, prev=prev, synced=synced, salt=salt)
    data = bytes(at) + built + payload + bytes(-len(payload) % 8)
    header = decode_header(data, at, offset=offset, salt=salt)
    assert header is not None
    assert (header.kind, header.length, header.prev, header.synced) == (kind, len(payload), prev, synced)
    assert (header.salt, header.flag, header.overmarked) == (salt ^ offset, 0, False)
    assert at + header.size == len(data)
    assert check_frame(data, at, header)


def test_crc_covers_all_but_the_flag() -> None:
    data = frame()
    assert int.from_bytes(data[20:24], "little") == crc(data[:3] + data[4:20] + PAYLOAD)


def test_dtype_reads_what_the_struct_wrote() -> None:
    row = np.frombuffer(frame(), FRAME_DTYPE, 1)[0]
    assert (row["magic"], row["kind"], row["flag"], row["length"]) == (MAGIC, FrameKind.BLOCK, 0, len(PAYLOAD))
    assert (row["prev"], row["synced"], row["salt"]) == (48, 4096, SALT ^ 4096)


def test_overmarked_frame_stays_a_frame() -> None:
    data = bytearray(frame())
    data[FLAG_AT] = OVERMARKED
    header = decode_header(data, 0, offset=4096, salt=SALT)
    assert header is not None
    assert header.overmarked
    assert check_frame(data, 0, header)


@pytest.mark.parametrize(
    ("at", "byte"),
    [(0, 0), (1, 0), (2, 0), (2, 6), (FLAG_AT, 1), (FLAG_AT, 0xA4), (16, 0), (19, 0xFF)],
)
def test_no_frame_where_a_fixed_field_is_wrong(at: int, byte: int) -> None:
    data = bytearray(frame())
    data[at] = byte
    assert decode_header(data, 0, offset=4096, salt=SALT) is None


@pytest.mark.parametrize(("offset", "salt"), [(4104, SALT), (4096, SALT ^ 1)])
def test_no_frame_at_another_offset_or_in_another_segment(offset: int, salt: int) -> None:
    assert decode_header(frame(), 0, offset=offset, salt=salt) is None


def test_any_flipped_bit_is_found() -> None:
    for data in flips(frame()):
        header = decode_header(data, 0, offset=4096, salt=SALT)
        assert header is None or not check_frame(data, 0, header)


def test_padding_that_is_not_zero_is_found() -> None:
    data = bytearray(frame())
    assert len(PAYLOAD) % 8
    data[-1] = 1
    header = decode_header(data, 0, offset=4096, salt=SALT)
    assert header is not None
    assert not check_frame(data, 0, header)


@pytest.mark.parametrize("at", [-1, 49, 1000])
def test_a_position_outside_the_buffer_is_none(at: int) -> None:
    assert decode_header(frame(), at, offset=4096, salt=SALT) is None
