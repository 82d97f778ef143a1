"""A daily audit's cost: ``python -m tests.repl.audit.measure_since [MB a copy] [rounds]``, in a temporary directory.

Three copies, audited whole; then 1 % more log, audited whole and from the report of before, turn by turn, on one warm
Spark.  The fixed cost of a Spark job is that of an audit of three copies of ten blocks.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from repl.audit import run_audit
from repl.audit.report import AuditReport
from repl.audit.session import spark_context
from tests.repl.audit.logs import Copy, numbered

ENTRIES = 64
ENTRY_BYTES = 100
SEGMENT_BYTES = 64 << 20


def main(megabytes: int, rounds: int) -> None:
    count = megabytes * 1_000_000 // (ENTRIES * (ENTRY_BYTES + 4) + 92)
    with TemporaryDirectory(prefix="vlsnlog-measure-") as directory, spark_context("local[2]"):
        root = Path(directory)
        small = [str(_copy(root / "small" / node, numbered(10)).path) for node in ("n1", "n2", "n3")]
        for _ in range(2):
            run_audit(small)
        fixed = median(run_audit(small).seconds for _ in range(rounds))
        story = numbered(count + count // 100, ENTRIES, ENTRY_BYTES)
        paths = [root / node for node in ("n1", "n2", "n3")]
        for path in paths:
            _copy(path, story[:count])
        report = root / "report.json"
        first = run_audit([*map(str, paths)], out=[str(report)])
        assert first.equal
        for path in paths:
            _grown(path, story)
        del story
        both: list[tuple[AuditReport, AuditReport]] = []
        for _ in range(rounds):
            whole = run_audit([*map(str, paths)])
            since = run_audit([*map(str, paths)], since_last=str(report))
            assert whole.equal and since.equal and since.compared_to == whole.compared_to > first.compared_to
            assert [each.ranges for each in whole.sources] == [each.ranges for each in since.sources]
            both.append((whole, since))
        full, daily = (median(pair[which].seconds for pair in both) for which in (0, 1))
        told = both[0][1].since
        assert told is not None
        read = both[0][1].bytes - told.bytes_kept
        print(f"3 copies of {both[0][0].bytes / 3e6:.0f} MB, {ENTRIES} entries a block; median of {rounds}")
        print(f"an audit of 3 x 10 blocks: {fixed:.2f} s; whole: {full:.2f} s; --since-last: {daily:.2f} s")
        print(
            f"--since-last read {read / 1e6:.0f} MB of {both[0][1].bytes / 1e6:.0f}; past the fixed cost "
            f"{max(daily - fixed, 0) / (full - fixed):.3f} of the whole audit's time"
        )


def _copy(path: Path, blocks: list[bytes]) -> Copy:
    copy = Copy(path, path.name, segment_bytes=SEGMENT_BYTES)
    return copy.add(*blocks).write()


def _grown(path: Path, blocks: list[bytes]) -> None:
    """Writes the copy again with more blocks; files that do not change keep their times."""
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.glob("*.vlog")}
    _copy(path, blocks)
    for file, (time_ns, data) in before.items():
        if file.read_bytes() == data:
            os.utime(file, ns=(time_ns, time_ns))


if __name__ == "__main__":
    main(*(int(each) for each in [*sys.argv[1:], "1000", "3"][:2]))
