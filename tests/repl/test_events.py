"""Events: what is kept and told.  ``tests/test_project.py`` holds code, list and docs to the same names."""

from __future__ import annotations

from pathlib import Path

from repl.events import RECENT, RING, Events


def test_events_are_numbered_and_told_from_any_on() -> None:
    events = Events()
    for number in range(1, 6):
        events.note("vote", 1_000 + number, {"term": number, "granted": True, "why": ""})
    told = events.since(4, 10)
    assert (told["first"], told["next"]) == (1, 6)
    assert told["events"][0] == {"number": 4, "time": 1004, "event": "vote", "term": 4, "granted": True, "why": ""}
    assert events.since(2, 2)["next"] == 4
    assert events.since(6, 10) == {"first": 1, "next": 6, "events": []}
    assert events.since(99, 10)["next"] == 6  # of an earlier life: begin again


def test_the_oldest_go_and_the_reader_is_told_which() -> None:
    events = Events()
    for number in range(RING + 50):
        events.note("peer.silent", number, {"peer": "n2"})
    told = events.since(1, 5)
    assert told["first"] == 51
    assert [each["number"] for each in told["events"]] == [51, 52, 53, 54, 55]
    assert events.counts["peer.silent"] == RING + 50


def test_a_flood_of_one_kind_leaves_the_others_at_hand() -> None:
    events = Events()
    events.note("elected", 1, {"term": 7})
    for number in range(2 * RING):
        events.note("peer.silent", number, {})
    assert [each["event"] for each in events.recent("election")] == ["elected"]
    for term in range(30):
        events.note("vote", term, {"term": term})
    assert [each["term"] for each in events.recent("election")] == list(range(29, 29 - RECENT, -1))
    assert events.recent("election", "elected") == []


def test_what_json_does_not_know_is_told_as_text() -> None:
    events = Events()
    events.note("damage", 1, {"file": Path("a/b"), "offset": 5, "why": ValueError("bad"), "none": None})
    told = events.since(1, 1)["events"][0]
    assert (told["file"], told["offset"], told["why"], told["none"]) == ("a/b", 5, "bad", None)
