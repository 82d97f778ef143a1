"""A restore step by step, without a node: a provider's log on one machine, the restoring directory on another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from feeder.restore import Restores
from replica.restore import Progress, Transfer
from replica.unpack import Unpacked
from tests.vlsn.logs import SMALL, Machine, Opened
from vlsn.errors import LogFailed
from vlsn.format.segment import segment_name
from vlsn.ids import Term, Vlsn
from vlsn.recover.recovery import recover
from vlsn.repair.restore import Restart
from vlsn.repair.restore_messages import Offer, RestoreAsk
from vlsn.seams import Worker
from vlsn.write.local_log import LocalLog
from vlsn.write.write_cycle import LogListener

T = TypeVar("T")


class Provider:
    """``feeder.restore`` over an open log, asked directly; ``before`` is called ahead of each range."""

    def __init__(self, opened: Opened, name: str = "n2") -> None:
        self.name = name
        self.opened = opened
        self.before: Callable[[], None] = lambda: None
        self.ranges = 0
        self.spoil: Callable[[bytes], bytes] = lambda data: data
        self.restores = Restores(opened.log, self._read, group="g", name=name, incarnation=2)

    async def open(self, from_vlsn: Vlsn) -> Offer:
        ask = RestoreAsk(
            group="g", sender="n1", incarnation="0" * 16, to=self.name, purpose="open", from_vlsn=from_vlsn
        )
        return self.restores.open(ask, feeders=0)()

    async def read(self, session: str, number: int, start: int, end: int, *, have: Vlsn) -> bytes:
        self.before()
        self.ranges += 1
        data, _ = await self.restores.read(session, number, start, end, have=have)
        return self.spoil(data) if end - start > 4096 else data

    async def close(self, session: str) -> None:
        self.restores.close(session)

    async def _read(self, number: int, start: int, end: int) -> bytes:
        file = self.opened.machine.disk.open(f"{self.opened.log.directory}/{segment_name(number)}")
        try:
            return file.read(start, end - start)
        finally:
            file.close()


def _failed(error: LogFailed) -> None:
    assert error.__cause__ is not None  # what has ended the log is raised to who called it


def restart_of(machine: Machine) -> Restart:
    return Restart(machine.seams(), machine.directory, group="g", node="n1")


class HeldWorker:
    """A worker whose jobs wait from ``hold`` to ``release``."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._held: list[Callable[[], None]] | None = None

    def pending(self) -> int:
        return self._worker.pending() + len(self._held or [])

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        held, self._held = self._held or [], None
        for submit in held:
            submit()

    def submit(self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]) -> None:
        if self._held is None:
            self._worker.submit(job, done, failed)
        else:
            self._held.append(lambda: self._worker.submit(job, done, failed))

    def close(self) -> None:
        self._worker.close()


def open_restoring(machine: Machine, wrap: Callable[[Worker], Worker] = lambda worker: worker) -> LocalLog:
    """``wrap`` makes the log's writer of the machine's."""
    seams = machine.seams()
    recovered = recover(
        machine.directory, seams, group="g", node="n1", segment_bytes=SMALL.segment_bytes, restoring=True
    )
    workers = [seams.threads.worker(name) for name in ("writer", "keeper")]
    options = replace(SMALL, checkpoint_bytes=100 << 10)
    writer, keeper = wrap(workers[0]), workers[1]
    return LocalLog(recovered, options, seams, writer=writer, keeper=keeper, listener=LogListener(), failed=_failed)


async def restore(machine: Machine, provider: Provider, *, end: tuple[int, int] | None) -> LocalLog:
    """Begins or goes on, to the end.  As ``repl.repair.restoring.Restoration.run``; the log, closed."""
    restart = restart_of(machine)
    if restart.begun() is None:
        restart.begin(Vlsn(provider.opened.log.view.range.first - 1), "a test", end=end)
    log = open_restoring(machine)
    record = await transfer(log, provider).run()
    log.close(lambda: None)
    log.node_file.close()
    restart.finish(record)
    return log


def transfer(log: LocalLog, provider: Provider) -> Transfer:
    async def offload(job: Callable[[], Unpacked]) -> Unpacked:
        return job()

    return Transfer(log, provider, Progress(), partial(_store_term, log), offload)


async def _store_term(log: LocalLog, term: Term) -> None:
    record = log.node_file.record
    if term > record.term:
        log.node_file.replace(replace(record, term=term))


def run_restore(machine: Machine, provider: Provider, *, end: tuple[int, int] | None = None) -> LocalLog:
    return asyncio.run(restore(machine, provider, end=end))
