"""The time index. The log is divided into steps of about a MiB. For each step the index has a bound: the latest time at
which a block of the step was sealed. With the bounds, a reader finds the blocks of a time.

    VLSNs        1–400    401–790   791–1200   1201–…       about a MiB of log each
    bound        10:02     13:40     10:09      10:11        the master of 401–790 had a clock hours ahead

    12:00 →  the first step whose bound is at or after 12:00: only the blocks of that step are read

1. The steps cover the range without a gap. Each step reaches from its first VLSN to the next step's.
2. No visible block of a step has a later time than the step's bound. A bound may be too high after a rollback. A bound
   is ``UNKNOWN`` if an earlier version wrote that part of the log. A reader that finds no block of its time in a step
   lowers the step's bound (``lower``).
3. So a search by time is right even if bounds are unknown, only slower.
4. Above ``STEPS_MAX`` steps, every two steps are merged. So memory stays at 2 MiB, for up to 64 GiB of log with a step
   for each MiB.

In the index's store, the key ``t`` with a VLSN (big-endian u64) has a record of some steps from that VLSN on. The key
``t`` alone has the flush that the records belong to:

    0       2   4       8           8+8n        8+16n
    |version| 0 | count | firsts[n] | bounds[n] |
    0       2   4   8               16     24            32
    |version| 0 | 0 | checkpoint id | last | its mapping |

An earlier version of vlsnlog ignores the keys of the time index when it changes the log. If an earlier version has
changed the log, the record of the buckets has another checkpoint, another end or another last mapping. All bounds
become unknown then.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from struct import Struct

import numpy as np

from vlsn.errors import Damaged
from vlsn.ids import NULL_VLSN, NUMBER_MAX, U64_MAX, Vlsn
from vlsn.levels import unread
from vlsn.seams import KeyValue

UNKNOWN = NUMBER_MAX
STEP_SHIFT = 20
"""The binary logarithm of a MiB. A step ends at the first block that begins in another MiB of its segment."""
STEPS_MAX = 131_072
STEPS_A_RECORD = 256
VERSION = 1
META_KEY = b"t"
_KEY = Struct(">cQ")
_RECORD = Struct("<HHI")
_META = Struct("<HHIQQQ")
END_KEY = _KEY.pack(b"t", U64_MAX) + b"\0"

Puts = list[tuple[bytes, bytes]]
Ranges = list[tuple[bytes, bytes]]

assert (_RECORD.size, _META.size) == (8, 32)


def step_key(first: int) -> bytes:
    return _KEY.pack(b"t", first)


class TimeIndex:
    """The time index of one log. Every method is called under the log's latch. ``last`` is the last VLSN covered by the
    steps, or ``NULL_VLSN`` if there are no steps."""

    __slots__ = ("_bounds", "_dirty", "_firsts", "_mebibyte", "_stored", "last")

    def __init__(self) -> None:
        self.forget()
        self._stored: list[int] = []
        """The first VLSN of each record in the store, at the last flush."""

    def __len__(self) -> int:
        return len(self._firsts)

    def forget(self) -> None:
        """Forgets all steps. The next flush deletes them from the store."""
        self.last: Vlsn = NULL_VLSN
        self._firsts = array("q")
        self._bounds = array("q")
        self._mebibyte = -1
        """The MiB of the log in which the last block begins, computed from its LSN; -1 if it is not known."""
        self._dirty = 0
        """The index of the first step that differs from the store."""

    def steps(self) -> list[tuple[int, int, int]]:
        """Returns the first VLSN, the last VLSN and the bound (latest time) of every step."""
        return [
            (first, self._end(at), bound)
            for at, (first, bound) in enumerate(zip(self._firsts, self._bounds, strict=True))
        ]

    # Adding and removing steps.

    def extend(self, first: int, last: int, lsns: tuple[int, int], clock_us: int) -> None:
        """Adds blocks ``first`` to ``last`` after all others. The latest of the added blocks was sealed at
        ``clock_us``. ``lsns`` are the LSNs of the first and the last block."""
        if self._firsts and lsns[0] >> STEP_SHIFT == self._mebibyte:
            if clock_us > self._bounds[-1]:
                self._bounds[-1] = clock_us
        else:
            self._firsts.append(first)
            self._bounds.append(clock_us)
            if len(self._firsts) > STEPS_MAX:
                self._halve()
        self._dirty = min(self._dirty, len(self._firsts) - 1)
        self._mebibyte = lsns[1] >> STEP_SHIFT
        self.last = Vlsn(last)

    def extend_run(
        self, firsts: Sequence[int], lasts: Sequence[int], lsns: Sequence[int], clocks: Sequence[int]
    ) -> None:
        """Adds many blocks, ascending. ``clocks`` has the time of each block, or is empty if the times are not
        known."""
        # All blocks are in the last step's MiB, as is the case for most groups of blocks.
        if clocks and lsns[-1] >> STEP_SHIFT == self._mebibyte:
            clock_us, at = max(clocks), len(self._bounds) - 1
            if clock_us > self._bounds[at]:
                self._bounds[at] = clock_us
            if at < self._dirty:
                self._dirty = at
            self.last = Vlsn(lasts[-1])
            return
        if lsns[0] >> STEP_SHIFT == lsns[-1] >> STEP_SHIFT or not clocks:
            self.extend(firsts[0], lasts[-1], (lsns[0], lsns[-1]), max(clocks, default=UNKNOWN))
            return
        cuts, low = [0], 0
        while low < len(lsns):  # adds one step for the blocks of each MiB
            low = bisect_left(lsns, (lsns[low] >> STEP_SHIFT) + 1 << STEP_SHIFT, low)
            cuts.append(low)
        for low, high in pairwise(cuts):
            self.extend(firsts[low], lasts[high - 1], (lsns[low], lsns[high - 1]), max(clocks[low:high]))

    def lower(self, first: int, last: int, clock_us: int) -> None:
        """Lowers the bound of the step with VLSNs ``first`` to ``last`` to ``clock_us``, which the caller has found to
        be the time of the step's latest block."""
        if not self._firsts or not self._firsts[0] <= first <= last <= self.last:
            return
        at = bisect_right(self._firsts, first) - 1
        end, bound = self._end(at), self._bounds[at]
        if clock_us >= bound or last > end:
            return
        parts = [(self._firsts[at], bound)] if first > self._firsts[at] else []
        parts.append((first, clock_us))
        parts += [(last + 1, bound)] if last < end else []
        self._firsts[at : at + 1] = array("q", [each[0] for each in parts])
        self._bounds[at : at + 1] = array("q", [each[1] for each in parts])
        self._dirty = min(self._dirty, at)
        if end == self.last:
            self._mebibyte = -1
        if len(self._firsts) > STEPS_MAX:
            self._halve()

    def cut_tail(self, last: Vlsn) -> None:
        """Removes the steps after ``last``. Bounds do not change."""
        keep = bisect_right(self._firsts, last)
        del self._firsts[keep:], self._bounds[keep:]
        self.last, self._mebibyte = (last if keep else NULL_VLSN), -1
        # the stored record of the last kept step still has the steps after that step
        self._dirty = min(self._dirty, max(keep - 1, 0))

    def cut_head(self, first: Vlsn) -> None:
        """Removes the steps that end before ``first``. The step that contains ``first`` does not change."""
        gone = max(bisect_right(self._firsts, first) - 1, 0)
        del self._firsts[:gone], self._bounds[:gone]
        self._dirty = max(self._dirty - gone, 0)

    # Searching.

    def reaching(self, clock_us: int, from_vlsn: int) -> tuple[Vlsn, Vlsn] | None:
        """Searches the steps at or after ``from_vlsn``. Returns the first and the last VLSN of the first step that may
        hold a block of ``clock_us`` or later, or None if there is no such step. The column of bounds is searched in one
        call, which needs 30 µs with the most steps."""
        if from_vlsn > self.last:
            return None
        start = max(bisect_right(self._firsts, from_vlsn) - 1, 0)
        late = np.frombuffer(self._bounds, np.int64)[start:] >= clock_us
        if not late.any():
            return None
        at = start + int(late.argmax())
        return Vlsn(self._firsts[at]), Vlsn(self._end(at))

    # Storing.

    def flush(self, checkpoint_id: int, mapping: int) -> tuple[Puts, Ranges]:
        """Returns the records of changed steps that a flush writes, and the ranges of keys that the flush deletes
        first. ``mapping`` is the LSN of the last VLSN, by the index."""
        drops: Ranges = []
        puts: Puts = [(META_KEY, _META.pack(VERSION, 0, 0, checkpoint_id, self.last, mapping))]
        if not self._firsts:
            self._stored = []
            return puts, [(step_key(0), END_KEY)]
        gone = bisect_right(self._stored, self._firsts[0]) - 1
        if gone > 0:
            drops.append((step_key(0), step_key(self._stored[gone])))
            del self._stored[:gone]
        if self._dirty < len(self._firsts):
            record = bisect_right(self._stored, self._firsts[self._dirty]) - 1
            start = self._stored[record] if record >= 0 else 0
            drops.append((step_key(start), END_KEY))
            del self._stored[max(record, 0) :]
            for low in range(bisect_left(self._firsts, start), len(self._firsts), STEPS_A_RECORD):
                puts.append(self._record(low, min(low + STEPS_A_RECORD, len(self._firsts))))
                self._stored.append(self._firsts[low])
        self._dirty = len(self._firsts)
        return puts, drops

    def load(self, store: KeyValue, checkpoint_id: int, first: Vlsn, last: Vlsn, mapping: int) -> None:
        """Loads the steps of the range ``first`` to ``last`` from the store. If the steps are missing, unreadable or of
        another flush, makes one step with an unknown bound. Raises ``WrongVersion``."""
        self.forget()
        try:
            self._stored = [int.from_bytes(key[1:], "big") for key in store.keys(step_key(0), END_KEY)]
            if not self._load(store, checkpoint_id, last, mapping):
                self.forget()
        except Damaged:
            self.forget()
        if last and not self._firsts:
            self.extend(first, last, (-1, -1), UNKNOWN)
        elif last:
            self.cut_head(first)
            self._dirty = len(self._firsts)
        self._mebibyte = -1

    def _load(self, store: KeyValue, checkpoint_id: int, last: Vlsn, mapping: int) -> bool:
        meta = store.get(META_KEY)
        if meta is None or _checked(meta, _META) != (0, 0, checkpoint_id, last, mapping):
            return False
        for key, value in store.items(step_key(0), END_KEY):
            zero, count = _checked(value, _RECORD)
            if zero or not count or len(value) != _RECORD.size + 16 * count:
                raise Damaged("a record of the time index has another length than it says")
            self._firsts.frombytes(value[_RECORD.size : _RECORD.size + 8 * count])
            self._bounds.frombytes(value[_RECORD.size + 8 * count :])
            if step_key(self._firsts[-count]) != key:
                raise Damaged("a record of the time index lies under another key than its own")
        firsts = np.array(self._firsts, dtype=np.int64)
        bounds = np.array(self._bounds, dtype=np.int64)
        if (np.diff(firsts) <= 0).any() or (bounds < 0).any() or firsts[-1:].sum() > last:
            raise Damaged(f"the time index does not rise up to VLSN {last}")
        self.last = last
        return bool(len(firsts))

    def _record(self, low: int, high: int) -> tuple[bytes, bytes]:
        head = _RECORD.pack(VERSION, 0, high - low)
        return step_key(self._firsts[low]), head + self._firsts[low:high].tobytes() + self._bounds[low:high].tobytes()

    def _end(self, at: int) -> int:
        return self._firsts[at + 1] - 1 if at + 1 < len(self._firsts) else int(self.last)

    def _halve(self) -> None:
        """Merges every two neighbouring steps of the log into one, to halve the number of steps."""
        bounds = np.array(self._bounds, dtype=np.int64)
        if len(bounds) % 2:
            bounds = np.append(bounds, 0)
        self._bounds = array("q", np.maximum(bounds[::2], bounds[1::2]).tobytes())
        self._firsts = self._firsts[::2]
        self._dirty = 0


def _checked(value: bytes, layout: Struct) -> tuple[int, ...]:
    """Unpacks the bytes after the version number. Raises ``Damaged`` or ``WrongVersion``."""
    if len(value) < layout.size:
        raise Damaged(f"a record of the time index of {len(value)} bytes")
    version, *fields = layout.unpack_from(value)
    if version > VERSION:
        raise unread("a time index", version, VERSION)
    if version != VERSION:
        raise Damaged(f"a record of the time index of version {version}")
    return tuple(fields)
