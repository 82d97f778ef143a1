"""Paused CDC consumers of the group: since when a person has each at rest, in the small state.

    cdc/orders   {"paused": 1700000000000000}   ``orders``, of run_on = "master", is paused since then, whoever leads

One of a node alone has that beside its position, in its file.
"""

from __future__ import annotations

from typing import Final

import msgspec

from vlsn.state.small_state import Kept, decoded

PREFIX: Final = "cdc/"
"""As that of what has begun on nodes (``begun``), whose names have another slash."""


class Paused(msgspec.Struct, frozen=True):
    """``paused``: µs since the epoch."""

    paused: int


_decoder = msgspec.json.Decoder(Paused)


def key_of(consumer: str) -> str:
    return PREFIX + consumer


def since_in(kept: Kept | None) -> int:
    """Reads since when it is paused, µs since the epoch; 0 for not at all."""
    paused = decoded(kept, _decoder)
    return max(0, paused.paused) if paused is not None else 0


def value_of(since_us: int) -> bytes | None:
    """Returns what the name is set to; None where it is not paused."""
    return msgspec.json.encode(Paused(since_us)) if since_us else None
