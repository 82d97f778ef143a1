"""Checks the directories of stopped nodes: ``vlsnlog verify`` on each, and the Spark audit of all, which compares them
with one another and with the acknowledged entries."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from harness.checks import Anomaly
from harness.checks.refusals import is_refusal
from harness.ops import Op
from harness.values import key_of, value_of
from repl.audit.digest import entry_digest

FINDINGS_MAX = 5
LOG_FILE = "node.log"
MOVED = "this node speaks TLS alone"
"""A member's words to one whose settings still have its plain URL. That one then tries the URL of the GROUP entry."""


async def verify(directories: dict[str, Path]) -> list[Anomaly]:
    """Returns one anomaly for each directory that ``verify`` does not find whole."""
    outputs = await asyncio.gather(*(_vlsnlog("verify", str(path), "--json") for path in directories.values()))
    found = []
    for name, (status, output) in zip(directories, outputs, strict=True):
        if status != 0:
            found.append(Anomaly("not-verified", name, f"verify exits {status}: {_short(output)}"))
    return found


def faults(directories: dict[str, Path]) -> list[Anomaly]:
    """Returns one anomaly for each node whose log has a traceback, since that is a fault of the node itself."""
    found = []
    for name, path in directories.items():
        log = path / LOG_FILE
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        at = [index for index, line in enumerate(lines) if line.startswith("Traceback ")]
        if at:
            what = next((line for line in lines[at[0] + 1 :] if line[:1].strip()), "")
            found.append(Anomaly("node-fault", name, f"{len(at)} tracebacks in {LOG_FILE}; first {what[:200]}"))
    return found


def refusals(directories: dict[str, Path]) -> list[Anomaly]:
    """Returns one anomaly for each node whose log says that a member was refused for its key or certificate."""
    found = []
    for name, path in directories.items():
        log = path / LOG_FILE
        lines = log.read_text(errors="replace").splitlines() if log.exists() else []
        refused = [line for line in lines if is_refusal(line) and MOVED not in line]
        if refused:
            what = f"{len(refused)} lines of {LOG_FILE}; first {refused[0][:300]}"
            found.append(Anomaly("member-refused", name, what))
    return found


def write_acknowledged(history: Sequence[Op], path: Path) -> int:
    """Writes a client's history for the audit, and returns the number of acknowledged entries. Each line is an entry,
    acknowledged with VLSN and digest, or refused with its digest. No value was sent twice."""
    count = 0
    with path.open("w") as file:
        for op in history:
            if op.f != "append" or op.type not in ("ok", "fail"):
                continue
            for at, number in enumerate(op.value["numbers"]):
                key = key_of(number) if op.value.get("txn") or op.value.get("keyed") else b""
                line = {"digest": entry_digest(value_of(number), key), "once": True}
                if op.type == "ok":
                    line["vlsn"] = op.value["first"] + at
                    count += 1
                file.write(json.dumps(line) + "\n")
    return count


async def audit(directories: dict[str, Path], acknowledged: Path) -> tuple[list[Anomaly], int, str]:
    """Runs the Spark audit over all directories together, with the ``acknowledged`` entries. Returns its findings, the
    number of these entries in every directory, and the reason if the audit could not decide ("" if it did)."""
    status, output = await _vlsnlog("audit", *map(str, directories.values()), "--history", str(acknowledged), "--json")
    if status > 1:
        return [], 0, f"the audit could not run: {output.strip()[-300:]}"
    proven = json.loads(output)["history"]
    if status == 1:
        return [Anomaly("not-equal", "audit", _short(output))], proven["everywhere"], ""
    short = proven["everywhere"] + proven["cleaned"] != proven["appends"] or not proven["everywhere"]
    why = "the audit found {everywhere} of {appends} acknowledged entries in every copy, {cleaned} cleaned away".format(
        **proven
    )
    return [], proven["everywhere"], why if short else ""


async def _vlsnlog(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).with_name("vlsnlog")),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode is not None
    return process.returncode, (out or errors).decode(errors="replace")


def _short(output: str) -> str:
    try:
        findings = json.loads(output).get("findings", [])
    except ValueError:
        return output.strip()[:300]
    rules = ", ".join(f"{count} {rule}" for rule, count in Counter(each.get("rule") for each in findings).items())
    return f"{rules}; first {json.dumps(findings[:FINDINGS_MAX])[:600]}"
