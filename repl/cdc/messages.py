"""The messages between a node and the child process of one of its consumers.

    node   START            who it is, where it begins, its options
           BLOCKS           a feed's BLOCKS message: whole blocks, all of them durable
           COMMITTED        positions up to this number are stored
           STOP             end when the call under way returns
    child  HELLO            its process is up; what comes now is the consumer's own code
           READY            the consumer has started; its own position, if it keeps one
           TAKEN            it has taken a BLOCKS message of so many bytes whole; how long that took; the last COMMIT
           COMMIT           a position to be stored, while there is more of its message
           FAILED           the consumer raised; the child ends
           STOPPED          the consumer has stopped; the child ends

A message is a type byte and a body: that of BLOCKS as on a feed, JSON for the rest.  Each side refuses what it does not
expect.  The bytes of BLOCKS that were sent and not yet TAKEN stay within ``WINDOW_BYTES``, or are one message.
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
"""A message other than BLOCKS."""
MESSAGE_BYTES_MAX: Final = 20 * MIB
"""A BLOCKS message: one block of the largest size with its header."""
REASON_CHARACTERS_MAX: Final = 4_000
WAIT_S_MAX: Final = 3600.0
"""The longest that a consumer may ask to be left alone for."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    name: str
    consumer: str
    node: str
    group: str
    next: int
    options: dict[str, Any]
    memory_bytes_max: int
    last: int | None = None
    """The last VLSN that it is to receive; None without end."""
    run_on: str = "node"
    term: int = 0
    position_term: int = 0
    moved: bool = False
    moved_us: int = 0
    begins: bool = False


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    pass


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """``term`` is that of the entry before ``next``, 0 where the consumer does not know it."""

    next: int | None = None
    term: int = 0


class Commit(msgspec.Struct, frozen=True, tag="commit"):
    number: int
    next: int


class Taken(msgspec.Struct, frozen=True, tag="taken"):
    """``next`` is behind the last VLSN of the message, ``time`` the µs since the epoch of its last block; ``commit`` is
    that of the message's last call; of ``events`` in it the last one is at VLSN ``last``, 0 where there is none."""

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
    """``vlsn`` is the event that the call which raised had taken last, or could take first; 0 outside of a call."""

    reason: str
    vlsn: int = 0
    kind: Literal["failed", "refused", "unavailable"] = "failed"
    """``refused``: no second try mends it; ``unavailable``: its target is away."""
    after_s: Annotated[float, msgspec.Meta(ge=0.0, le=WAIT_S_MAX)] = 0.0
    """Seconds before which nothing need be tried again."""


ToChild = Start | Committed | Stop
ToNode = Hello | Ready | Taken | Commit | Stopped | Failed
T = TypeVar("T")

_to_child: msgspec.json.Decoder[ToChild] = msgspec.json.Decoder(ToChild)
_to_node: msgspec.json.Decoder[ToNode] = msgspec.json.Decoder(ToNode)


def blocks(next_vlsn: int, durable: int, taken: Sequence[Buffer]) -> bytes:
    """Joins whole blocks that follow on one another to a BLOCKS message, in one copy."""
    return blocks_message(Position(next_vlsn - 1, durable, 0, 0), taken)


def is_blocks(message: bytes) -> bool:
    return message[:1] == bytes([MessageType.BLOCKS])


def encode(message: ToChild | ToNode) -> bytes:
    return msgspec.json.encode(message)


def of_child(message: bytes) -> ToNode:
    """Reads what a child has sent. Raises ``BadBody``."""
    return _decoded(_to_node, message)


def of_node(message: bytes) -> ToChild:
    """Reads what a node has sent, and is no BLOCKS. Raises ``BadBody``."""
    return _decoded(_to_child, message)


def _decoded(decoder: msgspec.json.Decoder[T], message: bytes) -> T:
    if len(message) > CONTROL_BYTES_MAX:
        raise BadBody(f"a message of {len(message)} bytes between a node and a consumer")
    try:
        return decoder.decode(message)
    except JSON_FAULTS as error:
        raise BadBody(f"a message between a node and a consumer: {error}") from None
