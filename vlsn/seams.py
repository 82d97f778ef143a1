"""Seams: the system's services that the log and the node need, as small protocols that are passed in.

Nothing above these calls ``open``, ``time``, ``random``, a thread, LMDB or a socket.  The real adapters
(``disk.py``, ``threads.py``, ``clock.py``, ``lmdb_store.py``, ``repl/net``) take no decisions; the fakes
(``tests/fakes``) pass the same suites.  Timers and tasks go through the running asyncio loop, which the
simulation replaces by one of virtual time; nothing of ours asks for another source of time.
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
    """One open file.  Every failure is an ``OSError``."""

    def size(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes:
        """Reads ``size`` bytes at ``offset``; fewer only where the file ends."""
        ...

    def read_into(self, offset: int, into: memoryview) -> int:
        """Reads as ``read``, into ``into``, and returns how many bytes."""
        ...

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Writes ``buffers``, one after the other from ``offset`` on; not durable until ``sync``."""
        ...

    def sync(self) -> None:
        """Syncs: bytes and size are on stable media on return (fdatasync)."""
        ...

    def allocate(self, size: int) -> None:
        """Reserves blocks up to ``size``, which the file has afterwards (fallocate)."""
        ...

    def allocated(self) -> int:
        """Returns the bytes of disk that the file takes (st_blocks)."""
        ...

    def punch(self, offset: int, size: int) -> None:
        """Gives these bytes back to the file system, as far as they are whole blocks (FALLOC_FL_PUNCH_HOLE). They read
        as zeros, and the file's size stays. ``EOPNOTSUPP`` where the file system cannot. Durable at its own time: until
        then any part of it may be undone by a power cut."""
        ...

    def drop_cache(self) -> None:
        """Makes later reads come from the medium (posix_fadvise DONTNEED); unsynced bytes may stay cached."""
        ...

    def close(self) -> None: ...


Reading = Callable[[File, Sequence[tuple[int, int]]], Generator[Buffer, None, None]]
"""Gives the bytes of each (offset, size) of a file in order, as ``File.read`` does. Each is good until the next one is
asked for; closed before its end, it reads no more."""


def in_turn(file: File, ranges: Sequence[tuple[int, int]]) -> Generator[Buffer, None, None]:
    """Reads each range when it is asked for."""
    for offset, size in ranges:
        yield file.read(offset, size)


class DirectoryLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A file system.  Names become durable with ``sync_directory`` only."""

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        """Opens a file; with ``create`` it must not exist yet (and ``write`` is implied). Raises ``NoRegularFile`` at
        once for whatever else stands there."""
        ...

    def list(self, directory: str) -> list[str]:
        """Lists the names (not paths) in ``directory``, sorted."""
        ...

    def exists(self, path: str) -> bool:
        """Says whether the name is there, whatever it stands for."""
        ...

    def make_directory(self, path: str) -> None:
        """Makes the directory with its parents; no error when it is there."""
        ...

    def rename(self, old: str, new: str) -> None: ...

    def remove(self, path: str) -> None: ...

    def sync_directory(self, directory: str) -> None: ...

    def free_bytes(self, directory: str) -> int: ...

    def lock(self, path: str) -> DirectoryLock:
        """Takes an exclusive lock that ends with the process. Raises ``LogInUse``."""
        ...

    def is_locked(self, path: str) -> bool:
        """Says whether some process holds ``lock(path)``; never takes or changes it."""
        ...


class Clock(Protocol):
    def monotonic_s(self) -> float: ...

    def wall_us(self) -> int:
        """Microseconds since the epoch, 0 before it; may jump either way."""
        ...


class Random(Protocol):
    def u32(self) -> int: ...

    def u64(self) -> int: ...

    def uniform(self, low: float, high: float) -> float: ...


class Worker(Protocol):
    """One thread that runs its jobs in order.  ``done`` or ``failed`` is called *on the owner's thread*: the event
    loop's in a node, the worker's own in an embedded log."""

    def submit(
        self, job: Callable[[], T], done: Callable[[T], None], failed: Callable[[BaseException], None]
    ) -> None: ...

    def pending(self) -> int:
        """Jobs submitted whose ``done`` or ``failed`` has not been called yet."""
        ...

    def close(self) -> None:
        """Runs what was submitted, then ends; blocks until then, but for its own job that asks for it."""
        ...


class Threads(Protocol):
    def worker(self, name: str) -> Worker: ...

    def latch(self) -> AbstractContextManager[object]:
        """Makes a re-entrant mutual exclusion lock."""
        ...


class KeyValue(Protocol):
    """A small transactional, ordered store.  Each value is kept with a crc32c over key and value;
    a get that finds it wrong raises ``Damaged``.  Reads are snapshots of the committed state."""

    def get(self, key: bytes) -> bytes | None: ...

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None: ...

    def at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None: ...

    def items(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        """Returns all items with start <= key < end, ascending."""
        ...

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        """Returns the keys that ``items`` would give, whatever has become of their values."""
        ...

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]] = (),
        deletes: Sequence[bytes] = (),
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Commits one transaction: ranges (end exclusive) and deletes first, then puts in their order, which are gone
        through again where the map has to grow. Durable on return. Always called on one and the same thread, never the
        event loop's."""
        ...

    def close(self) -> None:
        """Closes the store; harmless when done before. Reads that follow raise ``LogClosed``."""
        ...


class Stores(Protocol):
    """Opens key-value stores by path."""

    def open(self, path: str, *, map_bytes: int, read_only: bool = False) -> KeyValue:
        """Raises ``Damaged`` when what is there cannot be read as a store, ``FileNotFoundError`` when
        ``read_only`` and nothing is there."""
        ...

    def open_copy(self, path: str, *, map_bytes: int) -> KeyValue:
        """Opens a read-only copy of the state committed at one moment of the call, also beside a writer. Raises as
        ``open`` with ``read_only`` does, and ``LogInUse`` when the writes never paused."""
        ...

    def exists(self, path: str) -> bool: ...

    def set_aside(self, path: str) -> str:
        """Renames the store to a free name beside it and returns that; no error when it is absent."""
        ...


class Channel(Protocol):
    """One connection of whole binary messages, both ways."""

    async def send(self, message: Buffer) -> None:
        """Waits while the peer's window is full.  Raises ``ChannelClosed``."""
        ...

    def send_now(self, message: Buffer) -> bool:
        """Hands a message over without waiting.  False, with nothing sent, while the peer's window is full or
        the channel is gone: ``send`` then waits, or says so.  Not while a ``send`` is under way."""
        ...

    def received_bytes(self) -> int:
        """Counts the bytes that have come, of a message that is not whole yet, too."""
        ...

    async def receive(self) -> bytes:
        """Returns the next message. Raises ``ChannelClosed``."""
        ...

    async def deliver(self, take: Callable[[bytes], bool]) -> None:
        """Hands every message to ``take``, in order and as soon as it has come. Where the carrier can, no task stands
        between the two. Returns when ``take`` wants no more for now. Raises ``ChannelClosed``, and what ``take``
        raises. Nothing is taken before the call, nor after it has ended."""
        while take(await self.receive()):
            pass

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Seams:
    """All that a local log needs of the world."""

    disk: Disk
    clock: Clock
    random: Random
    threads: Threads
    stores: Stores
    levels: Levels = LEVELS
    """The levels that this binary reads and speaks; a test's binary of another day has others."""
