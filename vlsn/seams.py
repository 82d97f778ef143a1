"""Seams: small protocols for the services of the system that the log and the node need. Implementations are passed in.

No code above the seams calls ``open``, ``time``, ``random``, a thread, LMDB or a socket. The real implementations
(``disk.py``, ``threads.py``, ``clock.py``, ``lmdb_store.py``, ``repl/net``) make no decisions. The fake ones
(``vlsnlog.testing.fakes``, ``tests/fakes``) pass the same tests. Timers and tasks use the running asyncio loop, which
the simulation replaces with a loop of virtual time. The code uses no other source of time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from vlsn.levels import LEVELS, Levels

Buffer = bytes | bytearray | memoryview
T = TypeVar("T")


class File(Protocol):
    """One open file. Every failure raises ``OSError``."""

    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes:
        """Reads ``size`` bytes at ``offset``, or fewer if the file ends before."""
        ...

    def read_into(self, offset: int, into: memoryview) -> int:
        """Reads like ``read``, but into ``into``. Returns the number of bytes."""
        ...

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Writes ``buffers``, one after the other, from ``offset`` on. The bytes are not durable until ``sync``."""
        ...

    def sync(self) -> None:
        """Syncs the file: the file's bytes and size are on stable media on return (fdatasync)."""
        ...

    def allocate(self, size: int) -> None:
        """Reserves disk space up to ``size``, which is the file's size afterwards (fallocate)."""
        ...

    def allocated(self) -> int:
        """Returns the bytes of disk space that the file occupies (st_blocks)."""
        ...

    def punch(self, offset: int, size: int) -> None:
        """Frees the disk space of ``size`` bytes from ``offset`` on, as far as they are whole blocks of the file system
        (FALLOC_FL_PUNCH_HOLE). The bytes then read as zeros, and the file's size does not change. Raises ``EOPNOTSUPP``
        if the file system cannot do this. The change becomes durable at some later time. A power cut before that may
        undo any part of the change."""
        ...

    def protection(self) -> tuple[int, int, int]:
        """Returns the file's permission bits, and the numbers of its user and of its group."""
        ...

    def protect(self, mode: int, owner: int, group: int) -> None:
        """Gives the file to a user and a group, and then sets its permission bits. Bytes that are written and synced
        later make the change durable. Raises ``PermissionError``."""
        ...

    def stamp(self) -> tuple[int, ...]:
        """Returns numbers of which one changes when the file is written, or when another file has its name."""
        ...

    def drop_cache(self) -> None:
        """Makes later reads return the bytes on the medium (posix_fadvise DONTNEED). Unsynced bytes may stay in the
        cache."""
        ...

    def close(self) -> None: ...


Reading = Callable[[File, Sequence[tuple[int, int]]], Generator[Buffer, None, None]]
"""The type of a function that reads ranges (offset, size) of a file. The function yields the bytes of each range in
order, as ``File.read`` returns them. Each buffer is valid until the next one is requested. If the generator is closed
early, no more ranges are read."""


def in_turn(file: File, ranges: Sequence[tuple[int, int]]) -> Generator[Buffer, None, None]:
    """Reads each range when it is requested."""
    for offset, size in ranges:
        yield file.read(offset, size)


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. The name of a file becomes durable only with ``sync_directory``."""

    def open(self, path: str, *, write: bool = False, create: bool = False, private: bool = False) -> File:
        """Opens a file. With ``create`` the file must not exist yet, and ``write`` is implied. With ``private``, only
        the file's owner may use it. Raises ``NoRegularFile`` at once if anything but a file is at ``path``."""
        ...

    def list(self, directory: str) -> list[str]:
        """Lists the names (not paths) in ``directory``, sorted."""
        ...

    def exists(self, path: str) -> bool:
        """Returns whether the name exists, whatever it refers to."""
        ...

    def make_directory(self, path: str) -> None:
        """Makes the directory with its parents. An existing directory is no error."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def link(self, old: str, new: str) -> None:
        """Gives the file ``old`` a second name. Raises ``FileExistsError`` if the name ``new`` exists."""
        ...

    def remove(self, path: str) -> None: ...

    def sync_directory(self, directory: str) -> None: ...

    def free_bytes(self, directory: str) -> int: ...

    def lock(self, path: str) -> DirectoryLock:
        """Acquires an exclusive lock that ends with the process. Raises ``LogInUse`` if another process has the
        lock."""
        ...

    def is_locked(self, path: str) -> bool:
        """Returns whether some process holds ``lock(path)``. Never acquires or changes the lock."""
        ...


class Clock(Protocol):
    def monotonic_s(self) -> float: ...

    def wall_us(self) -> int:
        """Returns the microseconds since the epoch, or 0 before the epoch. The clock may jump in either direction."""
        ...


class Random(Protocol):
    def u32(self) -> int: ...

    def u64(self) -> int: ...

    def uniform(self, low: float, high: float) -> float: ...


class Worker(Protocol):
    """One thread that runs its jobs in order. After a job, ``done`` or ``failed`` is called *on the owner's thread*. In
    a node, the owner's thread is the event loop's thread; in an embedded log, it is the worker's own thread."""

    def submit(
        self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]
    ) -> None: ...

    def pending(self) -> int:
        """The number of submitted jobs for which ``done`` or ``failed`` has not been called yet."""
        ...

    def close(self) -> None:
        """Runs all submitted jobs, then ends the thread. Blocks until the thread has ended, unless one of its own jobs
        makes this call."""
        ...


