"""Every kind, in the order in which they run."""

from __future__ import annotations

from harness.hostile import (
    clients,
    continuations,
    forgeries,
    half_heads,
    idle,
    leaving,
    pages,
    pings,
    replaced,
    swapped,
    tails,
    truncated,
)
from harness.hostile.kind import Kind

KINDS: dict[str, Kind] = {
    module.KIND.name: module.KIND
    for module in (
        continuations,
        pings,
        tails,
        idle,
        half_heads,
        clients,
        leaving,
        forgeries,
        pages,
        truncated,
        replaced,
        swapped,
    )
}
