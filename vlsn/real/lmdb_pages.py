"""Checks the pages of an LMDB data file against its format before LMDB itself maps them.

LMDB does not check its pages when it reads them. A flipped bit in a page number, a size or a flag makes LMDB read
outside of its map or crash the process, at every start. So before a file is opened, this module walks both trees with
plain reads. Every page number must be within the file. Every page must have the right kind and number, and occur once
in one tree. Every node must be within its page. Keys must be in order, the counts must be those in the meta page, and
free pages must not be in use. Free pages at the file's end need not exist: LMDB never writes pages that one transaction
has both allocated and freed. A fault raises ``Damaged``, and the file is then set aside. The bytes of values are
protected by the store's own checksums.

    meta 0 | meta 1 | pages …       the meta pages are of two consecutive commits; the later one's trees are walked

A page (64-bit, little-endian, LMDB 0.9): ``pgno u64 | pad u16 | flags u16 | lower u16 | upper u16``, then u16 places of
nodes up to ``lower``. A node is ``lo u16 | hi u16 | flags u16 | key bytes u16 | key | data``. In a branch, lo, hi and
flags form the page number. In a leaf, lo and hi form the size of the data. The flags say whether the data are in
overflow pages.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from struct import Struct

from vlsn.errors import Damaged
from vlsn.real.regular_files import open_regular

PAGE = Struct("<QHHHH")
META = Struct("<IIQQ")
TREE = Struct("<IHHQQQQQ")
TAIL = Struct("<QQ")
NODE = Struct("<HHHH")
NUMBER = Struct("<Q")

MAGIC = 0xBEEFC0DE
VERSION = 1
BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
BIG_DATA = 1
INTEGER_KEY = 8
NO_PAGE = (1 << 64) - 1
FIRST_PAGE = 2
DEPTH_MAX = 32
PAGE_SIZES = tuple(1 << bits for bits in range(9, 17))

assert (PAGE.size, META.size, TREE.size, TAIL.size, NODE.size) == (16, 24, 48, 16, 8)


class _Bad(Exception):
    """A fault of the file, described in words."""


@dataclass(frozen=True, slots=True)
class _Tree:
    flags: int
    depth: int
    branches: int
    leaves: int
    overflows: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class _Meta:
    page_bytes: int
    free: _Tree
    main: _Tree
    last_page: int
    transaction: int


def check_pages(path: str) -> None:
    """Raises ``Damaged`` unless LMDB can read the data file ``path``. An empty file is right, since it is new. Only the
    pages of the trees are read, not overflow pages."""
    descriptor = open_regular(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size:
            _check(descriptor, size)
    except _Bad as fault:
        raise Damaged(f"{path}: {fault}", file=path) from None
    finally:
        os.close(descriptor)


def _check(descriptor: int, size: int) -> None:
    first = _meta(descriptor, 0, 0)
    second = _meta(descriptor, first.page_bytes, 1)
    low, high = (first, second) if first.transaction < second.transaction else (second, first)
    if first.page_bytes != second.page_bytes:
        raise _Bad("its meta pages disagree")
    started = (first.transaction, second.transaction) == (0, 0)
    if not started and (high.transaction != low.transaction + 1 or (high is second) != high.transaction % 2):
        raise _Bad(f"its meta pages are of transactions {first.transaction} and {second.transaction}")
    walk = _Walk(descriptor, high, size)
    walk.tree(high.free, INTEGER_KEY)
    walk.tree(high.main, 0)
    walk.free_pages()


def _meta(descriptor: int, at: int, number: int) -> _Meta:
    page = os.pread(descriptor, PAGE.size + META.size + 2 * TREE.size + TAIL.size, at)
    if len(page) < PAGE.size + META.size + 2 * TREE.size + TAIL.size:
        raise _Bad(f"meta page {number} is cut short")
    pgno, _, flags, _, _ = PAGE.unpack_from(page)
    magic, version, _, _ = META.unpack_from(page, PAGE.size)
    if (pgno, flags, magic, version) != (number, META_PAGE, MAGIC, VERSION):
        raise _Bad(f"meta page {number} is none: page {pgno}, flags {flags:#x}, magic {magic:#x}, version {version}")
    trees = []
    for index in range(2):
        pad, *fields = TREE.unpack_from(page, PAGE.size + META.size + index * TREE.size)
        if index == 0:
            page_bytes = pad
        trees.append(_Tree(*fields))
    last_page, transaction = TAIL.unpack_from(page, PAGE.size + META.size + 2 * TREE.size)
    if page_bytes not in PAGE_SIZES or last_page < FIRST_PAGE - 1 or transaction == NO_PAGE:
        raise _Bad(f"meta page {number}: pages of {page_bytes} bytes, the last {last_page}")
    return _Meta(page_bytes, trees[0], trees[1], last_page, transaction)


class _Walk:
    def __init__(self, descriptor: int, meta: _Meta, size: int) -> None:
        self._descriptor = descriptor
        self._size = size
        self._meta = meta
        self._used: set[int] = set()
        self._spans: list[tuple[int, int]] = []
        """The runs of overflow pages: the first page and the number of pages."""
        self._free: list[bytes] = []
        self._counts = [0, 0, 0, 0]

    def tree(self, tree: _Tree, flags: int) -> None:
        self._counts = [0, 0, 0, 0]
        if tree.flags != flags or tree.depth > DEPTH_MAX or (tree.root == NO_PAGE) != (tree.depth == 0):
            raise _Bad(f"a tree with flags {tree.flags:#x}, {tree.depth} levels and root {tree.root:#x}")
        if tree.depth:
            self._page(tree.root, tree.depth, None, None, is_free=flags == INTEGER_KEY)
        if self._counts != [tree.branches, tree.leaves, tree.overflows, tree.entries]:
            raise _Bad(
                f"a tree has {self._counts} branches, leaves, overflow pages and entries, its meta says otherwise"
            )

    def free_pages(self) -> None:
        """Checks that no page is free twice, or both free and in use. A page past the file's end must be free."""
        taken = set(self._used)
        for first, count in self._spans:
            taken.update(range(first, first + count))
        if len(taken) != len(self._used) + sum(count for _, count in self._spans):
            raise _Bad("a page is in two places of its trees")
        free: set[int] = set()
        for value in self._free:
            count = NUMBER.unpack_from(value)[0] if len(value) >= 8 else NO_PAGE
            if len(value) < 8 * (count + 1):
                raise _Bad(f"a list of {count} free pages in {len(value)} bytes")
            pages = memoryview(value)[8 : 8 * (count + 1)].cast("Q").tolist()
            if any(not FIRST_PAGE <= page <= self._meta.last_page or page in taken for page in pages):
                raise _Bad("a free page is in use, or none of the file")
            if any(low <= high for low, high in pairwise(pages)):
                raise _Bad("free pages out of order")
            taken.update(pages)
            free.update(pages)
        end, needed = self._size // self._meta.page_bytes, self._meta.last_page + 1
        if needed - end > len(free) or not free.issuperset(range(end, needed)):
            raise _Bad(f"it has {self._size} bytes, its tree needs {needed * self._meta.page_bytes}")

    def _page(self, number: int, depth: int, low: bytes | None, high: bytes | None, *, is_free: bool) -> None:
        page = self._read(number)
        pgno, _, flags, lower, upper = PAGE.unpack_from(page)
        wanted = LEAF if depth == 1 else BRANCH
        if pgno != number or flags != wanted or number in self._used:
            raise _Bad(f"page {number} says that it is page {pgno} with flags {flags:#x}")
        self._used.add(number)
        if not PAGE.size < lower <= upper <= len(page) or lower & 1:
            raise _Bad(f"page {number} has its nodes from {lower} and {upper} on")
        places = memoryview(page)[PAGE.size : lower].cast("H").tolist()
        self._counts[0 if depth > 1 else 1] += 1
        keys = [self._key(page, place, upper, number) for place in places]
        if depth == 1:
            self._ordered(keys, low, high, number, is_free=is_free)
            self._counts[3] += len(keys)
            for place, key in zip(places, keys, strict=True):
                self._data(page, place, len(key), number, is_free=is_free)
            return
        if len(keys) < 2:
            raise _Bad(f"branch page {number} has {len(keys)} nodes")
        self._ordered(keys[1:], low, high, number, is_free=is_free)
        bounds: list[bytes | None] = [low, *keys[1:], high]
        for index, place in enumerate(places):
            lo, hi, top, _ = NODE.unpack_from(page, place)
            self._page(lo | hi << 16 | top << 32, depth - 1, bounds[index], bounds[index + 1], is_free=is_free)

    def _key(self, page: bytes, place: int, upper: int, number: int) -> bytes:
        if place < upper or place + NODE.size > len(page):
            raise _Bad(f"page {number} has a node at {place}")
        size = NODE.unpack_from(page, place)[3]
        if place + NODE.size + size > len(page):
            raise _Bad(f"page {number} has a key of {size} bytes at {place}")
        return page[place + NODE.size : place + NODE.size + size]

    def _ordered(self, keys: list[bytes], low: bytes | None, high: bytes | None, number: int, *, is_free: bool) -> None:
        """Checks that the keys rise, and are at least ``low`` and below ``high``. Keys of the free tree are transaction
        numbers."""
        if is_free:
            if any(len(key) != NUMBER.size or NUMBER.unpack(key)[0] > self._meta.transaction for key in keys):
                raise _Bad(f"page {number} has keys that are no transactions")
            keys = [key[::-1] for key in keys]
            low, high = low and low[::-1], high and high[::-1]
        rising = all(one < two for one, two in pairwise(keys))
        if not rising or (keys and ((low is not None and keys[0] < low) or (high is not None and keys[-1] >= high))):
            raise _Bad(f"page {number} has keys out of order")

    def _data(self, page: bytes, place: int, key_bytes: int, number: int, *, is_free: bool) -> None:
        lo, hi, flags, _ = NODE.unpack_from(page, place)
        size, at = lo | hi << 16, place + NODE.size + key_bytes
        if flags not in (0, BIG_DATA) or at + (NUMBER.size if flags else size) > len(page):
            raise _Bad(f"page {number} has {size} bytes of data at {at} with flags {flags:#x}")
        if not flags:
            if is_free:
                self._free.append(page[at : at + size])
            return
        first = NUMBER.unpack_from(page, at)[0]
        head = self._read(first)
        pgno, _, kind, low, high = PAGE.unpack_from(head)
        count, needed = low | high << 16, -(-(PAGE.size + size) // self._meta.page_bytes)
        # If a value has replaced a longer value in the same transaction, it keeps the longer value's pages.
        if pgno != first or kind != OVERFLOW or count < needed or first + count - 1 > self._meta.last_page:
            raise _Bad(f"page {first} does not hold the {size} bytes of page {number}")
        if (first + count) * self._meta.page_bytes > self._size:
            raise _Bad(f"it has {self._size} bytes, and ends within the {count} pages from {first} on")
        self._counts[2] += count
        self._spans.append((first, count))
        if is_free:
            at = first * self._meta.page_bytes + PAGE.size
            self._free.append(os.pread(self._descriptor, size, at))

    def _read(self, number: int) -> bytes:
        if not FIRST_PAGE <= number <= self._meta.last_page:
            raise _Bad(f"page {number} is none of the file's")
        size = self._meta.page_bytes
        page = os.pread(self._descriptor, size, number * size)
        if len(page) < size:
            raise _Bad(f"page {number} is cut short")
        return page
