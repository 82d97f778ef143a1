"""The blocks in a piece of another member's segment, checked as strictly as the blocks of a feed.

    peer's segment   |START|40–44|45–45✗|46–49|45–47|END|…      frames of the peer, with its salt
    wanted from 41         ───── 41 is inside 40–44: refused, the two logs must meet between blocks
    wanted from 40         40–44         (✗ and local records are skipped)  46–49 does not follow: refused

Each frame (the envelope of a block in a segment) is checked: its salt, its link to the previous frame, its checksum.
Blocks that a rollback abandoned, and local records, are skipped. All blocks that are not skipped must be consecutive
and have the right checksums. Each node has frames of its own. So ``unpack`` returns the blocks without frames, and this
node's log builds new frames. This module does no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from vlsn.errors import BadBody
from vlsn.format import scan
from vlsn.format.block_run import BlockRun, run_of
from vlsn.format.frame import FRAME_BYTES, FrameKind, decode_header
from vlsn.format.scan import Stop
from vlsn.ids import NUMBER_MAX


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The result of unpacking one piece. ``run`` has the wanted blocks, or is None if there are none. ``at`` is the
    offset of the next frame to read. ``bytes_wanted`` is the size of the next frame if the piece ends inside it,
    otherwise 0. ``past`` is true if a block after ``upto`` was found, so that no more pieces are wanted."""

    run: BlockRun | None
    at: int
    bytes_wanted: int = 0
    past: bool = False


def unpack(data: bytes, *, base: int, salt: int, expected: int, upto: int, term_min: int) -> Unpacked:
    """Unpacks the visible blocks in ``data`` from VLSN ``expected`` to ``upto``, the last VLSN of a block. Blocks
    before ``expected`` are skipped. ``data`` is a piece of a segment from offset ``base`` on, and a frame must begin
    there. Raises ``BadBody`` for bytes that a good segment cannot contain."""
    found = scan.walk(data, base=base, start=base, end=base + len(data), salt=salt)
    if not len(found):
        return Unpacked(None, base, bytes_wanted=_size_of_first(data, base, salt))
    bad = scan.check_crcs(data, base, found)
    if bad is not None or found.reason in (Stop.BAD, Stop.ZEROS):
        at = int(found.offsets[bad]) if bad is not None else found.end
        raise BadBody(f"the peer's segment has no valid frame at offset {at}")
    blocks = (found.headers["kind"] == FrameKind.BLOCK) & (found.headers["flag"] == 0)
    offsets, lengths = found.offsets[blocks], found.headers["length"][blocks].astype(np.int64)
    heads = scan.block_headers(data, base, offsets)
    firsts = heads["first_vlsn"].astype(np.int64)
    lasts = firsts + heads["count"] - 1
    past = lasts > upto
    wanted = (lasts >= expected) & ~past
    if not wanted.any():
        return Unpacked(None, found.end, past=bool(past.any()))
    if not (lengths == heads["body_bytes"].astype(np.int64) + 64)[wanted].all():
        raise BadBody("a block in the peer's segment does not fill its frame")
    run = run_of(
        data,
        (offsets[wanted] - base + FRAME_BYTES).tolist(),
        lengths[wanted].tolist(),
        expected_first=expected,
        term_min=term_min,
        term_max=NUMBER_MAX,
    )
    return Unpacked(run, found.end, past=bool(past.any()))


def _size_of_first(data: bytes, base: int, salt: int) -> int:
    header = decode_header(data, 0, offset=base, salt=salt)
    if header is None or header.size <= len(data):
        raise BadBody(f"the peer's segment has no frame at offset {base}")
    return header.size