class Threads(Protocol):
    def worker(self, name: str) -> Worker: ...

    def latch(self) -> AbstractContextManager[object]:
        """Makes a lock for mutual exclusion, which is re-entrant."""
        ...


class KeyValue(Protocol):
    """A small, ordered key-value store with transactions. Each value is stored with a crc32c over key and value.
    Reading a value with a wrong crc raises ``Damaged``. Each read is a snapshot of the committed state."""

    def get(self, key: bytes) -> bytes | None: ...

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None: ...

    def at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None: ...

    def items(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Returns all items with start <= key < end, ascending."""
        ...

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        """Returns the keys from ``start`` to ``end`` (exclusive), even of damaged values."""
        ...

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]] = (),
        deletes: Sequence[bytes] = (),
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Commits one transaction, durable on return. The transaction first deletes the ranges (end exclusive) and the
        keys, and then stores ``puts`` in order. ``puts`` is iterated again if the store's map has to grow. All calls
        must be on the same thread, and never on the event loop's thread."""
        ...

    def close(self) -> None:
        """Closes the store. Closing a store again does no harm. Later reads raise ``LogClosed``."""
        ...


class Stores(Protocol):
    """Opens key-value stores by path."""

    def open(self, path: str, *, map_bytes: int, read_only: bool = False) -> KeyValue:
        """Opens a store. Raises ``Damaged`` if the store cannot be read, and ``FileNotFoundError`` if it is missing and
        ``read_only`` is set."""
        ...

    def open_copy(self, path: str, *, map_bytes: int) -> KeyValue:
        """Opens a read-only copy of the state that was committed at one moment of the call, even if another process
        writes. Raises the errors of ``open`` with ``read_only``, and ``LogInUse`` if the writes never paused."""
        ...

    def exists(self, path: str) -> bool: ...

    def set_aside(self, path: str) -> str:
        """Renames the store to a free name in the same directory, and returns that name. A missing store is no
        error."""
        ...


class Channel(Protocol):
    """One connection that carries binary messages in both directions."""

    async def send(self, message: Buffer) -> None:
        """Sends a message. Waits while the peer's window is full. Raises ``ChannelClosed`` if the channel is gone."""
        ...

    def send_now(self, message: Buffer) -> bool:
        """Sends a message without waiting. Returns False if nothing was sent, because the peer's window is full or the
        channel is gone. If ``send_now`` returns False, ``send`` would wait, or raise the error. Must not be called
        while a ``send`` is under way."""
        ...

    def received_bytes(self) -> int:
        """The number of received bytes, including those of a message that is incomplete so far."""
        ...

    async def receive(self) -> bytes:
        """Returns the next message. Raises ``ChannelClosed`` if the channel is gone."""
        ...

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Calls ``take`` with every message, in order and as soon as it is received. If possible, ``take`` is called
        directly, without a task in between. Returns when ``take`` returns False. Raises ``ChannelClosed``, and any
        error that ``take`` raises. ``take`` gets no message before this call or after its end."""
        while take(await self.receive()):
            pass

    async def close(self, code: int = 1000) -> None:
        """Closes the channel. ``code`` tells the peer why (RFC 6455 §7.4), if it was open."""
        ...


@dataclass(frozen=True, slots=True)
class Seams:
    """Everything that a local log needs from its environment."""

    disk: Disk
    clock: Clock
    random: Random
    threads: Threads
    stores: Stores
    levels: Levels = LEVELS
    """The levels (versions of the formats) that this binary supports. Tests use other levels, for binaries of other
    versions."""
