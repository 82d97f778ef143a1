"""Every decoder against bytes that nobody meant.

Random bytes, right bytes that were changed, cut or spliced, and the same with every checksum made right again, so
that what stands behind the checksums is met too.  A decoder answers with its value or with its typed error, and
allocates in proportion to what it was given, whatever lengths that announces.  What it takes has one encoding: written
again it is the same bytes.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repl import produce_messages
from repl.api import Acks
from repl.group import founding
from tests.golden.hex import golden
from tests.vlsn.strategies import blocks, entry_lists, rebuilt, with_batch_header, with_block_header
from vlsn.errors import BadBody, TooLarge, WrongVersion
from vlsn.format import batch, block, feed_messages, frame
from vlsn.format.checksum import crc
from vlsn.format.producer_columns import HANDLE_SEQUENCE, SEQUENCE_MAX
from vlsn.format.records import CheckpointEnd, CheckpointStart, GroupEntry, RollbackEnd, RollbackStart, TermEntry
from vlsn.format.seal import seal
from vlsn.format.segment import HEADER_PAGE, SegmentHeader
from vlsn.format.sidecar import Sidecar
from vlsn.format.submission import Values
from vlsn.ids import NUMBER_MAX
from vlsn.state.node_file import NodeRecord

SALT, OFFSET = 0xDEADBEEF, 4096
FIXED_COST_BYTES = 64 << 10
"""A decoder's own objects, messages and caches, whatever it is given."""


@dataclass(frozen=True)
class Format:
    valid: st.SearchStrategy[bytes]
    again: Callable[[bytes], bytes | None]
    """Decodes, and gives what was decoded as bytes again; None where there is no one encoding."""
    reseal: Callable[[bytes], bytes] = lambda data: data
    errors: tuple[type[Exception], ...] = (BadBody, WrongVersion)


def again(kind: Any) -> Callable[[bytes], bytes]:
    def decoded(data: bytes) -> bytes:
        encoded: bytes = kind.decode(data).encode()
        return encoded

    return decoded


def segment_again(data: bytes) -> bytes:
    """The header page is what it reads; a segment goes on behind it."""
    return SegmentHeader.decode(data).encode() + data[HEADER_PAGE:]


def json_again(kind: Any) -> Callable[[bytes], None]:
    def decoded(data: bytes) -> None:
        value = kind.decode(data)
        assert kind.decode(value.encode()) == value

    return decoded


def batch_again(data: bytes) -> bytes:
    entries = batch.decode_entries(batch.decode(data))
    return batch.encode([value for _, value in entries], [key for key, _ in entries])


def frame_again(data: bytes) -> bytes | None:
    header = frame.decode_header(data, 0, offset=OFFSET, salt=SALT)
    if header is None or not frame.check_frame(data, 0, header):
        raise BadBody("no frame")
    payload = data[frame.FRAME_BYTES : frame.FRAME_BYTES + header.length]
    built = bytearray(
        frame.build_header(header.kind, payload, offset=OFFSET, prev=header.prev, synced=header.synced, salt=SALT)
    )
    built[frame.FLAG_AT] = header.flag
    return bytes(built) + payload + bytes(-len(payload) % 8) + data[header.size :]


def reseal_end(data: bytes) -> bytes:
    return data[:-4] + crc(data[:-4]).to_bytes(4, "little")


def reseal_frame(data: bytes) -> bytes:
    length = int.from_bytes(data[4:8], "little")
    total = crc(data[:3] + data[4:20] + data[24 : 24 + length])
    return data[:20] + total.to_bytes(4, "little") + data[24:]


def framed(payload: bytes) -> bytes:
    header = frame.build_header(1, payload, offset=OFFSET, prev=0, synced=OFFSET, salt=SALT)
    return header + payload + bytes(-len(payload) % 8)


def sidecar_of(frames: int) -> bytes:
    offsets = OFFSET + 32 * np.arange(frames, dtype=np.uint32)
    return Sidecar(1, 2, 5, 4 + frames, OFFSET + 32 * frames, frames, 3, offsets).encode()


