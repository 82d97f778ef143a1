"""The messages of a feed, which is the stream of blocks from a master to one replica. Masters and replicas use this
module.

Each message is one WebSocket message, little-endian, with its type in the first byte:

    SYNCUP      replica → master   JSON: the replica's range, term runs and stored term
    MATCHPOINT  master → replica   JSON: the highest VLSN that both have in the same term, and its block's checksums
    START       replica → master   JSON: the replica's checksums are equal; stream from the next VLSN
    REFUSE      either way         JSON: slug and detail; after that the sender closes the connection
    BLOCKS      master → replica   a 40-byte header, then whole blocks, each padded to 8 with zeros
    HEARTBEAT   master → replica   the same header, no blocks
    ACK         replica → master   32 bytes: term, received, synced; 40 bytes with written, once flags were received
    ROUND       either way         24 bytes: term, number of a read round; the replica sends it back at once

    BLOCKS, HEARTBEAT   0    1     2 4     8         16     24       32   40
                        |type|flags|0|count|last_vlsn|dtvlsn|clock_us|term| blocks …
    ACK                 |type|0    |0|0    |term     |received|synced |written|
    ROUND               |type|0    |0|0    |term     |number |

``flags`` of a BLOCKS message are 0 unless appends request less than a sync (``durability``). Bit 0 (UNHURRIED) of the
flags means that no append waits for a sync of the blocks, so the replica syncs them later. Bit 1 (RECEIPT) of the flags
means that an append waits for the receipt of the blocks, so the replica acknowledges the receipt at once. A master sets
flags only in a group of level 2 or higher.

A BLOCKS message is checked completely before any of its blocks is written. This module checks the lengths, and
``block_run`` checks the blocks.

Every number in a message is from 0 to 2^63 − 1. A stored term must be below the highest number, so that a later master
can have a higher term.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from struct import Struct
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from vlsn.errors import BadBody, IntegrityFault, VlsnLogError
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.block_heads import BLOCK_DTYPE
from vlsn.format.block_run import BlockRun, run_of
from vlsn.format.json_messages import Number as Number
from vlsn.format.records import JSON_FAULTS
from vlsn.ids import NUMBER_MAX, U32_MAX
from vlsn.limits import BODY_BYTES_MAX, MIB
from vlsn.seams import Buffer

MESSAGE_BYTES_MAX = BODY_BYTES_MAX + MIB
"""The most bytes of a message: about 1 MiB of blocks, or one larger block."""
FEED_BYTES = MIB
BLOCKS_MAX = 65_536
TERM_RUNS_MAX = 1_000_000
STORED_TERM_MAX = NUMBER_MAX - 1
StoredTerm = Annotated[int, Meta(ge=0, le=STORED_TERM_MAX)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,32}\Z")]
Hex = Annotated[str, Meta(pattern=r"^[0-9a-f]{16}\Z")]
"""The number of an incarnation, a process or a session, as 16 hex digits."""
Checksum = Annotated[int, Meta(ge=0, le=U32_MAX)]
BLOCKS_HEADER = Struct("<BBHIQQQQ")
ACK = Struct("<BBHIQQQ")
LONG_ACK = Struct("<BBHIQQQQ")
UNHURRIED = 1
RECEIPT = 2
ROUND = Struct("<BBHIQQ")
_LENGTH = Struct("<I")
_LENGTH_AT = 52
_BLOCKS = 5  # the value of MessageType.BLOCKS
_ZEROS = [bytes(size) for size in range(8)]

assert BLOCKS_HEADER.size == 40 and ACK.size == 32 and LONG_ACK.size == 40 and ROUND.size == 24
assert BLOCK_DTYPE.fields is not None and BLOCK_DTYPE.fields["body_bytes"][1] == _LENGTH_AT


class MessageType(IntEnum):
    SYNCUP = 1
    MATCHPOINT = 2
    START = 3
    REFUSE = 4
    BLOCKS = 5
    HEARTBEAT = 6
    ACK = 7
    ROUND = 8


class TermRun(msgspec.Struct, frozen=True, array_like=True):
    """A run of terms: VLSNs ``first`` to ``last`` of the visible log were all sealed in ``term``."""

    term: Number
    first: Number
    last: Number


class Syncup(msgspec.Struct, frozen=True):
    """A replica's range and terms. An empty log has first = last = 0."""

    first: Number
    last: Number
    last_sync: Number
    stored_term: StoredTerm
    term_runs: list[TermRun]


class Matchpoint(msgspec.Struct, frozen=True):
    """The name of the master's block that ends at ``vlsn``, and two checksums over all bytes of the block. If ``vlsn``
    is 0, the replica is empty and the master's range begins at 1, so that there is nothing to compare."""

    vlsn: Number
    feed_term: StoredTerm
    term: Number = 0
    block_first: Number = 0
    crc32c: Checksum = 0
    crc32: Checksum = 0


