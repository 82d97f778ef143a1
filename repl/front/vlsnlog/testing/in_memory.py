"""``NodeInMemory``: a node as a thread of this process, on a disk and stores in memory.

    directory/node.toml    real: its settings, and the files that they name, are copied to its disk at each start
    directory/node.log     real: what it logs
    everything else        on the node's ``FakeDisk``, which outlives the thread as a disk outlives a process

It takes the signals of a process, so a group calls it like one:

    SIGTERM    the node stops cleanly
    SIGSTOP    its loop stands still; a job of its threads that is under way ends
    SIGCONT    its loop continues
    SIGKILL    1. its loop stands still     2. its sockets are shut, so nothing more of it is received
               3. its disk stops            4. its tasks and threads end, without effect

Each node listens, and calls, on an address of its own (127.A.B.N). So the links know the callers, and a kill finds the
sockets. This takes Linux, where all of 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any, Final

import uvloop

from repl import cluster
from repl.cdc.children import Child
from repl.config import NodeConfig, load_node_config
from repl.net.network import AiohttpNetwork
from repl.node.logging_format import TEXT
from repl.node.node import Node
from vlsn.errors import BadArgument, VlsnLogError, said_of
from vlsn.real.clock import SystemClock, SystemRandom
from vlsn.real.disk import PosixDisk
from vlsn.real.threads import LoopThreads, LoopWorker
from vlsn.seams import Seams
from vlsnlog.testing.fakes.disk import FakeDisk
from vlsnlog.testing.fakes.kv import FakeStores

DISK_BYTES: Final = 256 << 20
"""The size of a node's disk. A full disk refuses appends, as a real one does."""
END_S: Final = 5.0
"""The most seconds in which the tasks of a killed node end."""
LOOK_S: Final = 0.05
LOGGERS: Final = ("vlsnlog", "repl")
_groups = itertools.count()
_lives = itertools.count(1)


def next_hosts(names: list[str]) -> dict[str, str]:
    """Returns an address for each node of a group, which no other group of this process has."""
    group = next(_groups)
    return {name: f"127.{1 + group // 250 % 250}.{1 + group % 250}.{at}" for at, name in enumerate(names, start=1)}


class NodeInMemory(cluster.Node):
    """One node. ``seed`` draws what a power cut loses."""

    def __init__(self, name: str, directory: Path, url: str, host: str, *, seed: int) -> None:
        super().__init__(name, directory, url)
        self.disk = FakeDisk(rng=Random(seed), capacity_bytes=DISK_BYTES, keep_calls=False)
        self.disk.make_directory(str(directory))
        self.disk.settle()  # a power cut leaves the directory, as that of a real node
        self._stores = FakeStores(self.disk)
        self._rng = Random(seed)
        self._host = host
        self._life: _Life | None = None
        self._latch = threading.RLock()
        """Held by every order, which any thread may give."""

    @property
    def pid(self) -> int | None:
        return None if self._life is None else os.getpid()

    @property
    def ended(self) -> int | None:
        return None if self._life is None else self._life.status

    @property
    def running(self) -> bool:
        return self._life is not None and self._life.status is None

    def start(self) -> None:
        config = load_node_config(path=self.config_path, environment={})
        if config.cdc:
            raise BadArgument('cdc: consumers are processes with files of their own; use Group(disk="real")')
        with self._latch:
            if self.running:
                return
            self._release()
            self._copy_files(config)
            self._life = _Life(config, self._host, self.disk, self._stores, self.directory / cluster.LOG_FILE)

    def send(self, number: signal.Signals) -> None:
        with self._latch:
            life = self._life
            if life is None:
                return
            if number == signal.SIGTERM:
                life.stop()
            elif number in (signal.SIGSTOP, signal.SIGKILL):  # the second half of SIGKILL is ``kill``
                life.freeze()
            elif number == signal.SIGCONT:
                life.thaw()

    def kill(self) -> None:
        with self._latch:
            if self._life is not None:
                self._life.kill()
                self._release()

    def power_cut(self) -> None:
        """Kills the node, and any of its unsynced bytes are lost."""
        with self._latch:
            self.kill()
            self.disk.power_cut(self._rng)

    def _release(self) -> None:
        """Closes what the last life left open on its disk, as the kernel does for a process."""
        life = self._life
        if life is not None and not life.released:
            life.released = True
            self.disk.process_kill()
            self._stores.abandon()

    def _copy_files(self, config: NodeConfig) -> None:
        """Copies the files that the settings name to the node's disk."""
        disk = PosixDisk()
        for each in fields(config):
            path = getattr(config, each.name)
            if isinstance(path, Path) and each.name != "dir":
                with suppress(FileNotFoundError):  # the node says so better
                    file = disk.open(str(path))
                    try:
                        mode, content = file.protection()[0], file.read(0, file.size())
                    finally:
                        file.close()
                    self.disk.make_directory(str(path.parent))
                    self.disk.write_content(str(path), content, mode=mode)


