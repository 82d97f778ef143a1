"""The key-value store as a model: sorted keys and a dict; a write is all or nothing.

It has no pages and no map, and keeps each value beside a crc32c, as the seam requires.  ``corrupt`` flips a kept bit;
``snapshot`` and ``restore`` bring an older image back.  ``fail_writes_after`` makes a write fail, and so does a disk
whose call for the commit fails (the commit then happened, or not); ``fail_opens`` makes an open fail.  ``abandon``
leaves the store as a killed process does: with committed values, and not open.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from zlib import crc32

from vlsn.errors import Damaged, LogClosed, LogFailed, LogInUse
from vlsn.seams import KeyValue
from vlsnlog.testing.fakes.disk import FakeDisk


@dataclass(slots=True)
class Contents:
    """The committed contents under one path."""

    values: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)
    keys: list[bytes] = field(default_factory=list)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value, crc32(value, crc32(key))

    def delete(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def copy(self) -> Contents:
        return Contents(dict(self.values), list(self.keys))


class FakeStores:
    """Stores that live as long as this object.  With ``disk`` each commit is one of its calls, so that a crash may
    happen before it or after it."""

    def __init__(self, disk: FakeDisk | None = None) -> None:
        self._disk = disk
        self.contents: dict[str, Contents] = {}
        self.unreadable: set[str] = set()
        self.fail_writes_after: int | None = None
        self.writes = 0
        self.fail_opens: dict[str, int] = {}
        """The number of next opens of a path that fail, as if its file could not be synced or read."""
        self._open: set[str] = set()

    def open(self, path: str, *, map_bytes: int, read_only: bool = False) -> KeyValue:
        if path in self._open:
            raise LogInUse(f"{path} is already open in this process")
        if self.fail_opens.get(path):
            self.fail_opens[path] -= 1
            raise LogFailed(f"{path}: Input/output error")
        if path in self.unreadable:
            raise Damaged(f"{path}: not a store", file=path)
        if path not in self.contents:
            if read_only:
                raise FileNotFoundError(path)
            self.contents[path] = Contents()
        self._open.add(path)
        return FakeStore(self, path, read_only=read_only)

    def open_copy(self, path: str, *, map_bytes: int) -> KeyValue:
        copies = FakeStores()
        copies.unreadable = self.unreadable
        if path in self.contents:
            copies.contents[path] = self.contents[path].copy()
        return copies.open(path, map_bytes=map_bytes, read_only=True)

    def exists(self, path: str) -> bool:
        return path in self.contents

    def set_aside(self, path: str) -> str:
        if path not in self.contents:
            return ""
        assert path not in self._open, f"{path} is open"
        with self.step("set_aside", path):
            return self._set_aside(path)

    def step(self, name: str, path: str) -> AbstractContextManager[object]:
        return self._disk.step(name, path) if self._disk is not None else nullcontext()

    def draws(self) -> bool:
        """Draws whether a failed commit has happened all the same."""
        return self._disk is not None and self._disk.half_the_time()

    def _set_aside(self, path: str) -> str:
        number = 1
        while (aside := f"{path}.aside-{number}") in self.contents:
            number += 1
        self.contents[aside] = self.contents.pop(path)
        self.unreadable.discard(path)
        return aside

    def release(self, path: str) -> None:
        self._open.discard(path)

    def abandon(self, prefix: str = "") -> None:
        """Ends the process that had the stores under ``prefix`` open."""
        self._open = {path for path in self._open if not path.startswith(prefix)}

    def corrupt(self, path: str, key: bytes, *, bit: int = 0) -> None:
        """Flips one bit of a committed value, its checksum left as it was."""
        value, check = self.contents[path].values[key]
        flipped = bytearray(value or b"\0")
        flipped[bit // 8 % len(flipped)] ^= 1 << bit % 8
        self.contents[path].values[key] = bytes(flipped), check

    def snapshot(self, path: str) -> Contents:
        return self.contents[path].copy()

    def restore(self, path: str, image: Contents) -> None:
        assert path not in self._open, f"{path} is open"
        self.contents[path] = image.copy()

    def count_write(self, path: str) -> None:
        self.writes += 1
        if self.fail_writes_after is not None and self.writes > self.fail_writes_after:
            raise LogFailed(f"{path}: no write was to work any more")


class FakeStore:
    """One open store."""

    def __init__(self, stores: FakeStores, path: str, *, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self._stores = stores
        self._writer = 0
        self._failed = False
        self._closed = False

    def get(self, key: bytes) -> bytes | None:
        return self._value(key) if key in self._contents.values else None

    def at_or_before(self, key: bytes) -> tuple[bytes, bytes] | None:
        if key in self._contents.values:
            return key, self._value(key)
        at = bisect_left(self._contents.keys, key) - 1
        return self._item(at) if at >= 0 else None

    def at_or_after(self, key: bytes) -> tuple[bytes, bytes] | None:
        at = bisect_left(self._contents.keys, key)
        return self._item(at) if at < len(self._contents.keys) else None

    def items(self, start: bytes, end: bytes) -> list[tuple[bytes, bytes]]:
        return [(key, self._value(key)) for key in self._contents.keys if start <= key < end]

    def keys(self, start: bytes, end: bytes) -> list[bytes]:
        return [key for key in self._contents.keys if start <= key < end]

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
        self._stores.count_write(self.path)
        after = self._contents.copy()
        for start, end in delete_ranges:
            for key in [key for key in after.keys if start <= key < end]:
                after.delete(key)
        for key in deletes:
            after.delete(key)
        for key, value in puts:
            assert 0 < len(key) <= 511
            after.put(key, bytes(value))
        try:
            with self._stores.step("commit", self.path):
                self._stores.contents[self.path] = after
        except OSError as fault:
            self._failed = True
            if self._stores.draws():
                self._stores.contents[self.path] = after  # its last page had reached the medium
            raise LogFailed(f"{self.path}: {fault}") from fault

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stores.release(self.path)

    @property
    def _contents(self) -> Contents:
        if self._closed:
            raise LogClosed(f"{self.path} is closed")
        return self._stores.contents[self.path]

    def _item(self, at: int) -> tuple[bytes, bytes]:
        key = self._contents.keys[at]
        return key, self._value(key)

    def _value(self, key: bytes) -> bytes:
        value, check = self._contents.values[key]
        if crc32(value, crc32(key)) != check:
            raise Damaged(f"{self.path}: the value of key {key.hex()} does not match its checksum", file=self.path)
        return value
