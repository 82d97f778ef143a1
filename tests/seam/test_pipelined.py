"""A pipelined run of appends on one connection has no gap, whatever happens to single appends."""

from __future__ import annotations

import asyncio

import pytest

from repl.api import Acks
from repl.produce_messages import Answer, decode_answers, request_header
from repl.web import problem
from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from vlsn.errors import NotMaster
from vlsn.format import batch


@pytest.mark.parametrize("expires", [0, 1, 3])
@virtual
async def test_what_is_held_behind_an_append_that_expires_is_refused_with_it(expires: int) -> None:
    """The master transfers to a suspended replica, and leads on after that. The deadline of request ``expires`` passes
    meanwhile: earlier requests are logged, and no later one is."""
    group = Group(71)
    await group.start()
    await group.serving()
    master = group.master
    heir = next(name for name in group.names if name != master)
    channel = await group.client.connect(f"{group.url(master)}/v1/produce", message_bytes_max=1 << 20, timeout_s=5.0)
    loop = group.loop
    group.net.block(heir, master)
    group.net.block(master, heir)
    transfer = asyncio.create_task(
        group.client.request("POST", f"{group.url(master)}/v1/admin/transfer?to={heir}", timeout_s=5.0)
    )
    lead = group.nodes[master].lead
    assert lead is not None
    await group.until(lambda: lead.holds_back, "appends are held back")
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


PRODUCER = 0xFEDC_BA98_7654_3210
REFUSED_LATER = {
    "unknown-producer": ((PRODUCER + 1, 5), b"x"),
    "out-of-sequence, for what comes before it is not there": ((PRODUCER, 7), b"x"),
    "out-of-sequence, for it was another one": ((PRODUCER, 0), b"x"),
}
"""Submissions that a master refuses only after a majority has confirmed its leadership, or after a read."""


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("which", REFUSED_LATER)
@virtual
async def test_what_is_sent_behind_a_submission_that_is_refused_later_is_refused_with_it(
    which: str, held: bool
) -> None:
    """The append is sent while the outcome of the earlier submission is unknown. With ``held`` the master delays both,
    during a transfer. Another connection's appends are logged."""
    group = Group(72)
    await group.start()
    await group.serving()
    master = group.master
    url = f"{group.url(master)}/v1/produce"
    channel = await group.client.connect(url, message_bytes_max=1 << 20, timeout_s=5.0)
    producer, value = REFUSED_LATER[which]
    named = batch.encode([b"first"], producer=(PRODUCER, 0))
    await channel.send(request_header(0, Acks.MAJORITY, 10_000, 0) + named)
    assert decode_answers(await channel.receive())[0].done
    group.nodes[master].opened().log.view.ring.restart(
        group.nodes[master].opened().log.view.range.last
    )  # what it was is on disk
    lead = group.nodes[master].lead
    assert lead is not None
    transfer = None
    if held:
        heir = next(name for name in group.names if name != master)
        group.net.block(heir, master)
        group.net.block(master, heir)
        transfer = asyncio.create_task(
            group.client.request("POST", f"{group.url(master)}/v1/admin/transfer?to={heir}", timeout_s=5.0)
        )
        await group.until(lambda: lead.holds_back, "appends are held back")
    other = asyncio.create_task(group.append(b"of another connection"))
    await channel.send(request_header(1, Acks.MAJORITY, 10_000) + batch.encode([b"before"]))
    await channel.send(request_header(2, Acks.MAJORITY, 10_000, 0) + batch.encode([value], producer=producer))
    for number in (3, 4):
        await channel.send(request_header(number, Acks.MAJORITY, 10_000) + batch.encode([b"behind"]))
    answers: list[Answer] = []
    while len(answers) < 4:
        answers += decode_answers(await channel.receive())
    assert [answer.done for answer in answers] == [True, False, False, False]
    assert {problem.error_of(answer.problem).slug for answer in answers[1:]} == {which.partition(",")[0]}
    assert [b'"after":2' in answer.problem for answer in answers[1:]] == [False, True, True]
    assert (await other)[0] == 200
    if transfer is not None:
        await transfer
    assert sorted((await group.read(master)).values()) == [b"before", b"first", b"of another connection"]
    await channel.close()
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_submission_that_was_here_before_keeps_nobody_behind_it_from_being_logged() -> None:
    """The submission is sent again with the later ones, as by a client that has lost its connection. They are logged in
    order, each once."""
    group = Group(73)
    await group.start()
    await group.serving()
    master = group.master
    for turn in range(2):
        channel = await group.client.connect(
            f"{group.url(master)}/v1/produce", message_bytes_max=1 << 20, timeout_s=5.0
        )
        log = group.nodes[master].opened().log
        log.view.ring.restart(log.view.range.last)  # the originals are read from the segment
        for number in range(10 + 10 * turn):
            data = batch.encode([b"%02d" % number], producer=(PRODUCER, number))
            await channel.send(request_header(number, Acks.MAJORITY, 10_000, 0) + data)
        answers: list[Answer] = []
        while len(answers) < 10 + 10 * turn:
            answers += decode_answers(await channel.receive())
        assert [answer.duplicate for answer in answers] == [True] * 10 * turn + [False] * 10
        await channel.close()
    assert list((await group.read(master)).values()) == [b"%02d" % number for number in range(20)]
    await group.stop()
    assert not group.fatal
