"""Lines of JSON in files: each event once, whatever ends at whatever moment; names, options, damage."""

from __future__ import annotations

import gzip
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from repl.cdc import CdcContext, CdcUnavailable
from repl.cdc.shipped.json_lines import JsonLines
from repl.web import ndjson
from tests.repl.cdc.shipped.feeding import Feeder, log_of
from vlsn.errors import BadArgument
from vlsn.format.block import Entry
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere

D = "/srv/out"


def lines_of(disk: FakeDisk, pattern: str = "") -> list[bytes]:
    """Returns the lines of all files, the open one last, by the VLSNs in their names."""
    files = [path for path in disk.files(D) if path.endswith((".jsonl", ".jsonl.gz"))]
    unfinished = [path for path in disk.files(D) if path.endswith(".open")]
    data = b"".join(
        gzip.decompress(disk.content(path)) if path.endswith(".gz") else disk.content(path)
        for path in [*files, *unfinished]
    )
    return data.splitlines(keepends=True)


def wanted(events: list[Entry]) -> list[bytes]:
    return ndjson.encode(events, kinds=False).splitlines(keepends=True)


def options(**more: Any) -> Mapping[str, Any]:
    return {"directory": D, "rotate_bytes": 64 * 1024, **more}


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets files rotate after some lines."""
    monkeypatch.setattr(JsonLines, "_rotates", lambda self: self._size >= 600)


def consumer(disk: FakeDisk) -> JsonLines:
    return JsonLines(disk)


@pytest.mark.parametrize("compress", ["none", "gzip"])
def test_each_event_is_once_in_the_files_at_any_stop_of_the_disk(
    compress: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    small(monkeypatch)
    for seed in range(4):
        log = log_of(Random(seed), 60)
        whole = FakeDisk()
        Feeder(log, options(compress=compress), Random(seed)).life(lambda: consumer(whole))  # noqa: B023
        calls = [call for call in whole.calls if call.changes]
        assert len([call for call in calls if call.name == "rename"]) > 5, "it rotates"
        for stop in range(1, len(calls) + 1):
            disk = FakeDisk(rng=Random(stop))
            feeder = Feeder(log, options(compress=compress), Random(seed))
            disk.stop_at(calls[stop - 1].number, moment=("before", "during", "after")[stop % 3])
            with pytest.raises(StopHere):
                feeder.life(lambda: consumer(disk))  # noqa: B023
            disk.power_cut(Random(stop), tear=bool(stop % 2)) if stop % 5 else disk.process_kill()
            feeder.life(lambda: consumer(disk))  # noqa: B023
            assert lines_of(disk) == wanted(feeder.events), (seed, stop)


@pytest.mark.parametrize("seed", range(12))
def test_each_event_is_once_in_the_files_over_many_crashes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    rng = Random(seed)
    log = log_of(rng, 400)
    disk = FakeDisk(rng=Random(seed))
    feeder = Feeder(log, options(compress=rng.choice(["none", "gzip"])), rng)
    done = False
    while not done:
        disk.stop_at(len(disk.calls) + rng.randrange(1, 120), moment=rng.choice(["before", "during", "after"]))
        try:
            feeder.life(lambda: consumer(disk))
            done = True
        except StopHere:
            disk.power_cut(Random(rng.random()), tear=rng.random() < 0.5) if rng.random() < 0.7 else disk.process_kill()
    assert feeder.lives > 3
    assert lines_of(disk) == wanted(feeder.events)


def test_a_torn_line_is_cut_and_its_event_given_again() -> None:
    disk = FakeDisk()
    log = log_of(Random(1), 40)
    feeder = Feeder(log, options(), Random(1))
    feeder.life(lambda: consumer(disk), 30)
    disk.process_kill()
    [path] = [path for path in disk.files(D) if path.endswith(".open")]
    file = disk.open(path, write=True)
    file.write(file.size(), [b'{"vlsn":31,"term":9,"time":5,"value":"half of' + bytes(20_000)])  # more than what comes
    file.close()
    feeder.life(lambda: consumer(disk))
    assert lines_of(disk) == wanted(feeder.events)
    assert not [each for each in disk.files(D) if each.endswith("damaged")]


def test_a_line_that_was_stored_and_does_not_read_back_is_given_again_and_the_file_kept() -> None:
    disk = FakeDisk()
    log = log_of(Random(2), 40)
    feeder = Feeder(log, options(), Random(2))
    feeder.life(lambda: consumer(disk), 30)
    feeder.position, feeder.held = 31, 1  # nothing was cleaned
    disk.process_kill()
    [path] = [path for path in disk.files(D) if path.endswith(".open")]
    before = disk.content(path)
    disk.flip_bit(path, before.index(b'{"vlsn"', 400), 3)
    bad = disk.content(path)
    feeder.life(lambda: consumer(disk))
    assert lines_of(disk) == wanted(feeder.events)
    [kept] = [each for each in disk.files(D) if each.endswith("damaged")]
    assert disk.content(kept) == bad


def test_a_person_moves_it_and_the_files_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    disk = FakeDisk()
    log = log_of(Random(3), 60)
    feeder = Feeder(log, options(), Random(3))
    feeder.life(lambda: consumer(disk), 20)
    feeder.position = feeder.held = 41
    feeder.moved_us = 1
    feeder.life(lambda: consumer(disk))
    assert lines_of(disk) == wanted([entry for entry in feeder.events if entry.vlsn <= 20 or entry.vlsn > 40])
    feeder.position = feeder.held = 10
    feeder.moved_us = 2
    for path in disk.files(D):
        if path.endswith((".jsonl", ".open")):
            disk.remove(path)  # put away
    feeder.life(lambda: consumer(disk))
    assert lines_of(disk) == wanted([entry for entry in feeder.events if entry.vlsn >= 10])


@pytest.mark.parametrize("compress", ["none", "gzip"])
def test_an_order_that_is_told_again_is_obeyed_once(compress: str, monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    disk = FakeDisk()
    log = log_of(Random(8), 60)
    feeder = Feeder(log, options(compress=compress), Random(8))
    feeder.life(lambda: consumer(disk), 20)
    feeder.position, feeder.moved_us, feeder.stores = 31, 7, 0.0
    for upto in (40, 45, 60):
        feeder.life(lambda: consumer(disk), upto)
        disk.process_kill()  # before the node has stored anything behind the order
    assert lines_of(disk) == wanted([entry for entry in feeder.events if entry.vlsn <= 20 or entry.vlsn > 30])


def test_a_full_disk_is_waited_for() -> None:
    disk = FakeDisk(capacity_bytes=9000)
    feeder = Feeder(log_of(Random(4), 300), options(), Random(4))
    with pytest.raises(CdcUnavailable, match="No space left"):
        feeder.life(lambda: consumer(disk))
    disk.process_kill()
    disk.capacity_bytes = 1 << 30
    feeder.life(lambda: consumer(disk))
    assert lines_of(disk) == wanted(feeder.events)


def test_a_file_is_closed_by_its_age_while_no_event_comes(tmp_path: Path) -> None:
    made = JsonLines()
    feeder = Feeder(log_of(Random(5), 10), {"directory": str(tmp_path), "rotate_s": 1}, Random(5))
    monitored = _Open(made)
    feeder.life(lambda: monitored)  # type: ignore[arg-type, return-value]
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("orders-*.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    made.stop()
    assert not list(tmp_path.glob("*.open"))


class _Open:
    """A consumer that is not stopped."""

    def __init__(self, inner: JsonLines) -> None:
        self.start, self.on_events = inner.start, inner.on_events

    def stop(self) -> None: ...


def test_one_process_at_a_time_has_a_directory() -> None:
    disk = FakeDisk()
    log = log_of(Random(6), 10)
    first = consumer(disk)
    first.start(Feeder(log, options(), Random(6)).context())
    with pytest.raises(CdcUnavailable, match="another process"):
        consumer(disk).start(Feeder(log, options(), Random(6)).context())
    consumer(disk).start(Feeder(log, options(), Random(6), name="others").context())
    first.stop()
    _published(disk)
    with pytest.raises(BadArgument, match="group g, this is h"):
        consumer(disk).start(Feeder(log, options(), Random(6), group="h").context())


def _published(disk: FakeDisk) -> None:
    from repl.cdc.shipped.folder import Folder

    folder = Folder(disk, D, group="g", consumer="orders")
    folder.open()
    folder.move(CdcContext("orders", "n1", "g", 5, position_term=1))
    folder.close()


def test_names_follow_the_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    disk = FakeDisk()
    pattern = "{group}/{date}/{hour}/{consumer}-{node}-{first}-{last}"
    feeder = Feeder(log_of(Random(7), 60), options(pattern=pattern), Random(7))
    feeder.life(lambda: consumer(disk))
    paths = disk.files(f"{D}/g/2026-11-18/11") or disk.files(f"{D}/g/2026-11-18/10")
    assert paths and all("orders-n1-000000" in path and path.endswith(".jsonl") for path in paths), paths


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "missing required field `directory`"),
    ({"directory": "out"}, "no absolute path"),
    ({"directory": D, "rotates_bytes": 5}, "did you mean 'rotate_bytes'"),
    ({"directory": D, "colour": 5}, "there are directory, rotate_bytes"),
    ({"directory": D, "rotate_bytes": 1}, "rotate_bytes: Expected `int` >= 65536"),
    ({"directory": D, "rotate_bytes": "1GiB"}, "rotate_bytes: Expected `int` <= 268435456"),
    ({"directory": D, "rotate_bytes": "many"}, "rotate_bytes"),
    ({"directory": D, "rotate_s": 0}, "rotate_s: Expected `float` >= 1.0"),
    ({"directory": D, "compress": "zip"}, "compress: Invalid enum value 'zip'"),
    ({"directory": D, "pattern": "{consumer}"}, "has no {first}"),
    ({"directory": D, "pattern": "{first}/{what}"}, "write A-Z"),
    ({"directory": D, "pattern": "../{first}"}, "no relative path"),
    ({"directory": D, "pattern": "/{first}"}, "no relative path"),
    ({"directory": D, "pattern": "{first} {last}"}, "write A-Z"),
]


@pytest.mark.parametrize(("given", "said"), BAD, ids=[said for _, said in BAD])
def test_options_that_are_wrong_are_refused_before_anything_is_written(given: dict[str, Any], said: str) -> None:
    disk = FakeDisk()
    with pytest.raises(BadArgument) as refused:
        consumer(disk).start(CdcContext("orders", "n1", "g", 1, given))
    assert said in str(refused.value)
    assert not [call for call in disk.calls if call.changes]


def test_it_runs_on_each_node_and_not_on_the_master() -> None:
    with pytest.raises(BadArgument, match='run_on = "node"'):
        consumer(FakeDisk()).start(CdcContext("orders", "n1", "g", 1, {"directory": D}, run_on="master"))
