"""Combines calls: callers that ask while a call is running share the next call. Awaits futures that outlive callers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from vlsn.errors import anew

T = TypeVar("T")


class Shared(Generic[T]):
    """Runs ``call`` at most once at a time. Every ``get`` returns the result of a run that began after that ``get``.

    get ─► call 1 begins;  get, get ─► both wait for call 2, which begins when call 1 has ended
    """

    def __init__(self, call: Callable[[], Awaitable[T]]) -> None:
        self._call = call
        self._next: asyncio.Future[T] | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed: BaseException | None = None

    async def get(self) -> T:
        """Returns the result. Raises the error of ``call``, or the error passed to ``close``."""
        if self._closed is not None:
            raise anew(self._closed)
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="shared call")
        return await undisturbed(self._next)

    def close(self, error: BaseException) -> None:
        """Ends the running call. The callers of the running call, and all later callers, get ``error``."""
        self._closed = error
        if self._task is not None:
            self._task.cancel()
        _fail(self._next, anew(error))

    async def _run(self) -> None:
        try:
            while self._next is not None:
                due, self._next = self._next, None
                try:
                    result = await self._call()
                except asyncio.CancelledError:
                    _fail(due, anew(self._closed) if self._closed is not None else asyncio.CancelledError())
                    raise
                except Exception as error:  # the error belongs to the waiting callers, so they receive it
                    _fail(due, error)
                else:
                    if not due.done():
                        due.set_result(result)
        finally:
            self._task = None


async def undisturbed(future: asyncio.Future[T]) -> T:
    """Returns the result of a future, which continues if this caller is cancelled. ``asyncio.shield`` does the same,
    but from Python 3.14 on it logs an error that comes after the cancel, although another caller receives it."""
    if not future.done():
        await asyncio.wait((future,))
    return future.result()


def _fail(due: asyncio.Future[T] | None, error: BaseException) -> None:
    if due is not None and not due.done():
        due.set_exception(error)
        due.exception()  # marks the error as seen, because every caller may have left
