"""Events: what is kept and told.  ``tests/test_project.py`` holds code, list and docs to the same names."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from repl.events import ERRORS, KINDS, RECENT, REPEATING, RING, WARNINGS, Events, level_of
from repl.node.logging_format import JsonLines


def test_events_are_numbered_and_told_from_any_on() -> None:
    events = Events()
    for number in range(1, 6):
        events.note("vote", 1_000 + number, {"term": number, "granted": True, "why": ""})
    told = events.since(4, 10)
    assert (told["first"], told["next"]) == (1, 6)
    assert told["events"][0] == {
        "number": 4,
        "time": 1004,
        "level": "info",
        "event": "vote",
        "term": 4,
        "granted": True,
        "why": "",
    }
    assert events.since(2, 2)["next"] == 4
    assert events.since(6, 10) == {"first": 1, "next": 6, "events": []}
    assert events.since(99, 10)["next"] == 6  # of an earlier life: begin again


def test_the_oldest_go_and_the_reader_is_told_which() -> None:
    events = Events()
    for number in range(RING + 50):
        events.note("peer.silent", number, {"peer": number})
    told = events.since(1, 5)
    assert told["first"] == 51
    assert [each["number"] for each in told["events"]] == [51, 52, 53, 54, 55]
    assert events.counts["peer.silent"] == RING + 50


def test_a_flood_of_one_kind_leaves_the_others_at_hand() -> None:
    events = Events()
    events.note("elected", 1, {"term": 7})
    for number in range(2 * RING):
        events.note("peer.silent", number, {"number of it": number})
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


def test_what_stays_so_is_one_event_that_is_counted() -> None:
    events = Events()
    events.note("elected", 1, {"term": 7})
    counts = [
        events.note("peer.silent", 2 + at, {"peer": f"n{2 + at % 2}", "why": "refused"}) for at in range(3 * RING)
    ]
    assert counts[-1] == 3 * RING // 2
    told = events.since(1, 10)
    assert (told["first"], told["next"]) == (1, 3 * RING + 2)
    assert [(each["event"], each.get("count"), each.get("since")) for each in told["events"]] == [
        ("elected", None, None),
        ("peer.silent", 3 * RING // 2, 2),
        ("peer.silent", 3 * RING // 2, 3),
    ]
    assert events.counts["peer.silent"] == 3 * RING
    assert len(events.recent("founding")) == 2
    assert events.since(told["next"], 10)["events"] == []
    events.note("peer.silent", 9_999, {"peer": "n2", "why": "refused"})
    (again,) = events.since(told["next"], 10)["events"]
    assert (again["count"], again["time"]) == (3 * RING // 2 + 1, 9_999)


def test_what_happens_anew_is_an_event_each_time() -> None:
    events = Events()
    for _ in range(3):
        assert events.note("leads", 1, {"term": 7}) == 1
    assert len(events.since(1, 10)["events"]) == 3


def test_an_event_that_left_the_ring_is_counted_from_one_again() -> None:
    events = Events()
    events.note("peer.silent", 1, {"peer": "n2"})
    for term in range(RING):
        events.note("elected", 2, {"term": term})
    assert events.note("peer.silent", 3, {"peer": "n2"}) == 1


def test_levels_say_what_an_operator_has_to_do() -> None:
    assert level_of("damage", {}) == logging.ERROR
    assert level_of("state", {"state": "HALTED"}) == logging.ERROR
    assert level_of("state", {"state": "REPLICA"}) == logging.INFO
    assert level_of("no_space", {}) == logging.WARNING
    assert level_of("elected", {"term": 1}) == logging.INFO
    names = {name for kind in KINDS.values() for name in kind}
    assert names >= WARNINGS | ERRORS | REPEATING


def test_lines_of_the_log_are_objects_where_that_is_asked_for() -> None:
    record = logging.LogRecord("vlsnlog", logging.WARNING, "f", 1, "%s", ("text",), None)
    record.created = 1_700_000_000.25
    assert json.loads(JsonLines().format(record)) == {
        "time": "2023-11-14T22:13:20.250000Z",
        "level": "warning",
        "message": "text",
    }
    record.said = {"node": "n1", "event": "damage", "file": Path("a"), "offset": 5}
    line = json.loads(JsonLines().format(record))
    assert (line["event"], line["file"], line["offset"], "message" in line) == ("damage", "a", 5, False)
    try:
        raise ValueError("what")
    except ValueError:
        record.exc_info = sys.exc_info()
    assert "ValueError: what" in json.loads(JsonLines().format(record))["fault"]
