"""The pauses of a client, by the clock of its loop."""

from __future__ import annotations

import asyncio
from random import seed

from tenacity import AsyncRetrying, RetryCallState

from repl.client.backoff import EAGER_PAUSE_S, EAGER_S, PAUSE_MAX_S, Backoff
from tests.fakes.loop import virtual


@virtual
async def test_a_client_is_eager_for_a_second_of_its_loops_time() -> None:
    seed(1)
    backoff = Backoff()
    state = RetryCallState(AsyncRetrying(), None, (), {})
    state.attempt_number = 20
    assert all(backoff(state) <= EAGER_PAUSE_S for _ in range(50))
    await asyncio.sleep(EAGER_S)
    assert EAGER_PAUSE_S < max(backoff(state) for _ in range(50)) <= PAUSE_MAX_S
