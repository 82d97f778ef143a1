"""Golden files: bytes written by hand, independently of the code that must agree with them.

``.hex``: pairs of hex digits, ``00*N`` for a run of N equal bytes, ``#`` to the end of a line a comment.  Any other
file is its own bytes.  A change that breaks one of these breaks every log that exists: it needs a new version.
"""

from __future__ import annotations

from pathlib import Path

GOLDEN = Path(__file__).parent


def golden(name: str) -> bytes:
    """Returns the bytes of one golden file."""
    path = GOLDEN / name
    if path.suffix != ".hex":
        return path.read_bytes()
    data = bytearray()
    for line in path.read_text("ascii").splitlines():
        for word in line.partition("#")[0].split():
            byte, _, times = word.partition("*")
            data += bytes.fromhex(byte) * int(times or 1)
    return bytes(data)
