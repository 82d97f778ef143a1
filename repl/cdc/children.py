"""The interface through which a node starts, feeds and stops the processes of its consumers. Tests replace it."""

from __future__ import annotations

from typing import Protocol

from vlsn.seams import Buffer


class Child(Protocol):
    """One child process, and the connection to it."""

    @property
    def pid(self) -> int: ...

    async def send(self, message: Buffer) -> None:
        """Sends a message to the child, and waits while the child does not read. Raises ``ChannelClosed``."""
        ...

    async def receive(self) -> bytes:
        """Returns the child's next message. Raises ``ChannelClosed`` if the child has ended, ``BadBody``."""
        ...

    async def ended(self) -> int:
        """Waits until the child has ended. Returns the child's exit status; a negative status means that a signal ended
        it."""
        ...

    def demote(self) -> None:
        """Gives the child the lowest priority for the rest of its life; does nothing if the child has ended."""
        ...

    def terminate(self) -> None:
        """Sends SIGTERM to the child; does nothing if the child has ended."""
        ...

    def kill(self) -> None:
        """Sends SIGKILL to the child; does nothing if the child has ended."""
        ...


class Children(Protocol):
    async def start(self, name: str) -> Child:
        """Starts the process of consumer ``name``. The output of the process goes to the node's log. Raises
        ``OSError``."""
        ...
