"""The interface of a CDC consumer: the class that a user writes, its context and its events."""

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
    higher term. The consumer's target must then refuse writes of the older worker."""
    position_term: int = 0
    """The term of the entry before ``next``, or 0 if it is not known."""
    moved: bool = False
    """True if a person has moved the consumer to ``next`` (``reset``, ``skip``). A consumer with its own position must
    continue at ``next`` if ``moved`` is true."""
    moved_us: int = 0
    """The time of the person's order to move, in µs since the epoch; it identifies the order. The same order may be
    passed several times until the next commit. A consumer that stores this time beside its position can execute each
    order only once."""
    begins: bool = False
    """True if the consumer has never committed. Only then, or if ``moved`` is true, may a consumer with its own
    position create that position. The field is set with ``run_on = "master"`` only."""


class CdcEvents(Iterator[CdcEvent], Protocol):
    """The events of one call, and the position after the last event taken."""

    @property
    def next_vlsn(self) -> int:
        """The position after the last event taken, and after the log's own entries that follow that event. Returning
        True commits this position. A consumer with its own position must store ``next_vlsn``, not ``event.vlsn + 1``,
        because cleaning may remove the entries between."""
        ...

    @property
    def term(self) -> int:
        """The term of the entry before ``next_vlsn``; 0 before an event was taken."""
        ...


class CdcPosition(NamedTuple):
    """A position that a consumer stores itself: the VLSN of the event that it needs next, and the term of the entry
    before that VLSN."""

    next: int
    term: int


class CdcUnavailable(Exception):
    """Raised by a consumer whose target is not available. The node starts the consumer again later, as often as
    needed, and does not count a failure. The node waits at least ``after_s`` seconds, at most an hour."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class CdcConsumer:
    """Receives every entry that becomes durable, in order, each at least once.

    A consumer runs in a child process of the node, on one thread. An exception in any method ends that process. The
    node starts the process again a moment later, from the last committed position.
    """

    def start(self, context: CdcContext) -> int | CdcPosition | None:
        """Prepares the consumer. A consumer that keeps its own position returns the VLSN of the first event that it
        needs. Any other consumer returns None, and the node keeps the position.

        A consumer may return a ``CdcPosition`` instead of a VLSN. With a ``CdcPosition`` the node checks the term of
        the entry before that VLSN, and parks the consumer if the log has another entry there. Raising ``BadArgument``
        (of ``vlsn``) parks the consumer at once, because a second try would fail as well.
        """
        return None

    def on_events(self, events: CdcEvents) -> bool | int:
        """Takes one or more of ``events``. The next call continues after the last event taken.

        Returning True commits the position after the last event taken. The position is stored soon after the return;
        from then on no earlier event is delivered again. Returning False commits nothing. Returning a VLSN commits
        an earlier position: the events from that VLSN on are not finished yet, and may be delivered again.
        """
        raise NotImplementedError(f"{type(self).__name__} has no on_events")

    def stop(self) -> None:
        """Releases the consumer's resources. This is the last call to a consumer; a process that is killed does not get
        it."""
