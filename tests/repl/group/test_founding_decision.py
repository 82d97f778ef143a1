"""Founding's decision, case by case."""

from __future__ import annotations

import msgspec
import pytest

from repl.group.founding import (
    Answer,
    Found,
    Wait,
    decide,
    electable_incarnations,
    further,
    listed_incarnation,
    read_answer,
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


NUMBERS = ("last_term", "last", "floor_term", "floor_vlsn", "clock_us")
NO_TERMS = (-1, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 70, 1.0, "1", True, None)
NO_NUMBERS = (-1, 1 << 63, 1 << 64, 1 << 70, 1.0, "1", True, None)
GOOD: dict[str, object] = {
    "group": "g",
    "sender": "n1",
    "to": "n2",
    "incarnation": "0" * 16,
    "process": "0" * 16,
    "purpose": "founding",
}


def test_a_hello_is_read() -> None:
    assert read_question(GOOD).sender == "n1"


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        *(GOOD | {"incarnation": text} for text in ("xyz", "0" * 15, "0" * 16 + "\n", "A" * 16, 0)),
        *(GOOD | {"process": text} for text in ("xyz", "")),
        *(GOOD | {"purpose": text} for text in ("?", "", None)),
        *(GOOD | {name: text} for name in ("group", "sender", "to") for text in ("a b", "", "x" * 33, "n1\n")),
        *(GOOD | {"term": number} for number in NO_TERMS),
    ],
)
def test_a_hello_that_is_none_is_refused(body: object) -> None:
    with pytest.raises(BadBody):
        read_question(body)


SAID = msgspec.to_builtins(answer("n2", term=3, empty=False, last=9))


def test_an_answer_to_a_hello_is_read() -> None:
    assert read_answer(msgspec.json.encode(SAID)) == answer("n2", term=3, empty=False, last=9)
    assert read_answer(msgspec.json.encode(SAID | {"more": 1})).last == 9  # of a later version


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b'{"more":' + b"[" * 100_000,
        *(SAID | {name: text} for name in ("incarnation", "process") for text in ("xyz", "0" * 17, "-" + "0" * 15, 0)),
        *(SAID | {name: text} for name in ("group", "name") for text in ("a b", "", 0)),
        *(SAID | {"term": number} for number in NO_TERMS),
        *(SAID | {name: number} for name in NUMBERS for number in NO_NUMBERS),
        SAID | {"empty": True},
        SAID | {"last_term": 4},
        {name: value for name, value in SAID.items() if name != "last"},
    ],
)
def test_an_answer_that_is_none_is_refused(said: object) -> None:
    with pytest.raises(BadBody):
        read_answer(said if isinstance(said, bytes) else msgspec.json.encode(said))
