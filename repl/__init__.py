"""The replicated log: node, group, HTTP, command line, client, audit.

from repl import connect, connect_sync
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; `typing` would be most of what is loaded before the command starts
if TYPE_CHECKING:
    from typing import Any

    from repl.client.connect import connect as connect
    from repl.client.sync import connect_sync as connect_sync

__all__ = ["connect", "connect_sync"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line starts without aiohttp and NumPy.
    if name == "connect":
        from repl.client.connect import connect

        return connect
    if name == "connect_sync":
        from repl.client.sync import connect_sync

        return connect_sync
    raise AttributeError(f"module 'repl' has no attribute {name!r}")
