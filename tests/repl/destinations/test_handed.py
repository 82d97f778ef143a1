"""Room for messages that are handed out: the calls that wait for it, and the workers that are given up for it."""

from __future__ import annotations

import asyncio

from repl.destinations.handed import Handed, Holder
from repl.web.limits import ANSWERS_MAX, STALLED_S, WORKER_BYTES_MAX
from tests.fakes.loop import virtual
from vlsn.errors import ChannelClosed


async def stuck(holder: Holder) -> str:
    """Sends to a socket that takes nothing; how that ended."""
    try:
        await holder.send(asyncio.Event().wait())
    except ChannelClosed as closed:
        return str(closed)
    raise AssertionError


@virtual
async def test_a_worker_is_handed_so_many_bytes_and_answers() -> None:
    handed = Handed()
    one, other = Holder(handed), Holder(handed)
    one.take(1, WORKER_BYTES_MAX - 1)
    assert not one.is_full
    one.take(2, 1)
    assert [one.is_full, other.is_full] == [True, False]
    one.sent()
    assert (one.is_full, one.answers) == (False, {2: 1})
    for answer in range(ANSWERS_MAX):
        other.take(answer, 1)
    assert other.is_full
    other.leave()
    one.leave()
    assert handed.bytes == 0


@virtual
async def test_who_finds_no_room_waits_for_it_and_no_longer_than_he_says() -> None:
    loop, handed = asyncio.get_running_loop(), Handed(100)
    one, other = Holder(handed), Holder(handed)
    assert await other.wait(loop.time())
    one.take(1, 70)
    one.take(2, 70)
    began = loop.time()
    assert not await other.wait(began + 5.0) and loop.time() == began + 5.0
    waiting = [asyncio.create_task(other.wait(loop.time() + 60.0)) for _ in range(2)]
    await asyncio.sleep(1.0)
    one.sent()
    assert await asyncio.gather(*waiting) == [True, True]
    assert loop.time() == began + 6.0 and handed.given_up == 0


@virtual
async def test_the_worker_that_has_taken_nothing_for_longest_is_given_up_for_others_and_no_more_of_them() -> None:
    loop, handed = asyncio.get_running_loop(), Handed(100)
    first, second, third = (Holder(handed) for _ in range(3))
    for holder in (second, first, third):
        holder.take(1, 40)
    began = loop.time()
    sends = []
    for holder in (first, second, third):
        sends.append(asyncio.create_task(stuck(holder)))
        await asyncio.sleep(0.1)
    await asyncio.sleep(10 * STALLED_S)
    assert not any(send.done() for send in sends), "nobody needs the room"
    assert await Holder(handed).wait(loop.time() + 60.0) and loop.time() - began < 10 * STALLED_S + 1
    await asyncio.wait(sends, timeout=1.0)
    assert [send.done() for send in sends] == [True, False, False]
    assert (handed.bytes, handed.given_up) == (80, 1)
    first.leave()
    second.take(2, 20)
    assert await Holder(handed).wait(loop.time() + 60.0)
    await asyncio.wait(sends, timeout=1.0)
    assert [send.done() for send in sends] == [True, True, False]
    assert handed.bytes == 40
    sends[-1].cancel()


@virtual
async def test_a_worker_that_takes_what_it_is_sent_is_not_given_up_however_full_it_is() -> None:
    loop, handed = asyncio.get_running_loop(), Handed(100)
    quick = Holder(handed)

    async def takes() -> None:
        for answer in range(20):
            quick.take(answer, 100)
            await quick.send(asyncio.sleep(STALLED_S * 0.9))
            quick.sent()

    async def waits() -> int:
        found = 0
        while not taking.done():
            found += await Holder(handed).wait(loop.time() + 60.0)
            await asyncio.sleep(0.01)
        return found

    taking = asyncio.create_task(takes())
    await asyncio.sleep(0)
    assert await waits() > 0
    await taking
    assert (handed.bytes, handed.given_up) == (0, 0)


@virtual
async def test_a_worker_that_takes_its_message_as_it_is_given_up_is_counted_once() -> None:
    loop, handed = asyncio.get_running_loop(), Handed(100)
    worker, taken = Holder(handed), asyncio.Event()
    worker.take(1, 100)
    sending = asyncio.create_task(worker.send(taken.wait()))
    await asyncio.sleep(2 * STALLED_S)
    taken.set()
    assert await Holder(handed).wait(loop.time() + 60.0)
    await asyncio.wait([sending])
    assert (handed.bytes, handed.given_up, worker.answers) == (0, 1, {1: 0})
    worker.sent()
    worker.leave()
    assert handed.bytes == 0
