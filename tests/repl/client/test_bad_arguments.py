"""Invalid arguments of the client: ``BadArgument`` before any node is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from repl import BadArgument, connect, connect_sync
from repl.api import ConsumerChange
from repl.client.connect import Client

NOWHERE = "http://127.0.0.1:9"
NO_VLSN: tuple[Any, ...] = (0, -1, 1 << 63, 1.5, float("nan"), "1", "", "now", b"1", [1])


@pytest.fixture
def nobody() -> Iterator[Any]:
    with connect_sync(NOWHERE, timeout_s=0.2) as log:
        yield log


@pytest.mark.parametrize("vlsn", NO_VLSN, ids=repr)
def test_a_place_that_is_none_is_not_the_first_there_is(nobody: Any, vlsn: Any) -> None:
    for begin in (nobody.read, nobody.read_pages, nobody.tail, nobody.tail_pages):
        with pytest.raises(BadArgument, match="from_vlsn"):
            next(iter(begin(from_vlsn=vlsn)))
    with pytest.raises(BadArgument, match="from_vlsn"):
        nobody.consumer("billing", from_vlsn=vlsn)


CALLS: dict[str, Callable[[Client[Any]], Awaitable[object]]] = {
    "no number of seconds": lambda log: log.destinations.put("orders", ack_timeout_s=float("nan")),
    "seconds without end": lambda log: log.destinations.put("orders", ack_timeout_s=float("inf")),
    "a limit that is text": lambda log: log.destinations.put("orders", max_bytes="1"),
    "a prefix that is bytes": lambda log: log.destinations.put("orders", prefix=b"order-"),
    "a prefix that is no UTF-8": lambda log: log.destinations.put("orders", prefix="\udcff"),
    "an unknown setting": lambda log: log.destinations.put("orders", prefx="order-"),
    "a move to nothing": lambda log: log.destinations.move("orders", object()),  # type: ignore[arg-type]
    "a name with a path": lambda log: log.destinations.put("../admin"),
    "a name that goes up": lambda log: log.destinations.put(".."),
    "a consumer that goes up": lambda log: log.positions.get(".."),
    "a position that is none": lambda log: log.positions.set("billing", ConsumerChange(object())),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", CALLS)
async def test_a_call_that_cannot_be_asked_is_refused(what: str) -> None:
    async with connect(NOWHERE, timeout_s=0.2) as log:
        with pytest.raises(BadArgument):
            await CALLS[what](log)
