"""What a medium remembers: sectors and directory entries, each either synced or not yet.

A power cut keeps **any subset** of what was not synced:

    sector      its last synced bytes, or any of the versions written since; torn, a part of each
    size        the synced one, or any that the file has had since
    name        each create, rename or remove since its directory's last sync happened, or did not

Sectors have 512 bytes.  A rename is one step, as every journal makes it.
"""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from vlsn.seams import Buffer

SECTOR_BYTES = 512


class Inode:
    """One file: what a read sees, what the medium holds, and what lies between the two."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.durable = bytearray()
        self.dirty: dict[int, list[bytes]] = {}
        self.sizes: list[int] = []

    def put(self, offset: int, data: Buffer) -> None:
        if not len(data):
            return
        end = offset + len(data)
        self.grow(end)
        self.cached[offset:end] = data
        with memoryview(self.cached) as view:
            for sector in range(offset // SECTOR_BYTES, (end - 1) // SECTOR_BYTES + 1):
                at = sector * SECTOR_BYTES
                self.dirty.setdefault(sector, []).append(bytes(view[at : at + SECTOR_BYTES]))

    def grow(self, size: int) -> None:
        if size > len(self.cached):
            self.cached.extend(bytes(size - len(self.cached)))
            self.sizes.append(size)

    def sync(self) -> None:
        """Only what is dirty reaches the medium: bytes that a failed sync lost are not written again."""
        _resize(self.durable, len(self.cached))
        for sector, versions in self.dirty.items():
            _place(self.durable, sector, versions[-1])
        self._clean()

    def sync_failed(self, rng: Random) -> None:
        """As Linux does it: every dirty page counts as clean from now on, written or not."""
        for sector, versions in sorted(self.dirty.items()):
            if rng.random() < 0.5:
                _place(self.durable, sector, versions[-1])
        self._clean()

    def drop_cache(self) -> None:
        image = bytearray(self.durable)
        _resize(image, len(self.cached))
        for sector, versions in self.dirty.items():
            _place(image, sector, versions[-1])
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
        self.durable, self.cached = image, bytearray(image)
        self._clean()

    def keep_only(self, sectors: Collection[int]) -> None:
        """A power cut after which these sectors are there as last written, the others as last synced."""
        image = bytearray(self.durable)
        _resize(image, len(self.cached))
        for sector in sectors:
            if sector in self.dirty:
                _place(image, sector, self.dirty[sector][-1])
        self.durable, self.cached = image, bytearray(image)
        self._clean()

    def _clean(self) -> None:
        self.dirty.clear()
        self.sizes.clear()


class Directory:
    """Names, and the steps that they went through since the last sync."""

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
    at = sector * SECTOR_BYTES
    if at + len(version) > len(data):
        _resize(data, at + len(version))
    data[at : at + len(version)] = version
