"""The memory of a medium: sectors and directory entries, each either synced or not yet.

A power cut keeps **any subset** of the unsynced changes:

    sector      its last synced bytes, or any of the versions written since; torn, a part of each
    size        the synced one, or any that the file has had since
    name        each create, rename or remove since its directory's last sync happened, or did not

Sectors have 512 bytes.  A rename is one step, as every journal makes it.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from random import Random

from vlsn.seams import Buffer

SECTOR_BYTES = 512
PAGE_BYTES = 4096


_NUMBERS = count(1)


class Inode:
    """One file: the bytes that a read sees, those on the medium, and the versions in between."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.mode = 0o644
        self.owner = self.group = 1000
        self.number = next(_NUMBERS)
        self.version = 0
        """Rises with each change of the bytes that a read sees."""
        self.durable = bytearray()
        self.sizes: list[int] = []
        self.unread: set[int] = set()
        """Numbers of the pages that are unreadable until they are written again."""
        self.holes: set[int] = set()
        """Numbers of the pages that use no disk space."""
        self._written: list[tuple[int, bytes]] = []
        """Writes since the last sync, in order: first sector, and the new bytes of it and the sectors after it."""

    @property
    def dirty(self) -> dict[int, list[bytes]]:
        """The versions of each sector that were written since the last sync."""
        versions: dict[int, list[bytes]] = {}
        for first, data in self._written:
            for at in range(0, len(data), SECTOR_BYTES):
                versions.setdefault(first + at // SECTOR_BYTES, []).append(data[at : at + SECTOR_BYTES])
        return versions

    @property
    def taken(self) -> int:
        """Returns the bytes used on the disk."""
        return len(self.cached) - len(self.holes) * PAGE_BYTES

    def punch(self, offset: int, size: int) -> None:
        """Writes zeros inside the file; a power cut may undo any part. Whole pages use no disk space now."""
        end = min(offset + size, len(self.cached))
        self.put(offset, bytes(max(0, end - offset)))
        self.holes |= set(range(-(-offset // PAGE_BYTES), end // PAGE_BYTES))

    def put(self, offset: int, data: Buffer) -> None:
        if not len(data):
            return
        self.version += 1
        end = offset + len(data)
        self.grow(end)
        if self.holes:
            self.holes -= set(range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)))
        self.cached[offset:end] = data
        if self.unread:
            self.unread -= set(range(offset // PAGE_BYTES, -(-end // PAGE_BYTES)))
        sector = offset // SECTOR_BYTES
        with memoryview(self.cached) as view:
            whole = view[sector * SECTOR_BYTES : -(-end // SECTOR_BYTES) * SECTOR_BYTES]
            self._written.append((sector, bytes(whole)))
            whole.release()

    def grow(self, size: int) -> None:
        if size > len(self.cached):
            self.cached.extend(bytes(size - len(self.cached)))
            self.sizes.append(size)

    def sync(self) -> None:
        """Syncs only dirty pages: bytes that a failed sync lost are not written again."""
        _resize(self.durable, len(self.cached))
        for first, data in self._written:
            _place(self.durable, first, data)
        self._clean()

    def sync_failed(self, rng: Random) -> None:
        """Fails a sync as Linux does: every dirty page is clean from now on, written or not."""
        for sector, versions in sorted(self.dirty.items()):
            if rng.random() < 0.5:
                _place(self.durable, sector, versions[-1])
        self._clean()

    def drop_cache(self) -> None:
        image = bytearray(self.durable)
        _resize(image, len(self.cached))
        for first, data in self._written:
            _place(image, first, data)
        self.cached = image

    def power_cut(self, rng: Random, *, tear: bool) -> None:
        kept = rng.choice((0.0, 0.5, rng.random(), 1.0))
        image = bytearray(self.durable)
        for sector, versions in sorted(self.dirty.items()):
            if rng.random() >= kept:
                continue
            version = versions[-1] if kept == 1.0 else rng.choice(versions)
            if tear and rng.random() < 0.2:
                at, cut = sector * SECTOR_BYTES, rng.randrange(len(version))
                before = bytes(image[at : at + len(version)]).ljust(len(version), b"\0")
                version = version[:cut] + before[cut:]
            _place(image, sector, version)
        sizes = [len(self.durable), *self.sizes]
        _resize(image, sizes[-1] if kept == 1.0 else rng.choice(sizes))
        self._came_back(image)

    def keep_only(self, sectors: Collection[int]) -> None:
        """Cuts the power so that these sectors stay as last written, the others as last synced."""
        image = bytearray(self.durable)
        _resize(image, len(self.cached))
        for sector, versions in self.dirty.items():
            if sector in sectors:
                _place(image, sector, versions[-1])
        self._came_back(image)

    def flip(self, offset: int, bit: int) -> None:
        """Flips one bit permanently, on the medium and in the cache, also in bytes that are not written yet."""
        for data in (self.cached, self.durable):
            if offset < len(data):
                data[offset] ^= 1 << bit
        dirty, sector = self.dirty, offset // SECTOR_BYTES
        if sector in dirty:
            at = sector * SECTOR_BYTES
            dirty[sector] = [bytes(self.cached[at : at + len(dirty[sector][-1])])]
            self._written = [(each, version) for each, versions in dirty.items() for version in versions]

    def _came_back(self, image: bytearray) -> None:
        self.durable, self.cached = image, bytearray(image)
        self.holes = {page for page in self.holes if not any(image[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])}
        self._clean()

    def _clean(self) -> None:
        self._written.clear()
        self.sizes.clear()


class Directory:
    """Names, and their changes since the last sync."""

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.steps: list[dict[str, Node | None]] = []

    def step(self, changes: dict[str, Node | None]) -> None:
        self.steps.append(changes)
        _apply(self.names, changes)

    def sync(self) -> None:
        self.durable = dict(self.names)
        self.steps.clear()

    def power_cut(self, rng: Random, *, tear: bool) -> None:
        kept = rng.choice((0.0, 0.5, 1.0))
        for changes in self.steps:
            if rng.random() < kept:
                _apply(self.durable, changes)
        self.names = dict(self.durable)
        self.steps.clear()
        for _, node in sorted(self.names.items()):
            node.power_cut(rng, tear=tear)


Node = Inode | Directory


def _apply(names: dict[str, Node], changes: dict[str, Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _resize(data: bytearray, size: int) -> None:
    if size > len(data):
        data.extend(bytes(size - len(data)))
    else:
        del data[size:]


def _place(data: bytearray, sector: int, version: bytes) -> None:
    """Stores ``version``, which is of that sector, or of it and the sectors after it."""
    at = sector * SECTOR_BYTES
    if at + len(version) > len(data):
        _resize(data, at + len(version))
    data[at : at + len(version)] = version
