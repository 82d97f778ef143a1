"""Computes the durable end (DTVLSN) from acknowledgements, and which appends may be answered.

The DTVLSN is the highest VLSN that a majority has synced. The functions here are pure. Every VLSN in ``synced`` is the
last VLSN of a block that a node has *synced*.

1. Only the syncs of electable members that the group lists are counted, the master's own included. A majority is more
   than half of these members.
2. The DTVLSN moves only to blocks of the current term (Raft §5.4.2). Until a majority has the term's first block, no
   count proves that an older block is durable.
3. The master's own sync counts as one of the majority. A majority without the master is sufficient as well.

    synced {n1: 90, n2: 80, n3: 40}, term began at 61   ->   majority of 3 is 2   ->   DTVLSN 80
    synced {n1: 90, n2: 55, n3: 40}, term began at 61   ->   55 < 61              ->   unchanged
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from vlsn.ids import NULL_VLSN, Incarnation, Vlsn


def durable_vlsn(synced: Mapping[Incarnation, Vlsn], electable: Collection[Incarnation], *, term_start: Vlsn) -> Vlsn:
    """Returns the durable end (DTVLSN) that the acknowledgements prove, or ``NULL_VLSN`` if they prove none in this
    term."""
    if not electable or not term_start:
        return NULL_VLSN
    ends = [synced.get(member, NULL_VLSN) for member in electable]
    ends.sort()
    proven = ends[(len(ends) - 1) // 2]  # a majority has synced this VLSN
    return proven if proven >= term_start else NULL_VLSN


def synced_by_all(synced: Mapping[Incarnation, Vlsn], electable: Collection[Incarnation]) -> Vlsn:
    """Returns the highest VLSN that every electable member has synced."""
    return min((synced.get(member, NULL_VLSN) for member in electable), default=NULL_VLSN)


def synced_count(synced: Mapping[Incarnation, Vlsn], electable: Collection[Incarnation], vlsn: int) -> int:
    """Returns how many electable members have synced ``vlsn``."""
    return sum([synced.get(member, NULL_VLSN) >= vlsn for member in electable])
