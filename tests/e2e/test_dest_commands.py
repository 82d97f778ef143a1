"""The commands of destinations, on real nodes: their output and their effect."""

from __future__ import annotations

import json

import pytest

from tests.e2e.calls import JSON, NDJSON, call
from tests.e2e.commands import Ended, run
from tests.e2e.group import Group

pytestmark = pytest.mark.feature("destinations")


def test_the_commands_of_a_destination_do_and_print_what_they_say(group: Group) -> None:
    def dest(*arguments: str) -> Ended:
        return run("dest", *arguments, "--url", group.master)

    def row(ended: Ended) -> dict[str, object]:
        assert ended.status == 0, ended
        found: dict[str, object] = json.loads(ended.out)
        return found

    path = f"{group.master}/v1/destinations/typed"
    made = row(dest("create", "typed", "--prefix", "typed-", "--from", "end", "--attempts-max", "1", "--json"))
    assert (made["name"], made["prefix"], made["attempts_max"], made["paused"]) == ("typed", "typed-", 1, False)
    entries = b'{"value":"a","key":"typed-1"}\n{"value":"b","key":"typed-2"}\n{"value":"c","key":"other"}'
    first = call("POST", f"{group.master}/v1/entries", headers=NDJSON, body=entries).ok()["first"]

    listed = dest("list")
    assert listed.status == 0 and b"typed" in listed.out and b"acknowledged to" in listed.out
    shown = dest("show", "typed").out.decode().splitlines()
    assert shown[0].split() == ["typed"]
    assert {"prefix typed-", "attempts_max 1", "lag_vlsns 3"} <= {" ".join(line.split()) for line in shown}
    assert dest("peek", "typed").out.decode() == f"{first}\t0\ttyped-1\ta\n{first + 1}\t0\ttyped-2\tb\n"

    assert row(dest("pause", "typed", "--json"))["paused"] is True
    assert call("GET", f"{path}/messages?wait=0").lines() == []
    assert row(dest("resume", "typed", "--json"))["paused"] is False
    assert [each["vlsn"] for each in call("GET", f"{path}/messages?wait=20").lines()] == [first, first + 1]

    refused = b'{"vlsns":[%d],"reason":"no stock"}' % first
    assert call("POST", f"{path}/nack", headers=JSON, body=refused).status == 200
    assert call("POST", f"{path}/ack", headers=JSON, body=b'{"vlsns":[%d]}' % (first + 1)).status == 200
    group.until(lambda: row(dest("show", "typed", "--json"))["dead"] == 1, "the one that was its last attempt is dead")
    assert row(dest("retry-dead", "typed", "--json"))["dead"] == 0
    assert [each["vlsn"] for each in call("GET", f"{path}/messages?wait=20").lines()] == [first]
    assert call("POST", f"{path}/nack", headers=JSON, body=refused).status == 200
    group.until(lambda: row(dest("show", "typed", "--json"))["dead"] == 1, "it is dead again")
    strange = dest("retry-dead", "typed", "--vlsn", str(first + 1))
    assert strange.status == 2 and "none of the dead messages" in strange.err, strange
    assert row(dest("retry-dead", "typed", "--vlsn", str(first), "--json"))["dead"] == 0
    assert [each["vlsn"] for each in call("GET", f"{path}/messages?wait=20").lines()] == [first]
    assert call("POST", f"{path}/nack", headers=JSON, body=refused).status == 200
    group.until(lambda: row(dest("show", "typed", "--json"))["dead"] == 1, "and again")
    assert dest("delete-dead", "typed").status == 2
    assert row(dest("delete-dead", "typed", "--vlsn", str(first), "--json"))["dead"] == 0
    delays = ("--redelivery-delay", "0.5", "--redelivery-factor", "2", "--redelivery-delay-max", "60", "--max-out", "9")
    slow = row(dest("create", "typed", *delays, "--json"))
    assert (slow["redelivery_delay_s"], slow["redelivery_factor"], slow["max_out"]) == (0.5, 2.0, 9)
    assert row(dest("move", "typed", "--to", "end", "--json"))["lag_vlsns"] == 0
    assert call("GET", f"{path}/messages?wait=0").lines() == []

    dropped = dest("drop", "typed")
    assert (dropped.status, dropped.out) == (0, b"destination typed is dropped\n")
    assert dest("show", "typed").status == 2
    assert dest("list").out == b"there are no destinations\n"


def test_a_full_destination_is_a_finding_of_the_status_and_shown_in_the_list(group: Group) -> None:
    master = group.leader
    other = group.urls[next(name for name in group.urls if name != master)]
    made = ("--prefix", "narrow-", "--from", "end", "--full-policy", "drop", "--max-messages", "2")
    assert run("dest", "create", "narrow", *made, "--url", group.master).status == 0
    document = f"{group.master}/v1/destinations/narrow"
    group.until(lambda: call("GET", document).ok()["depth"]["counted"], "its depth is counted")
    assert run("status", "--url", other).status == 0
    entries = b"\n".join(b'{"value":"a","key":"narrow-1"}' for _ in range(2))
    for _ in range(2):
        assert call("POST", f"{group.master}/v1/entries", headers=NDJSON, body=entries).status == 200
    status = run("status", "--url", other)
    wanted = f"degraded: {master}: destination narrow is full: appends to it are logged, and their messages dropped: "
    assert (status.status, wanted + "2 messages" in status.out.decode()) == (1, True), status
    listed = run("dest", "list", "--url", other)
    assert (listed.status, b"full (drop): 2 messages" in listed.out) == (0, True), listed
    assert b"full.why" in run("dest", "show", "narrow", "--url", other).out

    def tell_it(url: str) -> bool:
        return [each["node"] for each in call("GET", f"{url}/v1/status").ok()["alarms"]] == [master]

    group.until(lambda: all(map(tell_it, group.urls.values())), "each node tells it")
    assert run("dest", "drop", "narrow", "--url", group.master).status == 0
    group.until(lambda: run("status", "--url", other).status == 0, "it is over")
