"""Begun CDC consumers: which of them have begun on which node, in the small state, so that a lost position is known.

    cdc/n2/orders   {"file": "8a870f5c1c2f9f11"}   consumer ``orders`` of node n2 has begun, with that position file

A position of one node lies in a file of that node alone.  Where the file is gone, with the disk or by itself, the group
still knows that there was one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from vlsn.state.small_state import Kept, decoded

PREFIX: Final = "cdc/"


class Begun(msgspec.Struct, frozen=True):
    """``file``: the number of the position file, 16 hex digits."""

    file: str


_decoder = msgspec.json.Decoder(Begun)


def key_of(node: str, consumer: str) -> str:
    return f"{PREFIX}{node}/{consumer}"


def file_in(kept: Kept | None) -> int:
    """Reads the number of the position file that the group knows; 0 for none."""
    begun = decoded(kept, _decoder)
    try:
        return int(begun.file, 16) if begun is not None else 0
    except ValueError:
        return 0


def value_of(file: int) -> bytes:
    return msgspec.json.encode(Begun(f"{file:016x}"))
