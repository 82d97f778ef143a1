"""Sets of VLSNs: sorted intervals in two columns, and their packed form.

    {1, 2, 3, 7, 9, 10}     firsts [1 7 9]   lasts [3 7 10]

    packed   count ‖ heads ‖ lengths, each number a varint (LEB128)
             head     number of VLSNs between the interval before and this one << 1 | 1 if this one is longer than one
             length   (only for intervals longer than one) the number of VLSNs in the interval − 2
             here: 3 ‖ 1 6 3 ‖ 1 0

A set is immutable, so each change makes another set. Packing, unpacking and all operations work by column, without a
Python step for each VLSN. If VLSNs in a window of 10,000 are acknowledged at random, each needs one or two bytes in
packed form.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from vlsn.errors import BadBody

Vlsns: TypeAlias = npt.NDArray[np.int64]
Span: TypeAlias = tuple[int, int]
"""The first and the last VLSN, inclusive."""
_LAST: Final = 1 << 62
"""A number that is higher than all VLSNs of sets and logs."""
_VARINT_BYTES_MAX: Final = 10
_SMALL_BYTES: Final = 24
"""The most bytes of a packed set of one interval. A packed set of one interval is unpacked in plain Python; if it is
larger, it is invalid."""
_STEPS: Final = np.array([1 << 7 * size for size in range(1, _VARINT_BYTES_MAX)], np.uint64)


@dataclass(frozen=True, eq=False)
class VlsnSet:
    """A set of VLSNs from 1 on. ``firsts`` and ``lasts`` are the ends of the set's intervals, ascending, with a gap
    between any two intervals."""

    firsts: Vlsns = field(default_factory=lambda: np.empty(0, np.int64))
    lasts: Vlsns = field(default_factory=lambda: np.empty(0, np.int64))

    @classmethod
    def of(cls, vlsns: npt.ArrayLike) -> VlsnSet:
        """Makes the set of ``vlsns``, which may be in any order and have duplicates."""
        column = np.asarray(vlsns, np.int64)
        if not (column[1:] > column[:-1]).all():
            column = np.unique(column)
        if len(column) and column[-1] - column[0] == len(column) - 1:
            return cls(column[:1], column[-1:])
        return cls(column, column)._joined()

    @classmethod
    def between(cls, first: int, last: int) -> VlsnSet:
        """Makes the set of the VLSNs from ``first`` to ``last``, or the empty set if ``last`` is less than
        ``first``."""
        return cls.covering([first], [last]) if first <= last else cls()

    @classmethod
    def covering(cls, firsts: npt.ArrayLike, lasts: npt.ArrayLike) -> VlsnSet:
        """Makes the union of non-empty intervals, which may be in any order."""
        begins, ends = np.asarray(firsts, np.int64), np.asarray(lasts, np.int64)
        order = np.argsort(begins, kind="stable")
        return cls(begins[order], np.maximum.accumulate(ends[order]))._joined() if len(order) else cls()

    @classmethod
    def of_spans(cls, spans: Iterable[Span]) -> VlsnSet:
        """Makes the union of ``spans``."""
        firsts, lasts = np.array(list(spans), np.int64).reshape(-1, 2).T
        return cls.covering(firsts, lasts)

    @classmethod
    def covering_all(cls, sets: Sequence[VlsnSet]) -> VlsnSet:
        """Makes the union of all ``sets``."""
        there = [each for each in sets if each]
        if len(there) < 2:
            return there[0] if there else cls()
        return cls.covering(
            np.concatenate([each.firsts for each in there]), np.concatenate([each.lasts for each in there])
        )

    def head(self, intervals: int) -> VlsnSet:
        """Returns the set of the first ``intervals`` intervals."""
        return VlsnSet(self.firsts[:intervals], self.lasts[:intervals])

    def behind(self, intervals: int) -> VlsnSet:
        """Returns the set without its first ``intervals`` intervals."""
        return VlsnSet(self.firsts[intervals:], self.lasts[intervals:])

    def _joined(self) -> VlsnSet:
        """Joins intervals that overlap or touch. ``firsts`` must ascend, and ``lasts`` must not decrease."""
        begins = np.empty(len(self.firsts), np.bool_)
        begins[:1] = True
        np.greater(self.firsts[1:] - 1, self.lasts[:-1], out=begins[1:])
        if begins.all():
            return self
        ends = np.append(np.flatnonzero(begins[1:]), len(begins) - 1)
        return VlsnSet(self.firsts[begins], self.lasts[ends])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, VlsnSet):
            return NotImplemented
        return np.array_equal(self.firsts, other.firsts) and np.array_equal(self.lasts, other.lasts)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return len(self.firsts) > 0

    @property
    def intervals(self) -> int:
        return len(self.firsts)

    @cached_property
    def count(self) -> int:
        """The number of VLSNs in the set."""
        return int((self.lasts - self.firsts).sum()) + len(self.firsts)

    @property
    def floor(self) -> int:
        """The VLSN up to which the set contains all VLSNs, or 0 if VLSN 1 is not in the set."""
        return int(self.lasts[0]) if len(self.firsts) and self.firsts[0] == 1 else 0

    @property
    def last(self) -> int:
        """The highest VLSN in the set; 0 for an empty set."""
        return int(self.lasts[-1]) if len(self.lasts) else 0

    def has(self, vlsns: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Marks the VLSNs in ``vlsns`` that are in the set."""
        asked = np.asarray(vlsns, np.int64)
        if not len(self.firsts):
            return np.zeros(asked.shape, np.bool_)
        at = np.searchsorted(self.firsts, asked, side="right") - 1
        found: npt.NDArray[np.bool_] = (at >= 0) & (asked <= self.lasts[np.maximum(at, 0)])
        return found

    def covers(self, first: int, last: int) -> bool:
        """Returns whether every VLSN from ``first`` to ``last`` is in the set."""
        return not self.left([(first, last)])

    def count_in(self, first: int, last: int) -> int:
        """Returns how many VLSNs from ``first`` to ``last`` are in the set."""
        return int(np.maximum(np.minimum(self.lasts, last) - np.maximum(self.firsts, first) + 1, 0).sum())

    def left(self, spans: Iterable[Span]) -> list[Span]:
        """Returns the parts of ``spans`` that are not in the set."""
        found: list[Span] = []
        for at, last in spans:
            low, high = np.searchsorted(self.lasts, at), np.searchsorted(self.firsts, last, side="right")
            for start, end in zip(self.firsts[low:high].tolist(), self.lasts[low:high].tolist(), strict=True):
                if at < start:
                    found.append((at, start - 1))
                at = end + 1
            if at <= last:
                found.append((at, last))
        return found

    def spans(self) -> list[Span]:
        """Returns the set's intervals, ascending."""
        return list(zip(self.firsts.tolist(), self.lasts.tolist(), strict=True))

    def vlsns(self) -> Vlsns:
        """Returns the VLSNs of the set one by one, ascending. This method is meant for small sets."""
        sizes = self.lasts - self.firsts + 1
        starts = np.repeat(self.firsts - np.cumsum(sizes) + sizes, sizes)
        return np.asarray(starts + np.arange(int(sizes.sum())), np.int64)

    def union(self, other: VlsnSet) -> VlsnSet:
        if not other:
            return self
        if not self:
            return other
        if len(other.firsts) == 1 and (first := other.firsts[0]) >= self.firsts[-1]:
            return self._with_last(first, other.lasts[0])
        firsts, lasts = np.concatenate((self.firsts, other.firsts)), np.concatenate((self.lasts, other.lasts))
        return VlsnSet.covering(firsts, lasts)

    def _with_last(self, first: np.int64, last: np.int64) -> VlsnSet:
        """Adds an interval that begins at or after the beginning of the last interval, as acknowledgements in order
        do."""
        if first > self.lasts[-1] + 1:
            return VlsnSet(np.append(self.firsts, first), np.append(self.lasts, last))
        if last <= self.lasts[-1]:
            return self
        return VlsnSet(self.firsts, np.append(self.lasts[:-1], last))

    def minus(self, other: VlsnSet) -> VlsnSet:
        """Returns the VLSNs of the set that are not in ``other``."""
        if not (self and other) or other.firsts[0] > self.lasts[-1] or self.firsts[0] > other.lasts[-1]:
            return self
        return self._others().union(other)._others()

    def upto(self, last: int) -> VlsnSet:
        """Returns the VLSNs of the set up to ``last``."""
        keep = int(np.searchsorted(self.firsts, last, side="right"))
        return VlsnSet(self.firsts[:keep], np.minimum(self.lasts[:keep], last))

    def _others(self) -> VlsnSet:
        """Returns all VLSNs that are not in the set."""
        firsts = np.concatenate(([1], self.lasts + 1))
        lasts = np.concatenate((self.firsts - 1, [_LAST]))
        there = firsts <= lasts
        return VlsnSet(firsts[there].astype(np.int64), lasts[there].astype(np.int64))

    # The packed form.

    def pack(self) -> bytes:
        """Packs the set into bytes. An empty set is packed into no bytes."""
        if not self:
            return b""
        if len(self.firsts) == 1:
            return self._pack_one()
        sizes = (self.lasts - self.firsts).astype(np.uint64)
        before = np.concatenate((np.zeros(1, np.int64), self.lasts[:-1]))
        heads = (self.firsts - before - 1).astype(np.uint64) << np.uint64(1) | (sizes > 0).astype(np.uint64)
        return _varints(np.concatenate((np.array([len(heads)], np.uint64), heads, sizes[sizes > 0] - np.uint64(1))))

    def _pack_one(self) -> bytes:
        """Packs a set of one interval, as acknowledgements in order produce."""
        first, more = int(self.firsts[0]), int(self.lasts[0] - self.firsts[0])
        packed = bytearray(b"\x01")
        for number in ((first - 1) << 1 | (more > 0), *([more - 1] if more else ())):
            while number >= 0x80:
                packed.append(number & 0x7F | 0x80)
                number >>= 7
            packed.append(number)
        return bytes(packed)

    @classmethod
    def unpack(cls, packed: bytes) -> VlsnSet:
        """Unpacks a set. Raises ``BadBody`` for bytes that ``pack`` cannot have made."""
        if not packed:
            return cls()
        if len(packed) <= _SMALL_BYTES and packed[0] == 1:
            return cls._unpack_one(packed)
        numbers = _numbers(packed)
        count = int(numbers[0])
        heads = numbers[1 : 1 + count]
        longer = (heads & np.uint64(1)).astype(np.bool_)
        lengths = numbers[1 + count :]
        if not 1 <= count <= len(packed) or len(heads) != count or len(lengths) != int(longer.sum()):
            raise BadBody(f"a set of VLSNs: {len(numbers)} numbers are not {count} intervals")
        sizes = np.zeros(count, np.uint64)
        sizes[longer] = lengths
        # The sums are computed as floats first, so that no sum of integers overflows.
        if float(heads.sum(dtype=np.float64)) / 2 + float(sizes.sum(dtype=np.float64)) + 2 * count >= _LAST:
            raise BadBody("a set of VLSNs that goes past the last one")
        spans = sizes.astype(np.int64) + longer
        gaps = (heads >> np.uint64(1)).astype(np.int64)
        if (gaps[1:] == 0).any():
            raise BadBody("a set of VLSNs with an interval next to another")
        lasts = np.cumsum(gaps + spans + 1)
        return cls(lasts - spans, lasts)

    @classmethod
    def _unpack_one(cls, packed: bytes) -> VlsnSet:
        """Unpacks a set of one interval, as acknowledgements in order produce."""
        numbers, number, shift = list[int](), 0, 0
        for byte in packed[1:]:
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                numbers.append(number)
                number = shift = 0
        if shift or not numbers or len(numbers) != 1 + (numbers[0] & 1):
            raise BadBody(f"a set of VLSNs: {len(numbers)} numbers are not 1 interval")
        head, length = numbers[0], numbers[1] if numbers[0] & 1 else 0
        if head / 2 + length + 2 >= _LAST:
            raise BadBody("a set of VLSNs that goes past the last one")
        first = (head >> 1) + 1
        return cls(np.array([first], np.int64), np.array([first + length + (head & 1)], np.int64))


def _varints(numbers: npt.NDArray[np.uint64]) -> bytes:
    widths = np.searchsorted(_STEPS, numbers, side="right") + 1
    ends = np.cumsum(widths)
    out = np.empty(int(ends[-1]), np.uint8)
    starts = ends - widths
    for place in range(int(widths.max())):
        there = widths > place
        part = (numbers[there] >> np.uint64(7 * place)) & np.uint64(0x7F)
        out[starts[there] + place] = part.astype(np.uint8) | ((widths[there] > place + 1).astype(np.uint8) << 7)
    return out.tobytes()


def _numbers(packed: bytes) -> npt.NDArray[np.uint64]:
    data = np.frombuffer(packed, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    starts = np.concatenate(([0], ends[:-1] + 1))
    widths = ends - starts + 1
    if data[-1] >= 0x80 or int(widths.max()) > _VARINT_BYTES_MAX or (data[ends[widths == _VARINT_BYTES_MAX]] > 1).any():
        raise BadBody("a set of VLSNs with a number that has no end, or is too large")
    places = np.arange(len(data)) - np.repeat(starts, widths)
    parts = (data & np.uint8(0x7F)).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.asarray(np.add.reduceat(parts, starts), np.uint64)
