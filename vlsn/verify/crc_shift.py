"""Computes, by column, the crc32c of bytes with more bytes after them. With it, the checksums of parts give the
checksum of the whole. These functions have no side effects.

    crc(a + b) == shifted(crc(a), len(b)) ^ crc(b)

A crc is linear, so ``shifted`` (the crc with zeros after the bytes) is a 32-by-32-bit matrix for each length. A length
is processed by four bits at a time. The matrices for all values of four bits are tables, made on first use (64 KiB).
"""

from __future__ import annotations

from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from vlsn.format.checksum import crc

U32 = NDArray[np.uint32]
I64 = NDArray[np.int64]
_BYTE: Final = np.uint32(0xFF)
_ALL: Final = np.uint32(0xFFFF_FFFF)


def shifted(crcs: U32, lengths: I64) -> U32:
    """Returns each crc with ``lengths`` zero bytes after its bytes, without the share of those zero bytes alone."""
    values = crcs.copy()
    for position in range((int(lengths.max(initial=0)).bit_length() + 3) // 4):
        values = _times(_matrices(position), (lengths >> 4 * position & 0xF) << 10, values)
    return values


def followed(crcs: U32, columns: NDArray[np.uint8]) -> U32:
    """Returns each crc continued over the bytes of its row of ``columns``."""
    values, step = crcs ^ _ALL, _step()
    for column in columns.T:
        values = step[(values ^ column) & _BYTE] ^ values >> np.uint32(8)
    return values ^ _ALL


@cache
def _matrices(position: int) -> U32:
    """Returns the tables for 0 to 15 times ``16 ** position`` zero bytes. There are four tables of 256 numbers for each
    value."""
    same: U32 = (np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]).reshape(-1)
    if position:
        before = _matrices(position - 1)
        one = _times(before, 1024, before[-1024:])
    else:
        one = _step()[same & _BYTE] ^ same >> np.uint32(8)
    tables = same
    while len(tables) < 16 * 1024:
        # The values with the next bit are all values without it, times the matrix of the bit.
        tables = np.concatenate((tables, _times(one, 0, tables)))
        one = _times(one, 0, one)
    return tables


def _times(tables: U32, at: I64 | int, values: U32) -> U32:
    """Multiplies each value by the matrix whose tables begin at row ``at``."""
    product: U32 = tables[at + (values & _BYTE)]
    for byte in (1, 2, 3):
        product = product ^ tables[at + ((values >> np.uint32(8 * byte) & _BYTE) + (256 * byte))]
    return product


@cache
def _step() -> U32:
    """Returns the register after a zero byte, for each value of its low byte."""
    return np.array([crc(bytes([0xFF ^ byte])) for byte in range(256)], np.uint32) ^ np.uint32(0xFF00_0000)
