"""A log and its node as a consumer meets them: it is fed, ends at any moment, and is begun again.

The node's position is what the consumer committed last, or any commit before: it is stored after the return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvent, CdcPosition
from vlsn.format.block import Entry
from vlsn.ids import Term, Vlsn

CLOCK_US = 1_795_000_000_000_000
START_VLSN = 1


class Fed(Iterator[CdcEvent]):
    """The events of one message: ``rows`` from VLSN ``first`` on, None for an entry of the log's own."""

    def __init__(self, rows: Sequence[Entry | None], first: int, terms: Sequence[int]) -> None:
        self._rows, self._first, self._terms, self._at = rows, first, terms, 0
        self.term = 0
        self._settle()

    @property
    def next_vlsn(self) -> int:
        return self._first + self._at

    @property
    def over(self) -> bool:
        return self._at == len(self._rows)

    def __next__(self) -> CdcEvent:
        if self.over:
            raise StopIteration
        event = self._rows[self._at]
        assert event is not None
        self._at += 1
        self.term = event.term
        self._settle()
        return event

    def _settle(self) -> None:
        while not self.over and self._rows[self._at] is None:
            self.term = self._terms[self._at]
            self._at += 1


def log_of(rng: Random, count: int, *, value_max: int = 60, keys: int = 4) -> list[Entry | None]:
    """Makes a log of ``count`` entries from VLSN 1 on, some of them its own; the term rises now and then."""
    log: list[Entry | None] = []
    term = 1
    for vlsn in range(1, count + 1):
        if rng.random() < 0.15:
            term += rng.random() < 0.5
            log.append(None)
            continue
        value = rng.choice([b"%d" % vlsn, rng.randbytes(rng.randrange(value_max)), b"", "ä\n".encode() * 3])
        key = rng.choice([None, *(b"k%d" % number for number in range(keys))])
        log.append(Entry(Vlsn(vlsn), Term(term), CLOCK_US + 1000 * vlsn, 0, 0, key, value))
    return log


def terms_of(log: Sequence[Entry | None]) -> list[int]:
    """Returns the term of each entry; the log's own have that of the next user's."""
    terms, term = [], max((entry.term for entry in log if entry is not None), default=1)
    for entry in reversed(log):
        term = entry.term if entry is not None else term
        terms.append(int(term))
    return terms[::-1]


class Feeder:
    """One consumer's node.  ``life`` is one process of it."""

    def __init__(self, log: Sequence[Entry | None], options: Mapping[str, Any], rng: Random, **context: Any) -> None:
        self.log = log
        self.position = START_VLSN
        self.held = START_VLSN
        """The lowest VLSN that the node still holds for it: the stored position."""
        self.moved_us = 0
        """A person's order, until something is stored behind it."""
        self.stores = 0.7
        """How likely a position is stored that was committed."""
        self.lives = 0
        self._terms = terms_of(log)
        self._options = options
        self._rng = rng
        self._context = context

    def context(self) -> CdcContext:
        before = self._terms[self.position - 2] if self.position > 1 else 0
        return CdcContext(
            **{"name": "orders", "node": "n1", "group": "g", **self._context},
            next=self.position,
            options=self._options,
            term=self._terms[-1],
            position_term=before,
            moved=bool(self.moved_us),
            moved_us=self.moved_us,
        )

    def life(self, make: Callable[[], CdcConsumer], upto: int | None = None) -> None:
        """Starts the consumer, and feeds it up to VLSN ``upto``; its errors are raised, and its process is over."""
        self.lives += 1
        consumer = make()
        try:
            self._feed(consumer, len(self.log) if upto is None else upto)
        except BaseException:
            if (overdue := getattr(consumer, "_overdue", None)) is not None:
                overdue.close()  # a process that ends has no threads
            raise

    def _feed(self, consumer: CdcConsumer, end: int) -> None:
        own = consumer.start(self.context())
        at = self.position
        if isinstance(own, CdcPosition):
            at, term = own
            assert not term or at == 1 or self._terms[at - 2] == term, f"{own}: that entry has another term"
        assert at >= self.held, f"VLSN {at} may be cleaned away: the node holds from {self.held} on"
        while at <= end:
            size = self._rng.choice([1, 2, 5, 20])
            events = Fed(self.log[at - 1 : min(end, at - 1 + size)], at, self._terms[at - 1 :])
            calls = 0
            while not events.over:
                before = events.next_vlsn
                wanted = consumer.on_events(events)
                assert events.next_vlsn > before
                if wanted:
                    position = wanted if type(wanted) is int else events.next_vlsn
                    assert 1 <= position <= events.next_vlsn
                    if self._rng.random() < self.stores:  # else the node dies before it has stored that
                        self.position = self.held = max(self.position, position)
                        self.moved_us = 0
                calls += 1
                assert calls < 1000, "it takes nothing"
            at = events.next_vlsn
        consumer.stop()

    @property
    def events(self) -> list[Entry]:
        return [entry for entry in self.log if entry is not None]
