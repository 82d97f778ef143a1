"""Claims of other nodes: the rule for believing a message that raises a term, or ends a leadership or a feed.

    the sender (name, incarnation) and its stored term  ─►  TAKEN | ASK, at the URL where it is listed | REFUSED

An incarnation is a random number that identifies a node's store.

1. TAKEN: the group lists the sender's incarnation as electable, and its term is at most ``TERMS_AHEAD_MAX`` above this
   node's stored term. Terms rise by one with each election, so small steps never use up the 2^63 terms.
2. ASK: any other claim under a name for which this node has a URL. Examples are a longer jump, an incarnation that is
   not listed (of a wiped member, or in a newer list), and a group that is not known yet. To check the claim, this node
   sends a hello to that URL. The claim counts if the same incarnation answers and has stored the claimed term.
3. REFUSED: a claim under a name for which this node has no URL.
4. A hand-over counts only if its master confirms it, in an answer from the master's URL (``announces``).

    stored 5, n2 listed as a      (n2, a, 9)            taken
                                  (n2, a, 1 000 005)    n2 is asked, and answers: a, 1 000 005   counts
                                  (n2, x, 9)            n2 is asked, and answers: a, 5           does not count
                                  (n9, x, 9)            refused

A member's answer to a request of this node needs no further confirmation. Pure.
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
"""A term that is further above the stored term must be confirmed by a hello, even if its sender is listed."""


class Weight(Enum):
    TAKEN = "taken"
    ASK = "ask"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Claim:
    """The claim of ``sender``, as ``incarnation``, that it has stored ``term``."""

    sender: NodeName
    incarnation: int
    term: int


def claim_of(request: VoteRequest) -> Claim:
    """Makes the claim of a request for votes. A candidate stores its term before it requests votes, but not before a
    pre-vote."""
    return Claim(
        NodeName(request.sender), parse_hex(request.incarnation), request.term - 1 if request.pre else request.term
    )


def weigh(claim: Claim, electors: Sequence[Elector], *, stored: int, known: Collection[NodeName]) -> Weight:
    """Decides about a claim. ``electors`` are the members in the newest list, ``stored`` is this node's term, ``known``
    are the names with a URL."""
    named = (claim.sender, claim.incarnation)
    listed = any(each.electable and (each.name, each.incarnation) == named for each in electors)
    if listed and claim.term <= stored + TERMS_AHEAD_MAX:
        return Weight.TAKEN
    return Weight.ASK if claim.sender in known else Weight.REFUSED


def bears_out(claim: Claim, answer: Answer) -> bool:
    """Returns whether ``answer``, which the claim's sender has sent since, confirms the claim."""
    return parse_hex(answer.incarnation) == claim.incarnation and answer.term >= claim.term


def announces(answer: Answer, *, term: Term, to: str) -> bool:
    """Returns whether the master of ``term`` confirms in ``answer`` that it hands over to ``to``."""
    return (answer.hands_term, answer.hands_to) == (term, to)
