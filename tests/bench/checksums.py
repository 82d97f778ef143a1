"""The ceiling of an audit: a process that reads files piece by piece and calls a C function for each piece's checksum.

    python -m tests.bench.checksums        a JSON list of files a line, their checksum a line back

The function is ``crc32c`` of the package that the log itself uses, which takes the processor's instructions for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from crc32c import crc32c

PIECE_BYTES = 1 << 20


def checksum(paths: Sequence[str]) -> int:
    """Returns the crc32c of the files, one behind the other."""
    total, piece = 0, bytearray(PIECE_BYTES)
    view = memoryview(piece)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while got := file.readinto(piece):
                total = crc32c(view[:got], total)
    return total


if __name__ == "__main__":
    for line in sys.stdin:
        print(checksum(json.loads(line)), flush=True)
