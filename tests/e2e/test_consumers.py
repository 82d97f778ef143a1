"""Named consumers on a real group: by the client, by the command line, and by the calls that anybody may make."""

from __future__ import annotations

import pytest

from repl import StaleTerm, connect_sync
from tests.e2e.calls import JSON, call
from tests.e2e.group import Group
from tests.e2e.test_commands import Shell, rows, shell

pytestmark = pytest.mark.feature("consumers")

__all__ = ["shell"]


def test_a_consumer_is_listed_shown_moved_and_deleted(group: Group, shell: Shell) -> None:
    name = "e2e-listed"
    with connect_sync(",".join(group.urls.values())) as log:
        first, last = log.append_many([b"a", b"b", b"c"])
        consumer = log.consumer(name, from_vlsn=first)
        for entry in consumer:
            if entry.value == b"b":
                consumer.commit()
                break
        [shown] = rows(shell("consumer", "show", name, "--json"))
        assert (shown["name"], shown["next"], shown["lag_vlsns"] >= 1) == (name, last, True)
        listed = rows(shell("consumer", "list", "--json"))[0]["consumers"]
        assert name in [each["name"] for each in listed]
        table = shell("consumer", "list").out.decode()
        assert table.splitlines()[0].split()[:3] == ["consumer", "next", "VLSN"]
        assert name in table
        [moved] = rows(shell("consumer", "reset", name, "--to", str(first), "--json"))
        assert moved["next"] == first
        for entry in consumer:  # on from b"c", which the worker does not know to be wrong yet
            assert entry.vlsn == last
            with pytest.raises(StaleTerm):
                consumer.commit()
            break
        assert next(iter(consumer)).vlsn == first, "the log says where it is"
        [moved] = rows(shell("consumer", "reset", name, "--to", "end", "--json"))
        assert moved["next"] > last
        [moved] = rows(shell("consumer", "reset", name, "--to", "start", "--json"))
        placed = log.positions.get(name)
        assert placed is not None
        assert placed.next == moved["next"] <= first
    assert "a VLSN from 1 on, start or end" in shell("consumer", "reset", name, "--to", "0").refused()
    assert shell("consumer", "delete", name).out == f"consumer {name} is deleted\n".encode()
    assert "has no position" in shell("consumer", "show", name).refused()
    assert "has no position" in shell("consumer", "reset", name, "--to", "end").refused()
    assert "has no position" in shell("consumer", "delete", name).refused()


def test_a_position_by_the_calls_of_anybody(group: Group) -> None:
    path = "/v1/consumers/e2e-called"
    leader = group.leader
    master = group.urls[leader]
    replica = next(url for name, url in group.urls.items() if name != leader)
    call("GET", f"{replica}{path}").refused(404, "not-found")
    assert call("PUT", f"{replica}{path}", headers=JSON, body=b'{"next":1}').status == 307
    at = call("PUT", f"{master}{path}", headers=JSON, body=b'{"next":1,"at":0}').ok()["at"]
    call("PUT", f"{master}{path}", headers=JSON, body=b'{"next":2,"at":0}').refused(409, "stale-term")
    told = call("GET", f"{replica}{path}?consistency=linearizable").ok()
    assert (told["next"], told["at"]) == (1, at)
    metrics = call("GET", f"{master}/metrics").body.decode()
    assert 'vlsnlog_consumer_next_vlsn{consumer="e2e-called"} 1.0' in metrics
    held = [each for each in group.status(leader)["holds"] if each["owner"] == "consumer"]
    assert ("e2e-called", 1) in [(each["name"], each["vlsn"]) for each in held]
    assert call("DELETE", f"{master}{path}?at={at}", headers=JSON).status == 200
    call("DELETE", f"{master}{path}", headers=JSON).refused(404, "not-found")
