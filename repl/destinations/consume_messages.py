"""The messages of ``WS /v1/destinations/{name}/consume``: eight bytes, and what they head.

0   3    4      8
|VLD|kind|number| …

worker ─► node    C   number more messages may be sent
                  K   the packed set of VLSNs behind is acknowledged; number names this acknowledgement
                  R  that set was never looked at: it counts as never delivered
node ─► worker    H   the uuid of the destination, once the worker has spoken
                  M   messages, as columns (``message_batch``); none: the node leads, and has nothing
                  A   u32 each behind: the acknowledgements of these numbers are durable
                  F   the acknowledgement of that number failed, for the problem document behind
                  E   the end, for the problem document behind
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from vlsn.errors import BadBody

HEAD: Final = Struct("<3ssI")
_MAGIC: Final = b"VLD"
CREDIT, ACK, UNREAD = b"C", b"K", b"R"
HELLO, MESSAGES, ACKED, FAILED, END = b"H", b"M", b"A", b"F", b"E"
CREDIT_MAX: Final = 40_000
"""Messages that may be on their way to one worker."""
ACKS_UNANSWERED_MAX: Final = 1_024
"""Acknowledgements of one worker that are not durable yet; then nothing more of it is read."""
WORKER_MESSAGE_BYTES_MAX: Final = 256 * 1024
ALIVE_S: Final = 5.0
"""Seconds after which a node says again that it leads, where it has nothing else to say."""


def head(kind: bytes, number: int = 0) -> bytes:
    return HEAD.pack(_MAGIC, kind, number)


def parted(message: bytes) -> tuple[bytes, int, memoryview]:
    """Returns kind, number and what is behind. Raises ``BadBody``."""
    if len(message) < HEAD.size:
        raise BadBody(f"{len(message)} bytes are no message of a worker's")
    magic, kind, number = HEAD.unpack_from(message)
    if magic != _MAGIC:
        raise BadBody(f"{magic!r} begins no message of a worker's")
    return kind, number, memoryview(message)[HEAD.size :]
