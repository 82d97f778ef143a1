"""Checks thousands of block headers at once, by column. The check is the same as that of ``block.decode_header``.

The check of a block header is written in both modules, since by column, checking many headers costs about as little as
checking one. A test compares the two checks over random headers. The caller has to check the crcs, since only the
caller has the bytes.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vlsn.format.block import BLOCK_BYTES, KIND_COLUMN, SUPPORTED, VERSION, EntryKind
from vlsn.format.columns import KEYS, KINDS, PRODUCERS, layouts
from vlsn.ids import NUMBER_MAX
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX

Heads = npt.NDArray[np.void]
"""An array of block headers (``BLOCK_DTYPE``)."""
Mask = npt.NDArray[np.bool_]
_KINDS_END = len(EntryKind)


def heads_good(heads: Heads) -> Mask:
    """Marks the headers that ``decode_header`` would accept if their crcs are correct."""
    flags, kinds, firsts, terms = heads["flags"], heads["kind"], heads["first_vlsn"], heads["term"]
    counts, submissions = heads["count"], heads["submissions"]
    good: Mask = (heads["version"] == VERSION) & (heads["zero"] == 0)
    good &= (counts >= 1) & (counts <= BATCH_ENTRIES_MAX) & (submissions <= counts)
    good &= (terms >= 1) & (terms <= NUMBER_MAX) & (heads["clock_us"] <= NUMBER_MAX)
    good &= (heads["dtvlsn"] < firsts) & (firsts <= np.uint64(NUMBER_MAX) - counts.astype(np.uint64))
    if flags.any():
        good &= (flags & ~np.uint8(SUPPORTED)) == 0
        good &= (kinds == KIND_COLUMN) == (flags & KINDS != 0)
        good &= ((flags & KEYS) != 0) == (heads["key_bytes"] != 0)
        good &= ((flags & PRODUCERS) == 0) | (submissions > 0)
        good &= (kinds < _KINDS_END) | (kinds == KIND_COLUMN)
    else:
        good &= (kinds < _KINDS_END) & (heads["key_bytes"] == 0)
    sizes = heads["body_bytes"].astype(np.int64)
    good &= (sizes <= BODY_BYTES_MAX) & (layouts(heads).end == sizes + BLOCK_BYTES)
    return good
