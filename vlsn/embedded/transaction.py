"""A transaction of an embedded log. The entries of a transaction are kept in memory until the commit, which logs all of
them together.

    append ─► parts, in memory ─► commit ─► one submission, one block ─► synced: first and last VLSN
                     └► abort, an exception, the process ends: nothing was logged

Only one thread at a time may use a transaction.
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
    """A transaction of an embedded log. ``Log.transaction`` makes it."""

    def __init__(self, commit: Callable[[Transaction], tuple[Vlsn, Vlsn]]) -> None:
        self._commit = commit
        self._parts: list[Values] = []
        self._over = ""
        """A word for how the transaction has ended; empty while it is open."""
        self.first: Vlsn = NULL_VLSN
        """The first VLSN of the transaction, which is also its id, once it is committed."""
        self.last: Vlsn = NULL_VLSN
        """The VLSN of the transaction's COMMIT."""

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
        """Adds the entries ``values``, as they are at the time of the call, like ``Log.append``. Nothing is logged yet.
        Raises ``TooLarge`` past the limits of one transaction, ``BadBody``, ``BadArgument`` or ``TypeError``. Entries
        added before are kept."""
        self._check_open()
        part = values_of(*owned_with_keys(values, key, keys))
        whole = Transaction([*self._parts, part])
        check_transaction(whole.count, whole.bytes)
        self._parts.append(part)
        return self

    def commit(self) -> tuple[Vlsn, Vlsn]:
        """Logs the transaction. Returns the transaction's first VLSN and the VLSN of its COMMIT. The transaction is
        then as durable as after ``Log.append``. Raises the errors of ``Log.append``. If nothing was logged, the
        transaction is still open, and may be committed again."""
        self._check_open()
        self.first, self.last = self._commit(Transaction(self._parts))
        self._end("committed")
        return self.first, self.last

    def abort(self) -> None:
        """Aborts the transaction: none of its entries is ever logged. Aborting a transaction that has ended does no
        harm."""
        if not self._over:
            self._end("aborted")

    def __enter__(self) -> LogTransaction:
        self._check_open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Commits the transaction, unless it has ended. Aborts the transaction if the ``with`` block has raised an
        error."""
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
