"""The work on long columns without NumPy (``arrays.Works``), for a client that is installed alone."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from operator import add, lt, sub

from vlsn.errors import BadBody, BadTransaction
from vlsn.ids import COMMIT, DATA
from vlsn.seams import Buffer


def check_offsets(buf: Buffer, at: int, count: int, length: int) -> int:
    many = _i32(buf, at, count + 1)
    lengths: list[int] = list(map(sub, islice(many, 1, None), many))
    if many[0] or many[-1] != length or min(lengths) < 0:
        raise BadBody("offsets do not rise from 0 to the length")
    return max(lengths)


def fitting(buf: Buffer, columns: Sequence[int], skip: int, count: int, bytes_max: int) -> tuple[int, int]:
    ends: Iterable[int] = [0] * count
    for at in columns:
        offsets = _i32(buf, at + 4 * skip, count + 1)
        base = offsets[0]
        ends = map(add, ends, [offset - base for offset in islice(offsets, 1, None)])
    found = list(ends)
    fits = max(bisect_right(found, bytes_max), 1)
    return fits, found[fits - 1]


def _i32(buf: Buffer, at: int, count: int) -> list[int]:
    return memoryview(buf)[at : at + 4 * count].cast("i").tolist()


def whole_transactions(kinds: bytes, first_vlsn: int) -> bytes:
    if kinds[-1] != COMMIT or kinds.count(COMMIT) + kinds.count(DATA) != len(kinds):
        return b""
    ids = array("Q")
    while len(ids) < len(kinds):
        begin = len(ids)
        ids.extend([first_vlsn + begin] * (kinds.index(COMMIT, begin) + 1 - begin))
    return ids.tobytes()


def check_transactions(txns: bytes, kinds: bytes, first_vlsn: int) -> None:
    ids = memoryview(txns).cast("Q").tolist()
    before = [None, *ids]
    rows = list(zip(ids, before, kinds, [*ids[1:], None], range(first_vlsn, first_vlsn + len(ids)), strict=False))
    if any(own and own != last and own != vlsn for own, last, _, _, vlsn in rows):
        raise BadTransaction("a transaction that does not begin with its own VLSN")
    if any(own and kind != (DATA if own == after else COMMIT) for own, _, kind, after, _ in rows):
        raise BadTransaction("a transaction that is not DATA with one COMMIT at its end")


def ascends(numbers: Sequence[int]) -> bool:
    return all(map(lt, numbers, islice(numbers, 1, None)))


def pack_vlsns(vlsns: Sequence[int]) -> bytes:
    if not len(vlsns):
        return b""
    heads, lengths, last = list[int](), list[int](), 0
    for first, end in _intervals(vlsns):
        longer = end > first
        heads.append((first - last - 1) << 1 | longer)
        if longer:
            lengths.append(end - first - 1)
        last = end
    packed = bytearray()
    for number in (len(heads), *heads, *lengths):
        while number >= 0x80:
            packed.append(number & 0x7F | 0x80)
            number >>= 7
        packed.append(number)
    return bytes(packed)


def _intervals(vlsns: Sequence[int]) -> Iterator[tuple[int, int]]:
    column = sorted(set(vlsns))
    first = column[0]
    for one, other in pairwise(column):
        if other > one + 1:
            yield first, one
            first = other
    yield first, column[-1]
