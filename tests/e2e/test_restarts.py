"""Nodes that are stopped, killed and started again, one or several: nothing acknowledged is lost, nothing differs."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from repl.cli.main import main
from tests.e2e.calls import BATCH, call
from tests.e2e.commands import run_all
from tests.e2e.group import NAMES, Group
from vlsn.format import batch
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.frame import FRAME, FRAME_BYTES

MISSED = 40
"""Batches of 1 MiB that a replica misses: far more than the ring and a socket hold."""


def verified(group: Group, *names: str) -> None:
    """Stopped nodes whose directories are right."""
    for name, ended in zip(names, run_all(*(("verify", group.path(name), "--json") for name in names)), strict=True):
        assert (ended.status, ended.err) == (0, ""), (name, ended)
        assert json.loads(ended.out)["ok"]


@pytest.mark.parametrize("name", ["n2", "n3"])
def test_a_replica_that_was_stopped_cleanly_comes_back(hurt: Group, name: str) -> None:
    hurt.append(b"before")
    hurt.stop(name)
    verified(hurt, name)
    first, *_ = hurt.append(b"meanwhile", b"too")
    other = next(each for each in ("n2", "n3") if each != name)
    assert hurt.status(other)["state"] == "REPLICA"
    hurt.start(name)
    assert call("GET", f"{hurt.urls[name]}/v1/entries/{first}").body == b"meanwhile"


def test_status_is_1_and_names_the_node_that_is_dead(hurt: Group, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    hurt.kill("n3")
    hurt.until(lambda: not hurt.feeder("n3"), "the feed of n3 has ended")
    for url in (hurt.master, hurt.urls["n3"] + "," + hurt.urls["n2"]):
        capfdbinary.readouterr()
        assert main(["status", "--json", "--url", url]) == 1
        document = json.loads(capfdbinary.readouterr().out)
        states = {node["node"]: node["state"] for node in document["nodes"]}
        assert states == {"n1": "MASTER", "n2": "REPLICA", "n3": "UNREACHABLE"}
    assert main(["status", "--url", hurt.master]) == 1
    assert b"degraded: n3 is UNREACHABLE" in capfdbinary.readouterr().out
    hurt.start("n3")
    assert main(["status", "--url", hurt.urls["n2"]]) == 0


def test_a_killed_replica_catches_up_from_the_segments_and_goes_on_from_the_buffer(hurt: Group) -> None:
    hurt.kill("n3")
    verified(hurt, "n3")
    body = batch.encode([b"x" * 1023] * 1024)
    for _ in range(MISSED):
        call("POST", f"{hurt.master}/v1/entries", body=body, headers=BATCH).ok()
    behind = hurt.status(hurt.leader)["range"]["last"]
    modes: list[str] = []

    def caught_up() -> bool:
        feeder = hurt.feeder("n3")
        if feeder and (not modes or modes[-1] != feeder["mode"]):
            modes.append(feeder["mode"])
        return bool(feeder) and feeder["acked"] >= behind and feeder["mode"] == "BUFFER"

    hurt.launch("n3")
    hurt.until(caught_up, "n3 has caught up")
    assert modes == ["ARCHIVE", "BUFFER"]
    assert hurt.feeder("n3")["lag_vlsns"] == 0
    (vlsn,) = hurt.append(b"and on", acks="all")
    hurt.settle()
    assert call("GET", f"{hurt.urls['n3']}/v1/entries/{vlsn}").body == b"and on"
    assert hurt.feeder("n3")["mode"] == "BUFFER"


@pytest.mark.parametrize("how", ["stop", "kill"])
@pytest.mark.feature("failover")
def test_without_its_master_the_group_reads_and_another_one_leads_in_a_new_term(hurt: Group, how: str) -> None:
    (vlsn,) = hurt.append(b"before the master went")
    hurt.settle()
    term = hurt.status("n1")["term"]
    (hurt.stop if how == "stop" else hurt.kill)("n1")
    for name in ("n2", "n3"):
        assert call("GET", f"{hurt.urls[name]}/v1/entries/{vlsn}").body == b"before the master went"
    leader = hurt.leader
    assert leader != "n1"
    assert hurt.status(leader)["term"] > term
    (after,) = hurt.append(b"after")
    assert after > vlsn + 1  # the new term's own entry lies between
    verified(hurt, "n1")
    hurt.start("n1")
    assert hurt.leader == leader  # who comes back unseats nobody
    assert call("GET", f"{hurt.urls['n1']}/v1/entries/{after}").body == b"after"


def test_without_a_majority_nothing_is_logged_that_wants_one(hurt: Group) -> None:
    hurt.kill("n2")
    hurt.until(lambda: not hurt.feeder("n2"), "the feed of n2 has ended")
    last = hurt.settle()
    hurt.post(b"x", query="?acks=all").refused(503, "insufficient-replicas")
    assert hurt.append(b"two are a majority") == [last + 1]
    hurt.kill("n3")
    hurt.until(lambda: hurt.status("n1").get("state", "MASTER") != "MASTER", "n1 leads nobody")
    for query in ("", "?acks=none", "?acks=all"):
        hurt.post(b"x", name="n1", query=query).refused(503, "no-master")
    assert call("GET", f"{hurt.urls['n1']}/readyz").status == 503
    assert call("GET", f"{hurt.urls['n1']}/healthz").status == 200
    assert hurt.status("n1")["range"]["last"] == last + 1
    assert call("GET", f"{hurt.urls['n1']}/v1/entries/{last + 1}").body == b"two are a majority"
    hurt.start("n2", "n3")
    for name in NAMES:
        assert call("GET", f"{hurt.urls[name]}/v1/entries/{last + 1}").body == b"two are a majority"


def test_replicas_that_stand_still_leave_an_append_unknown_and_it_is_the_same_everywhere_later(
    hurt: Group, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def unknown() -> bool:
        """Sent while the master still counts on replicas that have just been stopped."""
        hurt.lead("n1")
        stand_still(hurt, True)
        if hurt.post(b"who knows", name="n1", query="?timeout=0.1").status == 504 and main(append) == 1:
            return True
        stand_still(hurt, False)
        hurt.settle()
        return False

    append = ["append", "nobody", "--timeout", "0.1", "--url", hurt.urls["n1"]]
    try:
        hurt.until(unknown, "the outcome of an append is unknown")
        assert capfdbinary.readouterr().err.count(b"\n") == 1
        hurt.until(
            lambda: hurt.status("n1").get("state", "MASTER") != "MASTER", "a master whom nobody answers steps down"
        )
    finally:
        stand_still(hurt, False)
    last = hurt.settle()
    told = [call("GET", f"{url}/v1/entries?from={last - 100}").lines() for url in hurt.urls.values()]
    assert told[0] == told[1] == told[2]
    assert main(["status", "--url", hurt.master]) == 0


def stand_still(group: Group, still: bool) -> None:
    for name in ("n2", "n3"):
        group.send(name, signal.SIGSTOP if still else signal.SIGCONT)


@contextmanager
def other_directory(group: Group, name: str, other: Path | None) -> Iterator[None]:
    """The node, which is down, has another directory for a while: a copy, or an empty one with its config."""
    own, aside = group.path(name), group.directory / "aside"
    own.rename(aside)
    try:
        if other is None:
            own.mkdir()
            shutil.copy(aside / "node.toml", own)
        else:
            shutil.copytree(other, own)
        yield
    finally:
        group.kill(name)
        shutil.rmtree(own)
        aside.rename(own)


def test_a_node_that_lost_its_directory_is_restored_and_admitted_again(hurt: Group) -> None:
    """First a replica, then the first member, which founds nothing; then both get their old directories back."""
    for name in ("n3", "n1"):
        hurt.settle()
        before = hurt.status(name)["incarnation"]
        hurt.stop(name)
        with other_directory(hurt, name, None):
            hurt.launch(name)
            (first,) = hurt.append(b"without " + name.encode())

            def admitted(name: str = name, before: str = before) -> bool:
                listed = call("GET", f"{hurt.master}/v1/group").json()
                found = {each["name"]: each["incarnation"] for each in listed["members"]}
                own = hurt.status(name).get("incarnation")
                return bool(listed["durable"]) and found[name] == own != before

            hurt.until(admitted, f"{name} is listed as another incarnation")
            hurt.until(lambda name=name, first=first: hurt.status(name).get("dtvlsn", 0) >= first, "it has all")  # type: ignore[misc]
            assert hurt.status(name)["state"] == "REPLICA"
            assert hurt.status(name)["restore"]["history"]
        hurt.start(name)
        hurt.until(lambda name=name, before=before: _listed(hurt, name) == before, f"{name} is its old self again")  # type: ignore[misc]


def _listed(group: Group, name: str) -> str:
    members = call("GET", f"{group.master}/v1/group").json()["members"]
    return next(str(each["incarnation"]) for each in members if each["name"] == name)


def test_a_node_from_an_old_copy_gets_what_it_lacks(hurt: Group, tmp_path: Path) -> None:
    hurt.settle()
    hurt.stop("n1")
    shutil.copytree(hurt.path("n1"), tmp_path / "old")
    hurt.start("n1")
    (vlsn,) = hurt.append(b"not in the old copy", acks="all")
    hurt.settle()
    hurt.stop("n1")
    with other_directory(hurt, "n1", tmp_path / "old"):
        hurt.launch("n1")
        hurt.settle()
        assert call("GET", f"{hurt.urls['n1']}/v1/entries/{vlsn}").body == b"not in the old copy"
    hurt.start("n1")


def test_nodes_told_at_once_all_stop_cleanly(hurt: Group) -> None:
    try:
        for _ in range(2):
            hurt.stop(*NAMES)
            hurt.start()
    finally:
        hurt.kill(*NAMES)
        hurt.start()


def test_the_copies_are_equal_block_by_block(hurt: Group) -> None:
    hurt.settle()
    for name in ("n3", "n2", "n1"):
        hurt.stop(name)
    verified(hurt, *NAMES)
    dumped = run_all(*(("dump", hurt.path(name), "--json") for name in NAMES))
    frames = [[json.loads(line) for line in ended.out.splitlines()] for ended in dumped]
    assert len(frames[0]) > MISSED
    assert blocks(hurt, "n1", frames[0]) == blocks(hurt, "n2", frames[1]) == blocks(hurt, "n3", frames[2])
    hurt.start()


def blocks(group: Group, name: str, frames: list[dict[str, Any]]) -> list[tuple[int, int, int, int, bytes]]:
    """Term, VLSNs, count and digest of the bytes of every block in a stopped node's log."""
    found = []
    files = {file: (group.path(name) / file).read_bytes() for file in {frame["file"] for frame in frames}}
    for frame in frames:
        assert (frame["kind"], frame["overmarked"], frame["damaged"]) == ("BLOCK", False, False)
        data, start = files[frame["file"]], frame["offset"] + FRAME_BYTES
        block = data[start : start + FRAME.unpack_from(data, frame["offset"])[3]]
        assert len(block) > BLOCK_BYTES
        names = (frame["term"], frame["first"], frame["last"], frame["count"])
        found.append((*names, hashlib.sha256(block).digest()))
    return found
