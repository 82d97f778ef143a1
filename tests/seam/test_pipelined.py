"""A pipelined run of appends on one connection has no hole inside, whatever becomes of its members."""

from __future__ import annotations

import asyncio

import pytest

from repl.api import Acks
from repl.http import problem
from repl.produce import Answer, decode_answers, request_header
from tests.fakes.loop import run
from tests.seam.nodes import Group
from vlsn import batch
from vlsn.errors import NotMaster


@pytest.mark.parametrize("expires", [0, 1, 3])
def test_what_is_held_behind_an_append_that_expires_is_refused_with_it(expires: int) -> None:
    """The master hands over to a replica that stands still, and goes on after that: request ``expires`` has not the
    time for it.  Those before it are logged, and none behind it is."""

    async def main() -> None:
        group = Group(71)
        await group.start()
        await group.serving()
        master = group.master
        heir = next(name for name in group.names if name != master)
        channel = await group.client.connect(
            f"{group.url(master)}/v1/produce", message_bytes_max=1 << 20, timeout_s=5.0
        )
        loop = group.loop
        group.net.block(heir, master)
        group.net.block(master, heir)
        transfer = asyncio.create_task(
            group.client.request("POST", f"{group.url(master)}/v1/admin/transfer?to={heir}", timeout_s=5.0)
        )
        lead = group.nodes[master].lead
        assert lead is not None
        await group.until(lambda: lead.handing_over.holds_back, "appends are held back")
        for number in range(5):
            timeout_ms = 500 if number == expires else 10_000
            await channel.send(request_header(number, Acks.MAJORITY, timeout_ms) + batch.encode([b"%d" % number]))
        answers: list[Answer] = []
        began = loop.time()
        while len(answers) < 5:
            answers += decode_answers(await channel.receive())
        assert loop.time() - began > 1.0 or not expires
        await transfer
        await channel.send(request_header(5, Acks.MAJORITY, 10_000) + batch.encode([b"5"]))
        answers += decode_answers(await channel.receive())
        assert [answer.done for answer in answers] == [number < expires for number in range(6)]
        for answer in answers[expires:]:
            assert isinstance(problem.error_of(answer.problem), NotMaster), answer
        assert sorted((await group.read(master)).values()) == [b"%d" % number for number in range(expires)]
        await channel.close()
        await group.stop()
        assert not group.fatal

    run(main())
