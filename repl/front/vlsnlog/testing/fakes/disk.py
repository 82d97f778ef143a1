"""A disk in memory that remembers what was synced, counts its calls, and fails on demand.

One ``FakeDisk`` is one machine's disk; it outlives the processes that use it:

    disk.stop_at(17)                  the process dies at disk call 17 (``StopHere``), and stays dead
    disk.power_cut(rng)               any subset of unsynced bytes is gone; nothing is open or locked
    disk.process_kill()               nothing is gone; nothing is open or locked
    disk.fail_at(9)                   call 9 raises EIO; a write then leaves a part, a sync loses pages
    disk.calls[16]                    Call(number=17, name="sync", path="/n1/00000001.vlog", …)

``StopHere`` is a ``BaseException``, since no code can handle a kill.  After it every call on the disk raises it again
until ``power_cut`` or ``process_kill``.  A test's own changes of the disk (``flip_bit``, ``content``, ``settle`` …) are
not counted as calls.
"""

from __future__ import annotations

import copy
import errno
import os
import posixpath
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Literal, NamedTuple

from vlsn.errors import LogInUse, NoRegularFile
from vlsn.seams import Buffer
from vlsnlog.testing.fakes.inodes import PAGE_BYTES, Directory, Inode, Node

Moment = Literal["before", "during", "after"]
UNLIMITED_BYTES = 1 << 40
CHANGES = frozenset(
    [
        "create",
        "write",
        "sync",
        "allocate",
        "punch",
        "drop_cache",
        "protect",
        "make_directory",
        "rename",
        "link",
        "remove",
        "sync_directory",
        "lock",
        "commit",
        "set_aside",
    ]
)


class StopHere(BaseException):
    """The process ends at this disk call."""


class Call(NamedTuple):
    number: int
    name: str
    path: str
    offset: int = 0
    size: int = 0

    @property
    def changes(self) -> bool:
        """True when a crash before and after the call could leave different disks."""
        return self.name in CHANGES


@dataclass(slots=True)
class _Rule:
    when: Callable[[Call], bool]
    code: int
    """An errno, or 0 for the end of the process."""
    moment: Moment
    times: int


class _UnderWay:
    """A call whose effect is in the body of a ``with``, under the disk's latch; a rule takes effect after it."""

    __slots__ = ("_call", "_disk", "_rule")

    def __init__(self, disk: FakeDisk, rule: _Rule | None = None, call: Call | None = None) -> None:
        self._disk = disk
        self._rule = rule
        self._call = call

    def __enter__(self) -> _Rule | None:
        return self._rule

    def __exit__(self, kind: object, *_: object) -> None:
        self._disk._latch.release()
        if kind is None and self._rule is not None and self._call is not None:
            self._disk._trip(self._rule, self._call)


