"""The commonest frame of a WebSocket (RFC 6455 §5.2): one small binary message, whole.

aiohttp reads and writes any frame.  A lone append is sent four times and read four times as such a one, each time by a
process that has slept: what that costs is how much code has to come into the processor's cache.

    82 | length | ext. length 16 bit, from 126 on | mask, of a client's | payload, of a client's each byte ^ mask
"""

from __future__ import annotations

import random
from struct import Struct

from vlsn.seams import Buffer

SMALL_BYTES = 4096
_WHOLE_BINARY = 0x82
_CLOSE = 0x88
_MASKED = 0x80
_EXTENDED = 126
_SHORT = Struct("!BB")
_LONG = Struct("!BBH")
_masks = random.Random()


def small_frame(message: Buffer, *, masked: bool) -> bytes:
    """Packs ``message`` of at most ``SMALL_BYTES`` as a frame; ``masked`` as a client has to send it."""
    size, bit = len(message), _MASKED if masked else 0
    head = (
        _SHORT.pack(_WHOLE_BINARY, size | bit) if size < _EXTENDED else _LONG.pack(_WHOLE_BINARY, _EXTENDED | bit, size)
    )
    if not masked:
        return head + message
    mask = _masks.getrandbits(32).to_bytes(4, "big")
    return head + mask + _each_xor(message, mask)


def close_frame(code: int, reason: str) -> bytes:
    """Packs the close of a server, its ``reason`` in up to 123 bytes."""
    payload = code.to_bytes(2, "big") + reason.encode()
    assert len(payload) < _EXTENDED
    return _SHORT.pack(_CLOSE, len(payload)) + payload


def payload_of(frame: bytes) -> bytes:
    """Returns the message in ``frame``, which ``is_small_frame``."""
    at = _SHORT.size if frame[1] & ~_MASKED < _EXTENDED else _LONG.size
    if not frame[1] & _MASKED:
        return frame[at:]
    return _each_xor(frame[at + 4 :], frame[at : at + 4])


def _each_xor(payload: Buffer, mask: bytes) -> bytes:
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")


def is_small_frame(data: bytes) -> bool:
    """Says whether ``data``, which begins where a frame does, is such a frame and nothing else."""
    if len(data) < _LONG.size or data[0] != _WHOLE_BINARY:
        return False
    mask_bytes, size = data[1] >> 7 << 2, data[1] & 0x7F
    if size < _EXTENDED:
        return len(data) == _SHORT.size + mask_bytes + size
    return size == _EXTENDED and len(data) == _LONG.size + mask_bytes + (data[2] << 8 | data[3]) <= SMALL_BYTES
