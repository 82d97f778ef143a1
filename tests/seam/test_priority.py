"""The successor of a master whose process has ended: its port refuses, so no node waits for its silence."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.fakes.loop import run
from tests.seam.nodes import Group
from tests.seam.test_membership import changed, fed, has_all, told

SEEDS = 60


async def failed_over(seed: int, higher: int, lower: int) -> tuple[bool, float]:
    """Kills the master n1, and returns whether the node with the ``higher`` priority, n2 or n3, leads next, and after
    which time."""
    group = Group(seed)
    await group.start()
    await group.serving()
    await fed(group, 2)
    if group.master != "n1":
        answer = await group.client.request("POST", f"{group.url(group.master)}/v1/admin/transfer?to=n1", timeout_s=5.0)
        assert answer.status == 200, bytes(answer.body)
        await group.serving("n1")
        await fed(group, 2)
    await changed(group, change="priority", name="n2", priority=lower)
    await changed(group, change="priority", name="n3", priority=higher)
    await has_all(group, await told(group, 2))
    await asyncio.sleep(group.rng.uniform(0.0, 1.0))  # anywhere between two ticks and two heartbeats
    group.kill("n1")
    began = group.loop.time()
    await group.until(lambda: any(node.member.is_master() for node in group.nodes.values()), "another leads")
    took = group.loop.time() - began
    wins = group.master == "n3"
    await group.stop()
    assert not group.fatal
    return wins, took


@pytest.mark.parametrize(("higher", "lower"), [pytest.param(10, 1, marks=pytest.mark.long), (2, 1)])
def test_the_higher_priority_leads_next_where_the_masters_process_has_ended(higher: int, lower: int) -> None:
    outcomes: Counter[bool] = Counter()
    times = []
    for seed in range(1, SEEDS + 1):
        wins, took = run(failed_over(seed, higher, lower))
        outcomes[wins] += 1
        times.append(took)
    assert outcomes[True] >= 0.95 * SEEDS, outcomes
    assert sorted(times)[SEEDS // 2] < 0.2
    assert max(times) < 1.0
