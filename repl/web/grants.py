"""Grants: what the sender of a request may do, as the gateway found it out.

A grant of a token ends when the token does. ``refusal`` says so at any later time, and ``watch`` calls back once it has
ended, for what outlives its request: a WebSocket, a tail, a staged transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from repl.api import CommitSets
from repl.web.usage import Usage
from vlsn.errors import Forbidden, VlsnLogError
from vlsn.format.batch import keys_of
from vlsn.format.submission import Submission, Transaction, Values

Unwatch = Callable[[], None]


class Watches(Protocol):
    """Watches the end of grants."""

    def refusal(self, grant: Grant) -> VlsnLogError | None: ...

    def check_names(self, grant: Grant, names: Iterable[str]) -> None: ...

    def watch(self, grant: Grant, end: Callable[[], None], key: object, lasts_s: float | None) -> Unwatch: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """The rights of a request's sender. ``who`` is a token's ID, or names another sender."""

    who: str
    roles: frozenset[str] | None = None
    """The roles, by name; None for all."""
    keys: bytes = b""
    """The prefix of the keys that may be appended."""
    names: str = ""
    """The prefix of the consumers, sinks and destinations that may be changed or consumed."""
    proof: str = ""
    """The hash of the secret that was shown."""
    watches: Watches | None = None
    """None for a grant that never ends."""
    usage: Usage | None = None
    """The use that the token makes of this node; None for a grant without limits."""

    @property
    def ends(self) -> bool:
        return self.watches is not None

    def has(self, role: str) -> bool:
        return self.roles is None or role in self.roles

    def refusal(self) -> VlsnLogError | None:
        """Returns the error with which the grant's later calls are refused, or None while it holds."""
        return None if self.watches is None else self.watches.refusal(self)

    def watch(self, end: Callable[[], None], *, key: object = None, lasts_s: float | None = None) -> Unwatch:
        """Calls ``end`` once, soon after the grant has ended, unless the returned call is made first, or ``lasts_s``
        seconds have gone by. A watch of the same ``key`` replaces the former."""
        return _nothing if self.watches is None else self.watches.watch(self, end, key, lasts_s)

    def stream(self) -> Unwatch:
        """Counts a WebSocket or a tail of the token until the returned call."""
        return _nothing if self.usage is None else self.usage.open_stream()

    def check_role(self, role: str) -> None:
        """Raises ``Forbidden`` without the role."""
        if not self.has(role):
            raise Forbidden(f"{self.who} lacks the role {role}")

    def check_name(self, name: str) -> None:
        """Raises ``Forbidden`` for a consumer, sink or destination outside the prefix."""
        if not name.startswith(self.names):
            raise Forbidden(f"{self.who} may use names under {self.names!r}, not {name[:64]!r}")

    def check(self, submission: Submission) -> None:
        """Checks, now that a body has come whole, that the grant still holds, that every entry has a key under the
        prefix, and that the token's rates allow it. Raises ``Forbidden``, ``QueueFull``, and as ``refusal`` says."""
        if (refusal := self.refusal()) is not None:
            raise refusal
        if self.keys:
            self._check_keys(submission)
        if self.usage is not None:
            self.usage.append(submission.bytes, asyncio.get_running_loop().time())

    def _check_keys(self, submission: Submission) -> None:
        for part in submission.parts if isinstance(submission, Transaction) else (submission,):
            keys = part.keys if isinstance(part, Values) else keys_of(part)
            if keys is None or not all(key.startswith(self.keys) for key in keys):
                raise Forbidden(f"{self.who} may append keys under {self.keys!r}; an entry has another key, or none")

    def check_sets(self, sets: CommitSets) -> None:
        """Checks what a commit sets: positions need the role of consumers, and all names the prefix. Raises
        ``Forbidden``, and ``TooLarge`` beyond the limit of names."""
        if sets.positions:
            self.check_role("consume")
        names = (*sets.positions, *sets.sinks)
        for name in names:
            self.check_name(name)
        if self.names and self.watches is not None:
            self.watches.check_names(self, names)

    def check_definition(self, prefix: str | None, dead_letter: str | None) -> None:
        """Raises ``Forbidden`` for a destination whose messages or dead letters lie outside the prefix of keys."""
        for field, key in (("prefix", prefix), ("dead_letter", dead_letter)):
            if self.keys and not (key or "").encode("utf-8", "surrogatepass").startswith(self.keys):
                raise Forbidden(f"{field}: {self.who} may define keys under {self.keys!r}, which it must name")


ANYBODY = Grant(who="anonymous")


def _nothing() -> None:
    """Ends a watch that there is not."""
