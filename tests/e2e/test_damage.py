"""A node with one byte flipped in its log: it names the place, serves the rest, and is mended by its peers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.calls import BLOCKS, call
from tests.e2e.commands import run
from tests.e2e.group import Group


@dataclass(frozen=True, slots=True)
class Wound:
    """A replica that runs alone, with the middle one of five blocks damaged in a sealed segment."""

    url: str
    directory: Path
    vlsns: list[int]
    frame: dict[str, Any]


@pytest.fixture
def wound(hurt: Group) -> Iterator[Wound]:
    """Damages a block while the others are stopped, so that nobody can give it. They are back afterwards, and it is
    whole."""
    vlsns = hurt.append(*[b"%d" % number * 1000 for number in range(5)])
    hurt.settle()
    call("POST", f"{hurt.urls['n3']}/v1/admin/rotate").ok()
    vlsns += hurt.append(b"behind it")
    hurt.settle()
    hurt.stop("n1", "n2", "n3")
    dumped = run("dump", hurt.path("n3"), "--json", "--from", str(vlsns[2]), "--to", str(vlsns[2]))
    frame = json.loads(dumped.out)
    path = hurt.path("n3") / frame["file"]
    with path.open("r+b", buffering=0) as file:
        file.seek(frame["offset"] + 200)
        (byte,) = file.read(1)
        file.seek(frame["offset"] + 200)
        file.write(bytes([byte ^ 0x80]))
    hurt.launch("n3")
    hurt.until(lambda: int(hurt.status("n3").get("dtvlsn") or 0) >= vlsns[-1], "n3 has opened its log")
    yield Wound(f"{hurt.urls['n3']}/v1/entries", hurt.path("n3"), vlsns, frame)
    for name in ("n1", "n2"):
        if not hurt.running(name):
            hurt.launch(name)
    hurt.settle()
    url = f"{hurt.urls['n3']}/v1/entries/{vlsns[2]}"
    hurt.until(lambda: call("GET", url).status == 200, "the block is mended")
    hurt.until(lambda: not hurt.status("n3")["damage"], "and n3 knows it")


def test_a_node_says_what_it_cannot_read_and_serves_the_rest(hurt: Group, wound: Wound) -> None:
    damaged, last = wound.vlsns[2], wound.vlsns[-1]
    told = call("GET", f"{wound.url}/{damaged}").refused(500, "damaged")
    place = {"file": wound.frame["file"], "offset": wound.frame["offset"], "vlsn": damaged}
    assert place.items() <= told.items()
    call("GET", f"{wound.url}?from={damaged}").refused(500, "damaged")
    call("GET", f"{wound.url}?from={damaged}", headers=BLOCKS).refused(500, "damaged")
    page = call("GET", f"{wound.url}?from={wound.vlsns[0]}&limit=2")
    assert [row["vlsn"] for row in page.lines()] == wound.vlsns[:2]
    whole = call("GET", f"{wound.url}?from={wound.vlsns[0]}", headers=BLOCKS)
    assert (whole.status, whole.headers["vlsnlog-next"]) == (200, str(damaged))
    assert call("GET", f"{wound.url}/{last}").body == b"behind it"
    (said,) = hurt.status("n3")["damage"]
    assert said["file"] == wound.frame["file"]
    told_live = run("verify", wound.directory, "--live")
    assert told_live.status == 1
    assert f"{wound.frame['file']} offset {wound.frame['offset']} VLSN {damaged}" in told_live.out.decode()


def test_entries_before_a_damaged_one_are_served(wound: Wound) -> None:
    page = call("GET", f"{wound.url}?from={wound.vlsns[0]}")
    assert page.status == 200
    assert [row["vlsn"] for row in page.lines()] == wound.vlsns[:2]
    assert page.headers["vlsnlog-next"] == str(wound.vlsns[2])


@pytest.mark.feature("mending")
def test_a_flipped_bit_in_a_stopped_replicas_sealed_segment_is_mended_from_a_peer(hurt: Group, wound: Wound) -> None:
    """The scrub finds it: nobody reads it."""
    hurt.start("n1", "n2")
    kept = wound.directory / wound.frame["file"].replace(".vlog", f".damaged-{wound.frame['offset']}")
    hurt.until(kept.exists, "the damaged bytes are kept aside")
    hurt.until(lambda: not hurt.status("n3")["damage"], "n3 is whole")
    assert call("GET", f"{wound.url}/{wound.vlsns[2]}").body == b"2" * 1000
    told = run("verify", wound.directory, "--live")
    assert told.status == 0, told.out
    hurt.stop("n3")
    told = run("verify", wound.directory)
    assert told.status == 0, told.out
    hurt.start("n3")
