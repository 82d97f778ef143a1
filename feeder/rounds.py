"""Read rounds: proof, without a clock, that a master still led at a moment (Raft dissertation §6.4).

    index noted ─► begin: round 7 to all feeds ─► a majority answers 7 or more in this term ─► the index may be shown

1. Suppose a round began after a read was requested, and a majority has answered the round. It follows that no later
   master was elected before the read was requested. An answer says that the replica's stored term was still the asking
   master's term. A later master needs the votes of a majority, so at least one vote of a replica that has answered.
2. Only electable incarnations that the group lists are counted, the master's own included. The DTVLSN (the durable end)
   counts the same incarnations.
3. The read goes up to the DTVLSN that the master noted before the round began. A noted DTVLSN is valid only once the
   first block of the master's own term is durable. Before that block, the master does not know which blocks its
   predecessors made durable.
4. Answers are cumulative, because the feed keeps their order: an answer to round 8 also answers round 7.

    electable n1 n2 n3, n1 is the master:  round 7 begins, n3 answers 6   ->  only n1 counts: not confirmed yet
                                           n2 answers 7                   ->  n1 and n2: round 7 is confirmed

This module sends no messages: its caller does.
"""

from __future__ import annotations

from collections.abc import Collection

from feeder.majority import majority
from vlsn.ids import Incarnation


class Rounds:
    """The read rounds of one master's term. At most one round is under way."""

    def __init__(self, own: Incarnation) -> None:
        self.number = 0
        """The number of the newest read round, 0 before the first."""
        self._own = own
        self._answered: dict[Incarnation, int] = {}

    def begin(self) -> int:
        """Begins the next read round and returns its number."""
        self.number += 1
        return self.number

    def answered(self, incarnation: Incarnation, number: int) -> None:
        """Notes that ``incarnation`` has answered round ``number`` in this master's term. Ignores an answer to a round
        that has not begun."""
        if number <= self.number:
            self._answered[incarnation] = max(number, self._answered.get(incarnation, 0))

    def confirmed(self, electable: Collection[Incarnation]) -> bool:
        """Returns whether a majority of ``electable`` has answered the newest round."""
        heard = sum(each == self._own or self._answered.get(each, 0) >= self.number for each in electable)
        return bool(electable) and self.number > 0 and heard >= majority(len(electable))
