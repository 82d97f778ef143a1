"""Real child processes: whatever becomes of a start or an end, no process and no descriptor is left behind."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from repl.cdc import messages
from repl.cdc.consumer import CdcConsumer, CdcContext
from repl.cdc.messages import Start
from repl.net import children
from repl.net.children import OUTPUT_BYTES_PER_S, ProcessChild, ProcessChildren
from vlsn.errors import ChannelClosed

pytestmark = pytest.mark.real


class Spawns(CdcConsumer):
    """Ends, and leaves a process that has its output open."""

    def start(self, context: CdcContext) -> None:
        print(subprocess.Popen(["sleep", "300"]).pid, flush=True)
        os._exit(3)


class Prints(CdcConsumer):
    """Prints more than the log takes in five minutes, and ends."""

    lines = 20_000

    def start(self, context: CdcContext) -> None:
        for number in range(self.lines):
            print(f"{number:999}")
        print("without an end", end="", flush=True)
        os._exit(4)


class PrintsLess(Prints):
    """Prints less than its pipe has room for, and more than the log takes at once."""

    lines = 600


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def alive() -> list[int]:
    """Lists the children of this process, those that nobody has reaped too."""
    found: list[str] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            found += path.read_text().split()
    return [int(pid) for pid in found]


def none_but(before: list[int]) -> bool:
    """Says whether none came; those of other tests may go."""
    return set(alive()) <= set(before)


async def eventually(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.02)


def ignored(name: str, line: str) -> None:
    pass


async def started_once(starter: ProcessChildren) -> None:
    """Has what the loop and the thread keep for themselves."""
    child = await starter.start("orders")
    child.kill()
    await child.ended()


async def ended(child: ProcessChild, consumer: type[CdcConsumer]) -> int:
    """Starts a consumer of this module, and returns its process's exit status."""
    order = Start(
        name="orders",
        consumer=f"{__name__}:{consumer.__name__}",
        node="n1",
        group="g",
        next=1,
        options={},
        memory_bytes_max=1 << 30,
    )
    await child.send(messages.encode(order))
    with suppress(ChannelClosed):
        while True:
            await child.receive()
    return await child.ended()


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.002, 0.005, 0.01, 0.05])
def test_a_start_that_is_given_up_leaves_nothing(after_s: float) -> None:
    async def main() -> None:
        starter = ProcessChildren(ignored)
        await started_once(starter)
        await eventually(lambda: none_but(before), "its process is gone")
        open_before = descriptors()
        for _ in range(3):
            starting = asyncio.create_task(starter.start("orders"))
            await asyncio.sleep(after_s)
            if starting.done():
                starting.result().kill()
            else:
                starting.cancel()
        await eventually(lambda: none_but(before), "their processes are gone")
        await eventually(lambda: descriptors() <= open_before, "and all that they had open")

    before = alive()
    asyncio.run(main())


def test_a_child_has_no_token_of_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        child = await ProcessChildren(ignored).start("orders")
        environ = Path(f"/proc/{child.pid}/environ")
        await eventually(lambda: environ.read_bytes() != b"", "the child has begun")
        found = environ.read_bytes().split(b"\0")
        child.kill()
        await child.ended()
        names = [each.partition(b"=")[0] for each in found]
        assert b"VLSNLOG_OTHER" in names and not [name for name in names if name.startswith(b"VLSNLOG_TOKEN")]

    for name in ("VLSNLOG_TOKEN", "VLSNLOG_TOKEN_FILE", "VLSNLOG_OTHER"):
        monkeypatch.setenv(name, "value")
    asyncio.run(main())


def test_a_child_that_cannot_be_watched_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    async def main() -> None:
        starter = ProcessChildren(ignored)
        await started_once(starter)
        open_before = descriptors()
        monkeypatch.setattr(os, "pidfd_open", full)
        with pytest.raises(OSError, match="Too many open files"):
            await starter.start("orders")
        await eventually(lambda: none_but(before), "its process is gone")
        await eventually(lambda: descriptors() <= open_before, "and all that it had open")

    before = alive()
    asyncio.run(main())


def test_output_that_another_process_keeps_open_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "OUTPUT_DRAIN_S", 0.5)
    lines: list[str] = []

    async def main() -> None:
        starter = ProcessChildren(lambda name, line: lines.append(line))
        await started_once(starter)
        await asyncio.sleep(1)
        open_before = descriptors()
        assert await ended(await starter.start("orders"), Spawns) == 3
        await eventually(lambda: descriptors() <= open_before, "nothing of it is open")

    try:
        asyncio.run(main())
        [pid] = map(int, lines)
        assert Path(f"/proc/{pid}").exists(), "and that without its other process's end"
    finally:
        for line in lines:
            os.kill(int(line), signal.SIGKILL)


def test_a_child_never_waits_for_its_log_which_counts_the_lines_that_it_does_not_take() -> None:
    lines: list[str] = []

    async def main() -> None:
        starter = ProcessChildren(lambda name, line: lines.append(line))
        async with asyncio.timeout(60):  # as fast as it is read, or five minutes
            assert await ended(await starter.start("orders"), Prints) == 4
        await eventually(lambda: lines[-1:] == ["without an end"], "all of its output is read")

    before_s = time.monotonic()
    asyncio.run(main())
    seconds = time.monotonic() - before_s
    lost = [int(line[1:].split()[0]) for line in lines if line.startswith("[")]
    said = [int(line) for line in lines[:-1] if not line.startswith("[")]
    assert said[:10] == list(range(10)) and said == sorted(said), "the first ones are there, in their order"
    assert len(said) + sum(lost) == Prints.lines, "and each of the others is counted"
    assert 0 < len(said) * 999 <= (seconds + 2) * OUTPUT_BYTES_PER_S


def test_what_lies_in_the_pipe_as_the_node_ends_is_said_or_counted() -> None:
    lines: list[str] = []

    async def main() -> None:
        starter = ProcessChildren(lambda name, line: lines.append(line))
        assert await ended(await starter.start("orders"), PrintsLess) == 4

    asyncio.run(main())  # whose end cancels the reading of the output
    lost = [int(line[1:].split()[0]) for line in lines if line.startswith("[")]
    said = [line for line in lines if not line.startswith("[")]
    assert len(said) - (said[-1:] == ["without an end"]) + sum(lost) == PrintsLess.lines