class FakeDisk:
    """A disk of ``capacity_bytes`` bytes, or without limit. With ``keep_calls`` it remembers every call."""

    def __init__(
        self, *, rng: Random | None = None, capacity_bytes: int | None = None, keep_calls: bool = True
    ) -> None:
        self.calls: list[Call] = []
        self.capacity_bytes = capacity_bytes
        self._keep_calls = keep_calls
        self._calls_until_now = 0
        self.hook: Callable[[Call], None] | None = None
        """Is called before each call, outside the disk's own latch: it may wait, or raise."""
        self.latency: Callable[[Call], float] | None = None
        """Seconds of a call; ``FakeThreads`` reads them by ``take_latency``."""
        self.on_stop: Callable[[], None] | None = None
        self.on_synced: Callable[[str], None] | None = None
        """Is called with a file's path after each successful sync of it."""
        self.punches = True
        """True if this file system can punch holes."""
        self.stalled_until_s = 0.0
        """The loop's time before which no job of ``FakeThreads`` that calls this disk ends."""
        self.stopped = False
        self.user = 1000
        """The user of the processes, and its only group. User 0 may give files away."""
        self._rng = rng or Random(0)
        self._root = Directory()
        self._rules: list[_Rule] = []
        self._locks: dict[str, FakeLock] = {}
        self.life = 0
        self._owed_s = 0.0
        self._latch = threading.RLock()
        self._no_rule = _UnderWay(self)

    # The Disk seam.

    def open(self, path: str, *, write: bool = False, create: bool = False, private: bool = False) -> FakeFile:
        with self._call("create" if create else "open", path):
            if create:
                parent, name = self._parent(path)
                if name in parent.names:
                    raise _error(errno.EEXIST, path)
                inode = Inode()
                inode.mode = 0o600 if private else 0o644
                inode.owner = inode.group = self.user
                parent.step({name: inode})
                return FakeFile(self, path, inode, write=True)
            node = self._find(path)
            if isinstance(node, Directory):
                raise NoRegularFile(f"{path} is a directory where a regular file belongs: put it away")
            return FakeFile(self, path, node, write=write)

    def list(self, directory: str) -> list[str]:
        with self._call("list", directory):
            return sorted(self._directory(directory).names)

    def exists(self, path: str) -> bool:
        with self._call("exists", path):
            try:
                return self._look(path) is not None
            except NotADirectoryError:
                return False

    def make_directory(self, path: str) -> None:
        with self._call("make_directory", path):
            at = self._root
            for name in _parts(path):
                if name not in at.names:
                    at.step({name: Directory()})
                below = at.names[name]
                if not isinstance(below, Directory):
                    raise _error(errno.EEXIST, path)
                at = below

    def rename(self, old: str, new: str) -> None:
        with self._call("rename", old):
            node = self._find(old)
            (source, old_name), (target, new_name) = self._parent(old), self._parent(new)
            if isinstance(target.names.get(new_name), Directory):
                raise _error(errno.EISDIR, new)
            if source is target:
                source.step({old_name: None, new_name: node})
            else:
                target.step({new_name: node})
                source.step({old_name: None})

    def link(self, old: str, new: str) -> None:
        with self._call("link", new):
            node = self._find(old)
            target, name = self._parent(new)
            if name in target.names:
                raise _error(errno.EEXIST, new)
            target.step({name: node})

    def remove(self, path: str) -> None:
        with self._call("remove", path):
            if isinstance(self._find(path), Directory):
                raise _error(errno.EISDIR, path)
            parent, name = self._parent(path)
            parent.step({name: None})

    def sync_directory(self, directory: str) -> None:
        with self._call("sync_directory", directory):
            self._directory(directory).sync()

    def free_bytes(self, directory: str) -> int:
        with self._call("free_bytes", directory):
            return self.free()

    def lock(self, path: str) -> FakeLock:
        with self._call("lock", path):
            path = _normal(path)
            if path in self._locks:
                raise LogInUse(f"{path} is locked: another process has this directory open; stop it first")
            there = self._look(path)
            if isinstance(there, Directory):
                raise NoRegularFile(f"{path} is a directory where a regular file belongs: put it away")
            if there is None:
                parent, name = self._parent(path)
                parent.step({name: Inode()})
            self._locks[path] = held = FakeLock(self, path)
            return held

    def is_locked(self, path: str) -> bool:
        with self._call("is_locked", path):
            return _normal(path) in self._locks

    def step(self, name: str, path: str) -> AbstractContextManager[object]:
        """Counts a step of a store on this machine among the disk's own calls, so that a stop can happen there."""
        return self._call(name, path)

    def half_the_time(self) -> bool:
        return self._rng.random() < 0.5

    # Changes by a test.

    def stop_at(self, when: int | Callable[[Call], bool], *, moment: Moment = "before") -> None:
        """Ends the process at call number ``when``, or at the first call for which it holds. The process ends before
        the call's effect, after it, or ``during`` it: a write then leaves a part of its bytes."""
        self._rules.append(_Rule(_when(when), 0, moment, 1))

    def fail_at(self, when: int | Callable[[Call], bool], *, code: int = errno.EIO, times: int = 1) -> None:
        """Makes these calls raise ``OSError(code)``.  A write leaves a part of its bytes, a sync loses pages."""
        self._rules.append(_Rule(_when(when), code, "during", times))

    def mend(self) -> None:
        """Removes every rule of ``stop_at`` and ``fail_at``."""
        self._rules.clear()

    def stop(self) -> None:
        """Ends the process now, once the call that is under way has ended."""
        with self._latch:
            self.stopped = True

    def process_kill(self) -> None:
        """Ends the process, but not the machine: every byte and name stays as it was last seen."""
        with self._latch:
            self.life += 1
            self._locks.clear()
            self._rules.clear()
            self._owed_s = 0.0
            self.stopped = False

    def power_cut(self, rng: Random, *, tear: bool = False) -> None:
        """Ends the machine, which comes back with any subset of the unsynced bytes."""
        with self._latch:
            self.process_kill()
            self._root.power_cut(rng, tear=tear)

    def files(self, directory: str) -> Sequence[str]:
        """Lists the paths of the files in ``directory``; empty if it is missing."""
        found = self._look(directory)
        names = found.names if isinstance(found, Directory) else {}
        return [f"{directory}/{name}" for name, node in sorted(names.items()) if isinstance(node, Inode)]

    def unsynced_sectors(self, path: str) -> Sequence[int]:
        """Returns numbers of the sectors of ``path`` that a power cut may lose."""
        return sorted(self._inode(path).dirty)

    def power_cut_keeping(self, kept: Mapping[str, Collection[int]]) -> None:
        """Cuts the power as ``power_cut``, but keeps exactly these sectors, and every name and size."""
        keep = {id(self._inode(path)): set(sectors) for path, sectors in kept.items()}

        def cut(node: Node) -> None:
            if isinstance(node, Directory):
                node.sync()
                for below in node.names.values():
                    cut(below)
            else:
                node.keep_only(keep.get(id(node), set()))

        with self._latch:
            self.process_kill()
            cut(self._root)

    def clone(self) -> FakeDisk:
        """Returns the same bytes and names, synced or not, on another disk, where nothing is open or locked."""
        other = FakeDisk(rng=Random(self._rng.random()), capacity_bytes=self.capacity_bytes)
        other.punches = self.punches
        with self._latch:
            other._root = copy.deepcopy(self._root)
        return other

    def settle(self) -> None:
        """Syncs everything, as after a long quiet time."""

        def sync(node: Node) -> None:
            node.sync()
            if isinstance(node, Directory):
                for below in node.names.values():
                    sync(below)

        with self._latch:
            sync(self._root)

    def content(self, path: str) -> bytes:
        return bytes(self._inode(path).cached)

    def durable_content(self, path: str) -> bytes:
        """Returns the medium's content of a file, as if its name were durable."""
        return bytes(self._inode(path).durable)

    def medium(self, directory: str) -> Mapping[str, bytearray]:
        """Returns name → content of the files in ``directory`` whose names are synced, as the worst power cut would
        leave them. Not to be changed."""
        found = self._look(directory)
        durable = found.durable if isinstance(found, Directory) else {}
        return {name: node.durable for name, node in durable.items() if isinstance(node, Inode)}

    def on_medium(self, path: str) -> bytearray | None:
        """Returns one of these files, if it is there."""
        directory, _, name = path.rpartition("/")
        found = self._look(directory)
        node = found.durable.get(name) if isinstance(found, Directory) else None
        return node.durable if isinstance(node, Inode) else None

    def wipe(self) -> None:
        """Removes everything, as if the disk were replaced; the process must have ended."""
        with self._latch:
            self.process_kill()
            self._root = Directory()

    def write_content(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Writes a file with exactly these bytes, synced; its directory must exist."""
        parent, name = self._parent(path)
        inode = Inode()
        inode.mode = mode
        inode.put(0, data)
        inode.sync()
        parent.names[name] = parent.durable[name] = inode

    def lose_file(self, path: str) -> None:
        """Removes the file, as a repair of a file system might; no process may have it open."""
        parent, name = self._parent(path)
        parent.names.pop(name)
        parent.durable.pop(name, None)

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """Flips one bit, on the medium and in the cache."""
        inode = self._inode(path)
        inode.flip(offset, bit)

    def lose_page(self, path: str, offset: int) -> None:
        """Makes the page with this byte a bad sector: reads of it are EIO until it is written again."""
        self._inode(path).unread.add(offset // PAGE_BYTES)

    def free(self) -> int:
        if self.capacity_bytes is None:
            return UNLIMITED_BYTES
        return max(0, self.capacity_bytes - _used(self._root))

    def take_latency(self) -> float:
        """Returns the seconds that the calls since the last ``take_latency`` would have taken."""
        owed, self._owed_s = self._owed_s, 0.0
        return owed

    # Below the seam.

    def _call(self, name: str, path: str, offset: int = 0, size: int = 0) -> _UnderWay:
        """Begins a call, to be entered at once: takes the latch, which is released after the body."""
        self._latch.acquire()
        try:
            if self.stopped:
                self.check_life()
            self._calls_until_now += 1
            call = Call(self._calls_until_now, name, _normal(path), offset, size)
            if self._keep_calls:
                self.calls.append(call)
            if self.hook is not None:
                self._hooked(self.hook, call)
            return self._struck(call) if self._rules or self.stopped or self.latency is not None else self._no_rule
        except BaseException:
            self._latch.release()
            raise

    def _hooked(self, hook: Callable[[Call], None], call: Call) -> None:
        self._latch.release()
        try:
            hook(call)
        finally:
            self._latch.acquire()

    def _struck(self, call: Call) -> _UnderWay:
        self.check_life()
        if self.latency is not None:
            self._owed_s += self.latency(call)
        rule = self._matching(call)
        if rule is not None and (rule.moment == "before" or (rule.moment == "during" and call.name not in _PARTIAL)):
            self._trip(rule, call)
        return _UnderWay(self, rule, call)

    def _matching(self, call: Call) -> _Rule | None:
        for rule in self._rules:
            if rule.times and rule.when(call):
                rule.times -= 1
                return rule
        return None

    def _trip(self, rule: _Rule, call: Call) -> None:
        if rule.code:
            raise _error(rule.code, call.path)
        self.stopped = True
        if self.on_stop is not None:
            self.on_stop()
        raise StopHere(f"{rule.moment} disk call {call.number}: {call.name} {call.path}")

    def check_life(self, life: int | None = None) -> None:
        if self.stopped or (life is not None and life != self.life):
            raise StopHere("this process ended at an earlier disk call")

    def _look(self, path: str) -> Node | None:
        at: Node = self._root
        for name in _parts(path):
            if not isinstance(at, Directory):
                raise _error(errno.ENOTDIR, path)
            if name not in at.names:
                return None
            at = at.names[name]
        return at

    def _find(self, path: str) -> Node:
        node = self._look(path)
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _inode(self, path: str) -> Inode:
        node = self._find(path)
        assert isinstance(node, Inode), path
        return node

    def _directory(self, path: str) -> Directory:
        node = self._find(path)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR, path)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        above, _, name = _normal(path).rpartition("/")
        return self._directory(above), name


_PARTIAL = ("write", "sync")


class FakeFile:
    def __init__(self, disk: FakeDisk, path: str, inode: Inode, *, write: bool) -> None:
        self._disk, self._path, self._inode, self._writes = disk, path, inode, write
        self.life = disk.life
        self._open = True

    def size(self) -> int:
        with self._call("size"):
            return len(self._inode.cached)

    def protection(self) -> tuple[int, int, int]:
        with self._call("protection"):
            return self._inode.mode, self._inode.owner, self._inode.group

    def protect(self, mode: int, owner: int, group: int) -> None:
        with self._call("protect"):
            inode = self._inode
            if self._disk.user and (owner, group) != (inode.owner, inode.group):
                raise _error(errno.EPERM, self._path)
            inode.mode, inode.owner, inode.group = mode, owner, group

    def stamp(self) -> tuple[int, ...]:
        with self._call("stamp"):
            return self._inode.number, len(self._inode.cached), self._inode.version

    def read(self, offset: int, size: int) -> bytes:
        with self._call("read", offset, size):
            lost = self._inode.unread
            if lost and not lost.isdisjoint(range(offset // PAGE_BYTES, -(-(offset + size) // PAGE_BYTES))):
                raise _error(errno.EIO, self._path)
            return bytes(memoryview(self._inode.cached)[offset : offset + size])

    def read_into(self, offset: int, into: memoryview) -> int:
        data = self.read(offset, len(into))
        into[: len(data)] = data
        return len(data)

    def write(self, offset: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        with self._call("write", offset, len(data), changes=True) as rule:
            if rule is not None and rule.moment == "during":
                data = data[: self._disk._rng.randrange(len(data) + 1)]
            room = max(0, len(self._inode.cached) + self._disk.free() - offset)
            self._inode.put(offset, data[:room])
            if len(data) > room:
                raise _error(errno.ENOSPC, self._path)

    def sync(self) -> None:
        with self._call("sync") as rule:
            if rule is None or rule.moment == "after":
                self._inode.sync()
                if self._disk.on_synced is not None:
                    self._disk.on_synced(self._path)
            elif rule.code:
                self._inode.sync_failed(self._disk._rng)

    def allocate(self, size: int) -> None:
        with self._call("allocate", 0, size, changes=True):
            if size - len(self._inode.cached) > self._disk.free():
                raise _error(errno.ENOSPC, self._path)
            self._inode.grow(size)
            self._inode.holes.clear()

    def allocated(self) -> int:
        with self._call("allocated"):
            return _used(self._inode)

    def punch(self, offset: int, size: int) -> None:
        with self._call("punch", offset, size, changes=True):
            if not self._disk.punches:
                raise _error(errno.EOPNOTSUPP, self._path)
            self._inode.punch(offset, size)

    def drop_cache(self) -> None:
        with self._call("drop_cache"):
            self._inode.drop_cache()

    def close(self) -> None:
        """Closes the file; does nothing for an ended process, whose files are closed."""
        if self._open and not self._disk.stopped and self.life == self._disk.life:
            with self._call("close"):
                self._open = False

    def _call(self, name: str, offset: int = 0, size: int = 0, *, changes: bool = False) -> _UnderWay:
        self._disk.check_life(self.life)
        if not self._open or (changes and not self._writes):
            raise _error(errno.EBADF, self._path)
        return self._disk._call(name, self._path, offset, size)


class FakeLock:
    def __init__(self, disk: FakeDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def release(self) -> None:
        if self._disk._locks.get(self._path) is self:
            del self._disk._locks[self._path]


def _when(when: int | Callable[[Call], bool]) -> Callable[[Call], bool]:
    return (lambda call: call.number == when) if isinstance(when, int) else when


def _used(node: Node) -> int:
    return node.taken if isinstance(node, Inode) else sum(map(_used, node.names.values()))


@cache
def _normal(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))


@cache
def _parts(path: str) -> tuple[str, ...]:
    return tuple(name for name in _normal(path).split("/") if name)


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
