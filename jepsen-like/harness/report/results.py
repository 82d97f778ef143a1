"""``results.json``, the table at the end, and the directory of a run's files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from harness.nemesis.plan import WAYS
from harness.run import Options, Outcome

STORE = Path(__file__).resolve().parents[2] / "store"
SHOWN_MAX = 3


def new_directory(options: Options, store: Path = STORE) -> Path:
    """Makes ``store/<run>``, and points ``store/latest`` at it."""
    moment = time.strftime("%Y%m%dT%H%M%S")
    name = f"{moment}-{options.workload}-{'-'.join(options.kinds)}-{options.nodes}n-seed{options.seed}"
    directory = store / name
    directory.mkdir(parents=True)
    latest = store / "latest"
    pointing = store / f"latest.{name}"
    pointing.symlink_to(name)
    pointing.rename(latest)
    return directory


def command(options: Options) -> str:
    """Formats the command that repeats the same faults at the same times; their effects vary with the machine."""
    words = ["python jepsen-like run", f"--workload {options.workload}"]
    words += [f"--nemesis {','.join(options.kinds)}"] if options.kinds else ["--nemesis none"]
    words += [f"--nodes {options.nodes}", f"--time {options.seconds:g}", f"--seed {options.seed}"]
    words += [f"--rate {options.rate:g}", f"--writers {options.writers}"]
    if options.interval_s is not None:
        words.append(f"--interval {options.interval_s:g}")
    if options.upgrade_from is not None:
        words.append(f"--upgrade-from {options.upgrade_from.path} --python {options.upgrade_from.python}")
    asked = options.rotations
    words += [f"--rotate-keys {asked.keys}"] if asked.keys else []
    words += [f"--rotate-certs {asked.certificates}"] if asked.certificates else []
    words += ["--move off-to-require"] if asked.move else []
    if options.between != "auto":
        words.append(f"--between {options.between}")
    if options.shape.bytes_per_s:
        words.append(f"--link-rate {options.shape.bytes_per_s * 8:.0f}bit")
    if options.shape.delay_s:
        words.append(f"--link-delay {options.shape.delay_s * 1000:g}ms")
    for kind, ways in (("kill", options.kill_ways), ("disk", options.disk_ways)):
        if kind in options.kinds and ways != WAYS[kind]:
            words.append(f"--{kind} {','.join(ways)}")
    return " ".join(words)


def document(outcome: Outcome) -> dict[str, Any]:
    """Makes the document of ``results.json``."""
    return {
        "valid": outcome.valid,
        "ops": outcome.ops,
        "faults": outcome.faults,
        "master_changes": max(0, len(outcome.masters) - 1),
        "workload": outcome.options.workload,
        "nodes": outcome.options.nodes,
        "seconds": outcome.options.seconds,
        "seed": outcome.options.seed,
        "command": command(outcome.options),
        "between": outcome.between,
        "members": outcome.members,
        "polls": outcome.polls,
        "entries_read": outcome.entries,
        "entries_audited": outcome.audited,
        "captures": outcome.captures,
        "faults_by_way": outcome.ways,
        "upgraded": outcome.upgraded,
        "rotated": [
            {"what": each.what, "number": each.number, "began_s": each.began_s, "steps_s": each.steps}
            | {"done": each.done, "refused": each.refused}
            for each in outcome.rotated
        ],
        "rotated_before_a_start": outcome.missed,
        "masters": [{"term": term, "node": node} for term, node in outcome.masters],
        "anomalies": {
            rule: {"count": count, "examples": [str(each) for each in outcome.found.examples[rule]]}
            for rule, count in sorted(outcome.found.counts.items())
        },
        "lacks": outcome.lacks,
    }


def write_results(outcome: Outcome, directory: Path) -> None:
    (directory / "results.json").write_text(json.dumps(document(outcome), indent=1) + "\n")


def table(outcome: Outcome) -> list[str]:
    """Formats the result as aligned lines, the verdict last."""
    ops = outcome.ops
    rows = [
        ("appends acknowledged, each read at its VLSN on every node", f"{ops['ok']:,}"),
        ("appends failed, each nowhere", f"{ops['fail']:,}"),
        ("appends whose end is unknown", f"{ops['info']:,}"),
        ("pages polled by readers", f"{outcome.polls:,}"),
        ("entries read from the nodes in the end", f"{outcome.entries:,}"),
        *(
            [("acknowledged entries that Spark found in every directory", f"{outcome.audited:,}")]
            if outcome.audited
            else []
        ),
        *((what, f"{count:,}") for what, count in outcome.captures.items()),
        ("changes of master", f"{max(0, len(outcome.masters) - 1):,}"),
        *_rotations(outcome),
        *((f"upgrade: {what}", f"{count:,}") for what, count in outcome.upgraded.items()),
        *((f"faults that struck: {kind}", f"{count:,}") for kind, count in outcome.faults.items()),
        ("anomalies", f"{sum(outcome.found.counts.values()):,}"),
    ]
    width = max(len(label) for label, _ in rows)
    lines = [f"  {label:<{width}}{count:>12}" for label, count in rows]
    for rule, count in sorted(outcome.found.counts.items()):
        lines.append(f"  {rule}: {count:,}")
        lines += [f"    {each}" for each in outcome.found.examples[rule][:SHOWN_MAX]]
    lines += [f"  lacks: {why}" for why in outcome.lacks]
    return [*lines, verdict(outcome)]


def _rotations(outcome: Outcome) -> list[tuple[str, str]]:
    rotated = outcome.rotated
    if not rotated:
        return []
    whats = dict.fromkeys(each.what for each in rotated)
    done = {what: sum(each.done for each in rotated if each.what == what) for what in whats}
    return [
        *((f"rotations done: {what}", f"{count:,}") for what, count in done.items()),
        ("commands of rotations that a silent member held up", f"{sum(each.refused for each in rotated):,}"),
        ("files that a stopped node got before its next start", f"{outcome.missed:,}"),
    ]


def verdict(outcome: Outcome) -> str:
    if outcome.valid is True:
        return "valid"
    if outcome.valid is False:
        return "NOT VALID"
    return "unknown: nothing is wrong, but not enough was shown"
