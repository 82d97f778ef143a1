"""An operator's orders to a node, over HTTP, signed as commands sign them."""

from __future__ import annotations

from repl.cli.signing import SigningNetwork
from repl.web.types import Network, Response

_JSON = {"Content-Type": "application/json"}


async def order(network: Network, url: str, what: str, *, body: bytes = b"", timeout_s: float) -> Response:
    """Posts JSON to ``/v1/admin/WHAT`` at ``url``; a node accepts a change in no other type.

    Raises as ``Network.request``."""
    signing = SigningNetwork(network)
    return await signing.request("POST", f"{url}/v1/admin/{what}", headers=_JSON, body=body, timeout_s=timeout_s)
