"""The depth of a destination: the number and bytes of its unacknowledged messages, counted as the log grows.

    counted to VLSN 900     chunks of (VLSNs, sizes) ─ acknowledged messages are removed at the next look

Only destinations with a limit are counted. The count takes 16 bytes of memory for each message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from vlsn.format.messages import MessageFilter
from vlsn.format.rows import EntryRows
from vlsn.format.submission import Submission, Transaction
from vlsn.seams import Buffer

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Depth:
    """The depth of one destination. ``wanted`` marks the destination's messages."""

    def __init__(self, wanted: MessageFilter, counted_to: int) -> None:
        self.messages = 0
        """The number of unacknowledged messages: an upper bound, exact after ``let_go``."""
        self.bytes = 0
        self.counted_to = counted_to
        self._wanted = wanted
        self._chunks: list[tuple[I64, I64]] = []

    def add(self, blocks: Sequence[Buffer]) -> None:
        """Counts the messages of ``blocks``. The first block contains the VLSN after ``counted_to``."""
        rows = EntryRows.joined(blocks)
        mask, vlsns = self._wanted.mask(rows), rows.vlsns()
        self._count(vlsns[mask], rows.sizes()[mask], rows.first_vlsn + rows.rows - 1)

    def add_sizes(self, vlsns: I64, sizes: I64, counted_to: int) -> None:
        """Counts messages up to VLSN ``counted_to`` that were cleaned from the log. ``vlsns`` and ``sizes`` list the
        messages."""
        below = vlsns <= counted_to
        self._count(vlsns[below], sizes[below], counted_to)

    def _count(self, vlsns: I64, sizes: I64, counted_to: int) -> None:
        new = vlsns > self.counted_to
        if new.any():
            self._chunks.append((vlsns[new], sizes[new]))
            self.messages += int(np.count_nonzero(new))
            self.bytes += int(sizes[new].sum())
        self.counted_to = max(self.counted_to, counted_to)

    def pass_to(self, floor: int) -> None:
        """Moves the count forward to VLSN ``floor``, because all earlier messages are acknowledged. Does nothing if the
        count is already past ``floor``."""
        if self.counted_to < floor:
            self._chunks, self.messages, self.bytes, self.counted_to = [], 0, 0, floor

    def let_go(self, done: Callable[[I64], Mask]) -> None:
        """Removes from the count the messages that ``done`` marks."""
        if not self._chunks:
            return
        vlsns = np.concatenate([chunk[0] for chunk in self._chunks])
        sizes = np.concatenate([chunk[1] for chunk in self._chunks])
        left = ~done(vlsns)
        vlsns, sizes = vlsns[left], sizes[left]
        self._chunks = [(vlsns, sizes)] if len(vlsns) else []
        self.messages, self.bytes = len(vlsns), int(sizes.sum())

    @property
    def oldest(self) -> int:
        """The first unacknowledged message at the last ``let_go``; 0 for none."""
        return int(self._chunks[0][0][0]) if self._chunks else 0

    def matched(self, submission: Submission) -> tuple[Mask, int]:
        """Marks the rows of a submission that are messages of this destination, and returns the bytes of these
        messages."""
        parts = submission.parts if isinstance(submission, Transaction) else (submission,)
        masks, total = [], 0
        for part in parts:
            sizes, mask = self._wanted.of_part(part)
            masks.append(mask)
            total += int(sizes[mask].sum())
        return (np.concatenate(masks) if masks else np.zeros(0, np.bool_)), total
