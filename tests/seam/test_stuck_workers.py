"""Workers that read nothing, against real nodes in one process: their memory is freed for others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from repl.destinations.consume_messages import (
    ACK,
    ACKS_UNANSWERED_MAX,
    ALIVE_S,
    CREDIT,
    FAILED,
    HELLO,
    MESSAGES,
    head,
)
from repl.destinations.handed import Handed
from repl.node.gateway import Gateway
from repl.web.limits import READ_BYTES_MAX, WORKER_BYTES_MAX
from repl.web.types import BytesBody, Headers, Request, Upgrade
from tests.fakes.loop import virtual
from tests.seam.nodes import PORT, Group
from tests.seam.test_destinations import client
from tests.seam.test_workers import Line, connected
from vlsn.format.vlsn_set import VlsnSet
from vlsn.levels import LEVELS
from vlsn.limits import MIB
from vlsn.seams import Buffer


class Stuck(Line):
    """A worker that reads nothing before ``emptied``."""

    def __init__(self) -> None:
        super().__init__()
        self.emptied = asyncio.Event()

    async def send(self, message: Buffer) -> None:
        await self.emptied.wait()
        await super().send(message)

    def send_now(self, message: Buffer) -> bool:
        return self.emptied.is_set() and super().send_now(message)

    @property
    def unheard(self) -> int:
        return self._told.qsize()


@asynccontextmanager
async def large(seed: int, count: int, size: int) -> AsyncIterator[Group]:
    """Yields a group of one whose destination has ``count`` messages of ``size`` bytes."""
    group = Group(seed, 1, levels=LEVELS, segment_bytes=64 * MIB)
    await group.start()
    await group.serving()
    async with client(group) as log:
        await log.destinations.put("orders", from_="start", ack_timeout_s=600.0)
        for _ in range(count):
            await log.append(bytes(size))
    yield group
    await group.stop()


async def consuming(group: Group, line: Line, query: str = "") -> asyncio.Task[None]:
    """Serves a worker as the gateway does."""
    headers = Headers({"Host": f"{group.master}:{PORT}", "Connection": "Upgrade", "Upgrade": "websocket"})
    asked = Request("GET", f"/v1/destinations/orders/consume{query}", headers, BytesBody(b""))
    upgrade = await Gateway(group.nodes[group.master].services).handle(asked)
    assert isinstance(upgrade, Upgrade)

    async def run() -> None:
        await upgrade.run(line)

    return asyncio.create_task(run())


@virtual
async def test_a_worker_that_takes_nothing_is_handed_less_than_two_answers() -> None:
    async with large(41, 80, MIB // 4) as group:
        line = Stuck()
        serving = await consuming(group, line)
        line.tell(head(CREDIT, 80))
        await asyncio.sleep(10.0)
        lead = group.nodes[group.master].lead
        assert lead is not None
        delivery = await lead.destinations.of("orders")
        assert 0 < delivery.out * MIB // 4 <= WORKER_BYTES_MAX + READ_BYTES_MAX
        line.emptied.set()
        await group.until(lambda: len(line.vlsns()) == 80, "all that it gave credit for")
        line.tell(None)
        await serving


@virtual
async def test_workers_that_take_nothing_are_given_up_where_others_need_their_room() -> None:
    async with large(42, 80, MIB // 4) as group:
        room, lines, all_serving = Handed(8 * MIB), list[Line](), list[asyncio.Task[None]]()
        for _ in range(6):
            line, serving = await connected(group, handed=room, line=Stuck(), most=4)
            line.tell(head(CREDIT, 80))
            lines.append(line)
            all_serving.append(serving)
        await asyncio.sleep(0.5)
        assert 8 * MIB <= room.bytes <= 8 * MIB + READ_BYTES_MAX
        quick, served = await connected(group, handed=room, most=4)
        quick.tell(head(CREDIT, 80))
        await group.until(lambda: len(quick.vlsns()) >= 40, "what was handed to those who took nothing", 30.0)
        assert room.bytes <= 8 * MIB + READ_BYTES_MAX and room.given_up == sum(each.done() for each in all_serving)
        assert room.given_up > 0 and not quick.closed
        quick.tell(None)
        for line in lines:
            line.tell(None)
        await asyncio.wait([served, *all_serving])
        assert room.bytes == 0


@virtual
async def test_a_worker_that_takes_no_answer_is_heard_no_further() -> None:
    async with large(43, 1, 1) as group:
        line = Stuck()
        serving = await consuming(group, line)
        for number in range(5_000):
            line.tell(head(ACK, number) + VlsnSet.of([10**9]).pack())
        await asyncio.sleep(10.0)
        assert 5_000 - line.unheard <= ACKS_UNANSWERED_MAX + 1
        line.emptied.set()
        await group.until(lambda: sum(kind == FAILED for kind, _, _ in line.sent) == 5_000, "each is answered")
        line.tell(None)
        await serving


@virtual
async def test_a_worker_that_takes_nothing_is_told_once_that_there_is_nothing() -> None:
    async with large(44, 0, 1) as group:
        line = Stuck()
        serving = await consuming(group, line)
        line.tell(head(CREDIT, 10))
        await asyncio.sleep(20 * ALIVE_S)
        line.emptied.set()
        await asyncio.sleep(1.0)
        assert [kind for kind, _, _ in line.sent] in ([HELLO], [HELLO, MESSAGES])
        line.tell(None)
        await serving
