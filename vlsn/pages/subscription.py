"""A destination as its pager sees it: which entries are its messages, and which of these are acknowledged.

    prefix b"order-", from VLSN 10, floor 40, intervals 50–52, 60–60        as of the durable end
    messages of it that are still wanted:  41 … 49, 53 … 59, 61 …           with a key that begins so

Acknowledgements that may still be rolled back are in none of these: what is let go of because of them is gone for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from vlsn.ids import NULL_VLSN, Vlsn

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Span = tuple[int, int]
"""First and last VLSN, inclusive."""


def _none() -> I64:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """The VLSNs that are acknowledged for good: all up to ``floor``, and each ``starts[i]`` to ``ends[i]`` (inclusive,
    ascending, apart) above it."""

    floor: Vlsn = NULL_VLSN
    starts: I64 = field(default_factory=_none)
    ends: I64 = field(default_factory=_none)

    @classmethod
    def of(cls, floor: int, spans: list[Span]) -> Acknowledged:
        """Makes it of intervals, ascending and apart."""
        columns = np.array(spans, np.int64).reshape(-1, 2)
        return cls(Vlsn(floor), columns[:, 0].copy(), columns[:, 1].copy())

    def mask(self, vlsns: I64) -> Mask:
        """Marks those of ``vlsns`` that are acknowledged."""
        done: Mask = vlsns <= self.floor
        if len(self.starts):
            number = np.searchsorted(self.starts, vlsns, side="right") - 1
            done |= (number >= 0) & (vlsns <= self.ends[number])
        return done

    def covers(self, first: int, last: int) -> bool:
        """Says whether every VLSN from ``first`` to ``last`` is."""
        return not self.left([(first, last)])

    def count(self, first: int, last: int) -> int:
        """Counts those from ``first`` to ``last``."""
        below = max(0, min(last, self.floor) - first + 1)
        starts, ends = np.maximum(self.starts, max(first, self.floor + 1)), np.minimum(self.ends, last)
        return below + int(np.maximum(ends - starts + 1, 0).sum())

    def left(self, spans: list[Span]) -> list[Span]:
        """Returns what of ``spans`` is not acknowledged."""
        found: list[Span] = []
        for first, last in spans:
            at = max(first, self.floor + 1)
            low, high = np.searchsorted(self.ends, at), np.searchsorted(self.starts, last, side="right")
            for start, end in zip(self.starts[low:high].tolist(), self.ends[low:high].tolist(), strict=True):
                if at < start:
                    found.append((at, start - 1))
                at = max(at, end + 1)
            if at <= last:
                found.append((at, last))
        return found


@dataclass(frozen=True, slots=True)
class Subscription:
    """One destination as of a node's durable end.  Its messages are those of ``MessageFilter``; what lies before its
    first one counts as acknowledged."""

    uuid: str
    """16 hex digits, never of another destination: its pages lie under it."""
    name: str
    prefix: bytes
    acknowledged: Acknowledged
    since: Vlsn = NULL_VLSN
    """The VLSN of the COMMIT that has set where it begins: another one after each move."""
    letters: bytes = b""
    """The key of its dead letters; empty: it has none."""
