"""Conflicts between appends that set the same name. Conflicts are checked when an append enters the queue.

    worker A   reads from VLSN 1, no position yet     commit next=41, expects 0      ─► logged at VLSN 43
    worker B   the same, but sleeps meanwhile         commit next=30, expects 0      ─► 409, nothing logged
    worker A   continues                              commit next=77, expects 43     ─► logged

1. A name's value is the newest one in the log, durable or not, or in the queue. Of two commits that start from one
   position, the second is refused, however soon it follows.
2. Limits are checked here too, because the table later accepts every logged value.
3. An append that the queue returns unlogged sets no name.

One for each term. The log's own table (``vlsn/state/small_state.py``) outlives the term. On the event loop only.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from repl.api import Puts
from repl.lead.append_book import Append
from vlsn.errors import ProducersMissing, QueueFull, StaleTerm, TooLarge
from vlsn.state.small_state import Share, is_token
from vlsn.write.queue import Pending

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog


class NameConflicts:
    """The appends of one term that set names, from the queue until they are sealed."""

    def __init__(self, log: LocalLog) -> None:
        self._log = log
        self.queued: dict[str, list[Append]] = {}
        """The queued appends by the name that they set, in the order of the queue."""
        self._queued = {False: Share(), True: Share()}
        """The queued names, and the bytes of these names and their values: of tokens (True), and of all else."""

    def push(self, append: Append) -> None:
        """Queues an append in the log. Raises before anything is logged: ``StaleTerm`` if a name has another value than
        expected, ``TooLarge`` beyond a limit, ``ProducersMissing``, and the log's own errors."""
        puts = append.puts
        if puts is None:
            self._log.append(append)
            return
        self._check(puts)
        for name, value in puts.values.items():
            share = self._queued[is_token(name)]
            share.names += name not in self.queued
            share.bytes += _size(name, value)
            self.queued.setdefault(name, []).append(append)
        puts.unlogged = partial(self.left, append)
        try:
            self._log.append(append)
        except BaseException:
            self.left(append)
            raise

    def sealed(self, pendings: Iterable[Pending]) -> None:
        """Notes that these appends have their VLSNs, and the log's table has their names."""
        for pending in pendings:
            if isinstance(pending, Append) and pending.puts is not None:
                self.left(pending)

    def left(self, append: Append) -> None:
        """Notes that the append is no longer queued."""
        if append.puts is None:
            return
        # the old function refers to the append: a cycle would keep it until a garbage collection
        append.puts.unlogged = _nothing
        for name, value in append.puts.values.items():
            queued = self.queued.get(name)
            if queued is None or append not in queued:
                continue
            share = self._queued[is_token(name)]
            share.bytes -= _size(name, value)
            if len(queued) > 1:
                queued.remove(append)
            else:
                share.names -= 1
                del self.queued[name]

    def _check(self, puts: Puts) -> None:
        small = self._log.view.history.small
        if small.lacks_to:
            raise ProducersMissing(
                f"this node has lost the small state up to VLSN {small.lacks_to}; it asks the other members; nothing "
                "was logged, try again"
            )
        for name, expected in puts.expects.items():
            self._check_expected(name, expected, puts.values.get(name))
        # Counts as if all queued names were new: a name that is set again counts twice until it is sealed.
        shares = {
            token: Share(held.names + queued.names, held.bytes + queued.bytes)
            for token, held, queued in (
                (False, small.others, self._queued[False]),
                (True, small.tokens, self._queued[True]),
            )
        }
        for name, value in puts.values.items():
            share = shares[is_token(name)]
            fault = small.fault(name, value, names=share.names, size=share.bytes)
            if fault is not None:
                raise TooLarge(f"the small state of the group: {fault}")
            if value is not None:
                share.names += name not in small
                share.bytes += _size(name, value)

    def _check_expected(self, name: str, expected: int, value: bytes | None) -> None:
        queued = self.queued.get(name)
        if queued:
            before = queued[-1].puts
            if value is not None and before is not None and before.values.get(name) == value:
                raise QueueFull(f"the same commit of {name} is under way already; ask again for its answer")
            raise StaleTerm(f"another commit of {name} is under way, so VLSN {expected} no longer sets its value")
        kept = self._log.view.history.small.get(name)
        at = kept.vlsn if kept is not None else 0
        if at != expected:
            now = f"VLSN {at} has set it since" if at else "it is not set"
            raise StaleTerm(
                f"this commit of {name} starts from the value that VLSN {expected} set, but {now}; not logged"
            )


def _nothing() -> None:
    """Replaces a function that was called already."""


def _size(name: str, value: bytes | None) -> int:
    return len(name.encode()) + len(value or b"")
