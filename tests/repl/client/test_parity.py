"""Both clients have the same calls, with the same arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_overloads

import pytest

from repl.client.connect import Client, connect
from repl.client.consumer import Consumer
from repl.client.destination import Destination, Message
from repl.client.destinations import Destinations
from repl.client.positions import Positions
from repl.client.sinks import Sinks
from repl.client.sync import SyncClient, SyncSinks, SyncTransaction, connect_sync
from repl.client.sync_consumer import SyncConsumer, SyncPositions
from repl.client.sync_destination import SyncDestination, SyncDestinations, SyncMessage
from repl.client.transaction import Transaction

OF_ONE_LOOP = {
    "codec": "an attribute: given when it is made",
    "endpoints": "its calls are coroutines of the client's loop",
}
"""Public names of ``Client`` that a client for threads does not need, and the reasons."""
OF_THREADS = {
    "elsewhere": "positions for a client with another loop",
    "run": "how its consumers wait for theirs",
}
"""Public names of ``SyncClient`` alone, and the reasons."""
OF_CONSUMERS = {"change", "committed_by", "fill", "hold", "lies_in", "not_committed", "take", "take_page", "turn"}
"""Public names of ``Consumer`` that transactions call, and ``SyncConsumer``."""
OF_WORKERS = {"take", "ack", "nack", "connect", "left"}
"""Public names of ``Destinations`` that a worker calls."""
ITS_OWN_KIND = {"kept_in"}
"""Arguments that are a client of the same kind."""
NOT_IN_THREADS = {"network"}
"""Arguments of ``connect``: a simulated network belongs to a loop."""


def public(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind) if not name.startswith("_")}


def asked(call: Callable[..., Any]) -> tuple[list[tuple[str, Any, Any, str]], str]:
    """Returns a call's arguments, and the type of its result once awaited."""
    signature = inspect.signature(call)
    arguments = [
        (
            each.name,
            each.kind,
            each.default,
            "" if each.name in ITS_OWN_KIND else str(each.annotation).replace("Sync", ""),
        )
        for each in signature.parameters.values()
    ]
    gives = str(signature.return_annotation).replace("Async", "").replace("Sync", "")
    return arguments, gives


def signatures(call: Any) -> list[Any]:
    if isinstance(call, property):
        assert call.fget is not None
        return [asked(call.fget)]
    return [asked(each) for each in (call, *get_overloads(call))]


PAIRS: list[tuple[type, type, set[str], set[str]]] = [
    (Client, SyncClient, set(OF_ONE_LOOP), set(OF_THREADS)),
    (Transaction, SyncTransaction, set(), {"appended"}),
    (Consumer, SyncConsumer, OF_CONSUMERS, {"name"}),
    (Positions, SyncPositions, {"group"}, set()),
    (Sinks, SyncSinks, set(), set()),
    (Destination, SyncDestination, set(), {"name"}),
    (Destinations, SyncDestinations, OF_WORKERS, set()),
    (Message, SyncMessage, {"uuid"}, set()),
]
"""Both classes, and the public names of each alone, including attributes of instances."""


@pytest.mark.parametrize(("model", "blocking", "of_one_loop", "of_threads"), PAIRS)
def test_both_clients_have_the_same_calls(
    model: type, blocking: type, of_one_loop: set[str], of_threads: set[str]
) -> None:
    calls = public(blocking) - of_threads
    assert public(model) - of_one_loop == calls
    attributes = set(model.__struct_fields__) if hasattr(model, "__struct_fields__") else set[str]()
    pairs = {
        name: (signatures(getattr(model, name)), signatures(getattr(blocking, name))) for name in calls - attributes
    }
    assert {name: pair for name, pair in pairs.items() if pair[0] != pair[1]} == {}


def test_both_ways_to_connect_take_the_same() -> None:
    def without(call: Callable[..., Any]) -> list[Any]:
        return [
            ([each for each in arguments if each[0] not in NOT_IN_THREADS], gives)
            for arguments, gives in signatures(call)
        ]

    assert without(connect) == without(connect_sync)
    assert len(without(connect)) == 4
