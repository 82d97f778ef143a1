"""Claims of other nodes: the rule by which a node believes a message that raises a term, ends a lead or a feed.

    who (name, incarnation), which stored term  ─►  TAKEN | ASK, at the URL where it is listed | REFUSED

1. The group lists that incarnation as electable, and its term is at most ``TERMS_AHEAD_MAX`` above the stored one:
   taken.  Terms rise by one with each election, and 2^63 of them are never used up in such steps.
2. Any other claim under a name that this node has a URL of is checked with that member itself, by a hello to that URL.
   Such are a longer jump; an incarnation that is not listed, of a wiped member or one that a newer list names; a group
   not known yet. The claim counts if that incarnation answers and has stored that term.
3. A name that this node has no URL of is refused.
4. A hand-over is one only if its master says so itself, when it is asked at its URL (``announces``).

    stored 5, n2 listed as a      (n2, a, 9)            taken
                                  (n2, a, 1 000 005)    n2 is asked, and answers: a, 1 000 005   counts
                                  (n2, x, 9)            n2 is asked, and answers: a, 5           nothing of it
                                  (n9, x, 9)            refused

A member's answers to this node's own questions are such answers already.  Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum

from repl.group.electors import Elector
from repl.group.founding import Answer, parse_hex
from repl.group.vote_messages import VoteRequest
from vlsn.ids import NodeName, Term

TERMS_AHEAD_MAX = 16
"""A term further above the stored one is asked for where its sender is listed."""


class Weight(Enum):
    TAKEN = "taken"
    ASK = "ask"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Claim:
    """``sender``, as ``incarnation``, says that it has stored ``term``."""

    sender: NodeName
    incarnation: int
    term: int


def claim_of(request: VoteRequest) -> Claim:
    """Makes the claim of a request for votes. A candidate stores its term before it asks for votes in it, not before it
    asks whether there would be any."""
    return Claim(
        NodeName(request.sender), parse_hex(request.incarnation), request.term - 1 if request.pre else request.term
    )


def weigh(claim: Claim, electors: Sequence[Elector], *, stored: int, known: Collection[NodeName]) -> Weight:
    """Decides on a claim by the newest group's ``electors``, the ``stored`` term, and the ``known`` names."""
    named = (claim.sender, claim.incarnation)
    listed = any(each.electable and (each.name, each.incarnation) == named for each in electors)
    if listed and claim.term <= stored + TERMS_AHEAD_MAX:
        return Weight.TAKEN
    return Weight.ASK if claim.sender in known else Weight.REFUSED


def bears_out(claim: Claim, answer: Answer) -> bool:
    """Decides by ``answer``, which the member of that name has given since."""
    return parse_hex(answer.incarnation) == claim.incarnation and answer.term >= claim.term


def announces(answer: Answer, *, term: Term, to: str) -> bool:
    """Says whether the master of ``term`` hands over to ``to``, by its own word."""
    return (answer.hands_term, answer.hands_to) == (term, to)
