"""Blocking jobs sent to a worker, and awaited on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from vlsn.errors import Damaged, WrongVersion
from vlsn.seams import Worker

T = TypeVar("T")


def settle(future: asyncio.Future[T]) -> Callable[[T], None]:
    """Makes a callback that gives ``future`` its result, unless its owner has gone."""

    def call(result: T) -> None:
        if not future.done():
            future.set_result(result)

    return call


def settle_error(future: asyncio.Future[T]) -> Callable[[BaseException], None]:
    """Makes a callback that ends ``future`` with an error, unless its owner has gone."""

    def call(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)

    return call


class Offload:
    """Calls give a future that is done on the event loop's thread. A cancelled future does not stop its job.
    ``on_fault`` is called for each job that met damage, or bytes of a later version."""

    def __init__(self, worker: Worker, on_fault: Callable[[Damaged | WrongVersion], None] = lambda _: None) -> None:
        self.worker = worker
        self._on_fault = on_fault

    def __call__(self, job: Callable[[], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def failed(error: BaseException) -> None:
            if isinstance(error, Damaged | WrongVersion):
                self._on_fault(error)
            settle_error(future)(error)

        self.worker.submit(job, settle(future), failed)
        return future
