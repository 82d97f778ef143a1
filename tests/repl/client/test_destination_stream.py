"""A hand-made worker's connection: acknowledgements under way, a master that is silent or reads nothing."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from repl.client.destination_stream import ACKS_MAX, LAST_WORD_S, SILENT_S, UNSENT_MAX, DestinationStream, column_of
from repl.destinations.consume_messages import (
    ACK,
    ACKED,
    CREDIT,
    HELLO,
    MESSAGES,
    head,
)
from repl.destinations.message_columns import MessageColumns, encode
from tests.fakes.loop import virtual
from tests.seam.test_workers import Line
from vlsn.errors import BadBody, ChannelClosed, Unreachable
from vlsn.format.block import Entry, EntryKind
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Term, Vlsn
from vlsn.seams import Buffer


@virtual
async def test_an_acknowledgement_is_lost_with_a_master_that_falls_silent_though_nobody_asks_for_messages() -> None:
    line, loop = Line(), asyncio.get_running_loop()
    lost: list[tuple[str, list[int], float]] = []
    line.tell(head(HELLO) + b"aaaaaaaaaaaaaaaa")
    stream = await DestinationStream.open(line, lambda uuid, vlsns, _: lost.append((uuid, [*vlsns], loop.time())))
    began = loop.time()
    await stream.ack(column_of([7, 8]))
    await asyncio.sleep(SILENT_S + 2.0)
    assert [(uuid, vlsns) for uuid, vlsns, _ in lost] == [("aaaaaaaaaaaaaaaa", [7, 8])]
    assert lost[0][2] - began < SILENT_S + 1.0 and line.closed
    await stream.close()


@virtual
async def test_acknowledgements_of_one_turn_go_together_and_one_that_is_cancelled_takes_no_other_along() -> None:
    line, lost = Line(), list[list[int]]()
    line.tell(head(HELLO) + b"aaaaaaaaaaaaaaaa")
    stream = await DestinationStream.open(line, lambda uuid, vlsns, _: lost.append([*vlsns]))
    many = [asyncio.create_task(stream.ack(column_of([vlsn]))) for vlsn in (7, 5, 6)]
    tolds = await asyncio.gather(*many)
    first = asyncio.create_task(stream.ack(column_of([8])))
    await asyncio.sleep(0)
    first.cancel()
    later = await stream.ack(column_of(range(9, 9 + ACKS_MAX)))  # no room beside the one before
    await asyncio.sleep(0.1)
    sent = [(number, VlsnSet.unpack(rest).vlsns().tolist()) for kind, number, rest in line.sent if kind == ACK]
    assert sent == [(1, [5, 6, 7]), (2, [8]), (3, [*range(9, 9 + ACKS_MAX)])]
    line.tell(head(ACKED) + np.array([1, 3], "<u4").tobytes())
    await asyncio.sleep(0.1)
    assert all(told.done() for told in tolds) and later.done() and not lost
    await stream.close()
    assert lost == [[8]], "only this one is not known to be durable"


@virtual
async def test_an_acknowledgement_is_not_kept_waiting_by_a_connection_that_is_closed() -> None:
    line, lost = Line(), list[list[int]]()
    line.tell(head(HELLO) + b"aaaaaaaaaaaaaaaa")
    stream = await DestinationStream.open(line, lambda uuid, vlsns, _: lost.append([*vlsns]))
    for at in range(2 * UNSENT_MAX):
        asyncio.ensure_future(stream.ack(column_of(range(at * ACKS_MAX + 1, (at + 1) * ACKS_MAX + 1))))
    await asyncio.sleep(0)
    await stream.close()
    async with asyncio.timeout(5.0):
        await stream.ack(column_of([1]))
        await asyncio.sleep(0.1)
    assert len(lost) >= UNSENT_MAX and line.closed


@virtual
async def test_a_greeting_that_never_comes_is_not_waited_for_for_ever() -> None:
    line, loop = Line(), asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Unreachable, match="was silent"):
        await DestinationStream.open(line, lambda *_: None)
    assert SILENT_S <= loop.time() - began < SILENT_S + 1.0
    assert [kind for kind, _, _ in line.sent] == [CREDIT] and line.closed


class FullLine(Line):
    """A line whose socket is full from some message on, until it is ``emptied`` or ``lost``."""

    lost = False

    def __init__(self) -> None:
        super().__init__()
        self.emptied = asyncio.Event()
        self.emptied.set()

    async def send(self, message: Buffer) -> None:
        if self.lost:
            raise ChannelClosed("the master is gone")
        await self.emptied.wait()
        await super().send(message)


async def full() -> tuple[FullLine, DestinationStream, list[list[int]]]:
    line, lost = FullLine(), list[list[int]]()
    line.tell(head(HELLO) + b"aaaaaaaaaaaaaaaa")
    stream = await DestinationStream.open(line, lambda uuid, vlsns, _: lost.append([*vlsns]))
    line.emptied.clear()
    return line, stream, lost


@virtual
async def test_what_had_come_is_given_out_though_the_connection_is_lost_as_more_is_asked_for() -> None:
    line, stream, _ = await full()
    columns = MessageColumns.of([Entry(Vlsn(7), Term(1), 0, EntryKind.DATA, 0, None, b"a")])
    line.tell(head(MESSAGES) + encode(columns, {}))
    await asyncio.sleep(0.1)
    line.lost = True
    await stream.grant(1)
    assert (await stream.next()).vlsns.tolist() == [7]
    with pytest.raises(Unreachable, match="the master is gone"):
        await stream.next()
    await stream.close()


@virtual
async def test_a_worker_leaves_a_master_that_reads_nothing_and_its_acknowledgements_are_made_again() -> None:
    line, stream, lost = await full()
    stream.pass_over(column_of([9]))
    await stream.ack(column_of([7]))
    async with asyncio.timeout(LAST_WORD_S + 1.0):
        await stream.close()
    assert line.closed and lost == [[7]]


@virtual
async def test_a_worker_whose_leaving_is_cancelled_has_left() -> None:
    line, stream, lost = await full()
    stream.pass_over(column_of([9]))
    await stream.ack(column_of([7]))
    leaving = asyncio.create_task(stream.close())
    await asyncio.sleep(0.1)
    leaving.cancel()
    await asyncio.wait([leaving])
    assert line.closed and lost == [[7]]


@virtual
async def test_who_waits_for_the_socket_goes_together_with_others_who_do() -> None:
    line, stream, lost = await full()
    tolds = [await stream.ack(column_of(range(1, 1 + ACKS_MAX))) for _ in range(UNSENT_MAX)]
    waiting = [asyncio.create_task(stream.ack(column_of([vlsn]))) for vlsn in range(1, 101)]
    await asyncio.sleep(0.1)
    line.emptied.set()
    tolds += await asyncio.gather(*waiting)
    await asyncio.sleep(0.1)
    sent = [number for kind, number, _ in line.sent if kind == ACK]
    assert len(sent) < 2 * UNSENT_MAX, "a message for each would be what the master answers one by one"
    line.tell(head(ACKED) + np.array(sent, "<u4").tobytes())
    await asyncio.sleep(0.1)
    assert all(told.done() for told in tolds) and not lost
    await stream.close()


@virtual
async def test_a_master_that_answers_what_nobody_can_read_is_left_at_once() -> None:
    line, stream, lost = await full()
    await stream.ack(column_of([7]))
    line.tell(head(ACKED) + b"abc")
    with pytest.raises(BadBody):
        async with asyncio.timeout(1.0):
            await stream.next()
    assert lost == [[7]]
    again = await stream.ack(column_of([8]))
    assert lost == [[7], [8]] and not again.done(), "nothing more goes out on that connection"
    await stream.close()
