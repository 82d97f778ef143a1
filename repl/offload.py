"""Runs blocking jobs on a worker thread, and awaits them on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from vlsn.errors import Damaged, WrongVersion
from vlsn.seams import Threads, Worker

T = TypeVar("T")
WORKERS = ("keeper", "writer", "reads", "feeds", "scrub", "cdc", "pages", "page_syncs")


def settle(future: asyncio.Future[T]) -> Callable[[T], None]:
    """Makes a callback that sets the result of ``future``, unless the future is complete or cancelled."""

    def call(result: T) -> None:
        if not future.done():
            future.set_result(result)

    return call


def settle_error(future: asyncio.Future[T]) -> Callable[[BaseException], None]:
    """Makes a callback that sets an error on ``future``, unless the future is complete or cancelled."""

    def call(error: BaseException) -> None:
        if not future.done():
            future.set_exception(error)

    return call


class Offload:
    """Passes jobs to a worker. Each call returns a future, which completes on the event loop's thread. Cancelling the
    future does not stop its job. ``on_fault`` is called for each job that found damage, or bytes of a later version."""

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


class Workers:
    """The threads of one node, from its start to its stop. ``fatal`` is called with an error that must end the
    process."""

    def __init__(self, threads: Threads, fatal: Callable[[BaseException], None]) -> None:
        self._threads = threads
        self._fatal = fatal
        self._workers: dict[str, Worker] = {}
        self.damaged: Callable[[Damaged], None] | None = None
        """Called with the damage that an offloaded job has found. While no log is open this is None, because opening a
        log repairs its damage."""

    def start(self) -> None:
        for name in WORKERS:
            self._workers[name] = self._threads.worker(f"vlsnlog-{name}")

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()

    def __getitem__(self, name: str) -> Worker:
        """Returns the worker ``name``, one of ``WORKERS``."""
        return self._workers[name]

    def offload(self, name: str) -> Offload:
        """Makes an ``Offload`` for the worker ``name``. If its jobs find damage, the damage is repaired; if they find
        bytes of a later version, the node ends."""
        return Offload(self[name], self._fault_met)

    def on_keeper(self, job: Callable[[], Any]) -> asyncio.Future[Any]:
        return Offload(self["keeper"])(job)

    def _fault_met(self, error: Damaged | WrongVersion) -> None:
        if isinstance(error, WrongVersion):
            self._fatal(error)
        elif self.damaged is not None:
            self.damaged(error)
