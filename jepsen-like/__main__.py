"""The fault tests' command: ``python jepsen-like run | check | upgrade | hostile | failover | pipeline |
cdc-postgres | spark-pipeline | export | syscalls``.

Exit status: 0 all promises hold; 1 one does not; 2 the run had no verdict.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness.cluster import NODES, ClusterFailed
from harness.command import add_options, check_command, run_command, upgrade_command
from harness.exporting import run_exporting
from harness.failover import WORDS, good, measure, summary
from harness.hostile import command as hostile
from harness.pipeline import run_pipeline
from harness.spark_pipeline import run_spark_pipeline
from harness.syscalls import APPENDS, WRITERS_MAX, trace_appends

from vlsn.errors import VlsnLogError


def main() -> int:
    options = _parser().parse_args()
    try:
        status: int = options.run(options)
    except KeyboardInterrupt:
        return 130
    return status


def _in_directory(fault: Callable[[argparse.Namespace, Path], int], options: argparse.Namespace) -> int:
    directory = Path(options.dir or tempfile.mkdtemp(prefix="vlsnlog-faults-")).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        print(f"{directory} is not empty: give --dir an empty or a new directory", file=sys.stderr)
        return 2
    try:
        status = fault(options, directory)
    except ClusterFailed as error:
        print(f"no verdict: {error}", file=sys.stderr)
        status = 2
    if options.dir is None and status == 0:
        shutil.rmtree(directory)
    else:
        print(f"kept: {directory}", file=sys.stderr)
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python jepsen-like", description=__doc__)
    commands = (
        "run | check | upgrade | hostile | failover | pipeline | cdc-postgres | spark-pipeline | export | syscalls"
    )
    faults = parser.add_subparsers(required=True, metavar=commands)
    running = faults.add_parser("run", help="concurrent clients under faults of any kind, and checks of their answers")
    add_options(running)
    running.set_defaults(run=run_command)
    checking = faults.add_parser("check", help="check the history of a run again")
    checking.add_argument("history", type=Path, help="a run's directory, or its history.jsonl")
    checking.set_defaults(run=check_command)
    attacking = faults.add_parser("hostile", help="attacks on a group from outside: floods, forgeries, broken files")
    hostile.add_options(attacking)
    attacking.set_defaults(run=partial(_in_directory, partial(hostile.hostile, say=_say)))
    losing = faults.add_parser(
        "failover", help="how long no append is accepted after the master is killed, stopped, or transfers leadership"
    )
    losing.add_argument("--rounds", type=int, default=20)
    losing.add_argument("--nodes", type=int, choices=(3, 5), default=NODES)
    losing.add_argument("--writers", type=int, default=8)
    ways = losing.add_mutually_exclusive_group()
    ways.add_argument("--transfer", dest="way", action="store_const", const="transfer", help="planned, not SIGKILL")
    ways.add_argument("--pause", dest="way", action="store_const", const="pause", help="SIGSTOP, not SIGKILL")
    losing.set_defaults(way="kill")
    losing.set_defaults(run=partial(_in_directory, _failover))
    copying = faults.add_parser("pipeline", help="read, transform, append: each entry once, whatever is killed")
    copying.add_argument(
        "--groups", type=int, choices=(1, 2), default=1, help="1: to the same group; 2: to another group"
    )
    copying.add_argument("--nodes", type=int, choices=(3, 5), default=NODES)
    copying.add_argument("--time", type=float, default=60.0, help="seconds of faults")
    copying.add_argument("--seed", type=int, default=random.randrange(2**32))
    copying.set_defaults(run=partial(_in_directory, _pipeline))
    upgrading = faults.add_parser(
        "upgrade", help="the previous version is upgraded under load, one node after the other"
    )
    upgrading.add_argument("--previous", required=True, metavar="REVISION", help="of git; goes into build/previous")
    add_options(upgrading)
    upgrading.set_defaults(run=upgrade_command, workload=None, nemesis="none")
    exporting = faults.add_parser("export", help="an export under SIGKILL: each entry once in the target")
    exporting.add_argument("--kills", type=int, default=20, help="kills of the export; the master is killed as well")
    exporting.add_argument("--seed", type=int, default=random.randrange(2**32))
    exporting.set_defaults(run=partial(_in_directory, _export))
    storing = faults.add_parser("cdc-postgres", help="rows in PostgreSQL: each entry once, whatever is killed")
    storing.add_argument("--nodes", type=int, choices=(3, 5), default=NODES)
    storing.add_argument("--time", type=float, default=120.0, help="seconds of faults")
    storing.add_argument("--seed", type=int, default=random.randrange(2**32))
    storing.set_defaults(run=partial(_in_directory, _cdc_postgres))
    streaming = faults.add_parser("spark-pipeline", help="a stream between two groups, submitted to a standalone Spark")
    streaming.add_argument("--nodes", type=int, choices=(3, 5), default=NODES)
    streaming.add_argument("--time", type=float, default=300.0, help="seconds of faults")
    streaming.add_argument("--drivers", type=int, default=2, help="how often the driver is killed")
    streaming.add_argument("--executors", type=int, default=2, help="how often an executor is killed")
    streaming.add_argument("--seed", type=int, default=random.randrange(2**32))
    streaming.set_defaults(run=partial(_in_directory, _spark_pipeline))
    tracing = faults.add_parser("syscalls", help="show each append's completed sync on a majority, by strace")
    tracing.add_argument("--appends", type=int, default=APPENDS)
    tracing.add_argument(
        "--writers", type=int, default=1, help="writers at once; with more than one, appends share syncs"
    )
    tracing.set_defaults(run=partial(_in_directory, _syscalls))
    for each in (attacking, losing, copying, storing, streaming, exporting, tracing):
        each.add_argument("--dir", help="where the nodes' data goes, and stays; default: temporary, kept on a finding")
    return parser


def _pipeline(options: argparse.Namespace, directory: Path) -> int:
    _say(f"seed {options.seed}, {options.groups} groups of {options.nodes}, {options.time:g} s")
    verdict = asyncio.run(
        run_pipeline(
            directory,
            groups=options.groups,
            nodes=options.nodes,
            time_s=options.time,
            seed=options.seed,
            say=_say,
        )
    )
    outputs = f"{verdict.outputs:,} outputs of {verdict.acknowledged:,} acknowledged inputs"
    return _told(verdict.differences, outputs, "each once, in order" if verdict.valid else None)


def _cdc_postgres(options: argparse.Namespace, directory: Path) -> int:
    from harness.cdc_postgres import run_cdc_postgres  # psycopg is one of several extras
    from harness.postgres import NoPostgres

    _say(f"seed {options.seed}, a group of {options.nodes} and a PostgreSQL server, {options.time:g} s")
    try:
        verdict = asyncio.run(
            run_cdc_postgres(directory, nodes=options.nodes, time_s=options.time, seed=options.seed, say=_say)
        )
    except NoPostgres as error:
        raise ClusterFailed(str(error)) from None
    counted = f"{verdict.rows:,} rows of {verdict.entries:,} entries, digest {verdict.digest[:16]}"
    return _told(verdict.differences, counted, "the log, each entry once" if verdict.valid else None)


def _told(differences: list[str], counted: str, holds: str | None) -> int:
    """Prints a verdict, and returns its exit status; ``holds`` is None if a promise does not hold."""
    for each in differences:
        _say(each)
    _say(f"{counted}: {holds or 'NOT valid'}")
    return 0 if holds else 1


def _export(options: argparse.Namespace, directory: Path) -> int:
    _say(f"export: {options.kills} kills, --seed {options.seed}")
    verdict = asyncio.run(run_exporting(directory, kills=options.kills, seed=options.seed, say=_say))
    for each in verdict.differences:
        _say(each)
    _say(
        f"{verdict.killed_exports} kills of the export ({verdict.staged} left staged files, {verdict.unpublished} "
        f"committed files not in place), {verdict.killed_masters} of the master"
    )
    rows = f"{verdict.rows:,} rows in {verdict.files:,} files of {verdict.batches:,} batches"
    return _told([], rows, "the log, each entry once, in order" if verdict.valid else None)


def _spark_pipeline(options: argparse.Namespace, directory: Path) -> int:
    _say(f"seed {options.seed}, two groups of {options.nodes}, {options.time:g} s")
    verdict = asyncio.run(
        run_spark_pipeline(
            directory,
            nodes=options.nodes,
            time_s=options.time,
            drivers=options.drivers,
            executors=options.executors,
            seed=options.seed,
            say=_say,
        )
    )
    outputs = f"{verdict.outputs:,} outputs of {verdict.acknowledged:,} acknowledged inputs"
    return _told(verdict.differences, outputs, "each once, in order of its key" if verdict.valid else None)


def _failover(options: argparse.Namespace, directory: Path) -> int:
    _say(f"failover: {options.rounds} rounds of {WORDS[options.way]}, {options.nodes} nodes, {options.writers} writers")
    measuring = measure(
        directory,
        rounds=options.rounds,
        nodes=options.nodes,
        writers=options.writers,
        way=options.way,
        say=_say,
    )
    try:
        measured = asyncio.run(measuring)
    except (TimeoutError, VlsnLogError) as error:
        raise ClusterFailed(f"{type(error).__name__} {error}") from None
    for line in summary(measured, way=options.way):
        _say(line)
    return 0 if good(measured, way=options.way) else 1


def _syscalls(options: argparse.Namespace, directory: Path) -> int:
    if not 1 <= options.writers <= WRITERS_MAX:
        raise ClusterFailed(f"--writers {options.writers}: between 1 and {WRITERS_MAX}")
    how = "one at a time" if options.writers == 1 else f"by {options.writers} writers at once"
    _say(f"syscalls: {options.appends} appends, {how}, data and traces in {directory}")
    shown = asyncio.run(trace_appends(directory, appends=options.appends, writers=options.writers, say=_say))
    majority = NODES // 2 + 1
    by_nodes = Counter(len(each.synced) for each in shown)
    for nodes in sorted(by_nodes, reverse=True):
        _say(f"  its sync completed before the answer on {nodes} of {NODES} nodes: {by_nodes[nodes]:>6} appends")
    lacking = [each for each in shown if len(each.synced) < majority]
    for each in lacking[:5]:
        _say(f"  NOT SHOWN append {each.number:016x} at VLSN {each.vlsn}: only {', '.join(each.synced) or 'none'}")
    good = len(shown) - len(lacking)
    _say(f"{good} of {options.appends} appends show their completed sync on a majority")
    return 0 if good == options.appends else 1


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
