"""The client of a vlsnlog group.

    from vlsnlog import connect

    async with connect("http://127.0.0.1:7701,http://127.0.0.1:7702") as log:
        vlsn = await log.append(b"value", key=b"k")

``connect_sync`` is the same without asyncio. The package also exports the errors that its calls raise:
``from vlsnlog import NotMaster, OutcomeUnknown``.

Two distributions have this package. In that of the server (``vlsnlog``) the parts of the client are modules of
``repl`` and ``vlsn``, and the classes here are those of ``repl``. In that of the client (``vlsnlog-client``) they are
copies in ``vlsnlog._repl`` and ``vlsnlog._vlsn``, so that it installs no other package.
"""

from __future__ import annotations

try:
    from vlsnlog._server import PLACE as _PLACE
except ModuleNotFoundError:
    _PLACE = "vlsnlog._"

# type checkers assume that this name is true; importing `typing` would take most of the time before a command starts
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from repl.api import Acks as Acks
    from repl.api import Appended as Appended
    from repl.api import ConsumerAt as ConsumerAt
    from repl.api import ConsumerChange as ConsumerChange
    from repl.api import ProducerAt as ProducerAt
    from repl.api import SinkAt as SinkAt
    from repl.api import SinkChange as SinkChange
    from repl.api import Span as Span
    from repl.api import Spans as Spans
    from repl.arrow.read import read_arrow as read_arrow
    from repl.client.block_pages import BlocksPage as BlocksPage
    from repl.client.client import Client as Client
    from repl.client.codec import CodecName as CodecName
    from repl.client.connect import connect as connect
    from repl.client.consumer import Consumer as Consumer
    from repl.client.destination import Destination as Destination
    from repl.client.destination import Message as Message
    from repl.client.destination import Messages as Messages
    from repl.client.destinations import Destinations as Destinations
    from repl.client.endpoints import Endpoints as Endpoints
    from repl.client.endpoints import Status as Status
    from repl.client.page import Page as Page
    from repl.client.positions import Positions as Positions
    from repl.client.reader import Consistency as Consistency
    from repl.client.sinks import Sinks as Sinks
    from repl.client.starting import Begin as Begin
    from repl.client.sync import SyncClient as SyncClient
    from repl.client.sync import SyncSinks as SyncSinks
    from repl.client.sync import SyncTransaction as SyncTransaction
    from repl.client.sync import connect_sync as connect_sync
    from repl.client.sync_consumer import SyncConsumer as SyncConsumer
    from repl.client.sync_consumer import SyncPositions as SyncPositions
    from repl.client.sync_destination import SyncDestination as SyncDestination
    from repl.client.sync_destination import SyncDestinations as SyncDestinations
    from repl.client.sync_destination import SyncMessage as SyncMessage
    from repl.client.sync_destination import SyncMessages as SyncMessages
    from repl.client.transaction import Transaction as Transaction
    from repl.tls_files import TlsFiles as TlsFiles
    from vlsn.durability import Durability as Durability
    from vlsn.durability import GivenDurability as GivenDurability
    from vlsn.durability import GroupDurability as GroupDurability
    from vlsn.errors import *  # noqa: F403
    from vlsn.format.block import Entry as Entry
    from vlsn.format.rows import Rows as Rows
    from vlsn.seams import Buffer as Buffer
    from vlsn.state.producer_place import ProducerPlace as ProducerPlace
    from vlsn.state.sinks import SinkState as SinkState

_FROM = {
    "Acks": "repl.api",
    "Appended": "repl.api",
    "Begin": "repl.client.starting",
    "BlocksPage": "repl.client.block_pages",
    "Buffer": "vlsn.seams",
    "Client": "repl.client.client",
    "CodecName": "repl.client.codec",
    "Consistency": "repl.client.reader",
    "Consumer": "repl.client.consumer",
    "ConsumerAt": "repl.api",
    "ConsumerChange": "repl.api",
    "Destination": "repl.client.destination",
    "Destinations": "repl.client.destinations",
    "Durability": "vlsn.durability",
    "Endpoints": "repl.client.endpoints",
    "Entry": "vlsn.format.block",
    "GivenDurability": "vlsn.durability",
    "GroupDurability": "vlsn.durability",
    "Message": "repl.client.destination",
    "Messages": "repl.client.destination",
    "Page": "repl.client.page",
    "Positions": "repl.client.positions",
    "ProducerAt": "repl.api",
    "ProducerPlace": "vlsn.state.producer_place",
    "Rows": "vlsn.format.rows",
    "SinkAt": "repl.api",
    "SinkChange": "repl.api",
    "SinkState": "vlsn.state.sinks",
    "Sinks": "repl.client.sinks",
    "Span": "repl.api",
    "Spans": "repl.api",
    "Status": "repl.client.endpoints",
    "SyncClient": "repl.client.sync",
    "SyncConsumer": "repl.client.sync_consumer",
    "SyncDestination": "repl.client.sync_destination",
    "SyncDestinations": "repl.client.sync_destination",
    "SyncMessage": "repl.client.sync_destination",
    "SyncMessages": "repl.client.sync_destination",
    "SyncPositions": "repl.client.sync_consumer",
    "SyncSinks": "repl.client.sync",
    "SyncTransaction": "repl.client.sync",
    "TlsFiles": "repl.tls_files",
    "Transaction": "repl.client.transaction",
    "connect": "repl.client.connect",
    "connect_sync": "repl.client.sync",
    "read_arrow": "repl.arrow.read",
}


def __getattr__(name: str) -> Any:
    # imported on first use, so that the command line starts without aiohttp and NumPy
    from importlib import import_module

    if name in _FROM:
        try:
            return getattr(import_module(_PLACE + _FROM[name]), name)
        except ModuleNotFoundError as error:
            if error.name == "numpy":
                extra = "pip install 'vlsnlog-client[numpy]'"
                raise ModuleNotFoundError(f"{name} needs NumPy; install it with: {extra}", name="numpy") from None
            if not (error.name or "").startswith("vlsnlog._"):
                raise
            raise ImportError(f"vlsnlog.{name}: the client has no {name}; install vlsnlog[arrow]") from None
    errors = import_module(f"{_PLACE}vlsn.errors").classes()
    if name == "__all__":
        return [*_FROM, *errors]
    if name in errors:
        return errors[name]
    raise AttributeError(f"module 'vlsnlog' has no attribute {name!r}")
