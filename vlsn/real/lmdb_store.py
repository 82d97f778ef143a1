"""The key-value store on LMDB.

An environment is a directory of its own (``data.mdb``, ``lock.mdb``). Each value is stored after a crc32c over key and
value, so that a rotted or misplaced value raises ``Damaged`` and is never returned:

    0     4
    | crc | value …

1. In a process there is only one environment object for each path, since LMDB's locks end when the first descriptor is
   closed.
2. One thread runs all write transactions, from begin to commit. That thread is the one that wrote first (asserted).
3. The map size is set explicitly, and doubled on ``MapFull``. The gate (a lock) ensures that no transaction is open
   then.
4. No buffer is used after its transaction, and every read is one short transaction.
5. The page cache of an environment is synced and dropped before the environment is opened for writing.
6. The pages are checked against LMDB's format before LMDB maps them (``lmdb_pages``), since a bad page would end the
   process at every start.
7. Offline tools use ``read_only``, which acquires no lock, only if no process writes. While a process writes, offline
   tools open a copy.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, NoReturn

import lmdb

from vlsn.errors import Damaged, LogClosed, LogFailed, LogInUse
from vlsn.format.checksum import crc
from vlsn.real.lmdb_copy import copy_environment
from vlsn.real.lmdb_pages import check_pages
from vlsn.real.regular_files import check_regular, open_regular
from vlsn.seams import KeyValue

if TYPE_CHECKING:
    Transaction = lmdb.Transaction[memoryview]

CRC = Struct("<I")
KEY_BYTES_MAX = 511
GROWTH_BYTES_MIN = 1 << 20
DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"
_SYSTEM_FAULTS = (
    *(lmdb.Error, lmdb.DiskError, lmdb.MemoryError, lmdb.LockError, lmdb.ReadonlyError),
    *(lmdb.ReadersFullError, lmdb.TlsFullError, lmdb.MapResizedError),
)
"""LMDB's errors for faults of the system. ``Error`` itself is raised for any other error number of the system."""

_open_paths: set[str] = set()
_open_paths_guard = threading.Lock()


class LmdbStores:
    """Opens LMDB environments by path."""

    def open(self, path: str, *, map_bytes: int, read_only: bool = False) -> KeyValue:
        path = os.path.realpath(path)
        if read_only and not self.exists(path):
            raise FileNotFoundError(path)
        _claim(path)
        try:
            return LmdbStore(path, map_bytes=map_bytes, read_only=read_only)
        except BaseException:
            _release(path)
            raise

    def open_copy(self, path: str, *, map_bytes: int) -> KeyValue:
        temporary = tempfile.TemporaryDirectory(prefix="vlsnlog-copy-")
        try:
            copy_environment(os.path.join(path, DATA_FILE), os.path.join(temporary.name, DATA_FILE))
            store = self.open(temporary.name, map_bytes=map_bytes, read_only=True)
        except BaseException:
            temporary.cleanup()
            raise
        assert isinstance(store, LmdbStore)
        store.temporary = temporary
        return store

    def exists(self, path: str) -> bool:
        data = os.path.join(path, DATA_FILE)
        return check_regular(data) and os.path.getsize(data) > 0  # nothing was ever written to an empty file

    def set_aside(self, path: str) -> str:
        path = os.path.realpath(path)
        if not os.path.exists(path):
            return ""
        assert path not in _open_paths, f"{path} is open"
        number = 1
        while os.path.exists(aside := f"{path}.aside-{number}"):
            number += 1
        os.rename(path, aside)
        _sync_directory(os.path.dirname(path))
        return aside


