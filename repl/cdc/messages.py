"""The messages between a node and the child process of a consumer.

    node   START            the consumer's name, its first VLSN, its options
           BLOCKS           a feed's BLOCKS message: whole blocks, all durable
           COMMITTED        commits up to this number are stored
           STOP             end when the running call returns
    child  HELLO            the process has started; next it runs the consumer's own code
           READY            the consumer has started; its own position, if it keeps one
           TAKEN            the consumer has taken a whole BLOCKS message; its bytes, its duration, its last COMMIT
           COMMIT           a position to store, while part of the BLOCKS message is not taken yet
           FAILED           the consumer raised; the child ends
           STOPPED          the consumer has stopped; the child ends

A message is a type byte and a body. BLOCKS has the same body as on a replica's feed; all other bodies are JSON. Node
and child each refuse unexpected messages. BLOCKS messages that were sent and not yet TAKEN have at most
``WINDOW_BYTES`` together, unless a single message is larger.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from vlsn.errors import BadBody
from vlsn.format.feed_messages import MessageType, Position, blocks_message
from vlsn.format.records import JSON_FAULTS
from vlsn.limits import MIB
from vlsn.seams import Buffer

WINDOW_BYTES: Final = 4 * MIB
CONTROL_BYTES_MAX: Final = 256 * 1024
"""The largest message other than BLOCKS."""
MESSAGE_BYTES_MAX: Final = 20 * MIB
"""The largest BLOCKS message: one block of the largest size with its header."""
REASON_CHARACTERS_MAX: Final = 4_000
WAIT_S_MAX: Final = 3600.0
"""The longest wait that a consumer may ask for, in seconds."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    name: str
    consumer: str
    node: str
    group: str
    next: int
    options: dict[str, Any]
    memory_bytes_max: int
    last: int | None = None
    """The last VLSN that the node sends to the consumer, or None for no end."""
    run_on: str = "node"
    term: int = 0
    position_term: int = 0
    moved: bool = False
    moved_us: int = 0
    begins: bool = False


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    pass


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The consumer has started. ``next`` is set if the consumer keeps its own position. ``term`` is the term of the
    entry before ``next``, or 0 if the consumer does not know it."""

    next: int | None = None
    term: int = 0


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    number: int
    next: int


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """A BLOCKS message was taken. ``next`` is the VLSN after the last one in the message. ``time`` is the time of
    the message's last block, in µs since the epoch. ``commit`` is the commit of the last call. ``events`` is the
    number of events, and ``last`` is the VLSN of the last event, or 0 for none."""

    bytes: int
    next: int
    time: int
    calls: int
    seconds: float
    commit: Commit | None = None
    events: int = 0
    last: int = 0


class Committed(msgspec.Struct, frozen=True, tag="committed"):
    number: int


class Stop(msgspec.Struct, frozen=True, tag="stop"):
    pass


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    pass


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The consumer has failed. ``vlsn`` is the last event that the failed call had taken, or the first that it could
    take; 0 outside a call."""

    reason: str
    vlsn: int = 0
    kind: Literal["failed", "refused", "unavailable"] = "failed"
    """``refused``: a second try would fail as well. ``unavailable``: the consumer's target is not available now."""
    after_s: Annotated[float, msgspec.Meta(ge=0.0, le=WAIT_S_MAX)] = 0.0
    """The node waits this many seconds before it starts the consumer again."""


ToChild = Start | Committed | Stop
ToNode = Hello | Ready | Taken | Commit | Stopped | Failed
T = TypeVar("T")

_to_child: msgspec.json.Decoder[ToChild] = msgspec.json.Decoder(ToChild)
_to_node: msgspec.json.Decoder[ToNode] = msgspec.json.Decoder(ToNode)


def blocks(next_vlsn: int, durable: int, taken: Sequence[Buffer]) -> bytes:
    """Joins consecutive whole blocks to a BLOCKS message, in one copy."""
    return blocks_message(Position(next_vlsn - 1, durable, 0, 0), taken)


def is_blocks(message: bytes) -> bool:
    return message[:1] == bytes([MessageType.BLOCKS])


def encode(message: ToChild | ToNode) -> bytes:
    return msgspec.json.encode(message)


def of_child(message: bytes) -> ToNode:
    """Decodes a message of a child. Raises ``BadBody``."""
    return _decoded(_to_node, message)


def of_node(message: bytes) -> ToChild:
    """Decodes a node's message other than BLOCKS. Raises ``BadBody``."""
    return _decoded(_to_child, message)


def _decoded(decoder: msgspec.json.Decoder[T], message: bytes) -> T:
    if len(message) > CONTROL_BYTES_MAX:
        raise BadBody(f"a message of {len(message)} bytes between a node and a consumer")
    try:
        return decoder.decode(message)
    except JSON_FAULTS as error:
        raise BadBody(f"a message between a node and a consumer: {error}") from None
