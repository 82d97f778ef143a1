"""Exactly once through the death of masters, with real processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e.calls import OCTETS, call
from tests.e2e.commands import Command
from tests.e2e.group import NAMES, Group

pytestmark = pytest.mark.feature("exactly once")

PRODUCER = 0xFFFF_0000_0000_0001


def named(group: Group, sequence: int) -> dict[str, Any]:
    url = f"{group.master}/v1/entries?producer={PRODUCER:016x}&sequence={sequence}&born=0"
    return call("POST", url, body=b"named %d" % sequence, headers=OCTETS).ok()


def test_what_is_sent_again_to_the_next_master_is_the_same_entry(hurt: Group) -> None:
    told = [named(hurt, sequence) for sequence in range(3)]
    assert not any("duplicate" in each for each in told)
    dead = hurt.leader
    hurt.kill(dead)
    assert hurt.leader != dead
    hurt.settle()
    for sequence, before in enumerate(told):
        again = named(hurt, sequence)
        assert again["duplicate"]
        assert [again[name] for name in ("first", "last", "term")] == [
            before[name] for name in ("first", "last", "term")
        ]
    assert named(hurt, 3)["first"] > told[-1]["last"]
    url = f"{hurt.master}/v1/entries?producer={PRODUCER:016x}"
    call("POST", f"{url}&sequence=9", body=b"x", headers=OCTETS).refused(409, "out-of-sequence")
    hurt.start(dead)


def test_lines_are_appended_once_and_in_order_through_the_death_of_masters(hurt: Group) -> None:
    first = hurt.settle() + 1
    lines = [b"line %d" % number for number in range(600)]
    urls = ",".join(hurt.urls.values())
    with Command("append", "--url", urls, "--timeout", "60", "-", stdin=b"") as command:
        stdin = command.process.stdin
        assert stdin is not None
        for number, line in enumerate(lines):
            stdin.write(line + b"\n")
            stdin.flush()
            if number in (150, 350):
                dead = hurt.leader
                hurt.kill(dead)
            elif number in (250, 450):
                hurt.launch(dead)
        ended = command.ended()
    assert ended.status == 0, ended
    last = hurt.settle()
    assert int(ended.out.split()[1]) <= last
    for name in NAMES:
        page = call("GET", f"{hurt.urls[name]}/v1/entries?from={first}&limit=10000").lines()
        assert [entry["value"].encode() for entry in page] == lines, name
