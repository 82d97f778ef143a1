"""The node that a client takes for the master, and the nodes whose list of members it trusts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from repl.client.endpoints import Endpoints
from repl.net.network import AiohttpNetwork
from tests.repl.client.group import GroupNode, serving
from vlsn.errors import NotMaster


@dataclass(eq=False)
class Saying(GroupNode):
    """A node whose status has fields of the test."""

    says: dict[str, Any] | None = None

    def status(self, long: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {**super().status(long), **(self.says or {})}


async def test_a_master_of_a_lower_term_than_one_before_is_not_believed() -> None:
    stale, newest = Saying(name="n1", says={"term": 7}), Saying(name="n2", says={"term": 8})
    network = AiohttpNetwork()
    async with serving(stale) as stale_url:
        endpoints = Endpoints(network, [stale_url])
        assert await endpoints.master() == stale_url
        async with serving(newest) as newest_url:
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
    nodes = [Saying(name=f"n{number}", leads=number == 1, leader="n1") for number in (1, 2, 3)]
    async with serving(nodes[0]) as one, serving(nodes[1]) as two, serving(nodes[2]) as three:
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
