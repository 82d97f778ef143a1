"""The work on long columns with NumPy (``arrays.Works``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vlsn.errors import BadBody, BadTransaction
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import COMMIT, DATA
from vlsn.seams import Buffer


def check_offsets(buf: Buffer, at: int, count: int, length: int) -> int:
    many = np.frombuffer(buf, "<i4", count + 1, at)
    starts, ends = many[:-1], many[1:]
    # The offsets are compared, not subtracted: a difference of two i32 may wrap round to a length that looks right.
    if many[0] or many[-1] != length or np.count_nonzero(ends < starts):
        raise BadBody("offsets do not rise from 0 to the length")
    return int((ends - starts).max())


def fitting(buf: Buffer, columns: Sequence[int], skip: int, count: int, bytes_max: int) -> tuple[int, int]:
    ends = _ends(buf, columns[0] + 4 * skip, count)
    for at in columns[1:]:
        ends = ends + _ends(buf, at + 4 * skip, count)
    fits = max(int(np.searchsorted(ends, bytes_max, side="right")), 1)
    return fits, int(ends[fits - 1])


def _ends(buf: Buffer, at: int, count: int) -> npt.NDArray[np.int64]:
    offsets: npt.NDArray[np.int64] = np.frombuffer(buf, "<i4", count + 1, at).astype(np.int64)
    ends: npt.NDArray[np.int64] = offsets[1:] - offsets[0]
    return ends


def whole_transactions(kinds: bytes, first_vlsn: int) -> bytes:
    ends = np.frombuffer(kinds, np.uint8).nonzero()[0] + 1
    if kinds[-1] != COMMIT or kinds.count(COMMIT) != len(ends):
        return b""
    counts = ends.copy()
    counts[1:] -= ends[:-1]
    return (ends - counts + first_vlsn).repeat(counts).tobytes()


def check_transactions(txns: bytes, kinds: bytes, first_vlsn: int) -> None:
    ids, column = np.frombuffer(txns, "<u8"), np.frombuffer(kinds, np.uint8)
    vlsns = np.arange(first_vlsn, first_vlsn + len(ids), dtype=np.uint64)
    changes = ids[1:] != ids[:-1]
    begins = np.concatenate(([True], changes))
    ends = np.concatenate((changes, [True]))
    inside = ids != 0
    if (inside & begins & (ids != vlsns)).any():
        raise BadTransaction("a transaction that does not begin with its own VLSN")
    if (inside & (column != np.where(ends, COMMIT, DATA))).any():
        raise BadTransaction("a transaction that is not DATA with one COMMIT at its end")


def ascends(numbers: Sequence[int]) -> bool:
    column = np.asarray(numbers, np.int64)
    return bool((column[1:] > column[:-1]).all())


def pack_vlsns(vlsns: Sequence[int]) -> bytes:
    return VlsnSet.of(vlsns).pack()
