"""Holds what one directory says to be durable against its log (``durable_claims``).

Segments come from the last to the first, and what is said rises from the first to the last, so a few numbers of each
are kept to the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vlsn.errors import BadBody
from vlsn.format.records import decode_record
from vlsn.verify.durable_claims import ClaimingSegment, Placed, Unheld, ahead, claims_of, falls, starts_in, together
from vlsn.verify.inspection import Inspected
from vlsn.verify.order import Visible
from vlsn.verify.rollbacks import Add
from vlsn.verify.segment_chain import Link


class DirectoryClaims:
    def __init__(self, add: Add) -> None:
        self._add = add
        self._segments: list[ClaimingSegment] = []

    def check(self, link: Link, found: Inspected, visible: Visible) -> None:
        """Checks one segment, and keeps what is to be compared with others."""
        records = list(_records(found))
        self._name(link.name, falls(visible.places, visible.firsts, visible.dtvlsns))
        if not len(found.lost):
            self._name(link.name, ahead(found.block_offsets, found.lasts, records, link.prev_last_vlsn))
        claims = claims_of(found.block_offsets, found.dtvlsns, visible.dtvlsns, records)
        offset, vlsn = (int(visible.places[0]), int(visible.firsts[0])) if len(visible) else (0, 0)
        self._segments.append(ClaimingSegment(link.name, offset, vlsn, claims, starts_in(records)))

    def finish(self) -> int:
        """Checks the segments with one another. Returns what must be there by all that was said."""
        said, unheld = together(reversed(self._segments))
        self._name("", unheld)
        return said

    def _name(self, file: str, unheld: Iterable[Unheld]) -> None:
        for each in unheld:
            self._add(each.rule, each.file or file, each.offset, each.vlsn, each.detail)


def _records(found: Inspected) -> Iterator[Placed]:
    for offset, kind, payload in found.records:
        try:
            yield offset, decode_record(kind, payload)
        except BadBody:
            continue  # named where the rollbacks are read
