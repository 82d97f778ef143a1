"""Calls that wait for messages: turns go round by how long each has waited."""

from __future__ import annotations

import asyncio

import pytest

from repl.destinations import waiters as module
from repl.destinations.waiters import Waiters
from tests.fakes.loop import virtual
from vlsn.errors import QueueFull


@virtual
async def test_the_longest_waits_first_and_one_that_is_gone_passes_its_turn_on() -> None:
    waiters, woken = Waiters("orders"), list[int]()

    async def call(number: int) -> None:
        await waiters.wait(asyncio.get_running_loop().time() + 60.0)
        woken.append(number)

    calls = [asyncio.create_task(call(number)) for number in range(4)]
    await asyncio.sleep(1.0)
    waiters.wake()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == [0]
    waiters.wake()
    calls[1].cancel()  # it has its turn already
    await asyncio.sleep(1.0)
    assert woken == [0, 2]
    await asyncio.sleep(60.0)
    assert woken == [0, 2, 3], "its time is over"
    assert len(waiters) == 0
    waiters.wake()


@virtual
async def test_past_the_limit_a_call_is_refused_and_all_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITERS_MAX", 2)
    waiters, deadline = Waiters("orders"), asyncio.get_running_loop().time() + 60.0
    calls = [asyncio.create_task(waiters.wait(deadline)) for _ in range(2)]
    await asyncio.sleep(1.0)
    with pytest.raises(QueueFull, match="2 calls already wait for messages of orders"):
        await waiters.wait(deadline)
    waiters.wake_all()
    await asyncio.wait_for(asyncio.gather(*calls), 1.0)
