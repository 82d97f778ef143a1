"""Exactly once on real nodes in one process: a repeated submission is one entry, with the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from repl.api import Acks
from repl.produce_messages import Answer, decode_answers, request_header
from repl.web import problem
from tests.fakes.loop import VirtualLoop, run
from tests.seam.nodes import Group
from tests.seam.test_group_settings import asked
from vlsn.errors import OutOfSequence
from vlsn.format import batch
from vlsn.ids import Vlsn
from vlsn.levels import LEVELS
from vlsn.limits import PRODUCER_REMEMBERED_MAX, PRODUCERS_MIN

PRODUCER = 0xFEDC_BA98_7654_3210


async def append(
    group: Group,
    sequence: int,
    value: bytes | None = None,
    *,
    to: str = "",
    acks: str = "majority",
    timeout: float = 10,
    producer: int = PRODUCER,
    **more: Any,
) -> tuple[int, dict[str, Any]]:
    fields = "".join(f"&{name}={text}" for name, text in more.items())
    url = group.url(to or group.master)
    response = await group.client.request(
        "POST",
        f"{url}/v1/entries?producer={producer:016x}&sequence={sequence}&acks={acks}&timeout={timeout}{fields}",
        headers={"Content-Type": "application/octet-stream"},
        body=b"value %d" % sequence if value is None else value,
        timeout_s=timeout + 2,
    )
    return response.status, msgspec.json.decode(bytes(response.body))


def played(story: Callable[[Group], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        group = Group(5, **settings)
        await group.start()
        await group.serving()
        await story(group)
        assert not group.fatal
        await group.stop()

    run(main())


def test_the_same_submission_on_two_connections_at_once_is_one_entry() -> None:
    async def story(group: Group) -> None:
        for sequence in range(20):
            answers = await asyncio.gather(*(append(group, sequence) for _ in range(3)))
            assert {status for status, _ in answers} == {200}
            assert len({(said["first"], said["last"], said["term"]) for _, said in answers}) == 1
            assert sorted(said.get("duplicate", False) for _, said in answers) == [False, True, True]
        assert list((await group.read("n1")).values()) == [b"value %d" % sequence for sequence in range(20)]

    played(story)


def test_a_submission_that_does_not_follow_is_refused_and_logs_nothing() -> None:
    async def story(group: Group) -> None:
        status, said = await append(group, 3)
        assert (status, said["type"]) == (409, "unknown-producer")
        for sequence in range(PRODUCER_REMEMBERED_MAX + 1):
            assert (await append(group, sequence))[0] == 200
        last = group.nodes["n1"].opened().log.view.range.last
        for sequence, slug in ((PRODUCER_REMEMBERED_MAX + 2, "out-of-sequence"), (0, "duplicate-forgotten")):
            status, said = await append(group, sequence)
            assert (status, said["type"]) == (409, slug)
        status, said = await append(group, 1)
        assert (status, said["duplicate"], said["durable"]) == (200, True, True)
        assert (await group.read("n1"))[said["first"]] == b"value 1"
        assert group.nodes["n1"].opened().log.view.range.last == last

    played(story)


def test_other_entries_under_a_sequence_that_is_taken_are_refused_wherever_the_original_lies() -> None:
    async def story(group: Group) -> None:
        for sequence in range(3):
            assert (await append(group, sequence))[0] == 200
        log = group.nodes["n1"].opened().log
        last: int = log.view.range.last

        async def try_again(sequence: int, **more: Any) -> None:
            status, said = await append(group, sequence, b"VALUE %d" % sequence, **more)
            assert (status, said["type"]) == (409, "out-of-sequence"), said
            status, said = await append(group, sequence, key="k", **more)
            assert (status, said["type"]) == (409, "out-of-sequence"), said
            status, said = await append(group, sequence, **more)
            assert (status, said["duplicate"], log.view.range.last) == (200, True, last)

        await try_again(1)  # in the ring
        log.view.ring.restart(Vlsn(last))
        await try_again(1)  # in a segment
        group.net.split(["n2"], ["n3"], ["n1", "client"])
        waits = asyncio.create_task(append(group, 3))
        await group.until(lambda: log.view.range.last > last, "it is logged, and not durable")
        last += 1
        await try_again(3, acks="none")
        group.net.heal()
        assert (await waits)[0] == 200

    played(story, election_timeout_s=3.0)


def test_other_entries_under_a_sequence_that_waits_are_refused() -> None:
    async def story(group: Group) -> None:
        url = f"{group.url('n1')}/v1/produce"
        async with asyncio.timeout(10):
            channel = await group.client.connect(url, message_bytes_max=1 << 20, timeout_s=5.0)
            group.machines["n1"].process.threads.latency_s = (0.2, 0.2)  # type: ignore[union-attr]
            for number, sequence, value in ((1, 0, b"nought"), (2, 1, b"one"), (3, 1, b"one"), (4, 1, b"two")):
                head = request_header(number, Acks.MAJORITY, 5000, None)
                await channel.send(head + batch.encode([value], producer=(PRODUCER, sequence)))
                await asyncio.sleep(0.01)
            log = group.nodes["n1"].opened().log
            assert log.queue.entries == 1  # the first is with the writer, the second waits for it
            answers: list[Answer] = []
            while len(answers) < 4:
                answers += decode_answers(await channel.receive())
            await channel.close()
        assert [answer.done for answer in answers] == [True, True, True, False]
        assert isinstance(problem.error_of(answers[3].problem), OutOfSequence)

    played(story)


def test_where_a_producer_goes_on_is_told_of_what_is_durable_on_every_node() -> None:
    async def told(group: Group, name: str, producer: int = PRODUCER) -> dict[str, Any]:
        url = f"{group.url(name)}/v1/producers/{producer:016x}"
        response = await group.client.request("GET", url, timeout_s=8)
        said: dict[str, Any] = msgspec.json.decode(bytes(response.body))
        return said

    async def story(group: Group) -> None:
        assert (await told(group, "n2"))["next"] == 0
        places = [(await append(group, sequence))[1] for sequence in range(3)]
        for name in group.names:
            said = await told(group, name)
            assert [said["next"], said["first"], said["last"], said["term"]] == [
                3,
                places[2]["first"],
                places[2]["last"],
                places[2]["term"],
            ]
            assert said["durable"] >= said["last"]
            assert (await told(group, name, producer=1))["next"] == 0
        # Logged, and not durable yet: an unconfirmed original is not answered.
        group.net.block("n2", "n3")
        group.net.split(["n2"], ["n3"], ["n1", "client"])
        waits = asyncio.create_task(append(group, 3))
        log = group.nodes["n1"].opened().log
        await group.until(lambda: log.view.range.last > places[2]["last"], "it is logged")
        assert (await told(group, "n1"))["type"] == "no-master"
        group.net.heal()
        assert (await waits)[0] == 200
        assert (await told(group, "n3"))["next"] == 4

    played(story, election_timeout_s=20.0)


def test_where_a_producer_goes_on_is_not_behind_what_may_be_rolled_back() -> None:
    """The master leads, and its replicas report it at once, while their disks have not synced the last submission."""

    async def story(group: Group) -> None:
        assert (await append(group, 0))[0] == 200
        master = group.master
        for name in group.names:
            if name != master:
                group.machines[name].disk.latency = lambda call: 3.0 if call.name == "sync" else 0.0
        status, logged = await append(group, 1, acks="none")
        assert status == 200 and not logged["durable"]
        response = await group.client.request("GET", f"{group.url(master)}/v1/producers/{PRODUCER:016x}", timeout_s=8)
        said = msgspec.json.decode(bytes(response.body))
        assert said["durable"] < logged["first"] and said["next"] == 1

    played(story)


def test_a_producer_that_may_have_been_forgotten_does_not_pass_for_a_new_one() -> None:
    async def story(group: Group) -> None:
        table = group.nodes["n1"].opened().log.view.history.producers
        table.forget_before(Vlsn(3))  # as if others had put somebody out up to VLSN 2
        status, said = await append(group, 0, born=1)
        assert (status, said["type"]) == (409, "unknown-producer")
        assert (await append(group, 0, born=2))[0] == 200
        assert (await append(group, 0, born=1))[1]["duplicate"]

    played(story)


def test_one_that_does_not_say_when_it_was_born_is_no_new_one_where_anybody_was_forgotten() -> None:
    """There are more producers than the log remembers, and an early one returns: nothing is appended twice."""

    async def story(group: Group) -> None:
        assert (await asked(group, {"producers": PRODUCERS_MIN}))[0] == 200
        early = range(1, PRODUCERS_MIN + 1)
        for producer in early:
            assert (await append(group, 0, producer=producer))[0] == 200, "nobody was forgotten yet"
        master = group.nodes[group.master]
        born = master.dtvlsn()
        for producer in range(1000, 1004):
            assert (await append(group, 0, producer=producer, born=born))[0] == 200
        last = master.opened().log.view.range.last
        early_births: list[dict[str, Any]] = [{}, {"born": 0}, {"born": 1}]
        for again in early_births:
            status, said = await append(group, 0, producer=1, **again)
            assert (status, said["type"]) == (409, "unknown-producer"), said
        assert (await append(group, 0, producer=early[-1]))[1]["duplicate"], "one that it knows need not say it"
        assert master.opened().log.view.range.last == last
        assert (await append(group, 0, producer=1004, born=last))[0] == 200

    played(story, levels=LEVELS)


@pytest.mark.parametrize("power", [False, True])
def test_a_retry_after_the_master_died_before_its_answer_gets_the_originals_vlsn(power: bool) -> None:
    async def story(group: Group) -> None:
        told: dict[int, tuple[int, int]] = {}
        for round_ in range(6):
            for sequence in range(round_ * 5, round_ * 5 + 4):
                told[sequence] = await placed(group, sequence)
            leader = group.master
            log = group.nodes[leader].opened().log
            last = log.view.range.last
            group.net.block(leader, "client")
            lost = asyncio.create_task(append(group, round_ * 5 + 4))
            await group.until(lambda log=log, last=last: log.view.range.last > last, "it is logged")  # type: ignore[misc]
            group.kill(leader, power=power)
            lost.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lost
            group.net.heal()
            await asyncio.sleep(0.3)
            await group.start(leader)
            await group.serving()
            told[round_ * 5 + 4] = await placed(group, round_ * 5 + 4)
            for sequence, place in told.items():
                assert await placed(group, sequence) == place
        read = await group.read(group.master)
        assert list(read.values()) == [b"value %d" % sequence for sequence in range(30)]
        assert [(vlsn, vlsn) for vlsn in read] == [place for _, place in sorted(told.items())]

    played(story)


async def placed(group: Group, sequence: int) -> tuple[int, int]:
    status, said = await append(group, sequence)
    while said.get("type") in ("insufficient-replicas", "no-master"):  # it has just been elected
        await asyncio.sleep(0.1)
        status, said = await append(group, sequence)
    assert status == 200, said
    return said["first"], said["last"]


def test_a_duplicate_is_answered_when_its_original_meets_the_acks_asked() -> None:
    async def story(group: Group) -> None:
        await append(group, 0)
        group.net.split(["n2"], ["n3"], ["n1", "client"])
        original = asyncio.create_task(append(group, 1, timeout=8))
        await asyncio.sleep(0.05)
        repeated = asyncio.create_task(append(group, 1, timeout=8))
        status, said = await append(group, 1, acks="none")
        assert (status, said["duplicate"], said["durable"], said["synced"]) == (200, True, False, 1)
        place = said["first"]
        await asyncio.sleep(0.2)
        assert not original.done()
        assert not repeated.done()
        group.net.heal()
        for task, duplicate in ((original, False), (repeated, True)):
            status, said = await task
            assert (status, said["first"], said["durable"], said.get("duplicate", False)) == (
                200,
                place,
                True,
                duplicate,
            )
        last = group.nodes["n1"].opened().log.view.range.last
        await group.until(lambda: all(node.dtvlsn() == last for node in group.nodes.values()), "all have it")
        status, said = await append(group, 1, acks="all")
        assert (status, said["first"], said["synced"]) == (200, place, 3)

    played(story, election_timeout_s=3.0)


def test_a_master_that_was_unseated_refuses_no_sequence_for_good() -> None:
    """The old master misses its successor's entries: only the present master may say that one is missing."""

    async def story(group: Group) -> None:
        assert (await append(group, 0))[0] == 200
        old = group.master
        loop, process = group.loop, group.machines[old].process
        assert isinstance(loop, VirtualLoop) and process is not None
        loop.pause(process.owner)
        await group.until(
            lambda: any(name != old and node.member.is_master() for name, node in group.nodes.items()), "another"
        )
        new = next(name for name, node in group.nodes.items() if name != old and node.member.is_master())
        await group.serving(new)
        for sequence in (1, 2):
            assert (await append(group, sequence, to=new))[0] == 200
        asked = asyncio.create_task(append(group, 3, to=old))
        await asyncio.sleep(0.05)
        loop.resume(process.owner)
        status, said = await asked
        assert (status, said["type"]) == (503, "no-master")
        assert (await append(group, 3, to=new))[0] == 200

    played(story)


def test_another_submission_under_the_same_sequence_is_refused() -> None:
    async def story(group: Group) -> None:
        channel = await group.client.connect(f"{group.url('n1')}/v1/produce", message_bytes_max=1 << 20, timeout_s=5.0)
        for id, values in ((1, [b"a"]), (2, [b"a"]), (3, [b"a", b"b"]), (4, [b"c"])):
            data = batch.encode(values, producer=(PRODUCER, 0))
            await channel.send(request_header(id, Acks.MAJORITY, 5_000, 0) + data)
        answers: list[Answer] = []
        while len(answers) < 4:
            answers += decode_answers(await channel.receive())
        assert [(one.done, one.duplicate) for one in answers] == [
            (True, False),
            (True, True),
            (False, False),
            (False, False),
        ]
        assert isinstance(problem.error_of(answers[2].problem), OutOfSequence)
        assert answers[0].first == answers[1].first
        await channel.close()

    played(story)
