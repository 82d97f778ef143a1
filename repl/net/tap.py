"""A tap in front of aiohttp's WebSocket reader. A reader that waits gets a message in the same turn in which it
arrives.

    bytes ─► one small message, alone, and somebody takes them ─► take
          └► anything else ─► aiohttp's reader and its queue ─► came

A small message that somebody waits for is not counted, because it is delivered at once. Such a message may bypass
aiohttp only at the start of a frame, so all frames are followed. A listener counts the messages that go through aiohttp
(``metered.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from repl.net.frames import SMALL_BYTES, Frames, is_small_frame, payload_of

ALL_READ = (False, b"")
"""The answer of aiohttp's reader to all data: the stream has not ended, and no bytes are left over."""


class Tap:
    """The tap of one connection, made before the connection's first byte as a WebSocket. ``take`` and ``came`` are set
    while somebody waits and aiohttp's queue is empty."""

    def __init__(self, message_bytes_max: int, frames: Frames | None = None) -> None:
        self.take: Callable[[bytes], None] | None = None
        self.came: Callable[[], None] | None = None
        self.received_bytes = 0
        self._takes_small = message_bytes_max >= SMALL_BYTES
        self._frames = Frames() if frames is None else frames
        self._parser: Any = None

    def into(self, parser: Any) -> Any:
        """Puts this tap in front of aiohttp's ``parser``. Returns the tap, to be used as the parser from now on."""
        self._parser = parser
        return self

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        take = self.take
        self.received_bytes += len(data)
        if take is not None and self._takes_small and is_small_frame(data) and self._frames.between:
            take(payload_of(data))
            return ALL_READ
        return self._read(data)

    def _read(self, data: bytes) -> tuple[bool, bytes]:
        """Reads data that is not exactly one small message that somebody waits for."""
        self._frames.feed(data)
        result: tuple[bool, bytes] = self._parser.feed_data(data)
        self._tell()
        return result

    def feed_eof(self) -> None:
        self._parser.feed_eof()
        self._tell()

    def received(self) -> None:
        """Notes that a message which aiohttp has read was delivered."""

    def close(self) -> None:
        """Notes that the connection has ended."""

    def _tell(self) -> None:
        if self.came is not None:
            self.came()
