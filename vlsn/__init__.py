"""The local log of one node. Blocks of entries are stored in segment files, and found through the VLSN index.

``Log`` is the embedded form (blocking, thread-safe, no cluster). A node runs the same code through
``vlsn.write.local_log.LocalLog``. The package ``vlsn`` imports none of the project's other packages.

    from vlsn import Durability, Log, LogOptions, Owner
    from vlsn import QueueFull, Trimmed            the errors that calls raise: all of vlsn.errors
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlsn.embedded.log import Log as Log
    from vlsn.embedded.transaction import LogTransaction as LogTransaction
    from vlsn.errors import *  # noqa: F403
    from vlsn.format.block import Entry as Entry
    from vlsn.histogram import Histogram as Histogram
    from vlsn.histogram import Seconds as Seconds
    from vlsn.ids import Term as Term
    from vlsn.ids import Vlsn as Vlsn
    from vlsn.index.range import VlsnRange as VlsnRange
    from vlsn.index.stats import IndexStats as IndexStats
    from vlsn.seams import Buffer as Buffer
    from vlsn.segments.background import Fault as Fault
    from vlsn.state.holds import LogHold as LogHold
    from vlsn.state.holds import Owner as Owner
    from vlsn.state.options import Durability as Durability
    from vlsn.state.options import LogOptions as LogOptions
    from vlsn.state.options import LogStats as LogStats
    from vlsn.state.retention import Fate as Fate
    from vlsn.state.retention import Retention as Retention
    from vlsn.state.state_store import Checkpoint as Checkpoint
    from vlsn.write.cleaner import CleaningReport as CleaningReport

_FROM = {
    "Buffer": "vlsn.seams",
    "Checkpoint": "vlsn.state.state_store",
    "CleaningReport": "vlsn.write.cleaner",
    "Durability": "vlsn.state.options",
    "Entry": "vlsn.format.block",
    "Fate": "vlsn.state.retention",
    "Fault": "vlsn.segments.background",
    "Histogram": "vlsn.histogram",
    "IndexStats": "vlsn.index.stats",
    "Log": "vlsn.embedded.log",
    "LogHold": "vlsn.state.holds",
    "LogOptions": "vlsn.state.options",
    "LogStats": "vlsn.state.options",
    "LogTransaction": "vlsn.embedded.transaction",
    "Owner": "vlsn.state.holds",
    "Retention": "vlsn.state.retention",
    "Seconds": "vlsn.histogram",
    "Term": "vlsn.ids",
    "Vlsn": "vlsn.ids",
    "VlsnRange": "vlsn.index.range",
}


def __getattr__(name: str) -> Any:
    # The public names of ``vlsn`` are loaded on first use, since the command line imports vlsn's formats long before it
    # needs LMDB and NumPy.
    from importlib import import_module

    from vlsn.errors import classes

    if name == "__all__":
        return [*_FROM, *classes()]
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    if name in (errors := classes()):
        return errors[name]
    raise AttributeError(f"module 'vlsn' has no attribute {name!r}")