def blocks_of(counts: list[int]) -> bytes:
    found, first = [], 5
    for count in counts:
        values = Values([b"v" * (number % 7) for number in range(count)])
        found.append(seal([values], term=3, first_vlsn=first, dtvlsn=0, clock_us=1)[0].data)
        first += count
    return feed_messages.blocks_message(POSITION, found)


def blocks_again(data: bytes) -> bytes:
    if feed_messages.message_type(data) is not feed_messages.MessageType.BLOCKS:
        raise BadBody("no BLOCKS")
    position = feed_messages.decode_position(data)
    run = feed_messages.split_blocks(data, expected_first=5, term_min=1, term_max=3)
    return feed_messages.blocks_message(position, run.blocks)


def reseal_blocks(data: bytes) -> bytes:
    """Returns the first block's checksums made right again."""
    size = int.from_bytes(data[92:96], "little")
    body, head = data[104 : 104 + size], data[40:96]
    head += crc(body).to_bytes(4, "little")
    return data[:40] + head + crc(head).to_bytes(4, "little") + data[104:]


def heartbeat_again(data: bytes) -> bytes:
    if feed_messages.message_type(data) is not feed_messages.MessageType.HEARTBEAT:
        raise BadBody("no HEARTBEAT")
    return feed_messages.heartbeat_message(feed_messages.decode_position(data))


def json_message(message: Any) -> Format:
    def decoded(data: bytes) -> None:
        value = feed_messages.decode_json(data, type(message))
        if isinstance(value, feed_messages.Syncup):
            feed_messages.check_syncup(value)
        assert feed_messages.decode_json(feed_messages.encode(value), type(message)) == value

    return Format(st.just(feed_messages.encode(message)), decoded)


def answer_again(data: bytes) -> None:
    answer = founding.read_answer(data)
    assert founding.read_answer(msgspec.json.encode(answer)) == answer
    NodeRecord(group=answer.group, node=answer.name, incarnation=1, term=answer.term + 1).encode()


def request_again(data: bytes) -> bytes:
    id, acks, timeout_ms, born, batch_at, transaction, asked, sets = produce_messages.decode_request(data)
    header = produce_messages.request_header(id, acks, timeout_ms, born, transaction, asked, sets)
    return header + data[batch_at:]


