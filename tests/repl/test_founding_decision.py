"""Founding's decision, case by case."""

from __future__ import annotations

import pytest

from repl.founding import (
    Answer,
    Found,
    Wait,
    decide,
    electable_incarnations,
    further,
    listed_incarnation,
    read_question,
)
from vlsn.errors import BadBody
from vlsn.ids import NodeName, Term

MEMBERS = {NodeName(name): f"http://{name}:1" for name in ("n1", "n2", "n3")}


def answer(name: str, *, term: int = 0, empty: bool = True, last: int = 0, incarnation: str = "") -> Answer:
    return Answer(
        group="g",
        name=name,
        incarnation=incarnation or f"{ord(name[1]):016x}",
        process="0" * 16,
        term=term,
        empty=empty,
        last_term=term if last else 0,
        last=last,
    )


def answers(*said: Answer) -> dict[NodeName, Answer]:
    return {NodeName(each.name): each for each in said}


def test_all_empty_found_a_group_in_a_term_above_every_stored_one() -> None:
    found = decide("g", MEMBERS, answers(answer("n1"), answer("n2", term=7), answer("n3")), stored_term=Term(2))
    assert isinstance(found, Found)
    assert found.term == 8
    assert [member.name for member in found.group.members] == ["n1", "n2", "n3"]
    assert len(electable_incarnations(found.group)) == 3
    assert listed_incarnation(found.group, "n2") == ord("2")
    assert listed_incarnation(found.group, "n9") is None


def test_one_silent_member_is_waited_for() -> None:
    wait = decide("g", MEMBERS, answers(answer("n1"), answer("n2")), stored_term=Term(0))
    assert isinstance(wait, Wait)
    assert "n3" in wait.reason


def test_a_member_that_holds_a_log_stops_a_second_founding() -> None:
    full = answer("n2", term=1, empty=False, last=9)
    wait = decide("g", MEMBERS, answers(answer("n1"), full, answer("n3")), stored_term=Term(0))
    assert isinstance(wait, Wait)
    assert wait.reason.startswith("not-listed")


def test_one_directory_in_two_places_founds_nothing() -> None:
    twin = answer("n3", incarnation=f"{ord('2'):016x}")
    wait = decide("g", MEMBERS, answers(answer("n1"), answer("n2"), twin), stored_term=Term(0))
    assert isinstance(wait, Wait)


def test_who_is_further_is_told_by_term_then_vlsn() -> None:
    said = answers(answer("n2", term=2, empty=False, last=5), answer("n3", term=1, empty=False, last=90))
    assert further((1, 95), said) == "n2"
    assert further((2, 5), said) is None


GOOD = {"group": "g", "sender": "n1", "to": "n2", "incarnation": "0" * 16, "process": "0" * 16, "purpose": "founding"}


def test_a_hello_is_read() -> None:
    assert read_question(GOOD).sender == "n1"


@pytest.mark.parametrize(
    "body",
    [{}, [], GOOD | {"incarnation": "xyz"}, GOOD | {"purpose": "?"}, GOOD | {"sender": "a b"}, GOOD | {"x": 1}],
)
def test_a_hello_that_is_none_is_refused(body: object) -> None:
    with pytest.raises(BadBody):
        read_question(body)
