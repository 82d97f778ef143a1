"""Work side by side in one task's place: all of it ends before that task goes on.

``asyncio.TaskGroup`` cancels its own task when a part fails, and before Python 3.13 leaves that cancel counted
(``Task.cancelling``) where the task was waiting for the parts already.  From then on ``asyncio.timeout`` of Python
3.11.0 to 3.11.2, Debian 12's among them, lets its own cancel out in that task instead of a ``TimeoutError``; and a
cancel from outside that meets a failing part is lost.  Here nobody cancels the task but others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(**parts: Coroutine[Any, Any, None]) -> None:
    """Runs ``parts`` as tasks of these names until all have returned, or one has failed. The others are cancelled then,
    and waited for. Raises ``ExceptionGroup`` of all that failed; ``CancelledError`` instead, once the parts have ended,
    if this task was cancelled meanwhile."""
    tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _end(tasks)
    failures = [failure for task in tasks if (failure := failure_of(task)) is not None]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {', '.join(parts)} failed", failures)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Passes on each cancel from outside, and raises it when all have ended."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as cancel:
            cancelled = cancel
    for task in tasks:
        failure_of(task)  # nobody else may ask, and asyncio would say that nobody did
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # else this frame, which its traceback knows, would know it


def failure_of(task: asyncio.Future[Any]) -> BaseException | None:
    """Returns why a task that has ended did, None if by returning or by a cancel. The question counts as seeing it, or
    asyncio would report it on stderr."""
    try:
        return task.exception()
    except asyncio.CancelledError:  # taken out of the task: its traceback knows frames that know the task
        return None