class _Life:
    """One run of a node, from its start to its end, on a thread of its own."""

    def __init__(self, config: NodeConfig, host: str, disk: FakeDisk, stores: FakeStores, log: Path) -> None:
        self.status: int | None = None
        """As of a process: None while it runs, then the exit status, or minus the signal that ended it."""
        self.released = False
        self._config, self._host, self._log = config, host, log
        self._disk, self._stores = disk, stores
        self._workers: list[LoopWorker] = []
        self._thawed, self._frozen = threading.Event(), threading.Event()
        self._dead = False
        """True once nothing that the node does has an effect."""
        self._clearing = False
        self._loop = uvloop.new_event_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._node: Node | None = None
        self._thread = threading.Thread(target=self._run, name=f"vlsnlog-{next(_lives)}-{config.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._call(self._end, 0)

    def freeze(self) -> None:
        """Returns once the loop stands still, or has ended."""
        if self._frozen.is_set():
            return
        self._thawed.clear()
        self._call(self._stand_still)
        while not self._frozen.wait(LOOK_S) and self._thread.is_alive():
            pass

    def thaw(self) -> None:
        self._frozen.clear()
        self._thawed.set()

    def kill(self) -> None:
        """Returns once the thread has ended."""
        self.freeze()
        if self.status is None:
            self.status = -signal.SIGKILL
            _shut_sockets(self._host)
            self._die()
        self.thaw()
        self._thread.join()

    def _call(self, call: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(call, *arguments)

    def _die(self) -> None:
        self._dead = True
        self._loop.set_exception_handler(_unheard)
        self._disk.stop()

    # On the node's thread.

    def _stand_still(self) -> None:
        self._frozen.set()
        self._thawed.wait()
        if self._dead and not self._clearing:
            self._loop.stop()

    def _end(self, status: int) -> None:
        if not self._ended.done():
            self._ended.set_result(status)

    def _run(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        with _logging_to(self._log, self._config, lambda: self._dead):
            status = 1
            try:
                status = loop.run_until_complete(self._live())
            except RuntimeError:
                if not self._dead:
                    raise
            finally:
                self._clearing = True
                loop.set_exception_handler(_unheard)
                loop.run_until_complete(self._clear())
                for worker in self._workers:
                    worker.close()
                loop.close()
                if self.status is None:
                    self.status = status

    async def _live(self) -> int:
        config = self._config
        seams = Seams(self._disk, SystemClock(), SystemRandom(), _Threads(self._loop, self._workers), self._stores)
        network = AiohttpNetwork(head_s=config.head_s, idle_s=config.idle_s, local_host=self._host)
        self._node = node = Node(config, seams, network, _NoChildren(), on_fatal=self._fatal)
        try:
            await node.start()
        except VlsnLogError as error:
            self._fatal(error)
            return 2
        status = await self._ended
        if not self._dead:
            await node.stop()
        return status

    def _fatal(self, error: BaseException) -> None:
        if self._dead:
            return
        known = isinstance(error, VlsnLogError | OSError)
        logging.getLogger(LOGGERS[0]).critical(
            "%s ends: %s", self._config.name, said_of(error), exc_info=None if known else error
        )
        log = None if self._node is None else self._node.log
        if log is not None and log.life.failure is not None:  # a process would end here and now
            _shut_sockets(self._host)
            self._die()
        self._end(1)

    async def _clear(self) -> None:
        """Ends the tasks and the connections that are left after a kill or a failure."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            self._die()
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=END_S)
        node = self._node
        if node is not None:
            with suppress(Exception):
                if node.listener is not None:
                    await node.listener.close()
                await node.member.network.close()
        await self._loop.shutdown_asyncgens()


def _unheard(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Ignores a fault of a dead node's callbacks, whose sockets and disk are gone."""


class _Threads(LoopThreads):
    """The threads of one life, which end with the process of the test, and are closed with the life."""

    def __init__(self, loop: asyncio.AbstractEventLoop, made: list[LoopWorker]) -> None:
        super().__init__(loop)
        self._made = made
        self._own_loop = loop

    def worker(self, name: str) -> LoopWorker:
        worker = LoopWorker(f"{threading.current_thread().name}-{name}", self._own_loop, daemon=True)
        self._made.append(worker)
        return worker


class _NoChildren:
    async def start(self, name: str) -> Child:
        raise OSError(errno.ENOTSUP, "a node in memory has no child processes", name)


def _shut_sockets(host: str) -> None:
    """Shuts every socket of this process that is bound to ``host``: the other sides are left with an end, or with a
    reset."""
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{number}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(number))) as end:
                if end.family == socket.AF_INET and end.getsockname()[0] == host:
                    end.shutdown(socket.SHUT_RDWR)


class _Levels:
    """Lowers the level of the nodes' loggers while a node runs in this process, and restores it after the last one."""

    def __init__(self) -> None:
        self._latch = threading.Lock()
        self._running = 0
        self._before: list[int] = []

    def lower(self, loggers: list[logging.Logger], level: int) -> None:
        with self._latch:
            if not self._running:
                self._before = [logger.level for logger in loggers]
            self._running += 1
            for logger in loggers:
                logger.setLevel(min(logger.getEffectiveLevel(), level))

    def restore(self, loggers: list[logging.Logger]) -> None:
        with self._latch:
            self._running -= 1
            if not self._running:
                for logger, level in zip(loggers, self._before, strict=True):
                    logger.setLevel(level)


_levels = _Levels()


@contextmanager
def _logging_to(path: Path, config: NodeConfig, dead: Callable[[], bool]) -> Iterator[None]:
    """Appends what this thread, and the node's other threads, log to the file at ``path``."""
    prefix = threading.current_thread().name
    level = logging.getLevelNamesMapping()[config.log_level.upper()]
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(TEXT))
    handler.setLevel(level)
    handler.addFilter(lambda record: (record.threadName or "").startswith(prefix) and not dead())
    loggers = [logging.getLogger(name) for name in LOGGERS]
    _levels.lower(loggers, level)
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
        _levels.restore(loggers)
        handler.close()
