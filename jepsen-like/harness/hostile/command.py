"""``python jepsen-like hostile``: its options and its output."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import uvloop

from harness.hostile.kinds import KINDS
from harness.hostile.suite import run_suite
from harness.hostile.table import table

SECONDS = 10.0


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = "kinds:\n" + "\n".join(f"  {kind.name:<16}{kind.says}" for kind in KINDS.values())
    parser.add_argument("--kind", action="append", choices=list(KINDS), help="one or more; default: all of them")
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="duration of an attack without an end of its own"
    )
    parser.add_argument(
        "--slack", type=float, default=1.0, help="factor by which every time limit is raised, for a busy machine"
    )
    parser.add_argument("--json", action="store_true", help="the rows as JSON, instead of the table")


def hostile(options: argparse.Namespace, directory: Path, say: Callable[[str], None]) -> int:
    kinds = [KINDS[name] for name in dict.fromkeys(options.kind or KINDS)]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        running = run_suite(
            kinds,
            directory,
            seconds=options.seconds,
            slack=options.slack,
            say=(lambda _: None) if options.json else say,
        )
        rows = runner.run(running)
    if options.json:
        say(json.dumps([row.document() for row in rows]))
    else:
        for line in table(rows):
            say(line)
    return 0 if all(row.holds for row in rows) else 1
