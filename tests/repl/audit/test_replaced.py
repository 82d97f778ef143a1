"""Copies whose segments were replaced after failed writes: the audit, verify and dump find nothing wrong in them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.repl.audit.jobs import audited
from tests.vlsn.logs import DIRECTORY, Machine, Opened
from tests.vlsn.write.test_checkpoint import run_of
from vlsn.format.segment import segment_name
from vlsn.ids import Vlsn
from vlsn.limits import STATE_MAP_BYTES
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state.options import LogOptions
from vlsn.state.state_store import StateStore
from vlsn.verify.dump import DumpFilter, dump_rows
from vlsn.verify.inspection import Rule
from vlsn.verify.verify import verify
from vlsnlog.testing.fakes.disk import Call

OPTIONS = LogOptions(segment_bytes=128 << 10, checkpoint_bytes=1 << 30, idle_end_s=0.0)


def fail_one(opened: Opened, rng: Random) -> None:
    kind, skip = rng.choice(("write", "sync")), rng.randrange(2)
    seen = [0]

    def when(call: Call) -> bool:
        group = opened.log.cycle.group
        if group is None or opened.log.replacer.active or call.name != kind:
            return False
        names = [f"{DIRECTORY}/{segment_name(chunk.tail.number)}" for chunk in group.chunks]
        seen[0] += call.path in names
        return seen[0] > skip and call.path in names

    opened.machine.disk.fail_at(when)


def exported(opened: Opened, path: Path) -> Path:
    """Its directory on a real disk: segments, sidecars, and what ``state`` says."""
    disk, state = opened.machine.disk, opened.log.care.state
    path.mkdir()
    for name in disk.files(DIRECTORY):
        if name.endswith((".vlog", ".vidx")):
            (path / Path(name).name).write_bytes(disk.content(name))
    store = StateStore(LmdbStores().open(str(path / "state"), map_bytes=STATE_MAP_BYTES))
    store.save(checkpoint=state.checkpoint(), record=state.record(), idle_end=state.idle_end())
    store.close()
    return path


@pytest.mark.parametrize("seed", range(4))
def test_equal_copies_after_failures_on_each(tmp_path: Path, seed: int) -> None:
    rng = Random(seed)
    copies = [Opened(Machine(seed), OPTIONS), Opened(Machine(seed + 100), OPTIONS, take_term=False)]
    master, replica = copies
    for number in range(80):
        for opened in copies:
            if rng.random() < 0.3:
                fail_one(opened, rng)
        assert master.append(f"{number}".encode().ljust(rng.choice((10, 300, 6000)), b".")).synced
        replica.log.append_blocks(
            run_of(master, replica.log.view.allocated + 1, master.log.view.allocated), lambda _: None
        )
        replica.log.view.raise_dtvlsn(Vlsn(master.log.view.range.last - 1))
        for opened in copies:
            opened.machine.disk.mend()
            if rng.random() < 0.1:
                opened.log.care.checkpointer.run()
            opened.machine.clock.advance(0.1)
            opened.log.tick()
            opened.log.tick()
            assert opened.failure is None
    assert min(opened.log.stats.rolls["error"] for opened in copies) >= 5
    paths = [exported(opened, tmp_path / f"n{number}") for number, opened in enumerate(copies, 1)]
    report = audited(*paths)
    assert (report.equal, report.findings) == (True, [])
    for path in paths:
        rows = list(dump_rows(PosixDisk(), LmdbStores(), str(path), DumpFilter()))
        assert not [row for row in rows if row.damaged]
        assert [row.first for row in rows if row.kind == "BLOCK"] == [1, *range(2, 82)]
        outside = verify(PosixDisk(), LmdbStores(), str(path))
        assert {finding.rule for finding in outside.findings} == {Rule.NODE_FILE}, outside.findings  # not exported
