"""A segment's name and header page."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.strategies import flips, names, u32, u64
from vlsn.errors import BadBody
from vlsn.format.checksum import crc
from vlsn.format.segment import (
    FIRST_FRAME,
    HEADER_PAGE,
    NUMBER_MAX,
    SegmentHeader,
    SegmentState,
    parse_segment_name,
    segment_name,
    sidecar_name,
)
from vlsn.limits import SEGMENT_BYTES_MAX

PLAIN = SegmentHeader(
    group="g", node="n1", incarnation=1, number=2, salt=3, state=SegmentState.ACTIVE, size=1 << 16, created_us=4
)
offsets = st.integers(FIRST_FRAME // 8, SEGMENT_BYTES_MAX // 8).map(lambda words: words * 8)


@st.composite
def headers(draw: st.DrawFn) -> SegmentHeader:
    number = draw(st.integers(1, NUMBER_MAX))
    prev_number = draw(st.integers(0, number - 1))
    return SegmentHeader(
        group=draw(names),
        node=draw(names),
        incarnation=draw(u64),
        number=number,
        salt=draw(u32),
        state=draw(st.sampled_from(SegmentState)),
        size=draw(offsets),
        created_us=draw(u64),
        prev_number=prev_number,
        prev_end=draw(offsets) if prev_number else 0,
        prev_last_vlsn=draw(u64),
    )


@given(headers())
def test_header_round_trip(header: SegmentHeader) -> None:
    page = header.encode()
    assert len(page) == HEADER_PAGE
    assert SegmentHeader.decode(page) == header
    assert SegmentHeader.decode(memoryview(page + b"frames")) == header


def test_any_flipped_bit_is_found() -> None:
    for page in flips(PLAIN.encode()):
        with pytest.raises(BadBody):
            SegmentHeader.decode(page)


def resealed(page: bytes, at: int, data: bytes) -> bytes:
    body = page[:at] + data + page[at + len(data) : -4]
    return body + crc(body).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("at", "data"),
    [
        (0, b"VLSNLOG2"),
        (10, b"\0\0"),  # state
        (10, b"\3\0"),
        (16, bytes(4)),  # number
        (16, (NUMBER_MAX + 1).to_bytes(4, "little")),
        (20, b"\1\0\1\0"),  # size
        (20, bytes(4)),
        (20, b"\xf8\xff\xff\xff"),
        (40, b"\2\0\0\0\0\x10\0\0"),  # prev_number, not below its own
        (40, b"\1\0\0\0"),  # a previous segment that ends nowhere
        (44, b"\0\x10\0\0"),  # an end without a previous segment
        (40, b"\1\0\0\0\1\x10\0\0"),  # an end between frames
        (56, bytes(32)),  # group
        (56, b"g\0g"),
        (56, b"g g"),
        (56, b"\xff"),
        (88, b"/"),  # node
        (120, b"\1"),
        (4091, b"\1"),
    ],
)
def test_a_field_out_of_its_rules_is_refused(at: int, data: bytes) -> None:
    page = PLAIN.encode()
    assert SegmentHeader.decode(resealed(page, 0, b"VLSNLOG1")) == PLAIN
    with pytest.raises(BadBody):
        SegmentHeader.decode(resealed(page, at, data))


def test_a_header_that_could_not_be_read_is_not_written() -> None:
    with pytest.raises(AssertionError):
        replace(PLAIN, group="no name").encode()


@given(st.integers(1, NUMBER_MAX))
def test_name_round_trip(number: int) -> None:
    name = segment_name(number)
    assert parse_segment_name(name) == number
    assert sidecar_name(number) == name.replace(".vlog", ".vidx")


@given(st.lists(st.integers(1, NUMBER_MAX), max_size=8))
def test_names_sort_as_their_numbers_do(numbers: list[int]) -> None:
    assert sorted(map(segment_name, numbers)) == list(map(segment_name, sorted(numbers)))


@pytest.mark.parametrize(
    "name",
    [
        "00000000.vlog",
        "00000001.vidx",
        "1.vlog",
        "000000001.vlog",
        "00000001.vlog\n",
        "a00000001.vlog",
        "00000001.cut-4096",
        "٠٠٠٠٠٠٠١.vlog",
        "",
    ],
)
def test_other_names_are_no_segment(name: str) -> None:
    assert parse_segment_name(name) is None
