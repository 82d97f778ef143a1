"""CDC consumers in the small state: those that have begun on a node, and those of the group that are paused.

    cdc/n2/orders   {"file": "8a870f5c1c2f9f11"}    ``orders`` of node n2 has begun, with that position file
    cdc/orders      {"paused": 1700000000000000}    ``orders``, of run_on = "master", is paused since then

The position of one node's consumer lies in a file of that node alone, its pause beside it.  Where the file is gone,
with the disk or by itself, the group still knows that there was one.
"""

from __future__ import annotations

from typing import Final

import msgspec

from vlsn.state.small_state import Kept, decoded

PREFIX: Final = "cdc/"


class Begun(msgspec.Struct, frozen=True):
    """``file``: the number of the position file, 16 hex digits."""

    file: str


class Paused(msgspec.Struct, frozen=True):
    """``paused``: µs since the epoch."""

    paused: int


_begun = msgspec.json.Decoder(Begun)
_paused = msgspec.json.Decoder(Paused)


def begun_key(node: str, consumer: str) -> str:
    return f"{PREFIX}{node}/{consumer}"


def begun_file(kept: Kept | None) -> int:
    """Reads the number of the position file that the group knows; 0 for none."""
    begun = decoded(kept, _begun)
    try:
        return int(begun.file, 16) if begun is not None else 0
    except ValueError:
        return 0


def begun_value(file: int) -> bytes:
    return msgspec.json.encode(Begun(f"{file:016x}"))


def paused_key(consumer: str) -> str:
    return PREFIX + consumer


def paused_since(kept: Kept | None) -> int:
    """Reads the begin of the pause, µs since the epoch; 0 for none."""
    paused = decoded(kept, _paused)
    return max(0, paused.paused) if paused is not None else 0


def paused_value(since_us: int) -> bytes | None:
    """Returns the value of the name; None where the consumer is not paused."""
    return msgspec.json.encode(Paused(since_us)) if since_us else None
