"""Walks end where the frames end, checksums name the first bad one, and frames are found anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vlsn.builder import LogBuilder, Piece
from vlsn.format import scan
from vlsn.format.frame import FLAG_AT, FrameKind, build_header
from vlsn.format.scan import Stop
from vlsn.format.segment import FIRST_FRAME
from vlsnlog.testing.fakes.disk import FakeDisk


def log() -> LogBuilder:
    return LogBuilder(FakeDisk(), "d")


def walk_of(piece: Piece, *, end: int | None = None, start: int = FIRST_FRAME) -> scan.Walk:
    buf = bytes(piece.data)
    return scan.walk(buf, base=0, start=start, end=end or len(buf), salt=piece.header.salt)


def test_walk_finds_every_frame_and_ends_at_the_zeros() -> None:
    built = log().block(b"a").checkpoint().block(b"bb", b"ccc").block(b"", keys=[b"k"])
    found = walk_of(built.piece)
    assert found.offsets.tolist() == [each.offset for each in built.frames]
    assert found.headers["kind"].tolist() == [each.kind for each in built.frames]
    assert (found.end, found.reason) == (built.piece.end, Stop.ZEROS)
    assert scan.check_crcs(bytes(built.piece.data), 0, found) is None


def test_walk_says_why_it_ended() -> None:
    built = log().blocks(3)
    end, last = built.piece.end, built.frames[-1].offset
    assert walk_of(built.piece, end=end).reason is Stop.END
    assert (walk_of(built.piece, end=end - 8).reason, walk_of(built.piece, end=end - 8).end) == (Stop.SHORT, last)
    assert (walk_of(built.piece, end=last + 16).reason, walk_of(built.piece, end=last + 16).end) == (Stop.SHORT, last)
    assert walk_of(built.piece, end=FIRST_FRAME).reason is Stop.END
    assert walk_of(built.piece, start=end).reason is Stop.ZEROS


@pytest.mark.parametrize("at", [0, 2, FLAG_AT, 8, 16])
def test_walk_ends_at_a_header_that_is_none(at: int) -> None:
    built = log().blocks(5)
    built.flip(built.frames[3], at, 0x40)
    found = walk_of(built.piece)
    assert (len(found), found.end, found.reason) == (3, built.frames[3].offset, Stop.BAD)


@pytest.mark.parametrize("frames", [5, 300])
def test_crcs_name_the_first_bad_frame_at_every_byte_they_cover(frames: int) -> None:
    built = log().blocks(frames)
    victim = built.frames[3]
    for at in [*range(12, 16), *range(20, victim.size)]:  # synced, crc, payload, padding
        built.flip(victim, at)
        found = walk_of(built.piece)
        assert len(found) == frames
        assert scan.check_crcs(bytes(built.piece.data), 0, found) == 3, at
        built.flip(victim, at)


def test_an_overmark_changes_no_checksum() -> None:
    built = log().blocks(3)
    built.overmark(built.frames[1])
    assert scan.check_crcs(bytes(built.piece.data), 0, walk_of(built.piece)) is None


def test_a_frame_of_another_place_or_segment_is_none() -> None:
    built = log().blocks(2)
    piece, frame = built.piece, built.frames[0]
    copy = piece.data[frame.offset : frame.offset + frame.size]
    piece.data[piece.end : piece.end + frame.size] = copy  # a misdirected write: right bytes, wrong offset
    found = walk_of(piece)
    assert (found.end, found.reason) == (piece.end, Stop.BAD)
    assert scan.find_frame_after(bytes(piece.data), 0, piece.end, piece.header.salt) is None
    assert scan.find_frame_after(bytes(piece.data), 0, FIRST_FRAME, piece.header.salt ^ 1) is None


def test_a_walk_finds_nothing_in_another_segments_bytes() -> None:
    """A file system may leave such bytes behind: the same offsets, every checksum right."""
    piece = log().blocks(3).piece
    for salt in (piece.header.salt ^ 1, 0, 0xFFFF_FFFF):
        found = scan.walk(bytes(piece.data), base=0, start=FIRST_FRAME, end=len(piece.data), salt=salt)
        assert (len(found), found.reason) == (0, Stop.BAD)


def test_a_frame_is_found_behind_zeros_and_garbage() -> None:
    built = log().blocks(6)
    buf = bytearray(built.piece.data)
    buf[built.frames[1].offset : built.frames[3].offset] = b"\x4c\x56" * (
        (built.frames[3].offset - built.frames[1].offset) // 2
    )
    at = scan.find_frame_after(bytes(buf), 0, built.frames[1].offset, built.piece.header.salt)
    assert at == built.frames[3].offset
    salt = built.piece.header.salt
    runs = [(int(run.offsets[0]), len(run)) for run in scan.islands(bytes(buf), 0, FIRST_FRAME, salt)]
    assert runs == [(built.frames[0].offset, 1), (built.frames[3].offset, 3)]


def test_the_salt_is_told_by_the_frames_when_the_header_is_lost() -> None:
    built = log().blocks(2)
    assert scan.salt_of(bytes(built.piece.data), 0, FIRST_FRAME) == built.piece.header.salt
    assert scan.salt_of(bytes(built.segment_bytes), 0, FIRST_FRAME) is None


def test_a_walk_by_offsets_ends_where_lengths_and_offsets_part() -> None:
    built = log().blocks(5)
    piece = built.piece
    offsets = np.array([each.offset for each in built.frames], dtype=np.int64)
    buf, salt = bytes(piece.data), piece.header.salt
    whole = scan.at_offsets(buf, base=0, offsets=offsets, end=piece.end, salt=salt)
    assert (len(whole), whole.end, whole.reason) == (5, piece.end, Stop.END)
    built.flip(built.frames[2], 5)  # a length that is 256 bytes off
    cut = scan.at_offsets(bytes(piece.data), base=0, offsets=offsets, end=piece.end, salt=salt)
    assert (len(cut), cut.end, cut.reason) == (2, built.frames[2].offset, Stop.BAD)
    skipping = scan.at_offsets(buf, base=0, offsets=offsets[[0, 1, 3, 4]], end=piece.end, salt=salt)
    assert (len(skipping), skipping.reason) == (1, Stop.BAD)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=60), st.data())
def test_a_walk_in_two_windows_is_the_walk_in_one(sizes: list[int], data: st.DataObject) -> None:
    built = log()
    for size in sizes:
        built.frame(FrameKind.BLOCK, bytes([size & 0xFF]) * (64 + size))
    piece = built.pieces[0]
    whole = walk_of(piece, end=piece.end)
    split = data.draw(st.integers(FIRST_FRAME // 8, piece.end // 8)) * 8
    one = walk_of(piece, end=split)
    base = data.draw(st.integers(0, one.end // 8)) * 8
    two = scan.walk(bytes(piece.data[base:]), base=base, start=one.end, end=piece.end, salt=piece.header.salt)
    assert one.offsets.tolist() + two.offsets.tolist() == whole.offsets.tolist()
    assert two.reason is Stop.END


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 300), st.booleans()), min_size=60, max_size=120),
    st.lists(st.tuples(st.integers(0, 119), st.integers(0, 90), st.integers(1, 255)), max_size=3),
    st.data(),
)
def test_small_frames_found_by_their_marks_are_those_found_by_their_lengths(
    drawn: list[tuple[int, bool]], broken: list[tuple[int, int, int]], data: st.DataObject
) -> None:
    """The rule holds whatever is damaged, and with frames of other places inside of payloads."""
    built = log()
    for size, nested in drawn:
        inner = built.piece.data[built.frames[0].offset :][:88] if nested and built.frames else b""
        built.frame(FrameKind.BLOCK, bytes(64) + bytes(inner) + b"x" * size)
    if data.draw(st.booleans()):  # right where it lies: magic and salt are those of a frame
        victim = data.draw(st.sampled_from([each for each in built.frames if each.size > 144]))
        at = victim.offset + 24 + 64
        built.piece.data[at : at + 24] = build_header(
            1, bytes(64), offset=at, prev=88, synced=0, salt=built.piece.header.salt
        )
    for number, at, mask in broken:
        built.flip(built.frames[number % len(built.frames)], at, mask)
    end = built.piece.end - data.draw(st.sampled_from([0, 0, 8, 40, -24, -200]))
    buf, salt = bytes(built.piece.data), built.piece.header.salt
    found = scan.walk(buf, base=0, start=FIRST_FRAME, end=end, salt=salt)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scan, "_by_marks", lambda *_: None)
        slow = scan.walk(buf, base=0, start=FIRST_FRAME, end=end, salt=salt)
    assert (found.end, found.reason, found.offsets.tolist()) == (slow.end, slow.reason, slow.offsets.tolist())
    assert found.headers.tobytes() == slow.headers.tobytes()
