"""A sidecar: its own bytes, and the checksum of the segment that it states."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.strategies import flips, u32
from vlsn.errors import BadBody
from vlsn.format.checksum import crc
from vlsn.format.frame import FLAG_AT, OVERMARKED, FrameKind, build_header
from vlsn.format.segment import FIRST_FRAME
from vlsn.format.sidecar import Sidecar, content_crc


@st.composite
def sidecars(draw: st.DrawFn) -> Sidecar:
    sizes = draw(st.lists(st.integers(3, 50).map(lambda words: words * 8), max_size=20))
    ends = np.cumsum([FIRST_FRAME, *sizes]).tolist()
    entries = draw(st.integers(0, 2**40)) if sizes else 0
    first = draw(st.integers(1, 2**40)) if entries else 0
    return Sidecar(
        number=draw(st.integers(1, 99_999_999)),
        salt=draw(u32),
        first_vlsn=first,
        last_vlsn=first + entries - 1 if entries else 0,
        end=ends[-1],
        entries=entries,
        crc=draw(u32),
        offsets=np.array(ends[:-1], np.uint32),
    )


def fields(sidecar: Sidecar) -> tuple[object, ...]:
    return (
        sidecar.number,
        sidecar.salt,
        sidecar.first_vlsn,
        sidecar.last_vlsn,
        sidecar.end,
        sidecar.entries,
        sidecar.crc,
        sidecar.offsets.tolist(),
    )


@given(sidecars())
def test_sidecar_round_trip(sidecar: Sidecar) -> None:
    assert fields(Sidecar.decode(sidecar.encode())) == fields(sidecar)


GOOD = Sidecar(1, 2, 7, 9, 4296, 3, 5, np.array([4096, 4208], np.uint32)).encode()


def test_any_flipped_bit_is_found() -> None:
    for data in flips(GOOD):
        with pytest.raises(BadBody):
            Sidecar.decode(data)


def resealed(at: int, data: bytes) -> bytes:
    body = GOOD[:at] + data + GOOD[at + len(data) : -4]
    return body + crc(body).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, b"VLSNIDX2"),
        (12, bytes(4)),  # number
        (20, b"\1\x11\0\0"),  # end
        (20, b"\0\x10\0\0"),
        (20, b"\xf8\xff\xff\xff"),
        (24, b"\1\0\0\0"),  # frames
        (24, b"\xff\xff\xff\xff"),
        (32, bytes(8)),  # first
        (32, b"\x0a"),
        (40, bytes(8)),  # last
        (48, b"\4"),  # entries
        (32, b"\1" + bytes(23)),  # from 1 to 0, none
        (32, bytes(8) + b"\5" + bytes(15)),
        (56, b"\4\x10\0\0"),  # offsets
        (56, b"\x08\x10\0\0"),
        (60, b"\0\x10\0\0"),
        (60, b"\x10\x10\0\0"),
        (60, b"\xb8\x10\0\0"),
        (60, b"\xf8\xff\xff\xff"),
    ],
)
def test_a_field_out_of_its_rules_is_refused(at: int, data: bytes) -> None:
    Sidecar.decode(resealed(0, b"VLSNIDX1"))
    with pytest.raises(BadBody):
        Sidecar.decode(resealed(at, data))


def test_entries_without_a_frame_are_refused() -> None:
    nothing = Sidecar(1, 2, 0, 0, FIRST_FRAME, 0, 5, np.array([], np.uint32)).encode()
    assert len(Sidecar.decode(nothing).offsets) == 0
    body = nothing[:32] + struct.pack("<QQQ", 7, 9, 3)
    with pytest.raises(BadBody, match="of 0 frames"):
        Sidecar.decode(body + crc(body).to_bytes(4, "little"))


def test_content_crc_takes_every_flag_as_zero() -> None:
    segment, offsets = bytearray(FIRST_FRAME), []
    for payload in (b"one", b"the second", b""):
        offsets.append(len(segment))
        segment += build_header(FrameKind.BLOCK, payload, offset=len(segment), prev=0, synced=FIRST_FRAME, salt=1)
        segment += payload + bytes(-len(payload) % 8)
    where = np.array(offsets, np.uint32)
    written = crc(bytes(segment))
    assert content_crc(segment, where) == written
    segment[offsets[1] + FLAG_AT] = OVERMARKED
    segment[offsets[2] + FLAG_AT] = OVERMARKED
    before = bytes(segment)
    assert content_crc(memoryview(segment), where) == written
    assert segment == before, "nothing is changed where it lies"
    segment[offsets[1] + FLAG_AT + 1] ^= 1
    assert content_crc(segment, where) != written


def test_content_crc_of_a_segment_without_frames() -> None:
    page = bytes(FIRST_FRAME)
    assert content_crc(page, np.array([], np.uint32)) == crc(page)
