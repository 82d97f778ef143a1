"""The blocks of a page by column.

All blocks of a page are checked at once, as strictly as decoding would: both checksums, the header fields, consecutive
VLSNs, and ascending offsets. So no offset points outside the page, whatever a node sends.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import numpy as np

from vlsn.errors import BadBody
from vlsn.format import block, scan
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.block_heads import heads_good
from vlsn.format.frame import FRAME_BYTES, padded
from vlsn.format.rows import Rows

_BODY_BYTES_AT: Final = 52
_BODY_BYTES: Final = Struct("<I")


def checked_rows(body: memoryview) -> Rows | None:
    """Finds and checks the blocks of ``body``, each padded to a multiple of 8 bytes. Returns None if ``body`` is empty.
    Raises ``BadBody`` or ``WrongVersion``."""
    starts: list[int] = []
    at = 0
    while at < len(body):
        if len(body) - at < BLOCK_BYTES:
            raise BadBody(f"{len(body) - at} bytes are no block")
        starts.append(at)
        (body_bytes,) = _BODY_BYTES.unpack_from(body, at + _BODY_BYTES_AT)
        at += padded(BLOCK_BYTES + body_bytes)
    if at != len(body):
        raise BadBody(f"the last block ends {at - len(body)} bytes past the page")
    if not starts:
        return None
    places = np.array(starts, np.int64)
    headers = scan.block_headers(body, FRAME_BYTES, places)
    bodies = places + BLOCK_BYTES
    good = (scan.header_crcs(headers) == headers["header_crc"]) & heads_good(headers)
    good &= scan.piece_crcs(body, bodies, bodies + headers["body_bytes"]) == headers["body_crc"]
    firsts = headers["first_vlsn"].astype(np.int64)
    good[1:] &= firsts[1:] == firsts[:-1] + headers["count"][:-1]
    good[1:] &= headers["term"][1:] >= headers["term"][:-1]
    if good.all():
        rows = Rows(body, places, headers)
        good = rows.rising()
    if not good.all():
        bad = int(good.argmin())
        end = starts[bad] + BLOCK_BYTES + int(headers["body_bytes"][bad])
        block.decode(body[starts[bad] : end])  # if the block alone is invalid, decoding raises its own error
        raise BadBody(f"the block of VLSN {firsts[bad]} does not follow on the one before it")
    return rows
