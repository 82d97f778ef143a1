"""The feed's messages: round trips, and everything that must be refused."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.strategies import submissions, transactions, with_block_header
from vlsn.errors import BadBody
from vlsn.format.block import EntryKind, decode, entries, producers
from vlsn.format.feed_messages import (
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
    decode_round,
    encode,
    heartbeat_message,
    round_message,
    split_blocks,
)
from vlsn.format.records import CommitEntry, GroupEntry, Member, TermEntry
from vlsn.format.seal import seal, seal_local
from vlsn.format.submission import Submission, Transaction, Values

TERM = TermEntry(term=3, master="n1", incarnation="0" * 16)
GROUP = GroupEntry(group="g", members=[Member("n1", "http://n1:1", "0" * 16)])
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
    run = split_blocks(message, expected_first=first, term_min=1, term_max=3)
    assert [bytes(block) for block in run.blocks] == blocks
    assert (run.first_vlsn, run.last_vlsn) == (first, first + sum(counts) - 1)
    assert run.terms == [3] * len(counts)
    assert run.kinds == [0] * len(counts)
    assert run.bytes == sum(map(len, blocks))
    assert decode_position(message) == POSITION


COMMITS = st.sampled_from([b"", CommitEntry.putting({"a": 1}).encode()])
saying = st.builds(
    lambda one, commit: Transaction(one.parts, commit, (one.producer, one.sequence)), transactions(), COMMITS
)


@given(st.lists(submissions() | saying, min_size=1, max_size=40), st.integers(1, 9))
def test_a_run_has_read_what_its_blocks_say(given: list[Submission], clock_us: int) -> None:
    """Producers' submissions, the log's own entries, the last COMMIT: as each block says by itself."""
    sealed = [
        each
        for number in range(0, len(given), 2)
        for each in seal(
            given[number : number + 2],
            term=3,
            first_vlsn=1 + sum(one.count for one in given[:number]),
            dtvlsn=0,
            clock_us=clock_us + number,
        )
    ]
    blocks = [each.data for each in sealed]
    headers = [decode(block) for block in blocks]
    run = split_blocks(blocks_message(POSITION, blocks), expected_first=1, term_min=1, term_max=3)
    assert run.clocks == [header.clock_us for header in headers]
    said = [producers(block, header) for block, header in zip(blocks, headers, strict=True)]
    assert run.produced == {number: rows for number, rows in enumerate(said) if rows}
    assert list(run.own) == [number for number, header in enumerate(headers) if header.kind != EntryKind.DATA]
    for number, own in run.own.items():
        rows = [each for each in entries(blocks[number], headers[number]) if each.kind != EntryKind.DATA]
        assert own.entries == [each for each in rows if each.value]
        assert own.txn_end == sealed[number].txn_end == rows[-1].vlsn
        assert sealed[number].says == bool(own.entries)


@pytest.mark.parametrize("others", [0, 30])
def test_producers_are_readable_before_their_block_gets_a_place(others: int) -> None:
    [sealed] = seal([Values([b"v"], None, (7, 1))], term=3, first_vlsn=1, dtvlsn=0, clock_us=1)
    broken = bytearray(sealed.data)
    broken[64:72] = bytes(8)
    for block, good in ((sealed.data, True), (with_block_header(bytes(broken)), False)):
        message = blocks_message(POSITION, [block, *blocks_from(2, [1] * others)])
        if good:
            assert split_blocks(message, expected_first=1, term_min=1, term_max=3).produced == {0: [(7, 1, 1, 1, 3)]}
        else:
            with pytest.raises(BadBody, match="producer"):
                split_blocks(message, expected_first=1, term_min=1, term_max=3)


@pytest.mark.parametrize("count", [2, 30])
def test_each_flipped_bit_of_a_blocks_message_is_found(count: int) -> None:
    message = bytearray(blocks_message(POSITION, blocks_from(1, [1] * count)))
    for at in range(40, len(message), 3 if count == 2 else 41):
        message[at] ^= 1 << at % 8
        with pytest.raises(BadBody):
            split_blocks(bytes(message), expected_first=1, term_min=1, term_max=3)
        message[at] ^= 1 << at % 8
    split_blocks(bytes(message), expected_first=1, term_min=1, term_max=3)


@pytest.mark.parametrize("count", [2, 30])
def test_blocks_that_do_not_follow_or_bear_a_wrong_term_are_refused(count: int) -> None:
    good = blocks_from(1, [1] * count)
    split_blocks(blocks_message(POSITION, good), expected_first=1, term_min=1, term_max=3)
    for message, first, term in (
        (blocks_message(POSITION, good), 2, 3),
        (blocks_message(POSITION, good), 1, 2),
        (blocks_message(POSITION, good[1:] + good[:1]), 2, 3),
        (blocks_message(POSITION, [*good[:-1], *blocks_from(count, [1], term=2)]), 1, 3),
        (blocks_message(POSITION, good)[:-8], 1, 3),
        (blocks_message(POSITION, good) + bytes(8), 1, 3),
    ):
        with pytest.raises(BadBody):
            split_blocks(message, expected_first=first, term_min=1, term_max=term)
    with pytest.raises(BadBody):  # a log of term 4 takes none of term 3 any more
        split_blocks(blocks_message(POSITION, good), expected_first=1, term_min=4, term_max=4)


@pytest.mark.parametrize("others", [0, 30])
@pytest.mark.parametrize("kind", [EntryKind.TERM, EntryKind.GROUP])
def test_entries_of_the_logs_own_are_readable_before_their_block_gets_a_place(kind: EntryKind, others: int) -> None:
    right = {EntryKind.TERM: TERM.encode(), EntryKind.GROUP: GROUP.encode()}[kind]
    for value, good in ((right, True), (b"{}", False), (b'{"x":' + b"[" * 100_000, False), (right[:-1], False)):
        own = seal_local([kind], [value], term=3, first_vlsn=1, dtvlsn=0, clock_us=1).data
        message = blocks_message(POSITION, [own, *blocks_from(2, [1] * others)])
        if good:
            assert split_blocks(message, expected_first=1, term_min=1, term_max=3).lasts[-1] == 1 + others
        else:
            with pytest.raises(BadBody):
                split_blocks(message, expected_first=1, term_min=1, term_max=3)


def test_acks_and_heartbeats_round_trip() -> None:
    ack = Ack(term=4, received=10, synced=9)
    assert decode_ack(ack_message(ack)) == ack
    assert decode_position(heartbeat_message(POSITION)) == POSITION
    assert decode_json(encode(Start(7)), Start) == Start(7)
    assert decode_round(round_message(4, 9)) == (4, 9)
    with pytest.raises(BadBody):
        decode_ack(ACK.pack(7, 0, 0, 0, 4, 9, 10))  # synced past written
    with pytest.raises(BadBody):
        decode_ack(ack_message(ack) + b"\0")
    for wrong in (round_message(0, 9), round_message(4, 0), round_message(4, 9) + b"\0", ack_message(ack)):
        with pytest.raises(BadBody):
            decode_round(wrong)


def test_a_heartbeat_is_its_header_and_nothing_else() -> None:
    right = heartbeat_message(POSITION)
    for message in (
        right + bytes(8),
        right[:4] + b"\1\0\0\0" + right[8:],
        blocks_message(POSITION, blocks_from(1, [1])).replace(b"\5", b"\6", 1),
        b"\7" + right[1:],
    ):
        with pytest.raises(BadBody):
            decode_position(message)


@pytest.mark.parametrize("at", [8, 24, 32])
def test_no_number_of_a_position_is_past_63_bits(at: int) -> None:
    right = heartbeat_message(POSITION)
    for top, good in ((0x7F, True), (0x80, False), (0xFF, False)):
        message = right[: at + 7] + bytes([top]) + right[at + 8 :]
        if good:
            decode_position(message)
        else:
            with pytest.raises(BadBody):
                decode_position(message)


@pytest.mark.parametrize("number", [-1, 1 << 63, 1 << 64, 1 << 70])
def test_no_number_of_a_json_message_is_negative_or_past_63_bits(number: int) -> None:
    for message in (
        Matchpoint(9, 3, term=3, block_first=9),
        Syncup(1, 9, 9, 3, [TermRun(3, 1, 9)]),
        Start(7),
    ):
        assert decode_json(encode(message), type(message)) == message
        for field in message.__struct_fields__:
            wrong = [TermRun(3, 1, number)] if field == "term_runs" else number
            with pytest.raises(BadBody):
                decode_json(encode(msgspec.structs.replace(message, **{field: wrong})), type(message))


def test_a_stored_term_leaves_room_for_the_next() -> None:
    last = (1 << 63) - 2
    assert decode_json(encode(Matchpoint(0, last)), Matchpoint).feed_term == last
    with pytest.raises(BadBody):
        decode_json(encode(Matchpoint(0, last + 1)), Matchpoint)
    with pytest.raises(BadBody):
        decode_json(encode(Syncup(0, 0, 0, last + 1, [])), Syncup)


def test_a_deep_nest_is_no_message() -> None:
    with pytest.raises(BadBody):
        decode_json(b'\2{"x":' + b"[" * 100_000, Matchpoint)


@pytest.mark.parametrize(
    "syncup",
    [
        Syncup(5, 4, 4, 1, []),
        Syncup(1, 9, 10, 1, [TermRun(1, 1, 9)]),
        Syncup(1, 9, 9, 1, [TermRun(1, 1, 8)]),
        Syncup(1, 9, 9, 1, [TermRun(1, 2, 9)]),
        Syncup(1, 9, 9, 2, [TermRun(2, 1, 4), TermRun(1, 5, 9)]),
        Syncup(1, 9, 9, 1, [TermRun(2, 1, 9)]),
        Syncup(0, 9, 9, 1, [TermRun(1, 0, 9)]),
        Syncup(0, 0, 0, 1, [TermRun(1, 0, 0)]),
    ],
)
def test_a_syncup_that_can_be_no_log_is_refused(syncup: Syncup) -> None:
    with pytest.raises(BadBody):
        check_syncup(syncup)
