"""Blocks out of a peer's segment, in pieces of any size, against the builder's own list; no flipped bit passes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.unpack import unpack
from tests.vlsn.builder import LogBuilder
from vlsn.errors import BadBody
from vlsn.format.segment import FIRST_FRAME
from vlsnlog.testing.fakes.disk import FakeDisk

Steps = st.lists(
    st.one_of(
        st.tuples(st.just("block"), st.integers(1, 4), st.integers(0, 1500)),
        st.tuples(st.just("checkpoint"), st.just(0), st.just(0)),
        st.tuples(st.just("rollback"), st.integers(1, 5), st.just(0)),
    ),
    min_size=1,
    max_size=25,
)


def built(steps: list[tuple[str, int, int]]) -> LogBuilder:
    log = LogBuilder(FakeDisk(), "d", segment_bytes=1 << 20)
    for what, number, size in steps:
        if what == "block":
            log.block(*[b"%d" % each + b"." * size for each in range(number)])
        elif what == "checkpoint":
            log.checkpoint()
        else:
            ends = [each.last for each in log.visible()][:-1]
            if ends:
                log.rollback(ends[-min(number, len(ends))])
    return log


def taken(log: LogBuilder, data: bytes, *, expected: int, upto: int, piece: int) -> list[tuple[int, bytes]]:
    """Returns first VLSN and bytes of the unpacked blocks, asked for as a transfer asks."""
    at, wanted, found, term = FIRST_FRAME, piece, [], 0
    end = log.piece.end
    while at < end:
        window = data[at : min(end, at + wanted)]
        out = unpack(window, base=at, salt=log.piece.header.salt, expected=expected, upto=upto, term_min=term)
        if out.bytes_wanted:
            if at + len(window) == end:
                raise BadBody("a frame that does not end in its segment")
            assert out.bytes_wanted > wanted
            wanted = out.bytes_wanted
            continue
        assert out.at > at
        at, wanted = out.at, piece
        if out.run is not None:
            found += list(zip(out.run.firsts, map(bytes, out.run.blocks), strict=True))
            expected, term = out.run.last_vlsn + 1, out.run.terms[-1]
        if out.past and expected > upto:
            break
    return found


@given(Steps, st.integers(24, 5000), st.integers(0, 30), st.integers(0, 30))
def test_pieces_of_any_size_give_the_visible_blocks_and_nothing_else(
    steps: list[tuple[str, int, int]], piece: int, low: int, high: int
) -> None:
    log = built(steps)
    visible = log.visible()
    if not visible:
        return
    start = visible[min(low, len(visible) - 1)].first
    upto = visible[min(high, len(visible) - 1)].last
    wanted = [(each.first, each.payload) for each in visible if each.first >= start and each.last <= upto]
    assert taken(log, bytes(log.piece.data), expected=start, upto=upto, piece=piece) == wanted


@given(Steps, st.integers(0, 1 << 20), st.integers(0, 7), st.integers(200, 5000))
def test_a_flipped_bit_is_refused_or_changes_nothing(
    steps: list[tuple[str, int, int]], where: int, bit: int, piece: int
) -> None:
    log = built(steps)
    visible = log.visible()
    if not visible:
        return
    data = bytearray(log.piece.data)
    data[FIRST_FRAME + where % (log.piece.end - FIRST_FRAME)] ^= 1 << bit
    last = visible[-1].last
    wanted = [(each.first, each.payload) for each in visible]
    try:
        found = taken(log, bytes(data), expected=1, upto=last, piece=piece)
    except BadBody:
        return
    assert found == wanted


def test_what_does_not_begin_where_a_block_does_is_refused() -> None:
    log = built([("block", 4, 10), ("block", 4, 10)])
    data = bytes(log.piece.data)
    with pytest.raises(BadBody, match="not 3"):
        taken(log, data, expected=3, upto=8, piece=4096)
    frames = data[FIRST_FRAME : log.piece.end]
    salt = log.piece.header.salt
    with pytest.raises(BadBody, match="of terms 1 to 1"):
        unpack(frames, base=FIRST_FRAME, salt=salt, expected=1, upto=8, term_min=2)
    with pytest.raises(BadBody, match="no frame"):
        unpack(frames, base=FIRST_FRAME, salt=salt ^ 1, expected=1, upto=8, term_min=0)
