"""Combines crc32c checksums, for a whole column at once. From the checksums of two consecutive pieces of bytes follows
the checksum of both together. The functions have no side effects.

    crc(a + b) == shifted(crc(a), len(b)) ^ crc(b)

``shifted`` is the crc of the bytes with a number of zero bytes after them. A crc is linear, so ``shifted`` is a product
with a matrix of 32 by 32 bits, one matrix for each number of zero bytes. The number is processed in groups of four
bits. The matrices for all values of four bits are tables, made on first use (64 KiB).
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
    """Returns each crc as if its bytes had ``lengths`` zero bytes after them, without the share of these zero bytes
    alone."""
    values = crcs.copy()
    for position in range((int(lengths.max(initial=0)).bit_length() + 3) // 4):
        values = _times(_matrices(position), (lengths >> 4 * position & 0xF) << 10, values)
    return values


def followed(crcs: U32, columns: NDArray[np.uint8]) -> U32:
    """Returns each crc continued over the bytes in its row of ``columns``."""
    values, step = crcs ^ _ALL, _step()
    for column in columns.T:
        values = step[(values ^ column) & _BYTE] ^ values >> np.uint32(8)
    return values ^ _ALL


@cache
def _matrices(position: int) -> U32:
    """Returns the tables for 0 to 15 times ``16 ** position`` zero bytes. For each of the 16 numbers of zero bytes
    there are four tables of 256 numbers."""
    same: U32 = (np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]).reshape(-1)
    if position:
        before = _matrices(position - 1)
        one = _times(before, 1024, before[-1024:])
    else:
        one = _step()[same & _BYTE] ^ same >> np.uint32(8)
    tables = same
    while len(tables) < 16 * 1024:
        # The matrix for a value with the next bit set is the matrix for the value without the bit, times the matrix of
        # the bit.
        tables = np.concatenate((tables, _times(one, 0, tables)))
        one = _times(one, 0, one)
    return tables


def _times(tables: U32, at: I64 | int, values: U32) -> U32:
    """Multiplies each value by the matrix whose tables begin at row ``at`` of ``tables``."""
    product: U32 = tables[at + (values & _BYTE)]
    for byte in (1, 2, 3):
        product = product ^ tables[at + ((values >> np.uint32(8 * byte) & _BYTE) + (256 * byte))]
    return product


@cache
def _step() -> U32:
    """Returns the crc register after one zero byte, for each value of the register's low byte."""
    return np.array([crc(bytes([0xFF ^ byte])) for byte in range(256)], np.uint32) ^ np.uint32(0xFF00_0000)