class LmdbStore:
    """One LMDB environment. ``LmdbStores.open`` makes it."""

    def __init__(self, path: str, *, map_bytes: int, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.growths = 0
        self.temporary: tempfile.TemporaryDirectory[str] | None = None
        """The temporary directory of a copy. The directory is removed when the copy is closed."""
        self._writer = 0
        self._failed = False
        self._gate = threading.Lock()
        self._environment = _open_environment(path, map_bytes, read_only)
        self._faults = _ReadFaults(path)
        self._map_bytes = int(self._environment.info()["map_size"])

    def get(self, key: bytes) -> bytes | None:
        with self._faults, self._gate, self._environment.begin(buffers=True) as transaction:
            found = transaction.get(key)
            return None if found is None else self._checked(key, found)

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        with self._faults, self._gate, self._environment.begin(buffers=True) as transaction:
            cursor = transaction.cursor()
            there = cursor.set_range(key)
            if not (there and cursor.key() == key) and not (cursor.prev() if there else cursor.last()):
                return None
            found = bytes(cursor.key())
            return found, self._checked(found, cursor.value())

    def at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None:
        with self._faults, self._gate, self._environment.begin(buffers=True) as transaction:
            cursor = transaction.cursor()
            if not cursor.set_range(key):
                return None
            found = bytes(cursor.key())
            return found, self._checked(found, cursor.value())

    def items(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        with self._faults, self._gate, self._environment.begin(buffers=True) as transaction:
            cursor = transaction.cursor()
            found: list[tuple[bytes, bytes]] = []
            there = cursor.set_range(start)
            while there and (key := bytes(cursor.key())) < end:
                found.append((key, self._checked(key, cursor.value())))
                there = cursor.next()
            return found

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        with self._faults, self._gate, self._environment.begin(buffers=True) as transaction:
            cursor = transaction.cursor()
            found: list[bytes] = []
            there = cursor.set_range(start)
            while there and (key := bytes(cursor.key())) < end:
                found.append(key)
                there = cursor.next()
            return found

    def write(
        self,
        puts: Iterable[tuple[bytes, bytes]] = (),
        deletes: Sequence[bytes] = (),
        delete_ranges: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        assert not self.read_only, f"{self.path} is open for reading only"
        assert self._writer in (0, threading.get_ident()), f"{self.path} is written by two threads"
        self._writer = threading.get_ident()
        if self._failed:
            raise LogFailed(f"{self.path}: an earlier write failed")
        while True:
            try:
                with self._environment.begin(write=True, buffers=True) as transaction:
                    _apply(transaction, puts, deletes, delete_ranges)
                return
            except lmdb.MapFullError:
                self._grow()
            except (lmdb.Error, OSError) as fault:
                self._failed = True
                raise LogFailed(f"{self.path}: {fault}") from fault

    def close(self) -> None:
        """Closes the environment, once. No write may be under way, or follow."""
        with self._gate:
            if self._faults.closed:
                return
            self._faults.closed = True
            self._environment.close()
            _release(self.path)
            if self.temporary is not None:
                self.temporary.cleanup()

    def _checked(self, key: bytes, stored: memoryview) -> bytes:
        value = stored[CRC.size :]
        if len(stored) < CRC.size or CRC.unpack_from(stored)[0] != crc(value, crc(key)):
            raise Damaged(f"{self.path}: the value of key {key.hex()} does not match its checksum", file=self.path)
        return bytes(value)

    def _grow(self) -> None:
        with self._gate:
            self._map_bytes += max(self._map_bytes, GROWTH_BYTES_MIN)
            self._environment.set_mapsize(self._map_bytes)
            self.growths += 1


class _ReadFaults:
    """A context manager that raises ``Damaged`` if LMDB cannot read something. The context manager surrounds the gate
    (a lock) and the transaction, which are implemented in C. In Python code, a signal's handler that raises could
    interrupt between two steps, and leave the gate or the transaction open."""

    __slots__ = ("_path", "closed")

    def __init__(self, path: str) -> None:
        self._path = path
        self.closed = False

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, fault: BaseException | None, trace: object) -> None:
        if isinstance(fault, lmdb.Error):
            if self.closed:
                raise LogClosed(f"{self._path} is closed") from fault
            _unreadable(self._path, fault)


def _apply(
    transaction: Transaction,
    puts: Iterable[tuple[bytes, bytes]],
    deletes: Sequence[bytes],
    delete_ranges: Sequence[tuple[bytes, bytes]],
) -> None:
    for start, end in delete_ranges:
        cursor = transaction.cursor()
        there = cursor.set_range(start)
        while there and bytes(cursor.key()) < end:
            cursor.delete()
            there = len(cursor.key()) > 0  # true if the cursor is at an item
    for key in deletes:
        transaction.delete(key)
    for key, value in puts:
        assert 0 < len(key) <= KEY_BYTES_MAX
        transaction.put(key, CRC.pack(crc(value, crc(key))) + value)


def _open_environment(path: str, map_bytes: int, read_only: bool) -> lmdb.Environment:
    data = os.path.join(path, DATA_FILE)
    fresh = not check_regular(data)
    check_regular(os.path.join(path, LOCK_FILE))
    if not fresh:
        if not read_only:
            _settle(data)
        check_pages(data)
    try:
        if not read_only:
            os.makedirs(path, exist_ok=True)
        environment = lmdb.open(
            path, map_size=map_bytes, readonly=read_only, lock=not read_only, create=not read_only, max_spare_txns=4
        )
    except lmdb.Error as fault:
        _unreadable(path, fault)
    if not read_only:  # sync the name even if another process made it, since that process may have died before syncing
        _sync_directory(path)
        _sync_directory(os.path.dirname(path))
    return environment


def _settle(data: str) -> None:
    """Syncs the bytes that an earlier process wrote, and drops them from the page cache. The earlier process may have
    died before its sync, or the sync may have failed. After this call, a read shows the state that a power cut would
    leave."""
    descriptor = open_regular(data, os.O_RDWR)
    try:
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError as fault:
        raise LogFailed(f"{data}: {fault}") from fault
    finally:
        os.close(descriptor)


def _unreadable(path: str, fault: lmdb.Error) -> NoReturn:
    """Raises ``Damaged`` for a file that LMDB cannot read; the file is then set aside. Raises ``LogFailed`` if the
    system refused a resource, since a lack of descriptors, memory or disk space does not damage the environment."""
    if type(fault) in _SYSTEM_FAULTS:
        raise LogFailed(f"{path}: {fault}") from fault
    raise Damaged(f"{path}: {fault}", file=path) from fault


def _claim(path: str) -> None:
    with _open_paths_guard:
        if path in _open_paths:
            raise LogInUse(f"{path} is already open in this process")
        _open_paths.add(path)


def _release(path: str) -> None:
    with _open_paths_guard:
        _open_paths.discard(path)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
