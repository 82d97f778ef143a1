"""The harness's orders, as a person would give them, are taken by a node."""

from __future__ import annotations

import pytest
from harness.orders import order

from repl.net.network import AiohttpNetwork
from tests.repl.client.group import GroupNode, serving


@pytest.mark.parametrize("what", ["transfer", "transfer?to=n2", "rotate", "restore"])
async def test_an_order_is_taken_with_a_body_or_without(what: str) -> None:
    network = AiohttpNetwork()
    try:
        async with serving(GroupNode()) as url:
            answer = await order(network, url, what, timeout_s=30.0)
            assert answer.status == 200, bytes(answer.body)
    finally:
        await network.close()
