"""The audit and repair of large copies: ``python -m tests.repl.audit.measure_repair [MB a copy]``.

Three copies; one bit of a block in the middle of the second is flipped.  Audited with Spark, repaired, audited again,
each by the command in a process of its own: what it said, how long it took, the memory of its largest process.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from tests.repl.audit.logs import Copy, numbered
from vlsn.real.disk import PosixDisk
from vlsn.state import node_file
from vlsn.state.node_file import NodeRecord

VLSNLOG = str(Path(sys.executable).with_name("vlsnlog"))
ENTRIES, ENTRY_BYTES, BLOCKS = 64, 1000, 500


def main(megabytes: int) -> None:
    with TemporaryDirectory(prefix="vlsnlog-measure-") as directory:
        copies = [Copy(Path(directory, node), node, segment_bytes=64 << 20) for node in ("n1", "n2", "n3")]
        first = 1
        while first * ENTRY_BYTES < megabytes * 1_000_000:
            story = numbered(BLOCKS, ENTRIES, ENTRY_BYTES, first_vlsn=first)
            first += BLOCKS * ENTRIES
            for copy in copies:
                copy.add(*story).write_sealed()
        for copy in copies:
            copy.write()
            record = NodeRecord(group="g", node=copy.path.name, incarnation=sum(copy.path.name.encode()), term=1)
            node_file.create(PosixDisk(), str(copy.path / "node.id"), record).close()
        hurt = copies[1]
        vlsn = sorted(hurt.places)[len(hurt.places) // 2]
        file, offset = hurt.flip(vlsn, 5000)
        size = sum(each.stat().st_size for each in hurt.path.glob("*.vlog"))
        print(f"3 copies of {size / 1e6:,.0f} MB, {first - 1:,} entries; a bit of VLSN {vlsn} flipped: {file} {offset}")
        paths, report = [str(copy.path) for copy in copies], str(Path(directory, "report.json"))
        outs = [option for ending in ("json", "html", "parquet") for option in ("--out", report[:-4] + ending)]
        run("audit", *paths, *outs)
        run("repair", paths[1], "--from-audit", report, "--dry-run")
        run("repair", paths[1], "--from-audit", report)
        run("audit", *paths)


def run(*arguments: str) -> None:
    begun = monotonic()
    process = subprocess.Popen([VLSNLOG, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    print(
        f"$ vlsnlog {arguments[0]}: exit {process.returncode}, {monotonic() - begun:.1f} s, {usage.ru_maxrss >> 10} MiB"
    )
    print("".join(f"    {line}\n" for line in said.splitlines()), end="")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
