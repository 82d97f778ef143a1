"""The replicated log: node, group, HTTP, command line, client, audit.

from repl import connect, connect_sync

The errors that its calls raise are here too: ``from repl import NotMaster, OutcomeUnknown``.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as type checkers know it; `typing` would be most of what is loaded before the command starts
if TYPE_CHECKING:
    from typing import Any

    from repl.api import Acks as Acks
    from repl.api import Appended as Appended
    from repl.arrow.read import read_arrow as read_arrow
    from repl.client.connect import Client as Client
    from repl.client.connect import connect as connect
    from repl.client.sync import SyncClient as SyncClient
    from repl.client.sync import connect_sync as connect_sync
    from repl.client.tail import Page as Page
    from vlsn.durability import Durability as Durability
    from vlsn.durability import GroupDurability as GroupDurability
    from vlsn.errors import *  # noqa: F403
    from vlsn.format.block import Entry as Entry

_FROM = {
    "Acks": "repl.api",
    "Appended": "repl.api",
    "Client": "repl.client.connect",
    "Durability": "vlsn.durability",
    "Entry": "vlsn.format.block",
    "GroupDurability": "vlsn.durability",
    "Page": "repl.client.tail",
    "SyncClient": "repl.client.sync",
    "connect": "repl.client.connect",
    "connect_sync": "repl.client.sync",
    "read_arrow": "repl.arrow.read",
}


def __getattr__(name: str) -> Any:
    # Loaded on first use: the command line starts without aiohttp and NumPy.
    from importlib import import_module

    from vlsn.errors import classes

    if name == "__all__":
        return [*_FROM, *classes()]
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    if name in (errors := classes()):
        return errors[name]
    raise AttributeError(f"module 'repl' has no attribute {name!r}")
