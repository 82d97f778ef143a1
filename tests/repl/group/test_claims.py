"""The rule for claims in a member's name: who is believed, who is asked, who is refused."""

from __future__ import annotations

import msgspec
import pytest

from repl.group.claims import TERMS_AHEAD_MAX, Claim, Weight, announces, bears_out, claim_of, weigh
from repl.group.electors import Elector
from repl.group.founding import Answer
from repl.group.vote_messages import VoteRequest
from vlsn.format.feed_messages import STORED_TERM_MAX
from vlsn.ids import Incarnation, NodeName, Term

STORED = 5
N1, N2, N3 = (NodeName(name) for name in ("n1", "n2", "n3"))
LISTED = [Elector(N1, Incarnation(1)), Elector(N2, Incarnation(2)), Elector(N3, Incarnation(3), electable=False)]
FURTHEST = STORED + TERMS_AHEAD_MAX


@pytest.mark.parametrize(
    ("sender", "incarnation", "term", "weight"),
    [
        ("n2", 2, 0, Weight.TAKEN),
        ("n2", 2, STORED + 1, Weight.TAKEN),
        ("n2", 2, FURTHEST, Weight.TAKEN),
        ("n2", 2, FURTHEST + 1, Weight.ASK),
        ("n2", 2, STORED_TERM_MAX, Weight.ASK),
        ("n2", 9, STORED, Weight.ASK),  # wiped, or admitted again in a list that this node does not have
        ("n2", 1, STORED, Weight.ASK),  # n1's
        ("n3", 3, STORED + 1, Weight.ASK),  # promoted since, perhaps
        ("n9", 2, STORED, Weight.REFUSED),
        ("n9", 9, 0, Weight.REFUSED),
    ],
)
def test_who_is_taken_at_its_word(sender: str, incarnation: int, term: int, weight: Weight) -> None:
    claim = Claim(NodeName(sender), incarnation, term)
    assert weigh(claim, LISTED, stored=STORED, known={N1, N2, N3}) is weight


def test_while_no_group_is_known_those_of_the_settings_are_asked() -> None:
    assert weigh(Claim(N2, 2, 1), [], stored=0, known={N1, N2}) is Weight.ASK
    assert weigh(Claim(N3, 3, 1), [], stored=0, known={N1, N2}) is Weight.REFUSED


def answer(**fields: object) -> Answer:
    said = {
        "group": "g",
        "name": "n2",
        "incarnation": f"{2:016x}",
        "process": f"{7:016x}",
        "term": 1_000_005,
        "empty": False,
        "last_term": 3,
        "last": 40,
    }
    return msgspec.convert({**said, **fields}, Answer)


@pytest.mark.parametrize(
    ("incarnation", "term", "borne_out"), [(2, 1_000_005, True), (2, 6, True), (2, 1_000_006, False), (9, 6, False)]
)
def test_only_what_the_member_says_itself_counts(incarnation: int, term: int, borne_out: bool) -> None:
    assert bears_out(Claim(N2, incarnation, term), answer()) is borne_out


def test_a_hand_over_is_of_one_term_to_one_node() -> None:
    said = answer(hands_to="n3", hands_term=5)
    assert announces(said, term=Term(5), to="n3")
    assert not announces(said, term=Term(6), to="n3")
    assert not announces(said, term=Term(5), to="n1")
    assert not announces(answer(), term=Term(5), to="n3")


def test_a_candidate_has_stored_the_term_of_its_votes_and_not_that_of_its_question() -> None:
    request = VoteRequest(
        group="g", sender="n2", incarnation=f"{2:016x}", to="n1", term=7, pre=False, last_term=3, last_vlsn=40
    )
    assert claim_of(request) == Claim(N2, 2, 7)
    assert claim_of(msgspec.structs.replace(request, pre=True)) == Claim(N2, 2, 6)
