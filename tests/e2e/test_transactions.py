"""Transactions with real processes, by plain HTTP as anybody can call it."""

from __future__ import annotations

import pytest

from tests.e2e.calls import JSON, NDJSON, OCTETS, call
from tests.e2e.group import NAMES, Group

pytestmark = pytest.mark.feature("transactions")

VALUES = [b"debit", b"credit", b"fee"]


def begun(group: Group) -> str:
    said = call("POST", f"{group.master}/v1/transactions").ok()
    assert said["expires_s"] == 60
    return f"/v1/transactions/{said['transaction']}"


def staged(group: Group) -> str:
    path = begun(group)
    assert call("POST", f"{group.master}{path}/entries", body=VALUES[0], headers=OCTETS).ok() == {"staged": 1}
    lines = b"".join(b'{"value":"%s"}\n' % value for value in VALUES[1:])
    assert call("POST", f"{group.master}{path}/entries", body=lines, headers=NDJSON).ok() == {"staged": 3}
    return path


def read(group: Group, first: int) -> dict[str, list[bytes]]:
    found = {}
    for name in NAMES:
        page = call("GET", f"{group.urls[name]}/v1/entries?from={first}&limit=10000").lines()
        found[name] = [entry["value"].encode() for entry in page]
    return found


def test_staged_and_then_the_master_killed_is_gone_and_nothing_is_readable_anywhere(hurt: Group) -> None:
    first = hurt.settle() + 1
    path = staged(hurt)
    dead = hurt.leader
    hurt.kill(dead)
    assert hurt.leader != dead
    gone = call("POST", f"{hurt.master}{path}/commit").refused(409, "transaction-gone")
    assert "neither staged here nor logged" in gone["detail"]
    hurt.start(dead)
    hurt.settle()
    assert read(hurt, first) == {name: [] for name in NAMES}
    call("POST", f"{hurt.master}{path}/commit", headers=JSON).refused(409, "transaction-gone")


def test_a_commit_is_whole_on_every_node_and_asked_again_of_the_next_master_the_same(hurt: Group) -> None:
    first = hurt.settle() + 1
    path = staged(hurt)
    assert read(hurt, first) == {name: [] for name in NAMES}
    said = call("POST", f"{hurt.master}{path}/commit").ok()
    assert (said["durable"], said["last"] - said["first"]) == (True, 3)
    dead = hurt.leader
    hurt.kill(dead)
    assert hurt.leader != dead
    hurt.settle()
    again = call("POST", f"{hurt.master}{path}/commit").ok()
    assert again["duplicate"]
    assert [again[name] for name in ("first", "last", "term")] == [said[name] for name in ("first", "last", "term")]
    hurt.start(dead)
    hurt.settle()
    assert read(hurt, first) == dict.fromkeys(NAMES, VALUES)
