"""A later peer's words that this node does not know are passed over; the others are checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from repl.group import founding, vote_messages
from repl.group.vote_messages import Stand
from repl.read import read_index
from repl.repair import integrity
from tests.repl.web.calls import call
from tests.repl.web.one_node import started
from vlsn.errors import BadBody
from vlsn.format.json_messages import read_json, read_object
from vlsn.repair import restore_messages

LATER: dict[str, Any] = {"later_number": 2, "later": {"of": ["another", "day"]}}
_NAMES = {"group": "g", "sender": "n1", "to": "n2"}
_HEX = "0123456789abcdef"
_ENDS = {"term": 3, "last_term": 2, "last_vlsn": 9}

Read = Callable[[dict[str, Any]], object]


def as_json(read: Callable[[bytes], object]) -> Read:
    return lambda body: read(msgspec.json.encode(body))


MESSAGES: dict[str, tuple[Read, dict[str, Any], str]] = {
    "hello": (
        founding.read_question,
        {**_NAMES, "incarnation": _HEX, "process": _HEX, "purpose": "discovery"},
        "term",
    ),
    "answer to a hello": (
        as_json(founding.read_answer),
        {"group": "g", "name": "n2", "incarnation": _HEX, "process": _HEX, "empty": False, **_ENDS, "last": 9},
        "last",
    ),
    "vote": (vote_messages.read_request, {**_NAMES, "incarnation": _HEX, "pre": True, **_ENDS}, "last_vlsn"),
    "answer to a vote": (
        as_json(vote_messages.read_reply),
        {"sender": "n2", "incarnation": _HEX, "pre": True, "granted": False, **_ENDS},
        "term",
    ),
    "stand": (lambda body: read_object(body, Stand, "stand"), {**_NAMES, "term": 3}, "term"),
    "restore": (restore_messages.read_ask, {**_NAMES, "incarnation": _HEX, "purpose": "look"}, "from_vlsn"),
    "offer": (
        as_json(restore_messages.read_offer),
        {"group": "g", "name": "n2", "incarnation": _HEX, "first": 1, "dtvlsn": 9},
        "dtvlsn",
    ),
    "read index": (lambda body: read_object(body, read_index.Question, "read_index"), _NAMES, "to"),
    "copy": (
        as_json(lambda body: read_json(body, integrity.Copy, "the copy")),
        {"term": 1, "first": 1, "last": 2, "sha256": "0" * 64},
        "last",
    ),
}


@pytest.mark.parametrize("what", MESSAGES)
def test_fields_of_a_later_peer_are_passed_over(what: str) -> None:
    read, message, _ = MESSAGES[what]
    assert read({**message, **LATER}) == read(message)


@pytest.mark.parametrize("what", MESSAGES)
def test_fields_that_are_known_are_checked_beside_them(what: str) -> None:
    read, message, known = MESSAGES[what]
    for wrong in (-1, 2**63, "three", None):
        if known == "to" and wrong == "three":
            continue
        with pytest.raises(BadBody):
            read({**message, **LATER, known: wrong})


@pytest.mark.parametrize("levels", [[0, 1], [1, 65_536], [1], [1, 2, 3], "1-2", 1, [1.5, 2]])
def test_levels_in_a_hello_are_checked(levels: object) -> None:
    read, message, _ = MESSAGES["hello"]
    with pytest.raises(BadBody):
        read({**message, "levels": levels})


def test_a_hello_of_level_1_is_what_it_was_before_levels() -> None:
    """Members of before are asked in words that they take."""
    read, message, _ = MESSAGES["hello"]
    question = read(message)
    assert isinstance(question, founding.Question)
    assert msgspec.json.decode(msgspec.json.encode(question)) == message
    assert (question.levels.min, question.levels.max) == (1, 1)


@pytest.mark.parametrize(
    "asked",
    [
        "/v1/peer/block?group=sim&sender=n2&to=n1&term=1&first=1",
        "/v1/peer/copy?group=sim&sender=n2&to=n1&vlsn=1",
        "/v1/peer/restore?session=ab&segment=1&start=0&end=8&have=0",
    ],
)
async def test_parameters_of_a_later_peer_are_passed_over(asked: str) -> None:
    before = await call(await started(), "GET", asked)
    after = await call(await started(), "GET", asked + "&later=1")
    assert (after.status, bytes(after.body)) == (before.status, bytes(before.body))
