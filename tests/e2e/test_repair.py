"""A flipped bit in one of three copies: found by the audit, named, repaired, and the node is a member again."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from repl.audit.outputs import write_outputs
from tests.e2e.calls import call
from tests.e2e.commands import run
from tests.e2e.group import NAMES, Group
from tests.repl.audit.jobs import audited
from vlsn.format.segment import FIRST_FRAME

pytestmark = pytest.mark.feature("repair")


def test_a_flipped_bit_is_found_named_and_repaired_and_the_node_serves_again(hurt: Group, tmp_path: Path) -> None:
    rng = Random(8)
    for _ in range(4):
        hurt.append(*[rng.randbytes(rng.choice((1, 100, 5_000))) for _ in range(40)])
        hurt.settle()
        call("POST", f"{hurt.urls['n3']}/v1/admin/rotate").ok()
    hurt.append(b"behind it")
    hurt.settle()
    hurt.stop("n3")
    path = hurt.path("n3")
    rows = [json.loads(line) for line in run("dump", path, "--all", "--json").out.splitlines()]
    newest = [row for row in rows if row["kind"] == "BLOCK" and row["offset"] > FIRST_FRAME][-8]
    file = path / newest["file"]
    data = bytearray(file.read_bytes())
    data[newest["offset"] + 100] ^= 0x04
    file.write_bytes(data)

    report = audited(hurt.urls["n1"], hurt.urls["n2"], path)
    (finding,) = report.findings
    assert (finding.source, finding.file, finding.offset) == (str(path), newest["file"], newest["offset"])
    assert finding.vlsn == newest["first"]
    write_outputs(report, [str(tmp_path / "report.json")])
    dry = run("repair", path, "--from-audit", tmp_path / "report.json", "--dry-run", "--json")
    (place,) = json.loads(dry.out)["places"]
    assert (place["file"], place["first"], place["last"]) == (newest["file"], newest["first"], newest["last"])
    done = run("repair", path, "--from-audit", tmp_path / "report.json")
    assert done.status == 0, done
    assert run("verify", path).status == 0
    assert (path / f"{newest['file'][:-5]}.damaged-{newest['offset']}").exists()
    again = audited(hurt.urls["n1"], hurt.urls["n2"], path)
    assert (again.exit_code, again.findings) == (0, [])

    running = run("repair", hurt.path("n2"), "--from-audit", tmp_path / "report.json")
    assert (running.status, "n2" in running.err) == (2, True)
    hurt.start("n3")
    assert {hurt.status(name)["state"] for name in NAMES} == {"MASTER", "REPLICA"}
    assert hurt.status("n3")["state"] == "REPLICA"
    hurt.append(b"and on")
    hurt.settle()
    assert audited(*(hurt.urls[name] for name in NAMES)).exit_code == 0
