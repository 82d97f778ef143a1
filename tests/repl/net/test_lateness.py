"""The loop's lateness is what a turn that takes long shows as."""

from __future__ import annotations

import asyncio
import time

from repl.net.lateness import PERIOD_S
from repl.net.network import AiohttpNetwork
from repl.node.gateway import Gateway
from tests.repl.client.group import until
from tests.repl.web.one_node import started

LONG_S = 0.3


async def test_a_turn_that_takes_long_is_counted_and_waiting_is_not() -> None:
    network = AiohttpNetwork()
    listener = await network.serve("127.0.0.1", 0, Gateway((await started()).services).handle)
    late = listener.lateness
    await until(lambda: late.count > 0)
    counts = list(late.counts)
    time.sleep(LONG_S)  # noqa: ASYNC251 (the turn that takes long)
    looks = late.count
    await until(lambda: late.count > looks)
    over = [after - before for before, after, bound in zip(counts, late.counts, late.bounds, strict=False)][
        late.bounds.index(0.2) :
    ]
    assert sum(over) >= 1
    await listener.close()
    await asyncio.sleep(2 * PERIOD_S)
    count = late.count
    await asyncio.sleep(2 * PERIOD_S)
    assert late.count == count
    await network.close()
