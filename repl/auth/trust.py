"""How much one node, or a command, trusts unsigned calls and answers, and which members still make them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from repl.auth.keyring import Keyring
from repl.auth.signatures import digest
from vlsn.limits import KIB
from vlsn.seams import Buffer

HASHED_HERE_BYTES_MAX = 64 * KIB
"""Larger bodies are hashed by a worker, so that the event loop goes on."""
Hashing = Callable[[Callable[[], bytes]], Awaitable[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The names, the keys and the rules that both sides of a call need. All of it is used on the event loop's
    thread."""

    name: str
    group: str
    process: str
    """The sender's process as 16 hex digits."""
    keyring: Keyring
    is_signed_only: Callable[[], bool]
    """Says whether each call and answer must be signed, because the group has reached that level."""
    met: Callable[[str, bool], None]
    """Is called with a member's name, and whether its call or answer was signed."""
    is_here: Callable[[str], bool]
    """Says whether a command to that HOST:PORT may be for this node."""
    offload: Hashing

    async def digest(self, body: Buffer) -> bytes:
        """Returns the SHA-256 of ``body``."""
        if len(body) <= HASHED_HERE_BYTES_MAX:
            return digest(body)
        return await self.offload(lambda: digest(body))
