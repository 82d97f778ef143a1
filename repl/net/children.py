"""Child processes of a node, each with a socket pair. Their output goes to the node's log.

1. A child is started by ``exec`` of the node's own interpreter, with the node's environment, except for a client's
   token. The thread that starts it
   lives as long as the node, because the kernel ties the child to this thread. The child stays in the node's session,
   so that only its own priority counts.
2. A child's output is read as it arrives, so no child waits for the log. At most ``OUTPUT_BYTES_PER_S`` of it goes to
   the log in a second; further lines are only counted.
3. The kernel reports a child's end (by a pidfd), and the child is reaped then.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from struct import Struct
from typing import Final

from repl.credentials import bearer
from repl.shared import undisturbed
from vlsn.errors import BadBody, ChannelClosed
from vlsn.seams import Buffer

LENGTH: Final = Struct("<I")
MESSAGE_BYTES_MAX: Final = 256 * 1024
"""The largest message from a child."""
LINE_BYTES_MAX: Final = 4096
LINE_BYTES_MIN: Final = 64
"""A line counts for at least this many bytes, because the log writes as much before each line."""
OUTPUT_BYTES_PER_S: Final = 64 * 1024
"""The most bytes of one child's output that go to the log in a second."""
_OUTPUT_PERIOD_S: Final = 0.05
_SAID_AT_ONCE: Final = 16 * 1024
"""The bytes that are read at once if they go to the log; the event loop's other work waits meanwhile."""
_PIPE_BYTES: Final = 1024 * 1024
"""The bytes that are read at once if they are only counted. A pipe holds this many, if the system allows it."""
OUTPUT_DRAIN_S: Final = 5.0
"""The seconds for which the output is read after the child's end, because a process that the child started may have the
pipe open, too."""
NICENESS_LOWEST: Final = 19
_OF_CLIENTS: Final = (bearer.VARIABLE, bearer.FILE_VARIABLE)
"""Variables that a child does not inherit: the token is its owner's, and a consumer names one of its own."""


