"""The crc32c of bytes with more bytes behind them, by column: it joins checksums of parts to those of a whole. Pure.

    crc(a + b) == shifted(crc(a), len(b)) ^ crc(b)

A crc is linear, so ``shifted`` (the crc with zeros behind it) is a matrix of 32 by 32 bits for each length.  A length
is taken byte by byte; the matrices of all values of one of its bytes are tables, made when needed first (1 MiB).
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
    """Returns each crc as it is with ``lengths`` zero bytes behind what it covers, less the crc of those alone."""
    values = crcs.copy()
    for position in range((int(lengths.max(initial=0)).bit_length() + 7) // 8):
        values = _times(_matrices(position), (lengths >> 8 * position & 0xFF) << 10, values)
    return values


def followed(crcs: U32, columns: NDArray[np.uint8]) -> U32:
    """Returns each crc gone on with the bytes of its row of ``columns``."""
    values, step = crcs ^ _ALL, _step()
    for column in columns.T:
        values = step[(values ^ column) & _BYTE] ^ values >> np.uint32(8)
    return values ^ _ALL


@cache
def _matrices(position: int) -> U32:
    """Returns the tables of 0 to 255 times ``256 ** position`` zero bytes, four of 256 numbers each."""
    same: U32 = (np.arange(256, dtype=np.uint32) << np.arange(0, 32, 8, dtype=np.uint32)[:, None]).reshape(-1)
    if position:
        before = _matrices(position - 1)
        one = _times(before, 1024, before[-1024:])
    else:
        one = _step()[same & _BYTE] ^ same >> np.uint32(8)
    tables = [same]
    for _ in range(255):
        tables.append(_times(one, 0, tables[-1]))
    return np.concatenate(tables)


def _times(tables: U32, at: I64 | int, values: U32) -> U32:
    """Multiplies each value by the matrix whose tables begin at ``at``."""
    product: U32 = tables[at + (values & _BYTE)]
    for byte in (1, 2, 3):
        product = product ^ tables[at + ((values >> np.uint32(8 * byte) & _BYTE) + (256 * byte))]
    return product


@cache
def _step() -> U32:
    """Returns what each low byte of the register becomes when a zero byte follows."""
    return np.array([crc(bytes([0xFF ^ byte])) for byte in range(256)], np.uint32) ^ np.uint32(0xFF00_0000)
