"""The feed's messages: round trips, and everything that must be refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlsn.errors import BadBody
from vlsn.seal import Values, seal
from vlsn.stream import (
    ACK,
    Ack,
    Matchpoint,
    Position,
    Start,
    Syncup,
    TermRun,
    ack_message,
    blocks_message,
    check_syncup,
    decode_ack,
    decode_json,
    decode_position,
    encode,
    heartbeat_message,
    message_type,
    split_blocks,
)

POSITION = Position(last_vlsn=99, dtvlsn=80, clock_us=5, term=3)


def blocks_from(first: int, counts: list[int], *, term: int = 3) -> list[bytes]:
    blocks = []
    for count in counts:
        values = Values([b"v" * (number % 7) for number in range(count)])
        blocks.append(seal([values], term=term, first_vlsn=first, dtvlsn=0, clock_us=1)[0].data)
        first += count
    return blocks


@given(st.integers(1, 50), st.lists(st.integers(1, 9), min_size=1, max_size=40))
def test_blocks_come_out_as_they_went_in(first: int, counts: list[int]) -> None:
    blocks = blocks_from(first, counts)
    message = blocks_message(POSITION, blocks)
    run = split_blocks(message, expected_first=first, term_max=3)
    assert [bytes(block) for block in run.blocks] == blocks
    assert (run.first_vlsn, run.last_vlsn) == (first, first + sum(counts) - 1)
    assert run.terms == [3] * len(counts)
    assert run.kinds == [0] * len(counts)
    assert run.bytes == sum(map(len, blocks))
    assert decode_position(message) == POSITION


@pytest.mark.parametrize("count", [2, 30])
def test_each_flipped_bit_of_a_blocks_message_is_found(count: int) -> None:
    message = bytearray(blocks_message(POSITION, blocks_from(1, [1] * count)))
    for at in range(40, len(message), 3 if count == 2 else 41):
        message[at] ^= 1 << at % 8
        with pytest.raises(BadBody):
            split_blocks(bytes(message), expected_first=1, term_max=3)
        message[at] ^= 1 << at % 8
    split_blocks(bytes(message), expected_first=1, term_max=3)


@pytest.mark.parametrize("count", [2, 30])
def test_blocks_that_do_not_follow_or_bear_a_wrong_term_are_refused(count: int) -> None:
    good = blocks_from(1, [1] * count)
    split_blocks(blocks_message(POSITION, good), expected_first=1, term_max=3)
    for message, first, term in (
        (blocks_message(POSITION, good), 2, 3),
        (blocks_message(POSITION, good), 1, 2),
        (blocks_message(POSITION, good[1:] + good[:1]), 2, 3),
        (blocks_message(POSITION, [*good[:-1], *blocks_from(count, [1], term=2)]), 1, 3),
        (blocks_message(POSITION, good)[:-8], 1, 3),
        (blocks_message(POSITION, good) + bytes(8), 1, 3),
    ):
        with pytest.raises(BadBody):
            split_blocks(message, expected_first=first, term_max=term)


@given(st.binary(max_size=200))
def test_no_bytes_crash_a_decoder(data: bytes) -> None:
    for read in (
        message_type,
        decode_ack,
        decode_position,
        lambda message: split_blocks(b"\5\0\0\0" + message.ljust(60, b"\1"), expected_first=1, term_max=9),
        lambda message: decode_json(b"\1" + message, Syncup),
        lambda message: decode_json(b"\2" + message, Matchpoint),
    ):
        try:
            read(data)
        except BadBody:
            pass


def test_acks_and_heartbeats_round_trip() -> None:
    ack = Ack(term=4, written=10, synced=9)
    assert decode_ack(ack_message(ack)) == ack
    assert decode_position(heartbeat_message(POSITION)) == POSITION
    assert decode_json(encode(Start(7)), Start) == Start(7)
    with pytest.raises(BadBody):
        decode_ack(ACK.pack(7, 0, 0, 0, 4, 9, 10))  # synced past written
    with pytest.raises(BadBody):
        decode_ack(ack_message(ack) + b"\0")


@pytest.mark.parametrize(
    "syncup",
    [
        Syncup(5, 4, 4, 1, []),
        Syncup(1, 9, 10, 1, [TermRun(1, 1, 9)]),
        Syncup(1, 9, 9, 1, [TermRun(1, 1, 8)]),
        Syncup(1, 9, 9, 1, [TermRun(1, 2, 9)]),
        Syncup(1, 9, 9, 2, [TermRun(2, 1, 4), TermRun(1, 5, 9)]),
        Syncup(1, 9, 9, 1, [TermRun(2, 1, 9)]),
        Syncup(-1, 9, 9, 1, [TermRun(1, -1, 9)]),
    ],
)
def test_a_syncup_that_can_be_no_log_is_refused(syncup: Syncup) -> None:
    with pytest.raises(BadBody):
        check_syncup(syncup)
