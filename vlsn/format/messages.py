"""The rule which entries of a log are messages of a destination (a named subscription). Delivery, paging and the count
of waiting messages all use this rule.

    key begins with the prefix               a message
    … and it is this destination's letter    no message: otherwise an undeliverable letter would cause new letters

    dead letter    key "dead_letter"    value {"destination":"orders","vlsn":41,"attempts":5,"reason":"…"}

A dead letter reports a message that no worker could process, and names the destination of that message. The letters of
other destinations are messages like other entries, so a destination may be used for all dead letters of a group. Only
the master writes dead letters, always in the form shown above, so the first bytes of a letter show its destination.
"""

from __future__ import annotations

import msgspec
import numpy as np

from vlsn.format.batch import Batch
from vlsn.format.block import EntryKind
from vlsn.format.columns import BODY_AT
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import I64, EntryRows, Mask, begin_with
from vlsn.format.submission import Values

_DATA = int(EntryKind.DATA)


def dead_letter(destination: str, vlsn: int, attempts: int, reason: str) -> bytes:
    """Encodes the dead letter for the message at ``vlsn``."""
    return msgspec.json.encode({"destination": destination, "vlsn": vlsn, "attempts": attempts, "reason": reason})


class MessageFilter:
    """The messages of destination ``name``: entries with a key that begins with ``prefix``, except the destination's
    own dead letters. The key of these letters is ``letters`` (empty: there are no letters)."""

    def __init__(self, name: str, prefix: bytes, letters: bytes) -> None:
        self._prefix, self._letters = prefix, letters
        self._begins = KeyFilter(prefix, prefix=True) if prefix else None
        self._letter_keys = KeyFilter(letters) if letters and letters.startswith(prefix) else None
        self._head = msgspec.json.encode({"destination": name})[:-1] + b","

    def mask(self, rows: EntryRows) -> Mask:
        """Marks the messages among the entries in ``rows``."""
        mask: Mask = rows.kinds() == _DATA
        if self._begins is not None:
            mask &= self._begins.mask(rows)
        if self._letter_keys is not None:
            letters = np.flatnonzero(mask & self._letter_keys.mask(rows))
            if len(letters):
                starts, ends = (cuts[letters] for cuts in rows.value_cuts())
                mask[letters] = ~begin_with(rows.buf, starts, ends - starts, self._head)
        return mask

    def has(self, key: bytes | None, value: bytes) -> bool:
        """Returns whether a user's entry with ``key`` and ``value`` is a message."""
        held = key or b""
        if not held.startswith(self._prefix):
            return False
        return self._letter_keys is None or held != self._letters or not value.startswith(self._head)

    def of_part(self, part: Batch | Values) -> tuple[I64, Mask]:
        """Returns the bytes of each entry in a part of a submission, and marks the messages."""
        return self._of_batch(part) if isinstance(part, Batch) else self._of_values(part)

    def _of_values(self, part: Values) -> tuple[I64, Mask]:
        sizes = np.fromiter(map(len, part.values), np.int64, part.count)
        if part.keys is None:
            return sizes, np.full(part.count, not self._prefix)
        sizes += np.fromiter(map(len, part.keys), np.int64, part.count)
        return sizes, np.fromiter(map(self.has, part.keys, part.values), np.bool_, part.count)

    def _of_batch(self, part: Batch) -> tuple[I64, Mask]:
        lay = part.layout
        values = np.frombuffer(part.body, "<i4", part.count + 1, lay.value_offsets - BODY_AT).astype(np.int64)
        sizes = values[1:] - values[:-1]
        if not part.keyed:
            return sizes, np.full(part.count, not self._prefix)
        keys = np.frombuffer(part.body, "<i4", part.count + 1, lay.key_offsets - BODY_AT).astype(np.int64)
        lengths, starts = keys[1:] - keys[:-1], keys[:-1] + (lay.keys - BODY_AT)
        mask = begin_with(part.body, starts, lengths, self._prefix)
        if self._letter_keys is not None:
            letters = np.flatnonzero(
                (lengths == len(self._letters)) & begin_with(part.body, starts, lengths, self._letters)
            )
            begins = values[:-1][letters] + (lay.values - BODY_AT)
            mask[letters] &= ~begin_with(part.body, begins, sizes[letters], self._head)
        return sizes + lengths, mask
