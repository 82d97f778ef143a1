"""Both clients have the same calls, with the same arguments, so that neither falls behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_overloads

from repl.client.connect import Client, connect
from repl.client.consumer import Consumer
from repl.client.destination import Destination, Message
from repl.client.destinations import Destinations
from repl.client.positions import Positions
from repl.client.sync import SyncClient, SyncTransaction, connect_sync
from repl.client.sync_consumer import SyncConsumer, SyncPositions
from repl.client.sync_destination import SyncDestination, SyncDestinations, SyncMessage
from repl.client.transaction import Transaction

OF_ONE_LOOP = {
    "codec": "an attribute: given when it is made",
    "endpoints": "its calls are coroutines of the client's loop",
}
"""Public names of ``Client`` that a client of threads has no use for, and why."""
OF_THREADS = {
    "elsewhere": "positions for a client with another loop",
    "run": "how its consumers wait for theirs",
}
"""Public names of ``SyncClient`` alone, and why."""
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
    """Returns a call's arguments, and what it gives once it is waited for."""
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


def test_both_clients_have_the_same_calls() -> None:
    assert public(Client) - set(OF_ONE_LOOP) == public(SyncClient) - set(OF_THREADS)
    assert set(OF_ONE_LOOP) <= public(Client) | {"codec"}


def test_calls_of_both_clients_ask_for_the_same_and_give_the_same() -> None:
    differ = {
        name: (signatures(getattr(Client, name)), signatures(getattr(SyncClient, name)))
        for name in public(SyncClient) - set(OF_THREADS)
        if signatures(getattr(Client, name)) != signatures(getattr(SyncClient, name))
    }
    assert differ == {}
    assert {"append", "append_many", "read", "read_pages", "tail", "tail_pages"} <= public(SyncClient)


def test_transactions_of_both_clients_have_the_same_calls() -> None:
    calls = public(SyncTransaction) - {"appended"}
    assert calls == public(Transaction) == {"append", "append_many", "commit", "commit_position", "abort"}
    for name in calls:
        assert signatures(getattr(Transaction, name)) == signatures(getattr(SyncTransaction, name))


def test_consumers_and_positions_of_both_clients_have_the_same_calls() -> None:
    calls = public(SyncConsumer) - {"name"}
    assert public(Consumer) - OF_CONSUMERS == calls
    for name in calls:
        assert signatures(getattr(Consumer, name)) == signatures(getattr(SyncConsumer, name))
    for name in public(SyncPositions):
        assert signatures(getattr(Positions, name)) == signatures(getattr(SyncPositions, name))


def test_destinations_of_both_clients_have_the_same_calls() -> None:
    assert public(Destination) == public(SyncDestination) - {"name"}
    for name in public(SyncDestination) - {"name"}:
        assert signatures(getattr(Destination, name)) == signatures(getattr(SyncDestination, name))
    assert public(Destinations) - OF_WORKERS == public(SyncDestinations)
    for name in public(SyncDestinations):
        assert signatures(getattr(Destinations, name)) == signatures(getattr(SyncDestinations, name))
    calls = {"ack", "nack"}
    assert public(SyncMessage) - {"inner"} | {"uuid"} == public(Message)
    for name in calls:
        assert signatures(getattr(Message, name)) == signatures(getattr(SyncMessage, name))


def test_both_ways_to_connect_take_the_same() -> None:
    def without(call: Callable[..., Any]) -> list[Any]:
        return [
            ([each for each in arguments if each[0] not in NOT_IN_THREADS], gives)
            for arguments, gives in signatures(call)
        ]

    assert without(connect) == without(connect_sync)
    assert len(without(connect)) == 4
