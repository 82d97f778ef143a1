"""A cancel of an outgoing call is never taken for its timeout, even in the same turn."""

from __future__ import annotations

import asyncio
import time

import pytest

from repl.net.client_network import ClientNetwork
from repl.net.network import AiohttpNetwork
from vlsn.errors import Unreachable

TIMEOUT_S = 0.05


@pytest.mark.parametrize("caller", [AiohttpNetwork, ClientNetwork])
@pytest.mark.parametrize("cancel_first", [True, False])
async def test_a_cancel_that_comes_with_the_timeout_ends_the_caller(
    cancel_first: bool, caller: type[AiohttpNetwork] | type[ClientNetwork]
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    client = caller()

    async def ask_for_ever() -> None:
        while True:
            try:
                await client.request("GET", url, timeout_s=TIMEOUT_S)
            except Unreachable:
                pass

    asking = asyncio.create_task(ask_for_ever())
    await asyncio.sleep(TIMEOUT_S / 5)  # it is asked now
    asyncio.get_running_loop().call_later(TIMEOUT_S * (0.5 if cancel_first else 0.9), asking.cancel)
    time.sleep(2 * TIMEOUT_S)  # noqa: ASYNC251  the loop is late: the timeout and the cancel are both due
    done, _ = await asyncio.wait([asking], timeout=20)
    lost = not done
    asking.cancel()
    await asyncio.wait([asking])
    await client.close()
    server.close()
    assert not lost, "it asks on"