POSITION = feed_messages.Position(last_vlsn=99, dtvlsn=80, clock_us=5, term=3)
ANSWER = founding.Answer(
    group="g", name="n2", incarnation="0" * 16, process="1" * 16, term=3, empty=False, last_term=3, last=9
)
REQUESTS = st.one_of(
    st.sampled_from([(Acks.ALL, 9, 60), (Acks.MAJORITY, 10_000)]),
    st.tuples(st.integers(1, NUMBER_MAX), st.sampled_from((0, SEQUENCE_MAX, HANDLE_SEQUENCE))).map(
        lambda name: (Acks.MAJORITY, 10_000, 60, name)
    ),
    st.sampled_from((b"{}", b'{"positions":{"a":{"next":2}}}')).map(
        lambda sets: (Acks.ALL, 9, 60, (5, HANDLE_SEQUENCE), None, sets)
    ),
).map(lambda fields: produce_messages.request_header(7, *fields))
FORMATS = {
    "BLOCKS": Format(st.lists(st.integers(1, 9), min_size=1, max_size=20).map(blocks_of), blocks_again, reseal_blocks),
    "HEARTBEAT": Format(st.just(feed_messages.heartbeat_message(POSITION)), heartbeat_again),
    "ACK": Format(
        st.sampled_from([feed_messages.Ack(4, 10, 9), feed_messages.Ack(4, 12, 9, 10)]).map(feed_messages.ack_message),
        lambda data: feed_messages.ack_message(feed_messages.decode_ack(data)),
    ),
    "ROUND": Format(
        st.just(feed_messages.round_message(4, 9)),
        lambda data: feed_messages.round_message(*feed_messages.decode_round(data)),
    ),
    "SYNCUP": json_message(
        feed_messages.Syncup(1, 9, 9, 3, [feed_messages.TermRun(1, 1, 4), feed_messages.TermRun(3, 5, 9)])
    ),
    "MATCHPOINT": json_message(feed_messages.Matchpoint(9, 3, term=3, block_first=5, crc32c=7, crc32=8)),
    "START": json_message(feed_messages.Start(10)),
    "REFUSE": json_message(feed_messages.Refuse("stale-term", "no")),
    "answer to a hello": Format(st.just(msgspec.json.encode(ANSWER)), answer_again),
    "produce request": Format(REQUESTS.map(lambda header: header + b"batch"), request_again),
    "block": Format(blocks(), rebuilt, with_block_header),
    "batch": Format(
        entry_lists().map(lambda drawn: batch.encode(*drawn)),
        batch_again,
        with_batch_header,
        (BadBody, TooLarge, WrongVersion),
    ),
    "frame": Format(st.binary(max_size=80).map(framed), frame_again, reseal_frame),
    "segment": Format(st.just(golden("segment.hex")), segment_again, reseal_end),
    "node file": Format(st.just(golden("nodefile_slot.hex")), again(NodeRecord), reseal_end),
    "sidecar": Format(st.integers(1, 40).map(sidecar_of), again(Sidecar), reseal_end),
    "checkpoint start": Format(st.just(golden("checkpoint_start.hex")), again(CheckpointStart)),
    "checkpoint end": Format(st.just(golden("checkpoint_end.hex")), again(CheckpointEnd)),
    "rollback start": Format(st.just(golden("rollback_start.hex")), again(RollbackStart)),
    "rollback end": Format(st.just(golden("rollback_end.hex")), again(RollbackEnd)),
    "term entry": Format(st.just(golden("term_entry.json")), json_again(TermEntry)),
    "group entry": Format(st.just(golden("group_entry.json")), json_again(GroupEntry)),
}
EXTREMES = st.sampled_from([b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1\0\0\0", b"\xff" * 8])


@st.composite
def changed(draw: st.DrawFn, valid: st.SearchStrategy[bytes]) -> bytes:
    """Right bytes after one to four accidents."""
    data = bytearray(draw(valid))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["flip", "overwrite", "insert", "delete", "cut", "splice"])):
            case "flip" if at < len(data):
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "overwrite":
                some = draw(EXTREMES)
                data[at : at + len(some)] = some[: len(data) - at]
            case "insert":
                data[at:at] = draw(st.binary(max_size=16))
            case "delete":
                del data[at : at + draw(st.integers(1, 16))]
            case "cut":
                del data[at:]
            case "splice":
                data[at:] = draw(valid)[at:]
    return bytes(data)


def meets(form: Format, data: bytes) -> None:
    tracemalloc.start()
    try:
        encoded = form.again(data)
    except form.errors:
        encoded = None
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # Entries as objects, and encoding them again, take up to 200 bytes for the 4 of one empty entry.
    assert peak < FIXED_COST_BYTES + 60 * len(data)
    if encoded is not None:
        assert encoded == data


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=st.data())
def test_decoder_meets_any_bytes(name: str, drawn: st.DataObject) -> None:
    form = FORMATS[name]
    start = drawn.draw(st.sampled_from([b"", drawn.draw(form.valid)[:24]]))
    meets(form, start + drawn.draw(st.binary(max_size=300)))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(drawn=st.data())
def test_decoder_meets_changed_bytes(name: str, drawn: st.DataObject) -> None:
    form = FORMATS[name]
    data = drawn.draw(changed(form.valid))
    meets(form, data)
    if len(data) >= 64:
        meets(form, form.reseal(data))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(drawn=st.data())
def test_decoder_takes_what_is_right(name: str, drawn: st.DataObject) -> None:
    """The tests above would pass against a decoder that refuses everything otherwise."""
    form = FORMATS[name]
    data = drawn.draw(form.valid)
    assert form.reseal(data) == data
    encoded = form.again(data)
    assert encoded is None or encoded == data


@given(st.binary(max_size=200), st.integers(-10, 210))
def test_block_header_is_looked_for_anywhere(data: bytes, at: int) -> None:
    with pytest.raises(BadBody):
        block.decode_header(data, at)
