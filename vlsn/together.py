"""Runs several coroutines in parallel for one task. All coroutines end before the task continues.

``asyncio.TaskGroup`` is not used, since it cancels the calling task when a coroutine fails. Python before 3.13 may
leave that cancel counted (``Task.cancelling``). With such a leftover cancel, ``asyncio.timeout`` of Python 3.11.0 to
3.11.2, which Debian 12 has, raises its own cancel in that task instead of a ``TimeoutError``. Also, ``TaskGroup`` may
lose a cancel from outside that coincides with a failing coroutine. The module ``together`` never cancels the calling
task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def together(**parts: Coroutine[Any, Any, None]) -> None:
    """Runs the coroutines ``parts`` as tasks of these names, until all have returned or one has failed. After a failure
    the other tasks are cancelled and awaited. Raises ``ExceptionGroup`` with the errors of all tasks that failed. If
    the calling task was cancelled meanwhile, raises ``CancelledError`` instead, once all of ``parts`` have ended."""
    tasks = [asyncio.create_task(part, name=name) for name, part in parts.items()]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        await _end(tasks)
    failures = [failure for task in tasks if (failure := failure_of(task)) is not None]
    if failures:
        raise BaseExceptionGroup(f"{len(failures)} of {', '.join(parts)} failed", failures)


async def _end(tasks: list[asyncio.Task[None]]) -> None:
    """Passes on each cancel from outside to the tasks, and raises the cancel when all tasks have ended."""
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as cancel:
            cancelled = cancel
    for task in tasks:
        failure_of(task)  # retrieve the error, or asyncio reports it as never retrieved
    if cancelled is not None:
        try:
            raise cancelled
        finally:
            del cancelled  # otherwise this frame, to which the error's traceback refers, would refer to the error


def failure_of(task: asyncio.Future[Any]) -> BaseException | None:
    """Returns the error of a task that has ended, or None if the task returned or was cancelled. A call also marks the
    error as retrieved; otherwise asyncio would report it on stderr."""
    try:
        return task.exception()
    except asyncio.CancelledError:  # retrieved, since its traceback refers to frames that refer to the task
        return None
