"""Read rounds: proof that a master of a term still led at a moment, without a clock (Raft dissertation §6.4).

    index noted ─► begin: round 7 to all feeds ─► a majority answers 7 or more in this term ─► the index may be shown

1. A round that began after a read was asked, and that a majority has answered, shows that no later master led when the
   read was asked. An answer says that its sender's stored term was still this one. A later master needs the votes of a
   majority, so at least one from a node that has answered.
2. Only electable incarnations that the group lists count, the master's own included, as for the DTVLSN.
3. The read goes up to the DTVLSN that was noted before the round began.  It counts only once the term's own first block
   is durable: before that the master does not know what its predecessors made durable.
4. Answers are cumulative, as the feed keeps their order: 8 answers 7 too.

    electable n1 n2 n3, n1 leads:  round 7 begins, n3 answers 6   ->  only n1: not yet
                                   n2 answers 7                   ->  n1 and n2: round 7 is confirmed

Pure: the owner asks the members.
"""

from __future__ import annotations

from collections.abc import Collection

from feeder.majority import majority
from vlsn.ids import Incarnation


class Rounds:
    """The rounds of one lead; one is under way at most."""

    def __init__(self, own: Incarnation) -> None:
        self.number = 0
        """The newest round begun, 0 before the first."""
        self._own = own
        self._answered: dict[Incarnation, int] = {}

    def begin(self) -> int:
        """Begins the next round; its number."""
        self.number += 1
        return self.number

    def answered(self, incarnation: Incarnation, number: int) -> None:
        """Notes that ``incarnation`` has answered round ``number`` in this master's term. An answer to a round that has
        not begun is ignored."""
        if number <= self.number:
            self._answered[incarnation] = max(number, self._answered.get(incarnation, 0))

    def confirmed(self, electable: Collection[Incarnation]) -> bool:
        """Says whether a majority of ``electable`` has answered the newest round."""
        heard = sum(each == self._own or self._answered.get(each, 0) >= self.number for each in electable)
        return bool(electable) and self.number > 0 and heard >= majority(len(electable))
