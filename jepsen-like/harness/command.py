"""``python jepsen-like run``: its options and its output."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import traceback
from collections.abc import Mapping
from math import inf
from pathlib import Path

import uvloop

from harness.checks import check
from harness.nemesis.plan import KINDS, WAYS
from harness.ops import read_history
from harness.orders import ROOT
from harness.report.progress import Progress
from harness.report.results import command, new_directory, table, write_results
from harness.report.timeline import write_timeline
from harness.rotating.rotations import Asked
from harness.run import Options, check_options, run
from harness.upgrading import Code, unpack
from harness.workloads.work import NAMES
from repl.cluster import NodeEnded
from vlsn.errors import BadArgument
from vlsnlog.testing.partitions import Shape

TIME_S_MIN = 2.0
UPGRADED = ("destination", "cdc")
"""The workloads that an upgrade is tried under."""
RATES = {"bit": 1.0, "kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
TIMES = {"ms": 1e-3, "s": 1.0}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--workload", default="append", help=f"one or more in turn: {','.join(NAMES)}")
    parser.add_argument(
        "--nemesis", default="kill,pause,partition", help=f"kinds of faults: {','.join(KINDS)}, or none"
    )
    parser.add_argument("--nodes", type=int, choices=(3, 5), default=3)
    parser.add_argument("--time", type=float, default=60.0, help="seconds of clients and faults")
    parser.add_argument("--seed", type=int, help="draws faults and calls; default: a new one, printed")
    parser.add_argument("--rate", type=float, default=200.0, help="the most appends a second, over all writers")
    parser.add_argument("--writers", type=int, default=8)
    parser.add_argument(
        "--interval", type=float, help="seconds between faults of a kind, on average; default 10, or less"
    )
    for kind in ("kill", "disk"):
        parser.add_argument(f"--{kind}", default=",".join(WAYS[kind]), help=f"the ways of the nemesis {kind}")
    parser.add_argument(
        "--between",
        choices=("auto", "namespaces", "proxies"),
        default="auto",
        help="the network between the nodes: network namespaces (root), or proxies",
    )
    parser.add_argument(
        "--link-rate",
        type=bytes_per_s,
        default=0.0,
        metavar="1mbit",
        help="the rate of each direction between two nodes: bit, kbit, mbit or gbit a second",
    )
    parser.add_argument(
        "--link-delay", type=seconds, default=0.0, metavar="100ms", help="the delay of each byte between nodes: ms or s"
    )
    parser.add_argument(
        "--upgrade-from",
        type=Path,
        metavar="DIR",
        help="a checkout of the previous version: nodes run it at first, and are upgraded meanwhile; --time then only "
        "counts for --nemesis",
    )
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has what that version needs")
    parser.add_argument(
        "--rotate-keys", type=int, default=0, metavar="N", help="exchange the group's key N times meanwhile"
    )
    parser.add_argument(
        "--rotate-certs",
        type=int,
        default=0,
        metavar="N",
        help="TLS alone: give every node new certificates N times meanwhile, and exchange the authority once",
    )
    parser.add_argument(
        "--move", choices=("off-to-require",), help="the group begins without TLS, and moves to TLS alone meanwhile"
    )
    parser.add_argument("--no-audit", dest="audit", action="store_false", help="leave out the Spark audit")
    parser.add_argument("--store", type=Path, help="directory of all runs; default: jepsen-like/store")
    parser.add_argument("--keep", action="store_true", help="keep the nodes' data of a valid run, too")


def run_command(options: argparse.Namespace) -> int:
    """Runs each workload in turn. Returns the first exit status that is not 0."""
    for workload in options.workload.split(","):
        options.workload = workload
        if status := _run_one(options):
            return status
    return 0


def _run_one(options: argparse.Namespace) -> int:
    try:
        asked = _asked(options)
        check_options(asked)
    except BadArgument as error:
        print(f"unknown: {error}")
        return 2
    directory = new_directory(asked, options.store) if options.store else new_directory(asked)
    progress = Progress()
    progress.say(command(asked))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            outcome = runner.run(run(asked, directory, progress=progress))
    except (NodeEnded, BadArgument, TimeoutError, OSError) as error:
        progress.say(f"unknown: {type(error).__name__} {error}; see {directory}")
        traceback.print_exc(file=(directory / "fault.txt").open("w"))
        return 2
    write_results(outcome, directory)
    write_timeline(outcome, read_history(directory / "history.jsonl"), directory / "timeline.html")
    for line in table(outcome):
        progress.say(line)
    progress.say(f"kept: {directory}")
    if outcome.valid is True and not options.keep:
        _forget_data(directory / "nodes")
    return outcome.exit_status


def upgrade_command(options: argparse.Namespace) -> int:
    """Upgrades a group of the version ``options.previous``, by each workload that ``UPGRADED`` names or by the asked
    one. Returns the first exit status that is not 0."""
    try:
        code = unpack(options.previous, ROOT / "build" / "previous")
    except BadArgument as error:
        print(f"unknown: {error}")
        return 2
    options.upgrade_from, options.python = code.path, code.python
    options.workload = options.workload or ",".join(UPGRADED)
    return run_command(options)


def check_command(options: argparse.Namespace) -> int:
    """Checks an existing history; the exit status is 0 if it has no anomaly."""
    path: Path = options.history
    if path.is_dir():
        path /= "history.jsonl"
    history = read_history(path)
    found = check(history)
    for rule, count in sorted(found.counts.items()):
        print(f"{rule}: {count:,}")
        for each in found.examples[rule]:
            print(f"  {each}")
    acknowledged = sum(op.f == "append" and op.type == "ok" for op in history)
    print(
        f"{len(history):,} operations, {acknowledged:,} acknowledged appends, {sum(found.counts.values()):,} anomalies"
    )
    return 1 if found else 0


def _asked(options: argparse.Namespace) -> Options:
    """Parses the options of a run. Raises ``BadArgument``."""
    if options.workload not in NAMES:
        raise BadArgument(f"--workload: {options.workload} is not one of {', '.join(NAMES)}")
    if min(options.rotate_keys, options.rotate_certs) < 0:
        raise BadArgument("--rotate-keys, --rotate-certs: at least 0")
    kinds = () if options.nemesis == "none" else tuple(dict.fromkeys(options.nemesis.split(",")))
    kills, disks = tuple(options.kill.split(",")), tuple(options.disk.split(","))
    asked = (("--nemesis", kinds, KINDS), ("--kill", kills, WAYS["kill"]), ("--disk", disks, WAYS["disk"]))
    for name, given, known in asked:
        if unknown := [each for each in given if each not in known]:
            raise BadArgument(f"{name}: {', '.join(unknown)} is not one of {', '.join(known)}")
    if not options.time >= TIME_S_MIN or (options.interval or 1.0) <= 0 or options.rate <= 0 or options.writers < 1:
        raise BadArgument(f"--time at least {TIME_S_MIN:g}, --rate and --interval above 0, --writers at least 1")
    return Options(
        workload=options.workload,
        kinds=kinds,
        nodes=options.nodes,
        seconds=options.time,
        seed=options.seed if options.seed is not None else random.randrange(1 << 32),
        rate=options.rate,
        writers=options.writers,
        interval_s=options.interval,
        kill_ways=kills,
        disk_ways=disks,
        audit=options.audit,
        between=options.between,
        shape=Shape(options.link_rate, options.link_delay),
        rotations=Asked(options.rotate_keys, options.rotate_certs, options.move is not None),
        upgrade_from=Code("P", options.upgrade_from.resolve(), options.python) if options.upgrade_from else None,
    )


def bytes_per_s(text: str) -> float:
    """Parses ``1mbit`` as bytes a second. Raises ``ValueError``."""
    return _measured(text, RATES) / 8


def seconds(text: str) -> float:
    """Parses ``100ms`` as seconds. Raises ``ValueError``."""
    return _measured(text, TIMES)


def _measured(text: str, units: Mapping[str, float]) -> float:
    """Parses a measure by the longest unit that fits."""
    for unit in sorted(units, key=len, reverse=True):
        if text.endswith(unit):
            number = float(text.removesuffix(unit))
            if 0 < number < inf:
                return number * units[unit]
            break
    raise ValueError(f"{text}: a number above 0, and one of {', '.join(units)}")


def _forget_data(nodes: Path) -> None:
    """Removes the nodes' data; their settings and logs stay."""
    for each in nodes.glob("n*/*"):
        if each.suffix in (".toml", ".log"):
            continue
        if each.is_dir():
            shutil.rmtree(each)
        else:
            each.unlink()


__all__ = ["add_options", "check_command", "run_command"]
