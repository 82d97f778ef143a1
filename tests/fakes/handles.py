"""Handles of a loop of virtual time: asyncio's own, without their debug mode."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any


class VirtualHandle(asyncio.TimerHandle):
    """A handle of a callback, now or at ``when``. One class serves both, so that the interpreter sees a single type
    where they run."""

    __slots__ = ()

    _args: Any
    _callback: Any
    _cancelled: bool
    _context: Context
    _loop: Any
    _scheduled: bool
    _when: float

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._loop._timer_cancelled_count += self._scheduled
            self._callback = self._args = None


def made(
    callback: Callable[..., object], args: tuple[Any, ...], loop: Any, context: Context | None, when: float
) -> VirtualHandle:
    """Returns a new handle. A function, and no ``__init__``: the interpreter calls one without leaving its own loop."""
    handle = _new(VirtualHandle)
    handle._context = copy_context() if context is None else context
    handle._loop = loop
    handle._callback = callback
    handle._args = args
    handle._cancelled = handle._scheduled = False
    handle._when = when
    return handle


_new = VirtualHandle.__new__


def report(handle: VirtualHandle, error: BaseException) -> None:
    """Reports a callback's exception to its loop, as asyncio does. The end of all is raised."""
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        raise error
    context = {"message": f"Exception in callback {handle._callback!r}", "exception": error, "handle": handle}
    handle._loop.call_exception_handler(context)