class ProcessChild:
    """One child process (``repl.cdc.children.Child``)."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        said: Callable[[str], None],
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._sending = asyncio.Lock()
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)  # may fail, so it comes before anything that would have to be closed
        loop.add_reader(self._pidfd, self._reap)
        self._output = asyncio.create_task(self._read_output(said), name=f"output-{process.pid}")

    @property
    def pid(self) -> int:
        return self._process.pid

    async def send(self, message: Buffer) -> None:
        async with self._sending:
            try:
                self._writer.write(LENGTH.pack(len(message)))
                self._writer.write(message)
                await self._writer.drain()
            except (ConnectionError, RuntimeError) as error:
                raise ChannelClosed(str(error)) from None

    async def receive(self) -> bytes:
        try:
            size = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))[0]
            if not 1 <= size <= MESSAGE_BYTES_MAX:
                raise BadBody(f"a child process sent a message of {size} bytes")
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise ChannelClosed(str(error)) from None

    async def ended(self) -> int:
        return await undisturbed(self._ended)

    def demote(self) -> None:
        if not self._ended.done():
            with suppress(ProcessLookupError, PermissionError, FileNotFoundError):
                os.setpriority(os.PRIO_PROCESS, self.pid, NICENESS_LOWEST)
                # With the lowest niceness alone, a thread that computes may finish its time slice, and the node would
                # wait some milliseconds for its core. A thread of the idle class leaves the core at once.
                for thread in os.listdir(f"/proc/{self.pid}/task"):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))

    def terminate(self) -> None:
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if not self._ended.done():
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._ended.set_result(self._process.wait())
        self._writer.close()
        asyncio.get_running_loop().call_later(OUTPUT_DRAIN_S, self._output.cancel)

    async def _read_output(self, said: Callable[[str], None]) -> None:
        """Reads what the child prints."""
        loop = asyncio.get_running_loop()
        assert self._process.stdout is not None
        pipe = self._process.stdout
        os.set_blocking(pipe.fileno(), False)
        with suppress(OSError):  # the system limits the memory of all of a user's pipes
            fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        printed = Printed(said)
        ready = asyncio.Event()
        try:
            while True:
                printed.at(loop.time())
                try:
                    piece = os.read(pipe.fileno(), _SAID_AT_ONCE if printed.room > 0 else _PIPE_BYTES)
                except BlockingIOError:
                    if printed.lost:  # the number of lost lines is due
                        await asyncio.sleep(_OUTPUT_PERIOD_S)
                        continue
                    ready.clear()
                    loop.add_reader(pipe.fileno(), ready.set)
                    try:
                        await ready.wait()
                    finally:
                        loop.remove_reader(pipe.fileno())
                    continue
                if not piece:
                    break
                printed.take(piece)
                await asyncio.sleep(_OUTPUT_PERIOD_S)
        finally:
            with suppress(OSError):  # a node that stops reads what is in the pipe, which cannot get more than it holds
                printed.take(os.read(pipe.fileno(), _PIPE_BYTES))
            printed.end()
            pipe.close()


class Printed:
    """The lines that a child prints. Lines within the log's limit for a second go to the log; the others are
    counted."""

    def __init__(self, said: Callable[[str], None]) -> None:
        self._said = said
        self._rest = b""
        """The beginning of a line that has not ended yet."""
        self._until_s = 0.0
        self.room = 0
        """The bytes that the log still accepts in this second."""
        self.lost = 0
        """The number of lines of this second that the log did not accept."""

    def at(self, now_s: float) -> None:
        """Begins a new second once the last second is over, and reports the lines lost in it."""
        if now_s >= self._until_s:
            self._tell_lost()
            self.room, self._until_s = OUTPUT_BYTES_PER_S, now_s + 1.0

    def take(self, piece: bytes) -> None:
        at = 0
        while self.room > 0 and (end := piece.find(b"\n", at)) >= 0:
            self._say(self._rest + piece[at : min(end, at + LINE_BYTES_MAX)])
            self._rest, at = b"", end + 1
        if lost := piece.count(b"\n", at):
            self.lost += lost
            self._rest, at = b"", piece.rindex(b"\n") + 1
        self._rest = (self._rest + piece[at : at + LINE_BYTES_MAX])[:LINE_BYTES_MAX]

    def end(self) -> None:
        """Logs the rest of the output."""
        self._tell_lost()
        if self._rest:
            self._say(self._rest)

    def _say(self, line: bytes) -> None:
        line = line[:LINE_BYTES_MAX]
        self.room -= max(LINE_BYTES_MIN, len(line))
        self._said(line.decode(errors="replace"))

    def _tell_lost(self) -> None:
        if self.lost:
            self._said(
                f"[{self.lost} more lines are thrown away: the log takes {OUTPUT_BYTES_PER_S // 1024} KiB a second]"
            )
            self.lost = 0


class ProcessChildren:
    """Starts children (``repl.cdc.children.Children``); ``said`` receives each line that a child prints."""

    def __init__(self, said: Callable[[str, str], None]) -> None:
        self._said = said
        self._thread = ThreadPoolExecutor(1, "vlsnlog-children")

    async def start(self, name: str) -> ProcessChild:
        ours, theirs = socket.socketpair()
        parent = os.getpid()

        def started() -> subprocess.Popen[bytes]:
            with theirs:
                return subprocess.Popen(
                    [sys.executable, "-m", "repl.cdc.child", str(theirs.fileno()), str(parent)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={name: value for name, value in os.environ.items() if name not in _OF_CLIENTS},
                    pass_fds=[theirs.fileno()],
                )

        try:
            ours.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=ours)
        except BaseException:
            ours.close()
            theirs.close()
            raise
        starting = asyncio.get_running_loop().run_in_executor(self._thread, started)
        try:
            process = await undisturbed(starting)
        except BaseException:
            writer.close()
            starting.add_done_callback(self._unwanted)
            raise
        try:
            return ProcessChild(process, reader, writer, lambda line: self._said(name, line))
        except BaseException:
            writer.close()
            self._end(process)
            raise

    def _unwanted(self, starting: asyncio.Future[subprocess.Popen[bytes]]) -> None:
        """Ends a process that nobody waits for any more, once it has started."""
        if not starting.cancelled() and starting.exception() is None:
            self._end(starting.result())

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kills a process that has no owner, and reaps it."""
        process.kill()
        if process.stdout is not None:
            process.stdout.close()
        asyncio.get_running_loop().run_in_executor(None, process.wait)
