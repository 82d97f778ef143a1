"""Divides a range of VLSNs into spans of about ``bytes_each`` bytes, using only the VLSN index, without reading the
log.

    VLSN   100 ──────────── 412 ──────────── 700 ── 731 durable          bytes_each = 1 MiB
    spans       1.0 MiB          1.0 MiB       0.1 MiB                    next = 412, 700, 732

A span ends at the beginning of a block that is in the index. So a span may be a few blocks shorter than requested, and
is at least as long as the distance between two indexed blocks. Bytes are counted in the files, and include rolled-back
blocks.
"""

from __future__ import annotations

import asyncio
from itertools import accumulate

from repl.api import Span, Spans
from vlsn.errors import Damaged, Trimmed
from vlsn.ids import Vlsn, lsn_file, lsn_offset
from vlsn.write.local_log import LocalLog


async def spans_of(
    log: LocalLog, durable: int, from_vlsn: int | None, to_vlsn: int, *, bytes_each: int, entries_each: int, limit: int
) -> Spans:
    """Divides the durable entries of a range into at most ``limit`` spans of at most ``entries_each`` VLSNs. The range
    goes from ``from_vlsn`` (None: the log's first) to ``to_vlsn`` (inclusive). Raises ``Trimmed``, ``Damaged``."""
    first = int(log.view.range.first)
    at = from_vlsn if from_vlsn is not None else first or 1
    if first and at < first:
        raise Trimmed(f"VLSN {at} was cleaned away; the first still here is {first}", first=first)
    end = min(durable, to_vlsn) + 1
    found: list[Span] = []
    while at < end and len(found) < limit:
        files = _Files(log)
        base = files.position(at)
        next_vlsn = min(at + entries_each, end)
        if files.position(next_vlsn - 1) - base > bytes_each:
            next_vlsn = files.cut(at, next_vlsn - 1, base + bytes_each)
        size = (files.position(next_vlsn) if next_vlsn <= durable else files.end) - base
        found.append(Span(next_vlsn, int(log.view.history.term_of(Vlsn(next_vlsn - 1))), max(size, 0)))
        at = next_vlsn
        await asyncio.sleep(0)  # each span takes some twenty lookups, so let other tasks run
    return Spans(first, durable, tuple(found))


class _Files:
    """The positions of blocks in bytes, counted through all current segments."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        ends = log.view.segments()
        self._starts = dict(zip(ends, accumulate(ends.values(), initial=0), strict=False))
        self.end = sum(ends.values())

    def position(self, vlsn: int) -> int:
        """Returns the position of the last indexed block at or before ``vlsn``."""
        return self._mapped(vlsn)[1]

    def _mapped(self, vlsn: int) -> tuple[int, int]:
        mapping = self._log.view.index.at_or_before(Vlsn(vlsn))
        start = self._starts.get(lsn_file(mapping[1])) if mapping is not None else None
        if mapping is None or start is None:
            first = int(self._log.view.range.first)
            if vlsn < first:
                raise Trimmed(f"VLSN {vlsn} was cleaned away; the first still here is {first}", first=first)
            raise Damaged(f"the index has nothing for VLSN {vlsn} of {self._log.view.range}", vlsn=vlsn)
        return int(mapping[0]), start + lsn_offset(mapping[1])

    def cut(self, at: int, last: int, position: int) -> int:
        """Finds where a span from ``at`` ends. The span ends at the last indexed block that begins at or before
        ``position``, or else at the first indexed block after ``at``. The block of ``last`` must begin after
        ``position``."""
        low, high = at, last  # invariant: position(low) <= position < position(high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.position(middle) <= position else (low, middle)
        begins = self._mapped(low)[0]
        return begins if begins > at else high
