"""The seam of child processes: how a node starts, feeds and ends those of its consumers."""

from __future__ import annotations

from typing import Protocol

from vlsn.seams import Buffer


class Child(Protocol):
    """One child process, and the connection to it."""

    @property
    def pid(self) -> int: ...

    async def send(self, message: Buffer) -> None:
        """Hands a message over; waits while the child takes none. Raises ``ChannelClosed``."""
        ...

    async def receive(self) -> bytes:
        """Returns the child's next message. Raises ``ChannelClosed`` when it has ended, ``BadBody``."""
        ...

    async def ended(self) -> int:
        """Returns its exit status, below 0 for a signal, once it has ended."""
        ...

    def demote(self) -> None:
        """Lowers the child to the lowest priority for as long as it lives; harmless when it has ended."""
        ...

    def terminate(self) -> None:
        """Asks the child to end (SIGTERM); harmless when it has."""
        ...

    def kill(self) -> None:
        """Kills the child (SIGKILL); harmless when it has ended."""
        ...


class Children(Protocol):
    async def start(self, name: str) -> Child:
        """Starts the process of consumer ``name``; its output goes to the node's log. Raises ``OSError``."""
        ...
