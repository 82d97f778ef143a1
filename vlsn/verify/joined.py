"""The rules across a log's segments: visible blocks are consecutive, terms do not decrease, producers' sequences
continue, and durable entries are never lost.

Segments are processed from the last to the first, since a segment is checked against facts of later segments. Only a
few values of the later segments are kept:

    00000001.vlog   … 3 4 │ edge = 5   00000002.vlog        4 + 1 = 5
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vlsn.format.records import RollbackStart
from vlsn.format.segment import segment_name
from vlsn.verify.durable_claims import fallen, given_up
from vlsn.verify.facts import Edge, Facts, broken
from vlsn.verify.inspection import Fault, Rule
from vlsn.verify.producer_order import ProducerOrder


class Joined:
    """Checks one log's segments against one another. ``missing`` are the names of the files that are missing after
    the segment that is checked next. With ``over_loss``, producers are compared even across places where a block is
    lost."""

    def __init__(self, missing: Sequence[str] = (), *, over_loss: bool = False) -> None:
        self.missing = list(missing)
        self._over_loss = over_loss
        self._producers = ProducerOrder()
        self._after: Facts | None = None
        self._edge: Edge | None = None
        """The first visible block after the segment that is checked."""
        self._edge_file = ""
        self._lost = False
        """True if something may be missing between the checked segment and the first visible block after it."""

    def take(self, facts: Facts) -> Iterator[Fault]:
        """Yields the faults between this segment and the segments after it. Each fault names its file."""
        after = self._after
        if after is not None:
            self.missing = [segment_name(after.prev_number)] if after.prev_number > facts.number else []
        yield from self._order(facts)
        if not self._over_loss and (self.missing or facts.damaged):
            self._producers.cut()
        if self._over_loss or not facts.damaged:
            yield from self._producers.check(facts.heard, facts.number)
        self._after = facts

    def _order(self, facts: Facts) -> Iterator[Fault]:
        edge, mine = self._edge, facts.last
        last = mine.vlsn if mine is not None else facts.before
        for name in self.missing:
            yield Fault(Rule.GAP, 0, "the segment is missing", last + 1, file=name)
        if edge is not None and mine is not None:
            excused = self.missing or mine.damaged or self._lost
            if edge.vlsn <= last or (edge.vlsn != last + 1 and not excused):
                yield broken(self._edge_file, edge.offset, edge.vlsn, last)
            if edge.term < mine.term:
                detail, more = f"term {edge.term} follows on term {mine.term}", {"term": edge.term, "before": mine.term}
                yield Fault(Rule.TERM_ORDER, edge.offset, detail, edge.vlsn, more, self._edge_file)
        if facts.first is not None:
            self._edge, self._edge_file, self._lost = facts.first, facts.file, facts.first.damaged
        else:
            self._lost |= facts.damaged or bool(self.missing)


def claimed(segments: Iterable[Facts]) -> tuple[int, list[Fault]]:
    """Compares the durable ends that the segments (ascending) state. Returns the last VLSN that must be durable by the
    segments' statements, and the faults."""
    unheld: list[Fault] = []
    said = shown = 0
    for segment in segments:
        claims, first = segment.claims, segment.first
        if first is not None and claims.first < shown:
            unheld.append(fallen(first.offset, first.vlsn, claims.first, shown, segment.file))
        shown = max(shown, claims.highest)
        starts = [(at, record) for at, record in segment.rollbacks if isinstance(record, RollbackStart)]
        for (at, record), before in zip(starts, claims.between[:-1], strict=True):
            said = max(said, before)
            if record.matchpoint < said:
                unheld.append(given_up(segment.file, at, record, said))
                said = record.matchpoint  # so that the fault is reported only once
        said = max(said, claims.between[-1])
    return said, unheld
