"""CDC consumers (users' classes that run inside a node) in the small state, the log's table of names and values. The
table says which consumers have begun on which node, and which consumers of the group are paused.

    cdc/n2/orders   {"file": "8a870f5c1c2f9f11"}    ``orders`` of node n2 has begun, with that position file
    cdc/orders      {"paused": 1700000000000000}    ``orders``, of run_on = "master", is paused since then

The position of a node's consumer is stored in a file of this node alone. If the position file is lost, the small state
still shows that the consumer had a position. The pause of a consumer is stored in the small state.
"""

from __future__ import annotations

from typing import Final

import msgspec

from vlsn.state.small_state import Kept, decoded

PREFIX: Final = "cdc/"


class Begun(msgspec.Struct, frozen=True):
    """The value for a consumer that has begun. ``file`` is the number of its position file, as 16 hex digits."""

    file: str


class Paused(msgspec.Struct, frozen=True):
    """The value for a paused consumer. ``paused`` is the time at which the pause began, in µs since the epoch."""

    paused: int


_begun = msgspec.json.Decoder(Begun)
_paused = msgspec.json.Decoder(Paused)


def begun_key(node: str, consumer: str) -> str:
    return f"{PREFIX}{node}/{consumer}"


def begun_file(kept: Kept | None) -> int:
    """Returns the number of the consumer's position file from ``kept``, or 0 if the consumer has not begun."""
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
    """Returns the time at which the pause began, in µs since the epoch, or 0 if the consumer is not paused."""
    paused = decoded(kept, _paused)
    return max(0, paused.paused) if paused is not None else 0


def paused_value(since_us: int) -> bytes | None:
    """Returns the value to store for a pause since ``since_us``. Returns None if the consumer is not paused."""
    return msgspec.json.encode(Paused(since_us)) if since_us else None
