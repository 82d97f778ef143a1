"""A real node behind its gateway, on a fake disk, clock and network, in the loop of the test, virtual or not.

A test sees what the gateway asked of the lead (``asked``), can keep the log from its disk (``hold``, ``release``) and
can have appends refused (``refuse``). Data begin at VLSN ``FIRST``, in term ``TERM``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from repl.api import Acks, Appended, Done
from repl.node.node import Node
from tests.seam.nodes import Group
from vlsn.errors import VlsnLogError
from vlsn.format.batch import Batch, decode_entries
from vlsn.format.submission import Submission, Transaction, Values
from vlsn.levels import LEVELS
from vlsn.seams import Seams, Threads, Worker

FIRST = 4
"""The first VLSN of data: the group's first block holds a TERM, a GROUP and a COMMIT entry."""
TERM = 1
Job = tuple[Callable[[], Any], Callable[[Any], None], Callable[[BaseException], None]]


class HeldThreads:
    """The threads of one process, whose writer does nothing while ``hold`` is set."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self.hold = False
        self.latch = threads.latch
        self.writer: HeldWorker

    def worker(self, name: str) -> Worker:
        worker = self._threads.worker(name)
        if name != "vlsnlog-writer":
            return worker
        self.writer = HeldWorker(self, worker)
        return self.writer


class HeldWorker:
    def __init__(self, threads: HeldThreads, worker: Worker) -> None:
        self._threads, self._worker = threads, worker
        self._held: list[Job] = []

    def submit(
        self, job: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[BaseException], None]
    ) -> None:
        if self._threads.hold:
            self._held.append((job, done, failed))
        else:
            self._worker.submit(job, done, failed)

    def release(self) -> None:
        held, self._held = self._held, []
        for each in held:
            self._worker.submit(*each)

    def pending(self) -> int:
        return self._worker.pending() + len(self._held)

    def close(self) -> None:
        self.release()
        self._worker.close()


class OneNode(Node):
    """A node that tells what its lead was asked."""

    def __init__(self, config: Any, seams: Seams, *others: Any, **more: Any) -> None:
        self.threads = HeldThreads(seams.threads)
        super().__init__(config, replace(seams, threads=self.threads), *others, **more)
        self.asked: list[tuple[Submission, int | None]] = []
        """Each submission, with what it says that its producer was born at."""
        self.refuse: Exception | None = None
        self.unanswered = 0
        self._changed = asyncio.Event()

    def watch(self) -> None:
        """Has the lead's admission tell what it is asked from here on."""
        assert self.lead is not None
        admission, submit = self.lead.admission, self.lead.admission.submit

        def asked(
            submission: Submission, acks: Acks, done: Done, born: int | None = None, *more: Any, **named: Any
        ) -> Any:
            self.asked.append((submission, born))
            if self.refuse is not None:
                raise self.refuse
            self.unanswered += 1
            self._changed.set()

            def answered(result: Appended | VlsnLogError) -> None:
                self.unanswered -= 1
                done(result)

            try:
                return submit(submission, acks, answered, born, *more, **named)
            except VlsnLogError:
                self.unanswered -= 1
                raise

        admission.submit = asked  # type: ignore[method-assign]

    @property
    def hold(self) -> bool:
        return self.threads.hold

    @hold.setter
    def hold(self, hold: bool) -> None:
        self.threads.hold = hold

    def release(self) -> None:
        """Lets the log go on to its disk."""
        self.hold = False
        self.threads.writer.release()

    async def until_unanswered(self, count: int) -> None:
        """Returns once ``count`` appends wait for their answers."""
        while self.unanswered < count:
            self._changed.clear()
            await self._changed.wait()

    async def append(self, *values: bytes) -> None:
        """Appends entries without keys, durable on return."""
        assert self.lead is not None
        durable: asyncio.Future[Appended | VlsnLogError] = asyncio.get_running_loop().create_future()
        self.lead.admission.submit(Values(list(values)), Acks.MAJORITY, durable.set_result)
        assert isinstance(await durable, Appended)

    @property
    def submitted(self) -> list[tuple[bytes | None, bytes]]:
        """The keys and values of all that was submitted."""
        found: list[tuple[bytes | None, bytes]] = []
        for submission, _ in self.asked:
            parts = submission.parts if isinstance(submission, Transaction) else [submission]
            for part in parts:
                if isinstance(part, Batch):
                    found += decode_entries(part)
                else:
                    keys = part.keys or [b""] * len(part.values)
                    found += [(key or None, value) for key, value in zip(keys, part.values, strict=True)]
        return found


class OneGroup(Group):
    node_class = OneNode


async def started(*, hold: bool = False, refuse: Exception | None = None, **settings: Any) -> OneNode:
    """Returns the master of a group of one. Its segments are of 64 KiB unless ``settings`` say otherwise: a fake disk
    takes a second to make one of 64 MiB."""
    group = OneGroup(1, 1, levels=LEVELS, keyed=False, **settings)
    await group.start()
    await group.serving()
    node = group.nodes["n1"]
    assert isinstance(node, OneNode)
    node.watch()
    node.hold, node.refuse = hold, refuse
    return node


async def follower() -> Node:
    """Returns a node that follows ``http://n1:7701``."""
    group = Group(1, 2, levels=LEVELS, keyed=False)
    await group.start()
    await group.serving("n1")
    node = group.nodes["n2"]
    await group.until(lambda: node.member.master_url() is not None, "n2 follows")
    return node


async def masterless() -> Node:
    """Returns a node that knows no master: the other one of its group is down."""
    group = Group(1, 2, levels=LEVELS, keyed=False)
    await group.start("n2")
    await group.until(lambda: group.nodes["n2"].open is not None, "n2 has a log")
    return group.nodes["n2"]
