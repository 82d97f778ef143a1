"""The harness's orders, as a person would give them, are taken by a node."""

from __future__ import annotations

import pytest
from harness.orders import order

from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from vlsn.levels import LEVELS


@pytest.mark.parametrize(
    ("what", "name"), [("transfer", "n1"), ("transfer?to=n2", "n1"), ("rotate", "n1"), ("restore", "n2")]
)
@virtual
async def test_an_order_is_taken_with_a_body_or_without(what: str, name: str) -> None:
    group = Group(1, levels=LEVELS)
    await group.start()
    await group.serving("n1")
    await group.until(lambda: group.nodes["n2"].dtvlsn() > 0, "n2 follows")
    answer = await order(group.client, group.url(name), what, timeout_s=30.0)
    assert answer.status == 200, bytes(answer.body)
    if what == "restore":
        await group.until(lambda: group.nodes["n2"].state == "RESTORING", "n2 restores its log")
    await group.until(lambda: group.nodes["n2"].state in ("MASTER", "REPLICA"), "n2 is whole again")
    await group.stop()
