"""The local log: blocks in segments, found through the VLSN index.

``Log`` is the embedded form (blocking, thread-safe, no cluster); a node runs the same code through
``vlsn.write.local_log.LocalLog``.  Imports nothing of ours above it.

    from vlsn import Durability, Log, LogOptions, Owner
    from vlsn import QueueFull, Trimmed            the errors that its calls raise: all of vlsn.errors
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlsn.embedded.log import Log as Log
    from vlsn.errors import *  # noqa: F403
    from vlsn.format.block import Entry as Entry
    from vlsn.state.holds import Owner as Owner
    from vlsn.state.options import Durability as Durability
    from vlsn.state.options import LogOptions as LogOptions

_FROM = {
    "Durability": "vlsn.state.options",
    "Entry": "vlsn.format.block",
    "Log": "vlsn.embedded.log",
    "LogOptions": "vlsn.state.options",
    "Owner": "vlsn.state.holds",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line imports vlsn's formats long before it needs LMDB and NumPy.
    from importlib import import_module

    from vlsn.errors import classes

    if name == "__all__":
        return [*_FROM, *classes()]
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    if name in (errors := classes()):
        return errors[name]
    raise AttributeError(f"module 'vlsn' has no attribute {name!r}")
