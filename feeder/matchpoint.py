"""Syncup on the master's side: finds the VLSN up to which two logs are equal.

The matchpoint is the highest VLSN in both ranges at which both logs have an entry of the same term. Only one master
seals blocks in a term, and no two blocks have the same name (term and first VLSN). So if the terms at a VLSN are equal,
the logs are equal up to that VLSN.

    master   term 1: 1–40   term 3: 41–90
    replica  term 1: 1–40   term 2: 41–55          matchpoint 40; the replica's 41–55 were never durable

Pure. Sources: Raft's log matching, JE's syncup, and the hazards of KIP-101 and KIP-279 (terms, never offsets alone).
"""

from __future__ import annotations

from collections.abc import Sequence

from vlsn.format.feed_messages import Syncup, TermRun
from vlsn.ids import NULL_VLSN, Vlsn


def matchpoint(first: int, last: int, term_runs: Sequence[TermRun], replica: Syncup) -> Vlsn | None:
    """Returns the matchpoint of this log (VLSNs ``first`` … ``last``) and the log that ``replica`` describes. Returns
    ``NULL_VLSN`` for an empty replica if this log begins at VLSN 1. Returns None if there is no matchpoint; then the
    replica must be restored."""
    if not replica.last:
        return NULL_VLSN if first <= 1 else None
    low, high = max(first, replica.first), min(last, replica.last)
    mine, theirs = len(term_runs) - 1, len(replica.term_runs) - 1
    while mine >= 0 and theirs >= 0:
        one, other = term_runs[mine], replica.term_runs[theirs]
        if one.term == other.term:
            at = min(one.last, other.last, high)
            return Vlsn(at) if at >= max(one.first, other.first, low) else None
        if one.term > other.term:
            mine -= 1
        else:
            theirs -= 1
    return None
