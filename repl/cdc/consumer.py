"""The interface of a CDC consumer: the class that a node's settings name, its context and its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from vlsn.format.block import Entry

CdcEvent = Entry
"""One entry: ``vlsn``, ``term``, ``time`` (µs since the epoch), ``txn`` (the first VLSN of its transaction, 0: none),
``key`` (None: none), ``value``; ``text()`` and ``json()`` read the value."""


@dataclass(frozen=True, slots=True)
class CdcContext:
    """The context that a consumer receives at its start."""

    name: str
    node: str
    group: str
    next: int
    """The VLSN of the first event that it will receive, unless ``start`` returns another one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The table ``options`` of its settings."""
    run_on: str = "node"
    """``node`` or ``master``, as its settings say."""
    term: int = 0
    """The term of the log's last entry here: where two nodes run one consumer of the group, the newer has the higher
    one, and the older's must not be let write any more."""
    position_term: int = 0
    """The term of the entry before ``next``; 0 where that is not known."""
    moved: bool = False
    """A person has moved it to ``next`` (`reset`, `skip`): a consumer with a position of its own gives that up for this
    one."""
    moved_us: int = 0
    """The time of that order, µs since the epoch, which is its name: it may be passed more than once, until the next
    commit. A consumer that stores this beside its position obeys each order once."""
    begins: bool = False
    """It has no commit yet: a consumer with a position of its own makes one only then, or where it was ``moved``. Set
    with ``run_on = "master"``."""


class CdcEvents(Iterator[CdcEvent], Protocol):
    """The events of one call, and the position behind the last one taken."""

    @property
    def next_vlsn(self) -> int:
        """Behind the last event taken and the other entries after it: the position that True commits. A consumer that
        keeps its own position stores this, not ``event.vlsn + 1``: the log does not hold the entries between."""
        ...

    @property
    def term(self) -> int:
        """The term of the entry before ``next_vlsn``; 0 before anything was taken."""
        ...


class CdcPosition(NamedTuple):
    """A position that a consumer keeps by itself: the VLSN that it wants first, and the term of the entry before."""

    next: int
    term: int


class CdcUnavailable(Exception):
    """Raise it where what the consumer writes to is away: it is started again a while later, for as long as it takes,
    and that counts as no failure of its own.  ``after_s``: not before so many seconds, an hour at most."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


class CdcConsumer:
    """A consumer of everything that becomes durable, in order, at least once each.

    It lives in a child process of the node, on one thread.  An exception of any of its methods ends that process; it is
    started again a moment later, from the position that was committed last.
    """

    def start(self, context: CdcContext) -> int | CdcPosition | None:
        """Prepares it. Returns the VLSN of the event that it wants first, where it keeps its own position; None where
        the node keeps it.

        A ``CdcPosition`` in place of the VLSN has the log checked for the entry before it: another log parks it.
        ``BadArgument`` (of ``vlsn``) parks it at once: its options are such as no second try mends."""
        return None

    def on_events(self, events: CdcEvents) -> bool | int:
        """Takes as many of ``events`` as it likes, at least one; the next call goes on behind the last one taken.

        True commits the position behind the last event taken. Once that is stored, soon after the return, no earlier
        event comes again.  False goes on without.  A VLSN in place of True commits a position that lies further back:
        the events behind it are not dealt with yet, and may come again."""
        raise NotImplementedError(f"{type(self).__name__} has no on_events")

    def stop(self) -> None:
        """Releases its resources; no call follows. Not called when its process is killed."""
