"""A real node on fakes, and a listener of its own on a real socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from repl.net.listener import HttpListener
from repl.net.network import AiohttpNetwork
from repl.node.gateway import Gateway
from tests.repl.web.one_node import OneNode, started
from vlsn.limits import MIB


@pytest.fixture
def segment_bytes() -> int:
    """The size of the node's segments; a test parametrizes it where a batch is larger."""
    return 2 * MIB


@pytest.fixture
async def node(segment_bytes: int) -> OneNode:
    return await started(segment_bytes=segment_bytes)


@pytest.fixture
async def network() -> AsyncIterator[AiohttpNetwork]:
    opened = AiohttpNetwork()
    yield opened
    await opened.close()


@pytest.fixture
async def gateway(node: OneNode) -> Gateway:
    return Gateway(node.services)


@pytest.fixture
async def listener(network: AiohttpNetwork, gateway: Gateway) -> AsyncIterator[HttpListener]:
    listening = await network.serve("127.0.0.1", 0, gateway.handle, quick=gateway.quick)
    yield listening
    await listening.close()
