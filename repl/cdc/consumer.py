"""The interface of a CDC consumer: the class that a node's settings name, and what it is given."""

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
    """The words that a consumer is told at its start."""

    name: str
    node: str
    group: str
    next: int
    """The VLSN of the first event that it will be given, unless ``start`` returns another one."""
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
    """A person has moved it to ``next`` (`reset`, `skip`): who keeps its own position gives that up for this one."""
    moved_us: int = 0
    """The time of that order, µs since the epoch, which is its name: it may be told more than once, until something is
    committed.  Who stores this beside its position obeys each order once."""
    begins: bool = False
    """It has committed nothing yet: who keeps its own position makes one only then, or where it was ``moved``.  Told
    with ``run_on = "master"``."""


class CdcEvents(Iterator[CdcEvent], Protocol):
    """The events of one call, and the position behind what was taken of them."""

    @property
    def next_vlsn(self) -> int:
        """Behind the last event taken and what is no event after it: the position that True commits.  Who keeps its
        own stores this, not ``event.vlsn + 1``: of what lies between nothing is held."""
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

        True commits the position behind the last event taken: nothing before it is ever given again once that is
        stored, which happens soon after the return.  False goes on without.  A VLSN in place of True commits a position
        that lies further back: what is behind it is still to be dealt with, and may be given again."""
        raise NotImplementedError(f"{type(self).__name__} has no on_events")

    def stop(self) -> None:
        """Lets go of what it has; nothing is called any more. Not called when its process is killed."""
