"""Seams: the system's services that the log and the node need, as small protocols that are passed in.

No code above the seams calls ``open``, ``time``, ``random``, a thread, LMDB or a socket. The real adapters
(``disk.py``, ``threads.py``, ``clock.py``, ``lmdb_store.py``, ``repl/net``) make no decisions. The fakes
(``tests/fakes``) pass the same test suites. Timers and tasks use the running asyncio loop, which the simulation
replaces with a loop of virtual time. The code uses no other source of time.
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
        """Reads as ``read`` does into ``into``, and returns the number of bytes."""
        ...

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Writes ``buffers``, one after the other, from ``offset`` on. They are not durable until ``sync``."""
        ...

    def sync(self) -> None:
        """Syncs the file: its bytes and its size are on stable media on return (fdatasync)."""
        ...

    def allocate(self, size: int) -> None:
        """Reserves blocks up to ``size``, which is the file's size afterwards (fallocate)."""
        ...

    def allocated(self) -> int:
        """Returns the bytes of disk space that the file takes (st_blocks)."""
        ...

    def punch(self, offset: int, size: int) -> None:
        """Frees the disk space of these bytes, as far as they are whole blocks (FALLOC_FL_PUNCH_HOLE). The bytes then
        read as zeros, and the file's size does not change. Raises ``EOPNOTSUPP`` if the file system cannot do this. The
        change becomes durable at some later time. Until then a power cut may undo any part of it."""
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
        """Makes later reads come from the medium (posix_fadvise DONTNEED). Unsynced bytes may stay cached."""
        ...

    def close(self) -> None: ...


Reading = Callable[[File, Sequence[tuple[int, int]]], Generator[Buffer, None, None]]
"""Yields the bytes of each (offset, size) of a file in order, as ``File.read`` returns them. Each buffer is valid until
the next one is requested. If closed early, it reads no more."""


def in_turn(file: File, ranges: Sequence[tuple[int, int]]) -> Generator[Buffer, None, None]:
    """Reads each range when it is requested."""
    for offset, size in ranges:
        yield file.read(offset, size)


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file system. Names become durable only with ``sync_directory``."""

    def open(self, path: str, *, write: bool = False, create: bool = False, private: bool = False) -> File:
        """Opens a file. With ``create`` the file must not exist yet (and ``write`` is implied). ``private``: it is made
        for its owner alone. Raises ``NoRegularFile`` at once for anything else in its place."""
        ...

    def list(self, directory: str) -> list[str]:
        """Lists the names (not paths) in ``directory``, sorted."""
        ...

    def exists(self, path: str) -> bool:
        """Says whether the name exists, whatever it refers to."""
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
        """Takes an exclusive lock that ends with the process. Raises ``LogInUse`` if another process has the lock."""
        ...

    def is_locked(self, path: str) -> bool:
        """Says whether some process holds ``lock(path)``. Never takes or changes the lock."""
        ...


class Clock(Protocol):
    def monotonic_s(self) -> float: ...

    def wall_us(self) -> int:
        """The microseconds since the epoch, or 0 before it. The clock may jump in either direction."""
        ...


class Random(Protocol):
    def u32(self) -> int: ...

    def u64(self) -> int: ...

    def uniform(self, low: float, high: float) -> float: ...


class Worker(Protocol):
    """One thread that runs its jobs in order. ``done`` or ``failed`` is called *on the owner's thread*: the event
    loop's in a node, the worker's own in an embedded log."""

    def submit(
        self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]
    ) -> None: ...

    def pending(self) -> int:
        """The number of jobs submitted whose ``done`` or ``failed`` has not been called yet."""
        ...

    def close(self) -> None:
        """Runs all submitted jobs, then ends the thread. Blocks until then, unless one of its own jobs calls it."""
        ...


class Threads(Protocol):
    def worker(self, name: str) -> Worker: ...

    def latch(self) -> AbstractContextManager[object]:
        """Makes a re-entrant mutual exclusion lock."""
        ...


class KeyValue(Protocol):
    """A small transactional, ordered store. Each value is stored with a crc32c over key and value. Reading a value with
    a wrong crc raises ``Damaged``. Each read is a snapshot of the committed state."""

    def get(self, key: bytes) -> bytes | None: ...

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None: ...

    def at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None: ...

    def items(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Returns all items with start <= key < end, ascending."""
        ...

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        """Returns the keys of the range, even if their values are damaged."""
        ...

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]] = (),
        deletes: Sequence[bytes] = (),
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Commits one transaction: first deletes ranges (end exclusive) and keys, then puts in order. The puts are
        iterated again if the map has to grow. Durable on return. The caller must always use the same thread, and never
        the event loop's."""
        ...

    def close(self) -> None:
        """Closes the store. Closing it again does no harm. Later reads raise ``LogClosed``."""
        ...


class Stores(Protocol):
    """Opens key-value stores by path."""

    def open(self, path: str, *, map_bytes: int, read_only: bool = False) -> KeyValue:
        """Opens a store. Raises ``Damaged`` if the store cannot be read, and ``FileNotFoundError`` if it is missing and
        ``read_only`` is set."""
        ...

    def open_copy(self, path: str, *, map_bytes: int) -> KeyValue:
        """Opens a read-only copy of the state committed at one moment of the call, even if another process writes.
        Raises as ``open`` with ``read_only`` does, and ``LogInUse`` if the writes never paused."""
        ...

    def exists(self, path: str) -> bool: ...

    def set_aside(self, path: str) -> str:
        """Renames the store to a free name beside it, and returns that name. A missing store is no error."""
        ...


class Channel(Protocol):
    """One connection that carries whole binary messages both ways."""

    async def send(self, message: Buffer) -> None:
        """Sends a message. Waits while the peer's window is full. Raises ``ChannelClosed`` if the channel is gone."""
        ...

    def send_now(self, message: Buffer) -> bool:
        """Sends a message without waiting. Returns False, with nothing sent, while the peer's window is full or the
        channel is gone. In that case ``send`` waits or raises the error. Must not be called while a ``send`` is under
        way."""
        ...

    def received_bytes(self) -> int:
        """Counts the received bytes, including those of a message that is not whole yet."""
        ...

    async def receive(self) -> bytes:
        """Returns the next message. Raises ``ChannelClosed`` if the channel is gone."""
        ...

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Calls ``take`` with every message, in order and as soon as it is received. If the carrier can, it calls
        ``take`` directly, without a task in between. Returns when ``take`` returns False. Raises ``ChannelClosed``, and
        any error that ``take`` raises. No message is taken before the call or after its end."""
        while take(await self.receive()):
            pass

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Seams:
    """Everything that a local log needs from its environment."""

    disk: Disk
    clock: Clock
    random: Random
    threads: Threads
    stores: Stores
    levels: Levels = LEVELS
    """The levels that this binary reads and speaks. Tests use others for binaries of other versions."""
