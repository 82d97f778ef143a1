"""The frames of a WebSocket (RFC 6455 §5.2), followed by their headers as their bytes come.

Each frame costs its reader much the same, however little it brings, so frames are counted as bytes are.
"""

from __future__ import annotations

from vlsn.limits import KIB
from vlsn.seams import Buffer

PIECE_BYTES = KIB
"""A client that sends a message in pieces makes them at least so large, but for the last one."""
NO_LIMIT = 1 << 62
_EXTENDED = {126: 2, 127: 8}


class Frames:
    """The frames of one direction of a WebSocket, their payloads passed over."""

    __slots__ = ("_ends_message", "_head", "_left", "announced", "begun", "end", "fragmented", "held", "tiny")

    def __init__(self) -> None:
        self.announced = 0
        """Bytes of the message that has begun and is not whole, as far as its frames' headers tell."""
        self.fragmented = False
        """True while that message has more frames to come."""
        self.begun = 0
        """Frames so far."""
        self.tiny = 0
        """Those since the last whole message that bring next to nothing: control frames, and pieces under
        ``PIECE_BYTES``."""
        self.end = 0
        """The place where the last ``feed`` stopped."""
        self.held = False
        """More has come than was fed."""
        self._head = bytearray()
        self._left = 0
        self._ends_message = False

    @property
    def between(self) -> bool:
        """The next byte begins a message."""
        return not (self._left or self._head or self.announced or self.fragmented or self.held)

    def feed(self, data: Buffer, frames_max: int = NO_LIMIT) -> list[int]:
        """Returns the sizes of the messages that are whole now, from at most ``frames_max`` frames more. ``end`` says
        how far that is."""
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
        """Returns bytes that the header under way still needs, as far as can be told."""
        head = self._head
        if len(head) < 2:
            return 2 - len(head)
        return 2 + _EXTENDED.get(head[1] & 0x7F, 0) + (head[1] & 0x80) // 32 - len(head)

    def _begin(self) -> None:
        head = self._head
        length = head[1] & 0x7F
        if length in _EXTENDED:
            length = int.from_bytes(head[2 : 2 + _EXTENDED[length]], "big")
        self._left = length
        self.begun += 1
        if head[0] & 0x08:  # a control frame: those come between the frames of a message
            self.tiny += 1
        else:
            self.announced += length
            self._ends_message = bool(head[0] & 0x80)
            if not self._ends_message and length < PIECE_BYTES:
                self.tiny += 1
            self.fragmented = not self._ends_message
        head.clear()