class Start(msgspec.Struct, frozen=True):
    """The replica's request that the master streams its blocks from ``from_vlsn`` on."""

    from_vlsn: Number


class Refuse(msgspec.Struct, frozen=True):
    slug: str
    detail: str
    vlsn: Number = 0
    """For an integrity fault, the VLSN at which the two logs have different blocks; otherwise 0."""


def refusal(error: VlsnLogError) -> Refuse:
    """Makes the REFUSE message that reports ``error`` to the other side of a feed."""
    return Refuse(error.slug, str(error), error.vlsn if isinstance(error, IntegrityFault) else 0)


_JSON: dict[MessageType, type[msgspec.Struct]] = {
    MessageType.SYNCUP: Syncup,
    MessageType.MATCHPOINT: Matchpoint,
    MessageType.START: Start,
    MessageType.REFUSE: Refuse,
}
_TYPES = {int(kind): kind for kind in MessageType}
_TYPE_OF = {kind: number for number, kind in _JSON.items()}
_S = TypeVar("_S", bound=msgspec.Struct)


class Position(msgspec.Struct, frozen=True, gc=False):
    """The header of a BLOCKS or HEARTBEAT message: the master's last VLSN, its durable end, its clock (µs), its term,
    and flags for the blocks (``UNHURRIED``, ``RECEIPT``)."""

    last_vlsn: int
    dtvlsn: int
    clock_us: int
    term: int
    flags: int = 0


class Ack(msgspec.Struct, frozen=True, gc=False):
    """An acknowledgement with the last VLSNs of three blocks. Up to ``received``, blocks are in the replica's queue. Up
    to ``synced``, blocks are on stable media. Up to ``written``, blocks were passed to the replica's operating system;
    None if the replica does not report this."""

    term: int
    received: int
    synced: int
    written: int | None = None


def message_type(message: bytes) -> MessageType:
    """Returns the type of a message. Raises ``BadBody`` for an empty message or an unknown type."""
    try:
        return _TYPES[message[0]]
    except (IndexError, KeyError):
        raise BadBody(f"no feed message begins with {message[:1].hex() or 'nothing'}") from None


def encode(message: msgspec.Struct) -> bytes:
    """Encodes a SYNCUP, MATCHPOINT, START or REFUSE message."""
    return bytes([_TYPE_OF[type(message)]]) + msgspec.json.encode(message)


def decode_json(message: bytes, kind: type[_S]) -> _S:
    """Decodes a message that must be of ``kind``. The caller must have checked that it is not a REFUSE."""
    wanted = _TYPE_OF[kind]
    if message_type(message) != wanted:
        raise BadBody(f"a feed message of type {message[0]} where {wanted.name} was due")
    try:
        return msgspec.json.decode(memoryview(message)[1:], type=kind)
    except JSON_FAULTS as error:
        raise BadBody(f"{wanted.name}: {error}") from None


def check_syncup(syncup: Syncup) -> None:
    """Checks that a range and its term runs can belong to one log. Raises ``BadBody`` if not."""
    if len(syncup.term_runs) > TERM_RUNS_MAX:
        raise BadBody(f"{len(syncup.term_runs)} term runs")
    if syncup.first > syncup.last or syncup.last_sync > syncup.last or (not syncup.first and syncup.last):
        raise BadBody(f"a range from {syncup.first} to {syncup.last}, synced to {syncup.last_sync}")
    at, term = max(syncup.first, 1), 0
    for run in syncup.term_runs:
        if run.first != at or run.last < run.first or run.term <= term:
            raise BadBody(f"term run {run} after VLSN {at - 1} of term {term}")
        at, term = run.last + 1, run.term
    if at != syncup.last + 1:
        raise BadBody(f"term runs end at {at - 1}, the range at {syncup.last}")
    if term > syncup.stored_term:
        raise BadBody(f"a log of term {term} with stored term {syncup.stored_term}")


def blocks_message(position: Position, blocks: Sequence[Buffer]) -> bytes:
    """Joins the blocks into one message, each padded to 8 bytes. The blocks are copied once."""
    head = BLOCKS_HEADER.pack(
        _BLOCKS, position.flags, 0, len(blocks), position.last_vlsn, position.dtvlsn, position.clock_us, position.term
    )
    parts: list[Buffer] = [head]
    for block in blocks:
        parts.append(block)
        pad = -len(block) & 7
        if pad:
            parts.append(_ZEROS[pad])
    return b"".join(parts)


def heartbeat_message(position: Position) -> bytes:
    return BLOCKS_HEADER.pack(
        MessageType.HEARTBEAT, 0, 0, 0, position.last_vlsn, position.dtvlsn, position.clock_us, position.term
    )


