"""The nodes' directories, judged after they stopped: ``vlsnlog verify`` on each, and the Spark audit of all."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from harness.checks import Anomaly

FINDINGS_MAX = 5


async def verify(directories: dict[str, Path]) -> list[Anomaly]:
    """One anomaly for each directory that ``verify`` does not find whole."""
    outputs = await asyncio.gather(*(_vlsnlog("verify", str(path), "--json") for path in directories.values()))
    found = []
    for name, (status, output) in zip(directories, outputs, strict=True):
        if status != 0:
            found.append(Anomaly("not-verified", name, f"verify exits {status}: {_short(output)}"))
    return found


async def audit(directories: dict[str, Path]) -> tuple[list[Anomaly], str]:
    """What the Spark audit has against the directories together; why it could not judge, "" if it did."""
    status, output = await _vlsnlog("audit", *map(str, directories.values()), "--json")
    if status == 0:
        return [], ""
    if status == 1:
        return [Anomaly("not-equal", "audit", _short(output))], ""
    return [], f"the audit could not run: {output.strip()[-300:]}"


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
    return f"{len(findings)} findings, first {json.dumps(findings[:FINDINGS_MAX])[:600]}"
