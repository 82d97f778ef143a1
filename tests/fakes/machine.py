"""A machine of a simulated cluster: a disk and stores that survive its processes.

    machine = Machine("n1", loop, net, Random("7/n1"))
    process = machine.boot()                  a fresh process: its seams and its network
    task = process.start(node_main(process))  ends quietly when the process is killed
    machine.kill()                            SIGKILL: bytes stay, everything else is gone
    machine.power_cut(tear=True)              and the machine with it: any subset of what was not synced

The last messages of a killed process are not received. Its disk calls raise ``StopHere``, its jobs do not run, its
connections are cut, its tasks, and all that they ever started, are cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.fakes.clock import FakeClock
from tests.fakes.loop import Owner
from tests.fakes.net import FakeHost, FakeNet
from tests.fakes.random import SeededRandom
from tests.fakes.threads import FakeThreads
from vlsn.levels import LEVEL_1
from vlsn.seams import Seams
from vlsnlog.testing.fakes.disk import FakeDisk, FakeFile, FakeLock
from vlsnlog.testing.fakes.kv import Contents, FakeStores


class Machine:
    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        net: FakeNet,
        rng: Random,
        *,
        latency_s: tuple[float, float] = (0.0, 0.000_5),
        capacity_bytes: int | None = None,
    ) -> None:
        self.name = name
        self.loop = loop
        self.net = net
        self.rng = rng
        self.latency_s = latency_s
        self.disk = FakeDisk(rng=rng, capacity_bytes=capacity_bytes)
        self.stores = FakeStores(self.disk)
        self.clock_offset_us = 0
        self.levels = LEVEL_1
        """The levels that the binary of its next process supports."""
        self.process: Process | None = None
        self.disk.on_stop = self.kill

    def boot(self) -> Process:
        assert self.process is None, f"{self.name} is up"
        self.process = Process(self)
        return self.process

    def kill(self, *, silent: bool = False) -> None:
        """Kills the process. With ``silent`` its connections are not reset, as if the machine or its network were
        gone."""
        process, self.process = self.process, None
        self.disk.process_kill()
        if process is not None:
            process.threads.kill()
            self.stores.abandon()
            self.net.kill(self.name, silent=silent)
            process.owner.end()

    def image(self) -> Image:
        """Returns a copy of the disk as it is now, whatever runs on it."""
        return Image(self.disk.clone(), {path: contents.copy() for path, contents in self.stores.contents.items()})

    def put_back(self, image: Image) -> None:
        """Replaces the disk by ``image``."""
        assert self.process is None, f"{self.name} is up"
        self.disk = image.disk.clone()
        self.disk.on_stop = self.kill
        self.stores = FakeStores(self.disk)
        self.stores.contents = {path: contents.copy() for path, contents in image.stores.items()}

    def power_cut(self, *, tear: bool = False) -> None:
        self.kill(silent=True)
        self.disk.power_cut(self.rng, tear=tear)


@dataclass(frozen=True, slots=True)
class Image:
    """The contents of a machine's disk at one moment."""

    disk: FakeDisk
    stores: dict[str, Contents]


class Process:
    """One process of a node."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.threads = FakeThreads(machine.loop, rng=machine.rng, disk=machine.disk, latency_s=machine.latency_s)
        self.clock = FakeClock(machine.loop.time, offset_us=machine.clock_offset_us)
        self.owner = Owner()
        self.network: FakeHost = machine.net.host(machine.name, self.owner)
        self.seams = Seams(
            disk=ProcessDisk(machine.disk),
            clock=self.clock,
            random=SeededRandom(machine.rng),
            threads=self.threads,
            stores=machine.stores,
            levels=machine.levels,
        )

    @property
    def alive(self) -> bool:
        return self.machine.process is self

    def start(self, main: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task of this process, to which all tasks that it starts belong."""
        task = self.machine.loop.create_task(self._live(main), context=self.owner.context())
        task.add_done_callback(lambda _: main.close())  # a process may be killed before its first step
        return task

    async def _live(self, main: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await main
        except BaseException:
            if self.alive:
                raise
            return None  # errors of a killed process are dropped


class ProcessDisk:
    """The machine's disk for one process; every call fails once that process has ended."""

    def __init__(self, disk: FakeDisk) -> None:
        self._disk, self._life = disk, disk.life

    @property
    def _mine(self) -> FakeDisk:
        self._disk.check_life(self._life)
        return self._disk

    def open(self, path: str, *, write: bool = False, create: bool = False, private: bool = False) -> FakeFile:
        return self._mine.open(path, write=write, create=create, private=private)

    def list(self, directory: str) -> list[str]:
        return self._mine.list(directory)

    def exists(self, path: str) -> bool:
        return self._mine.exists(path)

    def make_directory(self, path: str) -> None:
        self._mine.make_directory(path)

    def rename(self, old: str, new: str) -> None:
        self._mine.rename(old, new)

    def link(self, old: str, new: str) -> None:
        self._mine.link(old, new)

    def remove(self, path: str) -> None:
        self._mine.remove(path)

    def sync_directory(self, directory: str) -> None:
        self._mine.sync_directory(directory)

    def free_bytes(self, directory: str) -> int:
        return self._mine.free_bytes(directory)

    def lock(self, path: str) -> FakeLock:
        return self._mine.lock(path)

    def is_locked(self, path: str) -> bool:
        return self._mine.is_locked(path)
