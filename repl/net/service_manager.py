"""Messages of a node to the service manager that started it: the protocol of ``sd_notify(3)``.

    READY=1      the node answers over HTTP; it is sent again until the manager has taken it
    STATUS=…     the node's state and the reason of it, at each change
    WATCHDOG=1   the event loop turns; at least twice in each time that the manager allows
    STOPPING=1   the node has begun to stop

A message is one datagram that never blocks. If the manager does not take it, the next message contains its fields.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, MutableMapping
from math import inf
from typing import Final

from vlsn.errors import BadArgument

SOCKET_VARIABLE: Final = "NOTIFY_SOCKET"
WATCHDOG_VARIABLE: Final = "WATCHDOG_USEC"
PID_VARIABLE: Final = "WATCHDOG_PID"
STATUS_CHARACTERS_MAX: Final = 500
PERIOD_S: Final = 1.0
"""The most seconds between a change of the node's state and its message."""
_WATCHDOGS: Final = 2
"""The messages in each time that the manager waits for one."""


class ServiceManager:
    """The manager that the environment names, or none: then nothing is sent."""

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        """Removes the variables from ``environment``, so that no child process speaks for the node. Raises
        ``BadArgument`` if one of them is malformed."""
        self._address = _address(environment.pop(SOCKET_VARIABLE, ""))
        watchdog_s = _watchdog_s(environment.pop(WATCHDOG_VARIABLE, ""))
        self.period_s = min(PERIOD_S, watchdog_s / _WATCHDOGS)
        self._beat = {"WATCHDOG": "1"} if watchdog_s < inf else {}
        environment.pop(PID_VARIABLE, None)
        self._due: dict[str, str] = {}
        self._status = ""

    def ready(self, loop: asyncio.AbstractEventLoop, status: Callable[[], str]) -> None:
        """Reports that the node is ready. From then on ``loop`` reports the text of ``status``, and that it turns."""
        if self._address:
            self._due["READY"] = "1"
            self._tick(loop, status)

    def stopping(self) -> None:
        self._send(STOPPING="1")

    def _tick(self, loop: asyncio.AbstractEventLoop, status: Callable[[], str]) -> None:
        text = " ".join(status().split())[:STATUS_CHARACTERS_MAX]
        if text != self._status:
            self._status = self._due["STATUS"] = text
        self._send(**self._beat)
        loop.call_later(self.period_s, self._tick, loop, status)

    def _send(self, **fields: str) -> None:
        self._due |= fields
        if not (self._address and self._due):
            return
        message = "\n".join(f"{name}={value}" for name, value in self._due.items())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as sender:
            try:
                sender.sendto(message.encode(), self._address)
            except OSError:
                return  # its queue is full, or it is being started anew
        self._due.clear()


def _address(text: str) -> str:
    """Returns the address of the manager's socket. A name that begins with ``@`` is of Linux's abstract namespace."""
    if text and text[0] not in "/@":
        raise BadArgument(f"{SOCKET_VARIABLE}: {text[:80]!r} is neither an absolute path nor @NAME")
    return "\0" + text[1:] if text.startswith("@") else text


def _watchdog_s(text: str) -> float:
    """Returns the seconds that the manager waits for a message: infinity without a watchdog."""
    if not text:
        return inf
    if not (text.isascii() and text.isdigit() and int(text[:20]) > 0):
        raise BadArgument(f"{WATCHDOG_VARIABLE}: {text[:80]!r} is no whole number of microseconds above 0")
    return int(text[:20]) / 1e6
