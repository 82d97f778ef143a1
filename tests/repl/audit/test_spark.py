"""The audit on a real Spark: tasks, progress, the report's file.  ``test_audit`` has its findings."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from repl.audit import run_audit
from repl.audit.source import Unreadable
from tests.repl.audit.logs import STORY, Copy, blocks, three
from vlsn.errors import BadArgument

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("spark")]


def paths(made: list[Copy]) -> list[str]:
    return [str(copy.path) for copy in made]


def no_job_is_left(tracker: Any) -> None:
    """Spark tells its trackers of a job's end a moment after the job's caller."""
    deadline = time.monotonic() + 30
    while tracker.getActiveJobsIds():
        assert time.monotonic() < deadline, tracker.getActiveJobsIds()
        time.sleep(0.05)


@pytest.mark.feature("audit")
def test_equal_copies_are_proven_in_spark_tasks(tmp_path: Path, spark: Any) -> None:
    told: list[tuple[str, int, int]] = []
    out, page, table = (tmp_path / f"report.{ending}" for ending in ("json", "html", "parquet"))
    tracker = spark.sparkContext.statusTracker()
    report = run_audit(
        paths(three(tmp_path)),
        out=[str(out), str(page), str(table)],
        progress=lambda what, done, total: told.append((what, done, total)),
    )
    assert (report.equal, report.exit_code, report.compared_to) == (True, 0, 1990)
    surveyed, read = (max(total for what, _, total in told if what == name) for name in ("survey", "read"))
    assert report.tasks == surveyed + read
    assert surveyed == 3
    assert read > 3
    assert told[-1] == ("read", read, read)
    assert json.loads(out.read_text()) == json.loads(report.to_json())
    assert page.read_text().startswith("<!doctype html>")
    assert table.read_bytes()[:4] == b"PAR1"
    no_job_is_left(tracker)


def test_damage_and_divergence_come_back_from_tasks(tmp_path: Path) -> None:
    made = three(tmp_path)
    file, offset = made[0].flip(501, 120)
    other = blocks([f"paid {n}" for n in range(5)], first_vlsn=1001)[0]
    made[2] = Copy(tmp_path / "n3", "n3").add(*STORY[:200], other, *STORY[201:]).write()
    tasks: dict[str, int] = {}
    report = run_audit(paths(made), progress=lambda what, done, total: tasks.update({what: total}))
    damage, divergence = report.findings
    assert (damage.rule, damage.file, damage.offset, damage.vlsn) == ("frame-crc", file, offset, 501)
    assert (divergence.rule, divergence.source, divergence.vlsn) == ("divergence", str(made[2].path), 1001)
    assert (divergence.more["value"], divergence.more["other"]["value"][:10]) == ("paid 0", "value 1001")
    assert tasks["differences"] == 1
    assert (report.equal, report.exit_code, report.tasks) == (False, 1, sum(tasks.values()))


def test_what_cannot_run_is_refused_before_spark_is_asked(tmp_path: Path) -> None:
    made = paths(three(tmp_path))
    for sources, out, message in (
        (made[:1], [], "at least two"),
        ([made[0], made[0] + "/."], [], "named twice"),
        (made, [str(tmp_path / "report.txt")], "one of .json"),
        (made, [str(tmp_path / "gone" / "report.json")], "no directory"),
        (made, [made[1] + "/report.json"], "audited"),
    ):
        with pytest.raises(BadArgument, match=message):
            run_audit(sources, out=out)
    with pytest.raises(Unreadable, match="gone"):
        run_audit([made[0], str(tmp_path / "gone")])


def in_session(leader: int) -> dict[int, str]:
    """Returns the processes of a session, by id."""
    found = {}
    for each in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            name, _, fields = each.read_text().partition("(")[2].rpartition(")")
            if int(fields.split()[3]) == leader and fields.split()[0] != "Z":
                found[int(each.parent.name)] = name
    return found


def test_ctrl_c_ends_an_audit_quietly_and_its_jvm_with_it(tmp_path: Path) -> None:
    vlsnlog = Path(sys.executable).with_name("vlsnlog")
    auditing = subprocess.Popen(
        [vlsnlog, "audit", *paths(three(tmp_path))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    deadline = time.monotonic() + 180
    while "java" not in in_session(auditing.pid).values():
        assert auditing.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(auditing.pid, signal.SIGINT)  # as a terminal does: to all of them
    out, err = auditing.communicate(timeout=60)
    assert (auditing.returncode, out, err.strip()) == (130, b"", b"")
    deadline = time.monotonic() + 60
    while left := in_session(auditing.pid):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv.pop())
from pyspark.sql import SparkSession
from repl.audit import run_audit
from repl.audit.source import Unreadable

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("OFF")
print("equal", run_audit(sys.argv[1:3]).equal)
os.environ["PYSPARK_PYTHON"] = spark.sparkContext.pythonExec = sys.argv[3]
try:
    run_audit(sys.argv[1:3])
except Unreadable as error:
    print(error)
spark.stop()
"""


def test_it_runs_in_a_session_of_the_users_own(tmp_path: Path) -> None:
    """Nobody has activated the environment of this interpreter; then the workers get one without packages."""
    script, bare = tmp_path / "audit.py", tmp_path / "python"
    script.write_text(SCRIPT)
    bare.write_text(f'#!/bin/sh\nexec {os.path.realpath(sys.executable)} -S "$@"\n')
    bare.chmod(0o755)
    keep = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG", "JAVA_HOME")}
    here = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, str(script), *paths(three(tmp_path))[:2], str(bare), here],
        cwd=tmp_path,
        env={**keep, "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    equal, refused = done.stdout.splitlines()
    assert equal == "equal True"
    assert re.match(
        r"the Python of Spark's workers has no \w+: install vlsnlog for it, or name one that has it", refused
    )
