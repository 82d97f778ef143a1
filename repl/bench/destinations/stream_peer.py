"""A peer whose streams have consumers: filled, then consumed in batches that are acknowledged."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

BATCH = 1000
FILL_BATCH = 1000
AHEAD = 4
"""Batches whose acknowledgements may be under way while the next ones are taken, of each system alike."""


class StreamPeer(Protocol):
    """One system of three nodes."""

    name: str
    means: str
    """Says what its acknowledgement means, and who drove it."""

    def missing(self) -> str | None:
        """Names what has to be installed first, or None."""
        ...

    async def start(self, directory: Path) -> None:
        """Brings three nodes up under ``directory``, with a stream and a consumer of it."""
        ...

    async def fill(self, messages: int) -> None:
        """Appends ``messages`` of 100 bytes, durable."""
        ...

    async def consume(self, messages: int) -> float:
        """Takes and acknowledges as many, ``BATCH`` at a time; the seconds it took."""
        ...

    async def stop(self) -> None: ...
