"""A transaction of an embedded log: kept in memory until it commits, logged whole or not at all.

    append ─► parts, in memory ─► commit ─► one submission, one block ─► synced: first and last VLSN
                     └► abort, an exception, the process ends: nothing was logged

Used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import overload

from vlsn.embedded.owned_values import owned_with_keys
from vlsn.errors import BadArgument
from vlsn.format.submission import Transaction, Values, check_transaction, values_of
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.seams import Buffer


class LogTransaction:
    """See ``Log.transaction``."""

    def __init__(self, commit: Callable[[Transaction], tuple[Vlsn, Vlsn]]) -> None:
        self._commit = commit
        self._parts: list[Values] = []
        self._over = ""
        """The end that it has come to; empty while it is open."""
        self.first: Vlsn = NULL_VLSN
        """The first VLSN, once it is committed; the transaction's id."""
        self.last: Vlsn = NULL_VLSN
        """The VLSN of its COMMIT."""

    @overload
    def append(self, values: Buffer, *, key: Buffer | None = None) -> LogTransaction: ...
    @overload
    def append(
        self, values: Buffer | Iterable[Buffer], *, keys: Iterable[Buffer | None] | None = None
    ) -> LogTransaction: ...
    def append(
        self,
        values: Buffer | Iterable[Buffer],
        *,
        key: Buffer | None = None,
        keys: Iterable[Buffer | None] | None = None,
    ) -> LogTransaction:
        """Takes entries as ``Log.append`` does, as they are at the call; nothing is logged yet. Raises ``TooLarge``
        past what one transaction may hold, ``BadBody``, ``BadArgument``, ``TypeError``: earlier entries stay."""
        self._check_open()
        part = values_of(*owned_with_keys(values, key, keys))
        whole = Transaction([*self._parts, part])
        check_transaction(whole.count, whole.bytes)
        self._parts.append(part)
        return self

    def commit(self) -> tuple[Vlsn, Vlsn]:
        """Logs all of it, and returns its first VLSN and that of its COMMIT; on the medium as the log's ``append`` is.
        Raises as that does; refused with nothing logged it is open still, and may be committed again."""
        self._check_open()
        self.first, self.last = self._commit(Transaction(self._parts))
        self._end("committed")
        return self.first, self.last

    def abort(self) -> None:
        """Gives it up: nothing of it is ever logged. Harmless where it is over."""
        if not self._over:
            self._end("aborted")

    def __enter__(self) -> LogTransaction:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Commits it, unless it is over; aborts it where the block has failed."""
        if kind is not None:
            self.abort()
        elif not self._over:
            self.commit()

    def _end(self, how: str) -> None:
        self._over = how
        self._parts = []

    def _check_open(self) -> None:
        if self._over:
            raise BadArgument(f"this transaction is {self._over}; begin another one")
