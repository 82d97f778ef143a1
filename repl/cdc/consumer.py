"""The interface of a CDC consumer: the class that a node's settings name, and what it is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from vlsn.format.block import Entry

CdcEvent = Entry
"""One entry: ``vlsn``, ``term``, ``time`` (µs since the epoch), ``txn`` (the first VLSN of its transaction, 0: none),
``key`` (None: none), ``value``; ``text()`` and ``json()`` read the value."""


@dataclass(frozen=True, slots=True)
class CdcContext:
    """The words that a consumer is told at its start."""

    name: str
    node: str
    group: str
    next: int
    """The VLSN of the first event that it will be given, unless ``start`` returns another one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The table ``options`` of its settings."""


class CdcConsumer:
    """A consumer of everything that becomes durable, in order, at least once each.

    It lives in a child process of the node, on one thread.  An exception of any of its methods ends that process; it is
    started again a moment later, from the position that was committed last.
    """

    def start(self, context: CdcContext) -> int | None:
        """Prepares it. Returns the VLSN of the event that it wants first, where it keeps its own position; None where
        the node keeps it."""
        return None

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        """Takes as many of ``events`` as it likes, at least one; the next call goes on behind the last one taken.

        True commits the position behind the last event taken: nothing before it is ever given again once that is
        stored, which happens soon after the return.  False goes on without."""
        raise NotImplementedError(f"{type(self).__name__} has no on_events")

    def stop(self) -> None:
        """Lets go of what it has; nothing is called any more. Not called when its process is killed."""
