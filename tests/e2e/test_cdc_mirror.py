"""A mirror between two real groups: the same entries in the same order, once, over kills and a partition."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import pytest

from repl import connect_sync
from repl.client.batch_rows import ROW_OVERHEAD_BYTES
from tests.e2e.calls import call
from tests.e2e.cdc_pages import example, toml
from tests.e2e.commands import run
from tests.e2e.group import NAMES, Group
from tests.e2e.test_cdc import One, eventually
from vlsn.limits import MIB, TRANSACTION_BYTES_MAX

pytestmark = pytest.mark.real
Row = tuple[bytes | None, bytes]


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[tuple[Group, Group]]:
    """Starts two groups, of which the first has a mirror in the other."""
    target = Group(tmp_path / "elsewhere", group="elsewhere", election_timeout_s=1.0)
    try:
        target.start()
        source = Group(tmp_path / "origin", group="origin", election_timeout_s=1.0)
        table = example("mirror.md", url=",".join(target.urls.values()))
        for name in NAMES:
            with source.config(name).open("a") as file:
                file.write("\n" + toml(table))
        try:
            source.start()
            yield source, target
        finally:
            source.end()
    finally:
        target.end()


def told(source: Group) -> dict[str, object]:
    """Returns what the source's master says of its mirror; nothing while there is none."""
    for name in NAMES:
        if source.running(name):
            try:
                answer = call("GET", f"{source.urls[name]}/v1/cdc/copy", timeout_s=5)
            except OSError:
                continue
            if answer.status == 200 and answer.ok()["state"] != "waiting":
                return dict(answer.ok())
    return {}


def kill_child(source: Group) -> None:
    pid = told(source).get("pid")
    if isinstance(pid, int):
        with suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, signal.SIGKILL)


def rows(group: Group) -> list[tuple[int, Row]]:
    """Reads all of a group: transaction, key and value of each entry."""
    with connect_sync(",".join(group.urls.values())) as log:
        return [(entry.txn, (entry.key, entry.value)) for entry in log.read(consistency="linearizable")]


class Writer:
    """Appends to a group: plain entries, and transactions of five."""

    def __init__(self, group: Group) -> None:
        self._urls = ",".join(group.urls.values())
        self.count = 0

    def write(self, turns: int) -> None:
        with connect_sync(self._urls, exactly_once=True, timeout_s=60.0) as log:
            for _ in range(turns):
                log.append_many([self._next() for _ in range(7)])
                with log.transaction() as txn:
                    txn.append_many([self._next() for _ in range(5)], keys=[b"a", b"b", None, b"a", b"b"])

    def _next(self) -> bytes:
        self.count += 1
        return b"%d" % self.count


def test_a_mirror_is_the_source_once_over_kills_and_a_partition(groups: tuple[Group, Group]) -> None:
    source, target = groups
    writer = Writer(source)

    def mirrored(what: str) -> None:
        source.until(lambda: len(rows(target)) >= writer.count, f"all is there {what}", seconds=240.0)

    writer.write(20)
    source.until(lambda: len(rows(target)) > 0, "the mirror begins", seconds=240.0)
    for _ in range(3):
        writer.write(10)
        kill_child(source)
    mirrored("after kills of the child")

    leader = source.leader
    writer.write(5)
    source.kill(leader)
    writer.write(5)
    source.launch(leader)
    mirrored("after a kill of the source's master")

    for name in NAMES:
        target.send(name, signal.SIGSTOP)
    writer.write(20)

    def waits() -> bool:
        seen = told(source)  # once: it tries again, and waits again
        return seen.get("state") == "backoff" and "the other group" in str(seen["reason"])

    source.until(waits, "the mirror waits for the other group", seconds=240.0)
    kill_child(source)  # its messages are taken when the group answers again
    writer.write(20)
    for name in NAMES:
        target.send(name, signal.SIGCONT)
    mirrored("after a partition")

    leader = target.leader
    writer.write(5)
    target.kill(leader)
    writer.write(5)
    target.launch(leader)
    target.settle()
    writer.write(5)
    target.kill(*NAMES)
    writer.write(5)
    target.start()
    mirrored("after kills of the other group")

    there, here = rows(target), rows(source)
    assert [row for _, row in there] == [row for _, row in here] and len(here) == writer.count
    assert [row for _, (_, row) in here] == [b"%d" % number for number in range(1, writer.count + 1)]
    whole = [txn for txn, _ in groupby(zip(here, there, strict=True), lambda pair: (pair[0][0], pair[1][0])) if txn[0]]
    assert len(whole) == len({txn for txn, _ in whole}) > 100, "no transaction of the source is cut"
    assert not [line for line in source.faults() + target.faults() if "cdc" in line]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[One, One]]:
    """Starts two groups of one node; mirrors ``copy``, ``wrong`` and ``own`` in the first one."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    there, here = One(tmp_path / "there", group="elsewhere"), One(tmp_path / "here", group="origin")
    try:
        there.start()
        with (tmp_path / "here" / "node.toml").open("a") as file:
            for name, url, group in (
                ("copy", there.url, "elsewhere"),
                ("wrong", there.url, "x"),
                ("own", here.url, ""),
            ):
                file.write("\n" + toml({**example("mirror.md", url=url, group=group), "name": name}))
        here.start()
        yield here, there
    finally:
        for each in (here, there):
            if each.process is not None and each.process.poll() is None:
                each.end()


def values(one: One) -> list[bytes]:
    with connect_sync(one.url) as log:
        return [entry.value for entry in log.read(consistency="linearizable")]


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
def test_the_other_group_is_checked_and_a_lost_position_parks(pair: tuple[One, One]) -> None:
    here, there = pair
    for name, said in {"wrong": "is of group elsewhere, not x", "own": "is of group origin, as this node is"}.items():
        eventually(lambda name=name: here.told(name)["state"] == "parked", f"{name} is parked")  # type: ignore[misc]
        assert said in str(here.told(name)["reason"])
    with connect_sync(here.url) as log:
        log.append(b"plain")
        largest = [bytes(MIB)] * 15
        left = TRANSACTION_BYTES_MAX - sum(len(each) + ROW_OVERHEAD_BYTES for each in largest)
        largest.append(bytes(left - 58 - 256))  # 58: to the byte; 256: room for the position
        with log.transaction() as txn:
            txn.append_many(largest)
        log.append(b"last")
    sent = [b"plain", *largest, b"last"]
    eventually(lambda: values(there) == sent, "the largest transaction goes through")

    assert run("cdc", "reset", "copy", "--to", "start", "--url", here.url).status == 0
    eventually(lambda: values(there) == 2 * sent, "a person has it all once more")
    os.kill(here.pid("copy"), signal.SIGKILL)
    here.append(b"after")
    eventually(lambda: values(there) == [*sent, *sent, b"after"], "the order is obeyed once")

    assert run("consumer", "delete", "origin/copy", "--url", there.url).status == 0
    os.kill(here.pid("copy"), signal.SIGKILL)
    eventually(lambda: here.told("copy")["state"] == "parked", "it is parked without its position")
    assert "has no position origin/copy" in str(here.told("copy")["reason"])
    assert run("cdc", "reset", "copy", "--to", "end", "--url", here.url).status == 0
    here.append(b"on")
    eventually(lambda: values(there)[-2:] == [b"after", b"on"], "it goes on where it was told")
