"""The local log: blocks in segments, found through the VLSN index.

``Log`` is the embedded form (blocking, thread-safe, no cluster); a node runs the same code through
``vlsn.local.LocalLog``.  Imports nothing of ours above it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlsn.embedded import Log as Log
    from vlsn.options import Durability as Durability
    from vlsn.options import LogOptions as LogOptions

__all__ = ["Durability", "Log", "LogOptions"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line imports vlsn's formats long before it needs LMDB and NumPy.
    if name == "Log":
        from vlsn.embedded import Log

        return Log
    if name in ("Durability", "LogOptions"):
        from vlsn import options

        return getattr(options, name)
    raise AttributeError(f"module 'vlsn' has no attribute {name!r}")
