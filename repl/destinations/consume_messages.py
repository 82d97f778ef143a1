"""The messages of ``WS /v1/destinations/{name}/consume``: a header of eight bytes, and a body.

    0   3    4      8
    |VLD|kind|number| body …
    worker ─► node    C   credit: the node may send ``number`` more messages
                      K   acknowledges the VLSNs in the body, a packed set; ``number`` identifies this acknowledgement
                      R   returns the VLSNs in the body unread: their delivery uses no attempt
    node ─► worker    H   the uuid of the destination; sent after the worker's first message
                      M   messages, as columns (``message_batch``); an empty M shows that the node is the master
                      A   acknowledgements that are durable: the ``number`` of each, as u32
                      F   the acknowledgement ``number`` failed; the body is a problem document
                      E   the end of the stream; the body is a problem document

``number`` is a u32, little-endian. The worker sends the first message.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from vlsn.errors import BadBody

HEAD: Final = Struct("<3ssI")
_MAGIC: Final = b"VLD"
CREDIT, ACK, UNREAD = b"C", b"K", b"R"
HELLO, MESSAGES, ACKED, FAILED, END = b"H", b"M", b"A", b"F", b"E"
GRAMMAR: Final = """\
; binary messages; number is a u32, little-endian; the worker sends the first message
message     = "VLD" kind number body
credit      = "VLD" "C" number          ; worker to node: it may send this many more messages
ack         = "VLD" "K" number vlsns    ; worker to node: acknowledges; number identifies it
unread      = "VLD" "R" number vlsns    ; worker to node: returns messages unread, without an attempt
hello       = "VLD" "H" number uuid     ; node to worker: the destination, after the worker's first message
messages    = "VLD" "M" number [batch]  ; node to worker: application/x-vlsnlog-messages; empty: still the master
acked       = "VLD" "A" number *u32     ; node to worker: the numbers of acknowledgements that are durable
failed      = "VLD" "F" number problem  ; node to worker: the acknowledgement of that number failed
end         = "VLD" "E" number problem  ; node to worker: the end of the stream
vlsns       = *OCTET                    ; a packed set of VLSNs (vlsn/format/vlsn_set.py)
problem     = *OCTET                    ; a problem document
"""
"""The messages in ABNF (RFC 5234)."""
CREDIT_MAX: Final = 40_000
"""The largest credit of one worker: the number of messages that the node may still send to the worker."""
ACKS_UNANSWERED_MAX: Final = 1_024
"""The most acknowledgements of one worker that may wait for their answer. At this limit the node stops reading from
the worker."""
WORKER_MESSAGE_BYTES_MAX: Final = 256 * 1024
ALIVE_S: Final = 5.0
"""After this many seconds without a message the node sends an empty M, to show that it is still the master."""


def head(kind: bytes, number: int = 0) -> bytes:
    return HEAD.pack(_MAGIC, kind, number)


def parted(message: bytes) -> tuple[bytes, int, memoryview]:
    """Splits a message of the stream into kind, number and body. Raises ``BadBody``."""
    if len(message) < HEAD.size:
        raise BadBody(f"{len(message)} bytes are no message of a worker")
    magic, kind, number = HEAD.unpack_from(message)
    if magic != _MAGIC:
        raise BadBody(f"{magic!r} does not begin a message of a worker")
    return kind, number, memoryview(message)[HEAD.size :]
