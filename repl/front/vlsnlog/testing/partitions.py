"""Partitions of nodes. ``links`` makes them by proxies, without root."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

Pair = tuple[str, str]
"""A directed pair of nodes: from, to."""
How = Literal["hold", "cut"]
QUEUE_S = 0.4
"""Seconds of data in the queue before a narrow link; later data is dropped, or held back."""
QUEUE_BYTES_MIN = 16 << 10


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of every directed pair of nodes: bytes a second over all of its connections, and a delay. 0 means no
    limit."""

    bytes_per_s: float = 0.0
    delay_s: float = 0.0

    @property
    def queue_bytes(self) -> int:
        return max(QUEUE_BYTES_MIN, int(self.bytes_per_s * QUEUE_S))

    def __bool__(self) -> bool:
        return bool(self.bytes_per_s or self.delay_s)


UNSHAPED = Shape()


class Partitions(Protocol):
    """The network between the nodes of one group; the process that has the network reaches every node at any time."""

    async def block(self, pairs: Iterable[Pair], how: How) -> None:
        """Blocks these pairs from now on. With ``hold``, bytes continue when the pair is healed, as after lost packets;
        with ``cut``, connections fail, and new ones are refused."""
        ...

    async def met(self, pairs: Iterable[Pair]) -> int:
        """Counts the pieces or packets that were held back or cut since these pairs were last blocked."""
        ...

    async def heal(self, pairs: Iterable[Pair] | None = None, *, cut: bool = False) -> None:
        """Unblocks these pairs, or all; with ``cut`` the held connections fail."""
        ...

    async def close(self) -> None:
        """Removes the network."""
        ...
