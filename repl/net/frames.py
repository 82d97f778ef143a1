"""The frames of a WebSocket (RFC 6455 §5.2). The most common frame is read and written here; all other frames are only
followed.

    82 | length | ext. length 16 bit, from 126 on | mask, of a client's | payload, of a client's each byte ^ mask

1. aiohttp reads and writes any frame. An append by itself is four small frames, and the process that writes or reads
   each of them has slept before. So the cost of a frame is mostly the code that must be loaded into the processor's
   cache.
2. Each frame costs its reader about the same, however few bytes it brings. So frames are counted, as bytes are.
"""

from __future__ import annotations

import random
from struct import Struct

from vlsn.limits import KIB
from vlsn.seams import Buffer

PIECE_BYTES = KIB
"""A client that sends a message in pieces makes each piece at least this large, except the last one."""
NO_LIMIT = 1 << 62
_EXTENDED_BYTES = {126: 2, 127: 8}
SMALL_BYTES = 4096
_WHOLE_BINARY = 0x82
_CLOSE = 0x88
_MASKED = 0x80
_EXTENDED = 126
_SHORT = Struct("!BB")
_LONG = Struct("!BBH")
_masks = random.Random()


def small_frame(message: Buffer, *, masked: bool) -> bytes:
    """Packs ``message``, of at most ``SMALL_BYTES``, as a frame. ``masked`` is for frames of a client, which must be
    masked."""
    size, bit = len(message), _MASKED if masked else 0
    head = (
        _SHORT.pack(_WHOLE_BINARY, size | bit) if size < _EXTENDED else _LONG.pack(_WHOLE_BINARY, _EXTENDED | bit, size)
    )
    if not masked:
        return head + message
    mask = _masks.getrandbits(32).to_bytes(4, "big")
    return head + mask + _each_xor(message, mask)


def close_frame(code: int, reason: str) -> bytes:
    """Packs a server's close frame, with up to 123 bytes of ``reason``."""
    payload = code.to_bytes(2, "big") + reason.encode()
    assert len(payload) < _EXTENDED
    return _SHORT.pack(_CLOSE, len(payload)) + payload


def payload_of(frame: bytes) -> bytes:
    """Returns the message in ``frame``, for which ``is_small_frame`` must be true."""
    at = _SHORT.size if frame[1] & ~_MASKED < _EXTENDED else _LONG.size
    if not frame[1] & _MASKED:
        return frame[at:]
    return _each_xor(frame[at + 4 :], frame[at : at + 4])


def _each_xor(payload: Buffer, mask: bytes) -> bytes:
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")


def is_small_frame(data: bytes) -> bool:
    """Says whether ``data``, which starts at the start of a frame, is exactly one such small frame."""
    if len(data) < _LONG.size or data[0] != _WHOLE_BINARY:
        return False
    mask_bytes, size = data[1] >> 7 << 2, data[1] & 0x7F
    if size < _EXTENDED:
        return len(data) == _SHORT.size + mask_bytes + size
    return size == _EXTENDED and len(data) == _LONG.size + mask_bytes + (data[2] << 8 | data[3]) <= SMALL_BYTES


class Frames:
    """Follows the frames of one direction of a WebSocket, skipping their payloads."""

    __slots__ = ("_ends_message", "_head", "_left", "announced", "begun", "end", "fragmented", "held", "tiny")

    def __init__(self) -> None:
        self.announced = 0
        """The bytes of the message under way, as far as the frames' headers say."""
        self.fragmented = False
        """True while the message under way has more frames to come."""
        self.begun = 0
        """The number of frames so far."""
        self.tiny = 0
        """The number of frames since the last whole message that bring almost nothing: control frames, and pieces under
        ``PIECE_BYTES``."""
        self.end = 0
        """The offset where the last ``feed`` stopped."""
        self.held = False
        """True if more bytes have arrived than were fed."""
        self._head = bytearray()
        self._left = 0
        self._ends_message = False

    @property
    def between(self) -> bool:
        """True if the next byte begins a message."""
        return not (self._left or self._head or self.announced or self.fragmented or self.held)

    def feed(self, data: Buffer, frames_max: int = NO_LIMIT) -> list[int]:
        """Follows at most ``frames_max`` more frames. Returns the sizes of the messages that are whole now. ``end`` is
        the offset that was reached."""
        whole: list[int] = []
        at, end = 0, len(data)
        stop = self.begun + frames_max
        while at < end:
            if self._left:
                step = min(self._left, end - at)
                self._left -= step
                at += step
            else:
                if self.begun >= stop:
                    break
                lacks = self._lacks()
                self._head += data[at : at + lacks]
                at += lacks
                if self._lacks():
                    continue
                self._begin()
            if not self._left and self._ends_message:
                whole.append(self.announced)
                self.announced = self.tiny = 0
                self.fragmented = self._ends_message = False
        self.end = at
        return whole

    def _lacks(self) -> int:
        """Returns how many bytes the frame header under way still needs, as far as its first bytes show."""
        head = self._head
        if len(head) < 2:
            return 2 - len(head)
        return 2 + _EXTENDED_BYTES.get(head[1] & 0x7F, 0) + (head[1] & 0x80) // 32 - len(head)

    def _begin(self) -> None:
        head = self._head
        length = head[1] & 0x7F
        if length in _EXTENDED_BYTES:
            length = int.from_bytes(head[2 : 2 + _EXTENDED_BYTES[length]], "big")
        self._left = length
        self.begun += 1
        if head[0] & 0x08:  # a control frame, which may come between the frames of a message
            self.tiny += 1
        else:
            self.announced += length
            self._ends_message = bool(head[0] & 0x80)
            if not self._ends_message and length < PIECE_BYTES:
                self.tiny += 1
            self.fragmented = not self._ends_message
        head.clear()
