"""A real node behind its gateway, on a fake disk, clock and network, in the loop of the test, virtual or not.

A test sees what the gateway asked of the lead (``asked``) and what is in the log (``entries``), can keep the log from
its disk (``hold``, ``release``) and can have appends refused (``refuse``, ``refusals``). Data begin at VLSN ``FIRST``,
in term ``TERM``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from repl.api import Acks, Appended, Done
from repl.node.node import Node
from tests.seam.nodes import BIG, CLEANS, SEGMENT, Group
from vlsn.errors import VlsnLogError
from vlsn.format import block
from vlsn.format.batch import Batch, decode_entries
from vlsn.format.block import Entry
from vlsn.format.submission import Submission, Transaction, Values
from vlsn.levels import LEVELS
from vlsn.limits import RING_BYTES_MAX
from vlsn.seams import Seams, Threads, Worker
from vlsn.segments.reader import DATA_ONLY

FIRST = 4
"""The first VLSN of data: the group's first block holds a TERM, a GROUP and a COMMIT entry."""
TERM = 1
Refusals = Callable[[list[bytes]], VlsnLogError | None]
"""Says with which error a submission of these values is refused, if it is."""
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
        self.taken: list[tuple[int, int, int | None]] = []
        """Producer, sequence and birth of each submission that the lead did not refuse at once."""
        self.refuse: Exception | None = None
        self.refusals: Refusals | None = None
        self.unanswered = 0
        self.url = ""
        """The URL at which a test serves it on a real socket."""
        self._changed = asyncio.Event()

    def watch(self) -> None:
        """Has the lead's admission tell what it is asked from here on."""
        assert self.lead is not None
        admission, submit = self.lead.admission, self.lead.admission.submit

        def asked(
            submission: Submission, acks: Acks, done: Done, born: int | None = None, *more: Any, **named: Any
        ) -> Any:
            self.asked.append((submission, born))
            refusal = self.refuse
            if refusal is None and self.refusals is not None:
                refusal = self.refusals([value for _, value in pairs_of(submission)])
            if refusal is not None:
                raise refusal
            self.unanswered += 1
            self._changed.set()

            def answered(result: Appended | VlsnLogError) -> None:
                self.unanswered -= 1
                done(result)

            try:
                pending = submit(submission, acks, answered, born, *more, **named)
            except VlsnLogError:
                self.unanswered -= 1
                raise
            self.taken.append((submission.producer, submission.sequence, born))
            return pending

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
        return [pair for submission, _ in self.asked for pair in pairs_of(submission)]

    @property
    def blocks(self) -> list[bytes]:
        """The blocks that its log keeps in memory, durable or not, which are all blocks of a short test."""
        ring = self.opened().log.view.ring
        return [bytes(each) for each in ring.take(ring.head, end=ring.end, bytes_max=RING_BYTES_MAX)]

    @property
    def entries(self) -> list[Entry]:
        """The data of ``blocks``."""
        return [each for data in self.blocks for each in block.entries(data, block.decode(data), kinds=DATA_ONLY)]

    @property
    def values(self) -> list[bytes]:
        return [entry.value for entry in self.entries]


def pairs_of(submission: Submission) -> list[tuple[bytes | None, bytes]]:
    """Lists the keys and values of a submission."""
    found: list[tuple[bytes | None, bytes]] = []
    for part in submission.parts if isinstance(submission, Transaction) else [submission]:
        if isinstance(part, Batch):
            found += decode_entries(part)
        else:
            keys = part.keys or [b""] * len(part.values)
            found += [(key or None, value) for key, value in zip(keys, part.values, strict=True)]
    return found


class OneGroup(Group):
    node_class = OneNode


async def started(
    *,
    keyed: bool = False,
    hold: bool = False,
    refuse: Exception | None = None,
    refusals: Refusals | None = None,
    **settings: Any,
) -> OneNode:
    """Returns the master of a group of one. Its segments are of 64 KiB unless ``settings`` say otherwise: a fake disk
    takes a second to make one of 64 MiB."""
    group = OneGroup(1, 1, levels=LEVELS, keyed=keyed, **settings)
    await group.start()
    await group.serving()
    node = group.nodes["n1"]
    assert isinstance(node, OneNode)
    node.watch()
    node.hold, node.refuse, node.refusals = hold, refuse, refusals
    return node


async def cleaned() -> OneNode:
    """Returns the master of a group of one that has cleaned its first entries away."""
    node = await started(**CLEANS, retention_bytes=2 * SEGMENT)
    orders = node.services.administration
    while node.opened().log.view.range.first <= FIRST:
        await node.append(*[BIG] * 8)
        await orders.checkpoint()
        await orders.clean(dry_run=False)
    return node


async def follower(*, keyed: bool = False) -> OneNode:
    """Returns a node that follows ``http://n1:7701``."""
    group = OneGroup(1, 2, levels=LEVELS, keyed=keyed)
    await group.start()
    await group.serving("n1")
    node = group.nodes["n2"]
    assert isinstance(node, OneNode)
    await group.until(lambda: node.member.master_url() is not None, "n2 follows")
    return node


async def master_of_two() -> OneNode:
    """Returns the master of a group whose other node has no socket."""
    group = OneGroup(1, 2, levels=LEVELS, keyed=False)
    await group.start()
    await group.serving("n1")
    node = group.nodes["n1"]
    assert isinstance(node, OneNode)
    return node


async def masterless() -> Node:
    """Returns a node that knows no master: the other one of its group is down."""
    group = Group(1, 2, levels=LEVELS, keyed=False)
    await group.start("n2")
    await group.until(lambda: group.nodes["n2"].open is not None, "n2 has a log")
    return group.nodes["n2"]
