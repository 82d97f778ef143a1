"""A node in memory, and its listener on a socket."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from repl.net import AiohttpNetwork
from repl.net.listener import HttpListener
from repl.node.gateway import Gateway
from tests.repl.web.memory_node import MemoryNode


@pytest.fixture
def node() -> MemoryNode:
    return MemoryNode()


@pytest.fixture
async def network() -> AsyncIterator[AiohttpNetwork]:
    opened = AiohttpNetwork()
    yield opened
    await opened.close()


@pytest.fixture
async def gateway(node: MemoryNode) -> Gateway:
    return Gateway(node.services)


@pytest.fixture
async def listener(network: AiohttpNetwork, gateway: Gateway) -> AsyncIterator[HttpListener]:
    listening = await network.serve("127.0.0.1", 0, gateway.handle, quick=gateway.quick)
    yield listening
    await listening.close()