def decode_position(message: bytes) -> Position:
    """Decodes the header of a BLOCKS message, or a complete HEARTBEAT. Raises ``BadBody``."""
    if len(message) < BLOCKS_HEADER.size:
        raise BadBody(f"a feed message of {len(message)} bytes")
    kind, flags, zero, count, last_vlsn, dtvlsn, clock_us, term = BLOCKS_HEADER.unpack_from(message)
    if kind != _BLOCKS and (kind != MessageType.HEARTBEAT or count or len(message) != BLOCKS_HEADER.size):
        raise BadBody(f"a message of type {kind}, {len(message)} bytes, {count} blocks, where a HEARTBEAT was due")
    known = UNHURRIED | RECEIPT if kind == _BLOCKS else 0
    if (
        flags & ~known
        or zero
        or not dtvlsn <= last_vlsn <= NUMBER_MAX
        or not 1 <= term <= NUMBER_MAX
        or clock_us > NUMBER_MAX
    ):
        raise BadBody(f"a feed message of term {term}, durable to {dtvlsn} of {last_vlsn}, flags {flags}")
    return Position(last_vlsn, dtvlsn, clock_us, term, flags)


def ack_message(ack: Ack) -> bytes:
    if ack.written is None:
        return ACK.pack(MessageType.ACK, 0, 0, 0, ack.term, ack.received, ack.synced)
    return LONG_ACK.pack(MessageType.ACK, 0, 0, 0, ack.term, ack.received, ack.synced, ack.written)


def decode_ack(message: bytes) -> Ack:
    """Decodes an ACK message. Raises ``BadBody``."""
    if len(message) == ACK.size:
        kind, a, b, c, term, received, synced = ACK.unpack(message)
        written: int | None = None
    elif len(message) == LONG_ACK.size:
        kind, a, b, c, term, received, synced, written = LONG_ACK.unpack(message)
    else:
        raise BadBody(f"{len(message)} bytes where an ACK was due")
    if kind != MessageType.ACK or a or b or c or not synced <= received <= NUMBER_MAX or not 1 <= term <= NUMBER_MAX:
        raise BadBody(f"an ACK of term {term}: synced {synced} of {received}")
    if written is not None and not synced <= written <= received:
        raise BadBody(f"an ACK of term {term}: synced {synced}, written {written} of {received}")
    return Ack(term, received, synced, written)


def round_message(term: int, number: int) -> bytes:
    return ROUND.pack(MessageType.ROUND, 0, 0, 0, term, number)


def decode_round(message: bytes) -> tuple[int, int]:
    """Decodes the term and the number of a ROUND message. Raises ``BadBody``."""
    if len(message) != ROUND.size:
        raise BadBody(f"{len(message)} bytes where a ROUND was due")
    kind, a, b, c, term, number = ROUND.unpack(message)
    if kind != MessageType.ROUND or a or b or c or not 1 <= number <= NUMBER_MAX or not 1 <= term <= NUMBER_MAX:
        raise BadBody(f"a ROUND of term {term}, number {number}")
    return term, number


def split_blocks(message: bytes, *, expected_first: int, term_min: int, term_max: int) -> BlockRun:
    """Finds and checks the blocks of a BLOCKS message, as views into the message. The blocks must begin at VLSN
    ``expected_first``. The terms of the blocks must not decrease, and must be from ``term_min``, the log's last term,
    to ``term_max``. Raises ``BadBody``."""
    starts, sizes = _walk(message, BLOCKS_HEADER.unpack_from(message)[3])
    return run_of(message, starts, sizes, expected_first=expected_first, term_min=term_min, term_max=term_max)


def _walk(message: bytes, count: int) -> tuple[list[int], list[int]]:
    """Finds the starts and the lengths of the blocks in a BLOCKS message. The message must end with the padding of the
    last block."""
    if not 1 <= count <= BLOCKS_MAX:
        raise BadBody(f"a BLOCKS message of {count} blocks")
    total = len(message)
    at = BLOCKS_HEADER.size
    starts, sizes = [], []
    unpack = _LENGTH.unpack_from
    for _ in range(count):
        if at + BLOCK_BYTES > total:
            raise BadBody("a BLOCKS message ends inside a block header")
        size = BLOCK_BYTES + unpack(message, at + _LENGTH_AT)[0]
        starts.append(at)
        sizes.append(size)
        end = at + size
        at = (end + 7) & ~7
        if end != at and message[end:at] != _ZEROS[at - end]:
            raise BadBody("padding of a BLOCKS message is cut or not zero")
    if at != total:
        raise BadBody(f"a BLOCKS message of {total} bytes whose blocks end at {at}")
    return starts, sizes
