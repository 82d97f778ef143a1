"""The node that a client takes for the master, and the nodes whose list of members it trusts."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from repl.client.endpoints import Endpoints
from repl.net.network import AiohttpNetwork
from repl.web.types import Request, Response, Upgrade
from tests.repl.client.group import served
from vlsn.errors import NotMaster


class Saying:
    """A server whose status is what the test says; it is no master of anything else."""

    def __init__(self, name: str, *, leader: str = "n1", **says: Any) -> None:
        state = "MASTER" if name == leader else "REPLICA"
        self._always = {"node": name, "state": state, "master": leader, "term": 7, "members": []}
        self.says: dict[str, Any] = says

    async def handle(self, request: Request) -> Response | Upgrade:
        assert request.path == "/v1/status"
        document = msgspec.json.encode({**self._always, **self.says})
        return Response(200, {"Content-Type": "application/json"}, document)


async def test_a_master_of_a_lower_term_than_one_before_is_not_believed() -> None:
    stale, newest = Saying("n1", term=7), Saying("n2", leader="n2", term=8)
    network = AiohttpNetwork()
    async with served(stale.handle) as listener:
        stale_url = listener.url
        endpoints = Endpoints(network, [stale_url])
        assert await endpoints.master() == stale_url
        async with served(newest.handle) as other:
            newest_url = other.url
            endpoints.given = (newest_url,)
            assert (await endpoints.master(), endpoints.term) == (newest_url, 8)
        endpoints.given = (stale_url,)
        with pytest.raises(NotMaster):
            await endpoints.master()
        stale.says = {"term": 9}
        assert (await endpoints.master(), endpoints.term) == (stale_url, 9)
    await network.close()


async def test_the_newest_durable_list_of_a_node_that_takes_part_says_who_is_read_from() -> None:
    network = AiohttpNetwork()
    nodes = [Saying(f"n{number}") for number in (1, 2, 3)]
    async with AsyncExitStack() as stack:
        listeners = [await stack.enter_async_context(served(node.handle)) for node in nodes]
        one, two, three = (listener.url for listener in listeners)
        elsewhere = {f"n{number}": f"http://127.0.0.1:{number}" for number in (1, 2, 3, 4)}

        def listing(*names: str) -> list[dict[str, str]]:
            return [{"name": name, "url": elsewhere[name]} for name in names]

        async def readable(*says: dict[str, Any]) -> list[str]:
            for node, said in zip(nodes, says, strict=True):
                node.says = said
            endpoints = Endpoints(network, [one, two, three])
            await endpoints.look(5.0)
            return endpoints.readable

        everybody = listing("n1", "n2", "n3")
        old = {"members": everybody, "members_at": 3}
        new = {"members": listing("n1", "n2"), "members_at": 9}
        assert await readable({}, {}, {}) == [one, two, three], "nodes of an earlier version"
        assert await readable(old, old, old) == [one, two, three], "their URLs are others than here"
        assert await readable(new, old, old) == [one, two]
        assert await readable(old, new, old) == [one, two]
        assert await readable(old, {**new, "members_at": 0}, old) == [one, two, three], "it may be rolled back"
        unknown = {**new, "members_at": 12, "state": "UNKNOWN"}
        assert await readable(old, old, unknown) == [one, two, three], "nobody feeds it"
        moved = {"members": listing("n4"), "members_at": 20}
        assert await readable(moved, old, old) == [elsewhere["n4"]]
    await network.close()
