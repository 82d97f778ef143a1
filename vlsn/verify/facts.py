"""The facts of one segment: its faults, and the values that the rules between segments need.

    00000002.vlog   5 6 7 8      first edge 5, last edge 8; terms, stated durable ends, producers

The same function makes the facts for ``verify`` and for an audit. The size of the facts does not grow with the number
of entries in the segment. ``joined`` compares the facts of all segments of a log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from vlsn.errors import BadBody
from vlsn.format.frame import FrameKind
from vlsn.format.records import RollbackEnd, RollbackStart, decode_record
from vlsn.format.scan import Offsets
from vlsn.verify.durable_claims import Claims, Placed, ahead, claims_of, falls
from vlsn.verify.inspection import Fault, Inspected, Mask, Rule
from vlsn.verify.noted_terms import Run
from vlsn.verify.producer_order import Heard, check_submissions
from vlsn.verify.submissions import Submissions

FAULTS_MAX = 100
"""The most faults of one rule that are reported for a segment. A log that is wrong throughout need not report more."""


@dataclass(slots=True)
class Visible:
    """Columns with a value for each block of a segment: either for the visible blocks, or for all readable ones."""

    places: Offsets
    firsts: Offsets
    lasts: Offsets
    terms: Offsets
    dtvlsns: Offsets

    def __len__(self) -> int:
        return len(self.places)


def visible_of(found: Inspected, hidden: Mask) -> Visible:
    """Returns the visible blocks. Copies nothing if all blocks are visible."""
    columns = (found.block_offsets, found.firsts, found.lasts, found.terms, found.dtvlsns)
    if not hidden.any():
        return Visible(*columns)
    shown = ~hidden
    return Visible(*(column[shown] for column in columns))


@dataclass(frozen=True, slots=True)
class Edge:
    """The first or the last visible block of a segment. ``vlsn`` is the first VLSN of the first block, or the last VLSN
    of the last block."""

    vlsn: int
    term: int
    offset: int
    damaged: bool
    """True if something is damaged between this block and the segment's beginning (or, for the last block, its end)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts of one segment. ``prev_number`` is the number of the previous segment by the header, and ``before`` is
    the last VLSN in the previous segment. ``prev_number`` and ``before`` are 0 if the header cannot be read or there is
    no previous segment."""

    number: int
    file: str
    prev_number: int
    before: int
    first: Edge | None
    last: Edge | None
    damaged: bool
    """True if a block of the segment may be missing."""
    rollbacks: tuple[tuple[int, RollbackStart | RollbackEnd], ...]
    """The rollback records, each with its offset."""
    claims: Claims
    heard: Heard
    terms: tuple[Run, ...]
    """The terms of the visible blocks, ascending."""
    faults: tuple[Fault, ...]
    """The faults of the visible blocks, in their order, terms and DTVLSNs."""
    repeated: tuple[Fault, ...]
    """The submissions of producers that cannot follow one another. If a block is lost, the cause may be a submission
    that is missing."""


def facts_of(
    number: int,
    file: str,
    *,
    prev_number: int,
    before: int,
    blocks: Visible,
    visible: Visible,
    lost: Offsets,
    records: Sequence[Placed],
    submissions: Submissions,
) -> Facts:
    """Collects the facts of one segment. ``blocks`` are all valid blocks, ``lost`` the ascending offsets at which a
    block may be missing, and ``records`` the local records. ``submissions`` are those in the visible blocks."""
    heard, repeated = check_submissions(submissions)
    first, last = _edges(visible, lost)
    return Facts(
        number=number,
        file=file,
        prev_number=prev_number,
        before=before,
        first=first,
        last=last,
        damaged=len(lost) > 0,
        rollbacks=tuple((at, each) for at, each in records if isinstance(each, RollbackStart | RollbackEnd)),
        claims=claims_of(blocks.places, blocks.dtvlsns, visible.dtvlsns, records),
        heard=heard,
        terms=_term_runs(visible),
        faults=(
            *islice(_breaks(visible, lost), FAULTS_MAX),
            *islice(_falling_terms(visible), FAULTS_MAX),
            *islice(falls(visible.places, visible.firsts, visible.dtvlsns), FAULTS_MAX),
            *(() if len(lost) else ahead(blocks.places, blocks.lasts, records, before)),
        ),
        repeated=tuple(repeated),
    )


def read_records(found: Sequence[tuple[int, FrameKind, bytes]]) -> tuple[list[Placed], list[Fault]]:
    """Decodes local records. ``found`` has the offset, kind and payload of each record. Returns the decoded records,
    and a fault for each record that cannot be decoded."""
    records: list[Placed] = []
    faults = []
    for offset, kind, payload in found:
        try:
            records.append((offset, decode_record(kind, payload)))
        except BadBody as error:
            faults.append(Fault(Rule.RECORD, offset, str(error)))
    return records, faults


def broken(file: str, offset: int, first: int, last: int) -> Fault:
    """Makes the fault that VLSN ``first`` directly follows VLSN ``last``."""
    return Fault(Rule.CONTIGUITY, offset, f"VLSN {first} follows on {last}", last + 1, file=file, there=first)


def _breaks(visible: Visible, lost: Offsets) -> Iterator[Fault]:
    """Yields a fault for each block that does not continue the block before it. If something may be lost between the
    two blocks, only an overlap is a fault."""
    places, firsts, lasts = visible.places, visible.firsts, visible.lasts
    wrong = firsts[1:] != lasts[:-1] + 1
    if not wrong.any():
        return
    if len(lost):
        before = np.searchsorted(lost, places)
        wrong = np.where(before[1:] > before[:-1], firsts[1:] <= lasts[:-1], wrong)
    for row in (np.flatnonzero(wrong) + 1).tolist():
        yield broken("", int(places[row]), int(firsts[row]), int(lasts[row - 1]))


def _falling_terms(visible: Visible) -> Iterator[Fault]:
    """Yields a fault for each place where terms decrease. If some blocks have a higher term than more blocks after
    them, the few blocks with the higher term are at fault."""
    terms = visible.terms
    if not (terms[1:] < terms[:-1]).any():
        return
    starts = _starts(terms)
    ends = [*starts[1:], len(terms)]
    for run in (np.flatnonzero(np.diff(terms[starts]) < 0) + 1).tolist():
        before, at, end = starts[run - 1], starts[run], ends[run]
        term, high = int(terms[at]), int(terms[before])
        if before and terms[before - 1] <= term and at - before <= end - at:
            low = int(terms[before - 1])
            row, odd, others, detail = before, high, low, f"term {high} stands between {low} and {term}"
        else:
            row, odd, others, detail = at, term, high, f"term {term} follows on term {high}"
        place, vlsn, more = int(visible.places[row]), int(visible.firsts[row]), {"term": odd, "before": others}
        yield Fault(Rule.TERM_ORDER, place, detail, vlsn, more)


def _term_runs(visible: Visible) -> tuple[Run, ...]:
    terms = visible.terms
    if not len(terms):
        return ()
    starts = _starts(terms)
    pairs = zip(starts, [*starts[1:], len(terms)], strict=True)
    return tuple((int(terms[low]), int(visible.firsts[low]), int(visible.lasts[high - 1])) for low, high in pairs)


def _starts(terms: Offsets) -> list[int]:
    """Returns the rows at which the term changes."""
    return [0, *(np.flatnonzero(terms[1:] != terms[:-1]) + 1).tolist()]


def _edges(visible: Visible, lost: Offsets) -> tuple[Edge | None, Edge | None]:
    if not len(visible):
        return None, None
    start, end = int(visible.places[0]), int(visible.places[-1])
    return (
        Edge(int(visible.firsts[0]), int(visible.terms[0]), start, bool((lost < start).any())),
        Edge(int(visible.lasts[-1]), int(visible.terms[-1]), end, bool((lost > end).any())),
    )
