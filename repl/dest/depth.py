"""The depth of a destination: its messages that are not acknowledged, counted as the log grows.

    counted to VLSN 900     chunks of (VLSNs, sizes) ─ what has been acknowledged since goes at the next look

Only destinations that can be full are counted: 16 bytes of memory a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from vlsn.format.batch import Batch
from vlsn.format.block import EntryKind
from vlsn.format.columns import BODY_AT
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import EntryRows
from vlsn.format.submission import Submission, Transaction, Values
from vlsn.seams import Buffer

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Depth:
    """One destination's, by its ``prefix``; ``without`` is the one key that is none of its messages'."""

    def __init__(self, prefix: bytes, without: bytes, counted_to: int) -> None:
        self.messages = 0
        """At least as many as are not acknowledged; exact after ``let_go``."""
        self.bytes = 0
        self.counted_to = counted_to
        self._prefix, self._without = prefix, without
        self._keys = KeyFilter(prefix, prefix=True) if prefix else None
        self._dead = KeyFilter(without) if without.startswith(prefix) else None
        self._chunks: list[tuple[I64, I64]] = []

    def add(self, blocks: Sequence[Buffer]) -> None:
        """Counts the messages of blocks, the first of which holds the VLSN behind ``counted_to``."""
        rows = EntryRows.joined(blocks)
        mask = rows.kinds() == EntryKind.DATA
        if self._keys is not None:
            mask &= self._keys.mask(rows)
        if self._dead is not None:
            mask &= ~self._dead.mask(rows)
        vlsns = rows.vlsns()
        mask &= vlsns > self.counted_to
        if mask.any():
            vlsns, sizes = vlsns[mask], rows.sizes()[mask]
            self._chunks.append((vlsns, sizes))
            self.messages += len(vlsns)
            self.bytes += int(sizes.sum())
        self.counted_to = max(self.counted_to, rows.first_vlsn + rows.rows - 1)

    def add_sizes(self, vlsns: I64, sizes: I64, counted_to: int) -> None:
        """Counts messages that the log has no more, up to ``counted_to``."""
        mask = (vlsns > self.counted_to) & (vlsns <= counted_to)
        if mask.any():
            self._chunks.append((vlsns[mask], sizes[mask]))
            self.messages += int(mask.sum())
            self.bytes += int(sizes[mask].sum())
        self.counted_to = max(self.counted_to, counted_to)

    def pass_to(self, floor: int) -> None:
        """Passes over what is acknowledged up to ``floor``, where it has not counted that far."""
        if self.counted_to < floor:
            self._chunks, self.messages, self.bytes, self.counted_to = [], 0, 0, floor

    def let_go(self, done: Callable[[I64], Mask]) -> None:
        """Lets go of those that are ``done``."""
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
        """The first message that is not acknowledged, 0 for none, as of the last ``let_go``."""
        return int(self._chunks[0][0][0]) if self._chunks else 0

    def matched(self, submission: Submission) -> tuple[Mask, int]:
        """Marks the messages of a submission, by row, and returns their bytes."""
        parts = submission.parts if isinstance(submission, Transaction) else (submission,)
        masks, total = [], 0
        for part in parts:
            sizes, mask = self._of_batch(part) if isinstance(part, Batch) else self._of_values(part)
            masks.append(mask)
            total += int(sizes[mask].sum())
        return (np.concatenate(masks) if masks else np.zeros(0, np.bool_)), total

    def _of_values(self, part: Values) -> tuple[I64, Mask]:
        sizes = np.fromiter(map(len, part.values), np.int64, part.count)
        if part.keys is None:
            return sizes, np.full(part.count, not self._prefix)
        sizes += np.fromiter(map(len, part.keys), np.int64, part.count)
        begins = (key.startswith(self._prefix) and key != self._without for key in part.keys)
        return sizes, np.fromiter(begins, np.bool_, part.count)

    def _of_batch(self, part: Batch) -> tuple[I64, Mask]:
        lay = part.layout
        values = np.frombuffer(part.body, "<i4", part.count + 1, lay.value_offsets - BODY_AT).astype(np.int64)
        sizes = values[1:] - values[:-1]
        if not part.keyed:
            return sizes, np.full(part.count, not self._prefix)
        cuts = np.frombuffer(part.body, "<i4", part.count + 1, lay.key_offsets - BODY_AT).astype(np.int64)
        lengths = cuts[1:] - cuts[:-1]
        data = np.frombuffer(part.body, np.uint8, part.key_bytes, lay.keys - BODY_AT)
        mask = _begins(data, cuts[:-1], lengths, self._prefix)
        if self._dead is not None:
            mask &= ~((lengths == len(self._without)) & _begins(data, cuts[:-1], lengths, self._without))
        return sizes + lengths, mask


def _begins(data: npt.NDArray[np.uint8], starts: I64, lengths: I64, prefix: bytes) -> Mask:
    mask: Mask = lengths >= len(prefix)
    for place, byte in enumerate(prefix):
        mask &= data[np.minimum(starts + place, len(data) - 1)] == byte
    return mask
