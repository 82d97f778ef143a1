"""What cuts nodes off from each other: ``Links`` by proxies, without root; ``Namespaces`` by dropping packets."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

Pair = tuple[str, str]
"""A directed pair of nodes: from, to."""
How = Literal["hold", "cut"]


class Partitions(Protocol):
    """The network between the nodes of one group; the harness itself reaches every node at any time."""

    async def block(self, pairs: Iterable[Pair], how: How) -> None:
        """Nothing passes these from now on.  ``hold``: what is sent goes on when it is healed, as after lost packets;
        ``cut``: connections end with an error, and new ones are refused."""
        ...

    async def met(self, pairs: Iterable[Pair]) -> int:
        """How often something was kept back or cut since these were blocked last."""
        ...

    async def heal(self, pairs: Iterable[Pair] | None = None, *, cut: bool = False) -> None:
        """These pass again, or all; with ``cut`` the connections that were held end with an error instead of going
        on."""
        ...

    async def close(self) -> None:
        """Nothing of it is left."""
        ...
