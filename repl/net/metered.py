"""The tap of a connection to a listener. It counts bytes and frames before aiohttp's reader gets them.

    read ─► a turn's share of frames ─► places for bytes (arrivals) ─► aiohttp's reader
         └► the rest is held: reading pauses, and goes on by the turn (turns)

A connection is closed with code 1008 (RFC 6455 §7.4.1) if, within ``TINY_FRAMES_S`` and without a whole message, it
sends ``TINY_FRAMES_MAX`` frames that bring almost nothing. Its later bytes are dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiohttp import WSMessage, WSMsgType

from repl.net.arrivals import Arrival
from repl.net.frames import is_small_frame, payload_of
from repl.net.tap import ALL_READ, Tap
from repl.net.turns import Turns
from vlsn.seams import Buffer

TINY_FRAMES_MAX = 1_000
TINY_FRAMES_S = 10.0
TOO_TINY = "over 1000 tiny frames and no message"


class MeteredTap(Tap):
    """Counts one connection. ``pause`` and ``resume`` the connection's reading; ``stalled`` says that aiohttp's queue
    is full for now."""

    def __init__(
        self,
        message_bytes_max: int,
        arrival: Arrival,
        turns: Turns,
        *,
        pause: Callable[[], None],
        resume: Callable[[], None],
        stalled: Callable[[], bool],
    ) -> None:
        super().__init__(message_bytes_max, arrival.frames)
        self._arrival = arrival
        self._turns = turns
        self._pause, self._resume, self._stalled = pause, resume, stalled
        self._held = memoryview(b"")
        self._in_line = self._over = False
        self._loop = asyncio.get_running_loop()
        self._tiny_since = self._loop.time()
        self.queue: Any = None
        """aiohttp's queue, once there is one."""

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        take = self.take
        if (
            take is not None
            and self._takes_small
            and is_small_frame(data)
            and self._frames.between
            and self._turns.small()
        ):
            take(payload_of(data))
            return ALL_READ
        return self._read(data)

    def feed_eof(self) -> None:
        self._let_go()
        super().feed_eof()

    def go_on(self, frames_max: int) -> int:
        """Takes in up to ``frames_max`` of the held frames. Returns how many frames it took (``turns.GoOn``)."""
        self._in_line = False
        if not self._held:
            return 0
        begun = self._frames.begun
        held = self._held[self._pass(self._held, frames_max) :]
        if held and not self._over:
            self._hold(held)
        else:
            self._let_go()
        return self._frames.begun - begun

    def resumed(self) -> None:
        """Notes that aiohttp's queue has space again."""
        if self._held and not self._in_line:
            self._in_line = True
            self._turns.wait(self.go_on)

    @property
    def holds(self) -> bool:
        """True while bytes that have arrived wait for their turn."""
        return bool(self._held)

    def received(self) -> None:
        self._arrival.received()

    def close(self) -> None:
        self._over = True
        self._let_go()
        self._arrival.close()

    def _read(self, data: bytes) -> tuple[bool, bytes]:
        if self._over:
            return ALL_READ
        if self._held:  # these bytes were on their way when reading was paused
            self._held = memoryview(bytes(self._held) + data)
            return ALL_READ
        begun, share = self._frames.begun, self._turns.share()
        end = self._pass(data, share) if share else 0
        self._turns.took(self._frames.begun - begun)
        if end < len(data) and not self._over:
            self._hold(memoryview(data)[end:])
        return ALL_READ

    def _pass(self, data: Buffer, frames_max: int) -> int:
        """Passes ``data`` on, up to ``frames_max`` frames. Returns how many bytes were passed on."""
        end = self._arrival.arrived(data, frames_max)
        failed, _ = self._parser.feed_data(data if end == len(data) else bytes(data[:end]))
        if self._frames.tiny > TINY_FRAMES_MAX:
            self._too_tiny()
        self._over = self._over or failed
        self._tell()
        return end

    def _too_tiny(self) -> None:
        now = self._loop.time()
        if now - self._tiny_since > TINY_FRAMES_S:
            self._tiny_since, self._frames.tiny = now, 0
        elif self.queue is not None:
            self._over = True
            self.queue.feed_data(WSMessage(WSMsgType.ERROR, TOO_TINY, ""), 0)

    def _hold(self, data: memoryview) -> None:
        if not self._held:
            self._pause()
        self._held = data
        self._frames.held = True
        if not self._stalled():
            self.resumed()

    def _let_go(self) -> None:
        if self._held:
            self._held = memoryview(b"")
            self._frames.held = False
            self._resume()
