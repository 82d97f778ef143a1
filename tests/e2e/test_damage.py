"""A stopped node's directory with one byte flipped: ``verify`` exits 1 and says where; a damaged node says so, too."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest

from repl.cli.main import main
from tests.e2e.calls import BLOCKS, OCTETS, call
from tests.e2e.commands import run
from tests.e2e.group import Group
from vlsn.real.disk import PosixDisk
from vlsn.segments.directory import survey

FLIPS = 100


@dataclass(frozen=True, slots=True)
class Stopped:
    """The copy of a cleanly stopped node's directory."""

    path: Path
    ends: dict[str, int]
    """Sealed segments, and where the log ends in each."""
    frames: list[dict[str, Any]]
    """The frames of ``dump --all``."""

    def frame_at(self, file: str, offset: int) -> dict[str, Any]:
        """Returns the frame that this byte is in."""
        return max(
            (frame for frame in self.frames if frame["file"] == file and frame["offset"] <= offset),
            key=lambda frame: int(frame["offset"]),
        )

    def vlsn_after(self, frame: dict[str, Any]) -> int:
        """Returns the frame's first VLSN; of a local record, the next one that the log has."""
        behind = [each for each in self.frames if each["lsn"] >= frame["lsn"] and each["first"]]
        return int(behind[0]["first"]) if behind else 0


@pytest.fixture(scope="module")
def stopped(hurt_before: Group, tmp_path_factory: pytest.TempPathFactory) -> Stopped:
    hurt = hurt_before
    rng = Random(5)
    for round in range(3):
        hurt.append(*[rng.randbytes(rng.choice((0, 1, 7, 100, 5_000))) for _ in range(30)])
        call("POST", f"{hurt.master}/v1/entries?key=k{round}", body=b"keyed", headers=OCTETS).ok()
        hurt.settle()
        call("POST", f"{hurt.urls['n2']}/v1/admin/checkpoint").ok()
        call("POST", f"{hurt.urls['n2']}/v1/admin/rotate").ok()
    hurt.append(b"in the last segment")
    hurt.settle()
    hurt.stop("n2")
    path = tmp_path_factory.mktemp("stopped") / "n2"
    shutil.copytree(hurt.path("n2"), path)
    hurt.start("n2")
    ends = {info.name: info.live_end for info in survey(PosixDisk(), str(path)) if info.live_end is not None}
    assert len(ends) >= 3
    dumped = run("dump", path, "--json", "--all")
    assert (dumped.status, dumped.err) == (0, "")
    return Stopped(path, ends, [json.loads(line) for line in dumped.out.splitlines()])


@contextmanager
def flipped(path: Path, offset: int, mask: int) -> Iterator[None]:
    """The byte at ``offset`` xor ``mask``, for a while."""
    with path.open("r+b", buffering=0) as file:
        file.seek(offset)
        (byte,) = file.read(1)
        for value in (byte ^ mask, byte):
            file.seek(offset)
            file.write(bytes([value]))
            if value != byte:
                try:
                    yield
                except BaseException:
                    file.seek(offset)
                    file.write(bytes([byte]))
                    raise


def verify(path: Path, capture: pytest.CaptureFixture[bytes]) -> tuple[int, list[dict[str, Any]]]:
    """Exit status and findings."""
    capture.readouterr()
    status = main(["verify", str(path), "--json"])
    out, err = capture.readouterr()
    assert err == b""
    report = json.loads(out)
    assert report["ok"] is (not report["findings"])
    return status, report["findings"]


def test_a_stopped_node_verifies(stopped: Stopped, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert verify(stopped.path, capfdbinary) == (0, [])


def test_a_flip_in_a_block_is_named_by_file_offset_and_vlsn(stopped: Stopped) -> None:
    file = list(stopped.ends)[1]
    frame = next(each for each in stopped.frames if each["file"] == file and each["kind"] == "BLOCK")
    with flipped(stopped.path / file, frame["offset"] + 100, 0x01):
        told = run("verify", stopped.path)
    assert (told.status, told.err) == (1, "")
    line = told.out.decode().splitlines()[0]
    assert line.startswith("finding: ")
    assert f"{file} offset {frame['offset']} VLSN {frame['first']}: " in line
    assert "NOT OK" in told.out.decode().splitlines()[-1]


def test_every_flip_of_a_living_byte_is_found_where_it_is(
    stopped: Stopped, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    rng = Random(8)
    for _ in range(FLIPS):
        file, end = rng.choice(list(stopped.ends.items()))
        offset, mask = rng.randrange(end), rng.randrange(1, 256)
        with flipped(stopped.path / file, offset, mask):
            status, findings = verify(stopped.path, capfdbinary)
        where = f"{file} at {offset} ^ {mask:#x}: {findings}"
        assert status == 1, where
        assert all({"rule", "file", "offset", "vlsn"} <= finding.keys() for finding in findings), where
        if offset < 4096:
            assert {"file": file, "offset": 0}.items() <= findings[0].items(), where
        else:
            frame = stopped.frame_at(file, offset)
            named = {(finding["file"], finding["offset"], finding["vlsn"]) for finding in findings}
            assert (file, frame["offset"], stopped.vlsn_after(frame)) in named, where
    assert verify(stopped.path, capfdbinary) == (0, [])


def test_dead_bytes_may_be_anything(stopped: Stopped, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    rng = Random(13)
    for file, end in stopped.ends.items():
        size = (stopped.path / file).stat().st_size
        with flipped(stopped.path / file, rng.randrange(end, size), rng.randrange(1, 256)):
            assert verify(stopped.path, capfdbinary) == (0, [])


def test_a_flip_in_a_sidecar_is_found(stopped: Stopped, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    rng = Random(21)
    sidecars = sorted(stopped.path.glob("*.vidx"))
    assert sidecars
    for sidecar in sidecars:
        for _ in range(5):
            with flipped(sidecar, rng.randrange(sidecar.stat().st_size), rng.randrange(1, 256)):
                status, findings = verify(stopped.path, capfdbinary)
            assert status == 1
            assert {finding["file"] for finding in findings} == {sidecar.name}


def test_a_segment_that_is_gone_is_found(stopped: Stopped, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    file = list(stopped.ends)[1]
    (stopped.path / file).rename(stopped.path / "aside")
    try:
        status, findings = verify(stopped.path, capfdbinary)
    finally:
        (stopped.path / "aside").rename(stopped.path / file)
    assert status == 1
    first = next(frame["first"] for frame in stopped.frames if frame["file"] == file and frame["first"])
    assert ("gap", file, first) in {(finding["rule"], finding["file"], finding["vlsn"]) for finding in findings}


def test_verify_never_writes(stopped: Stopped, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    def seen() -> dict[str, tuple[int, int]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size)
            for path in stopped.path.rglob("*")
            if path.is_file()
        }

    before = seen()
    verify(stopped.path, capfdbinary)
    main(["dump", str(stopped.path), "--all"])
    assert seen() == before


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
