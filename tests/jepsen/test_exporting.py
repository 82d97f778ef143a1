"""An export under SIGKILL, short: each entry is in the target once, whatever was killed when."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from harness.exporting import Verdict, check_target, run_exporting

from repl.export.manifest import decode, encode

pytestmark = pytest.mark.real


def test_an_export_that_is_killed_writes_each_entry_once(tmp_path: Path) -> None:
    said: list[str] = []
    verdict = asyncio.run(run_exporting(tmp_path, kills=2, seed=5, say=said.append))
    assert verdict.valid, "\n".join([*said, *verdict.differences])
    assert verdict.killed_exports == 2
    assert verdict.batches > 0

    # The judge sees what it must: a file twice, and one that is gone.
    to, wrong = tmp_path / "lake", Verdict()
    check_target(to, wrong)
    assert wrong.differences == []
    file = next(path for path in sorted(to.rglob("*.parquet")))
    copy = file.with_name("1" + file.name)
    copy.write_bytes(file.read_bytes())
    check_target(to, wrong)
    assert "a reader of every file sees an entry twice" in wrong.differences
    copy.unlink()
    manifest = max((to / "_manifests").glob("*.json"))
    held = decode(manifest.read_bytes(), manifest.name)
    manifest.with_name(f"{held.number + 2:020}.json").write_bytes(manifest.read_bytes())
    later = manifest.with_name(f"{held.number + 2:020}.json")
    later.write_bytes(encode(held).replace(b'"number": %d' % held.number, b'"number": %d' % (held.number + 2)))
    wrong = Verdict()
    check_target(to, wrong)
    assert any("not " in each for each in wrong.differences)
