"""Tokens in a group of three nodes: known on every node, after restarts, and refused by a node that hears no master."""

from __future__ import annotations

import asyncio

from repl.auth.tokens import Secret, TokenRecord, new_secret
from repl.node.gateway import Gateway
from repl.web.types import Response
from tests.fakes.loop import virtual
from tests.fakes.random import SeededRandom
from tests.repl.web.calls import request
from tests.seam.nodes import Group
from vlsn.levels import LEVELS

ONE, OTHER = new_secret(SeededRandom(1)), new_secret(SeededRandom(2))
GRACE_S = 5.0


async def group_of(seed: int, size: int = 3) -> Group:
    group = Group(seed, size, levels=LEVELS, anonymous="none", token_grace_s=GRACE_S)
    await group.start()
    await group.serving()
    return group


async def status(group: Group, name: str, secret: Secret) -> int:
    asked = request("GET", "/v1/entries", {"Authorization": f"Bearer {secret.text}"})
    answer = await Gateway(group.nodes[name].services).handle(asked)
    assert isinstance(answer, Response)
    return answer.status


async def create(group: Group, secret: Secret) -> None:
    tokens = group.nodes[group.master].services.tokens
    await tokens.create(secret.id, TokenRecord(("read",), secret.sha256), 10.0)


async def until_all(group: Group, secret: Secret, code: int, within_s: float) -> None:
    async with asyncio.timeout(within_s):
        for name in group.names:
            while True:
                if await status(group, name, secret) == code:
                    break
                await asyncio.sleep(0.01)


@virtual
async def test_a_token_is_taken_and_refused_on_every_node_within_a_second() -> None:
    group = await group_of(1)
    await create(group, ONE)
    await until_all(group, ONE, 200, 1.0)
    await group.nodes[group.master].services.tokens.revoke(ONE.id, "test", 10.0)
    await until_all(group, ONE, 401, 1.0)
    await group.stop()


@virtual
async def test_tokens_outlive_every_process_and_a_change_of_master() -> None:
    group = await group_of(2)
    await create(group, ONE)
    await create(group, OTHER)
    await group.nodes[group.master].services.tokens.revoke(OTHER.id, "test", 10.0)
    first = group.master
    group.kill(first)
    await group.serving()
    assert group.master != first
    assert (await status(group, group.master, ONE), await status(group, group.master, OTHER)) == (200, 401)
    group.kill(*group.nodes, power=True)
    await group.start()
    await group.serving()
    await until_all(group, ONE, 200, 30.0)
    await until_all(group, OTHER, 401, 30.0)
    await group.stop()


@virtual
async def test_a_node_that_hears_no_master_takes_no_token_after_a_while() -> None:
    group = await group_of(3)
    await create(group, ONE)
    await until_all(group, ONE, 200, 1.0)
    master = group.master
    cut, other = [name for name in group.names if name != master]
    group.net.split([cut], [master, other, "client"])
    await group.nodes[master].services.tokens.revoke(ONE.id, "test", 10.0)
    assert await status(group, cut, ONE) == 200, "it has not heard of it"
    await asyncio.sleep(GRACE_S + 3.0)
    assert await status(group, cut, ONE) == 503
    assert await status(group, cut, OTHER) == 401
    group.net.heal()
    await until_all(group, ONE, 401, 30.0)
    await group.stop()
