"""The interface of a CDC consumer: the class that a node's settings name, its context and its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from vlsn.format.block import Entry

CdcEvent = Entry
"""One entry: ``vlsn``, ``term``, ``time`` (µs since the epoch), ``txn`` (the first VLSN of its transaction; 0: none),
``key`` (None: none), ``value``. ``text()`` and ``json()`` decode the value."""


@dataclass(frozen=True, slots=True)
class CdcContext:
    """The context that a consumer receives when it starts."""

    name: str
    node: str
    group: str
    next: int
    """The VLSN of the first event that the consumer will receive, unless ``start`` returns another VLSN."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The table ``options`` of the consumer's settings."""
    run_on: str = "node"
    """``node`` or ``master``: the setting ``run_on`` of the consumer."""
    term: int = 0
    """The term of the last entry in this node's log. If two nodes run the same consumer, the newer worker has the
    higher term, and writes of the older one must be refused."""
    position_term: int = 0
    """The term of the entry before ``next``, or 0 if it is not known."""
    moved: bool = False
    """True if a person has moved the consumer to ``next`` (``reset``, ``skip``). A consumer that keeps its own position
    must then use ``next`` instead."""
    moved_us: int = 0
    """The time of that order in µs since the epoch, which identifies the order. The same order may be passed several
    times until the next commit. A consumer that stores this time beside its position obeys each order once."""
    begins: bool = False
    """True if the consumer has never committed. A consumer that keeps its own position creates a position only then, or
    if ``moved`` is true. Set with ``run_on = "master"`` only."""


class CdcEvents(Iterator[CdcEvent], Protocol):
    """The events of one call, and the position after the last event taken."""

    @property
    def next_vlsn(self) -> int:
        """The position after the last event taken and after the log's own entries that follow it: the position that
        True commits. A consumer that keeps its own position stores this value, not ``event.vlsn + 1``: cleaning may
        remove the entries between."""
        ...

    @property
    def term(self) -> int:
        """The term of the entry before ``next_vlsn``; 0 before an event was taken."""
        ...


class CdcPosition(NamedTuple):
    """A position that a consumer keeps itself: the VLSN that it wants first, and the term of the entry before that
    VLSN."""

    next: int
    term: int


class CdcUnavailable(Exception):
    """Raised by a consumer whose target is not available. The node starts the consumer again later, as often as needed,
    and does not count a failure. ``after_s``: the least number of seconds to wait, an hour at most."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class CdcConsumer:
    """A consumer of everything that becomes durable, in order, each event at least once.

    A consumer runs in a child process of the node, on one thread. An exception of any method ends that process. The
    node starts the process again a moment later, from the position that was committed last.
    """

    def start(self, context: CdcContext) -> int | CdcPosition | None:
        """Prepares the consumer. Returns the VLSN of the first event that it wants, if the consumer keeps its own
        position; returns None if the node keeps the position.

        With a ``CdcPosition`` in place of the VLSN, the node checks the term of the entry before it; a different log
        parks the consumer. ``BadArgument`` (of ``vlsn``) parks the consumer at once, because a second try would fail as
        well.
        """
        return None

    def on_events(self, events: CdcEvents) -> bool | int:
        """Takes one or more of ``events``. The next call continues after the last event taken.

        True commits the position after the last event taken. Once that position is stored, soon after the return, no
        earlier event is delivered again. False commits nothing. A VLSN in place of True commits an earlier position:
        the events from that VLSN on are not finished yet, and may be delivered again.
        """
        raise NotImplementedError(f"{type(self).__name__} has no on_events")

    def stop(self) -> None:
        """Releases the consumer's resources. No call follows. Not called if the process is killed."""
