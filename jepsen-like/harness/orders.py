"""An operator's orders: to a node over HTTP, signed as commands sign them, and by the command ``vlsnlog``."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from repl.cli.signing import SigningNetwork
from repl.web.types import Network, Response

ROOT: Final = Path(__file__).resolve().parents[2]
TLS_CA: Final = "VLSNLOG_TLS_CA"
"""The variable that names the authorities of clients and commands."""
_JSON = {"Content-Type": "application/json"}


async def order(network: Network, url: str, what: str, *, body: bytes = b"", timeout_s: float) -> Response:
    """Posts JSON to ``/v1/admin/WHAT`` at ``url``; a node accepts a change in no other type.

    Raises as ``Network.request``."""
    signing = SigningNetwork(network)
    return await signing.request("POST", f"{url}/v1/admin/{what}", headers=_JSON, body=body, timeout_s=timeout_s)


async def command(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Runs ``vlsnlog`` of this tree. Returns its exit status, and the JSON object that it printed or, in ``said``, its
    errors."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "repl.cli.start", *arguments),
        env={"PYTHONPATH": str(ROOT), TLS_CA: os.environ.get(TLS_CA, "")},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, errors = await process.communicate()
    assert process.returncode is not None
    try:
        found: dict[str, Any] = json.loads(out)
    except ValueError:
        found = {"said": errors.decode(errors="replace").strip()}
    return process.returncode, found
