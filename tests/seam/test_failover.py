"""A change of master as clients see it: writers raise no error, tails have no gap and no repeat. Its duration is
measured in virtual time, so that a busy machine does not matter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import seed as seed_global

import pytest

from repl import connect
from repl.cli.append import STARTING_S, require_a_node
from repl.client.connect import Client
from tests.fakes.loop import VirtualLoop, run, virtual
from tests.seam.nodes import Group
from vlsn.errors import NotInLog, OutcomeUnknown, Unreachable
from vlsn.format.block import Entry

WRITERS = 4


class Clients:
    """Writers that append one entry after another, and a tail that follows them."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.told: dict[int, bytes] = {}
        self.seen: list[Entry] = []
        self.longest_s = 0.0
        self._ending = False

    async def _write(self, log: Client, name: str) -> None:
        number = 0
        loop = asyncio.get_running_loop()
        while not self._ending:
            value = f"{name}/{number}".encode()
            began = loop.time()
            self.told[await log.append(value)] = value
            self.longest_s = max(self.longest_s, loop.time() - began)
            number += 1
            await asyncio.sleep(0.003)

    async def _tail(self, log: Client) -> None:
        async for entry in log.tail():
            self.seen.append(entry)

    async def during(self, trouble: Callable[[], Awaitable[None]]) -> None:
        """Runs writers and tail during ``trouble``, and ends once the tail has every entry."""
        urls = ",".join(self.group.url(name) for name in self.group.names)
        async with (
            connect(urls, exactly_once=True, network=self.group.net.host("writer")) as log,
            connect(urls, network=self.group.net.host("reader")) as reader,
        ):
            tail = asyncio.create_task(self._tail(reader))
            async with asyncio.TaskGroup() as writers:
                for number in range(WRITERS):
                    writers.create_task(self._write(log, f"w{number}"))
                await asyncio.sleep(0.5)
                await trouble()
                await asyncio.sleep(0.5)
                self._ending = True
            last = max(self.told)
            await self.group.until(lambda: bool(self.seen) and self.seen[-1].vlsn >= last, "the tail is there")
            tail.cancel()
            await asyncio.gather(tail, return_exceptions=True)
        assert [(entry.vlsn, entry.value) for entry in self.seen] == sorted(self.told.items())


def leads(group: Group) -> bool:
    return any(node.member.is_master() for node in group.nodes.values())


async def started(seed: int) -> Group:
    seed_global(seed)  # what clients draw their pauses from
    group = Group(seed)
    await group.start()
    await group.serving()
    return group


@pytest.mark.parametrize("seed", range(1, 5))
@virtual
async def test_the_death_of_the_master_is_over_within_a_second(seed: int) -> None:
    group = await started(seed)
    clients = Clients(group)
    killed = group.master

    async def kill() -> None:
        group.kill(killed)
        await group.until(lambda: leads(group), "another leads")

    await clients.during(kill)
    assert group.master != killed
    assert clients.longest_s < 1.0
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", range(1, 5))
@virtual
async def test_a_planned_transfer_keeps_no_append_waiting_for_long(seed: int) -> None:
    group = await started(seed)
    clients = Clients(group)
    before = group.master
    to = next(name for name in reversed(group.names) if name != before)

    async def transfer() -> None:
        answer = await group.client.request("POST", f"{group.url(before)}/v1/admin/transfer?to={to}", timeout_s=5.0)
        assert answer.status == 200, bytes(answer.body)
        await group.until(lambda: group.nodes[to].member.is_master(), "it leads")

    await clients.during(transfer)
    assert clients.longest_s < 0.25
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("with_clients", [False, True])
@virtual
async def test_a_master_that_is_cut_off_costs_its_clients_no_error(seed: int, with_clients: bool) -> None:
    """The clients are on the side of the others, or reach all nodes, also the old master."""
    group = await started(seed)
    clients = Clients(group)
    alone = group.master
    others = [name for name in group.names if name != alone]

    async def cut_off() -> None:
        group.net.split([alone], others if with_clients else [*others, "writer", "reader"])
        await group.until(lambda: group.master in others, "another leads")
        await asyncio.sleep(2.0)
        group.net.heal()

    await clients.during(cut_off)
    assert clients.longest_s < 6.0
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", range(1, 9))
@virtual
async def test_a_master_that_stands_still_is_left_as_soon_as_another_leads(seed: int) -> None:
    """Its connections are open, but it sends nothing: the others are asked ten times a second meanwhile."""
    group = await started(seed)
    clients = Clients(group)
    still = group.master
    loop, process = group.loop, group.machines[still].process
    assert isinstance(loop, VirtualLoop) and process is not None

    elected_s: list[float] = []

    async def stand_still() -> None:
        began = loop.time()
        loop.pause(process.owner)
        await group.until(lambda: group.master != still, "another leads")
        elected_s.append(loop.time() - began)
        await asyncio.sleep(1.0)
        loop.resume(process.owner)

    await clients.during(stand_still)
    assert clients.longest_s < elected_s[0] + 0.15
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", range(1, 5))
@virtual
async def test_a_plain_client_does_not_wait_for_a_master_that_stands_still(seed: int) -> None:
    """Its unanswered appends have an unknown outcome once another node leads; the next appends go there."""
    group = await started(seed)
    still = group.master
    loop, process = group.loop, group.machines[still].process
    assert isinstance(loop, VirtualLoop) and process is not None
    urls = ",".join(group.url(name) for name in group.names)
    async with connect(urls, network=group.net.host("writer")) as log:
        await log.append(b"before")
        began = loop.time()
        loop.pause(process.owner)
        sent = asyncio.create_task(log.append(b"sent to it"))
        await group.until(
            lambda: group.nodes[group.master].member.is_master() and group.master != still, "another leads"
        )
        elected_s = loop.time() - began
        with pytest.raises(OutcomeUnknown, match="leads now"):
            await sent
        assert loop.time() - began < elected_s + 1.0
        await log.append(b"after it")
        assert loop.time() - began < elected_s + 1.3
        loop.resume(process.owner)
    await group.stop()
    assert not group.fatal


@virtual
async def test_every_node_cut_off_from_every_other_is_waited_out() -> None:
    group = await started(3)
    clients = Clients(group)

    async def cut_off() -> None:
        group.net.split(*([name] for name in group.names))
        await asyncio.sleep(5.0)
        group.net.heal()

    await clients.during(cut_off)
    assert 5.0 <= clients.longest_s < 8.0
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_command_waits_for_a_node_that_is_being_started_and_not_for_one_that_is_not() -> None:
    group = Group(6)
    url = group.url("n1")
    async with connect(url, network=group.net.host("person")) as log:
        began = group.loop.time()
        with pytest.raises(Unreachable, match="start one, or correct --url"):
            await require_a_node(log, [url])
        assert STARTING_S < group.loop.time() - began < STARTING_S + 1.0
        asking = asyncio.create_task(require_a_node(log, [url]))
        await asyncio.sleep(1.5)
        assert not asking.done()
        await group.start("n1")
        await asking
    await group.stop()


def test_a_read_gives_up_after_its_time_by_the_clock_of_its_loop() -> None:
    async def main() -> None:
        group = await started(7)
        async with connect(group.url("n1"), network=group.client, timeout_s=3.0) as log:
            await log.append(b"a")
            group.kill(*group.names)
            began = group.loop.time()
            with pytest.raises(Unreachable):
                await anext(log.read())
            assert 3.0 <= group.loop.time() - began < 10.0

    run(main(), limit_s=60.0)


@virtual
async def test_a_tail_is_told_when_what_it_stood_on_is_in_the_log_no_more() -> None:
    """Only an operator can cause that. Here two wiped nodes found the group anew, beside a reader of the old one."""
    group = await started(4)
    for number in range(5):
        await group.append(b"old %d" % number)
    urls = ",".join(group.url(name) for name in group.names)
    seen: list[Entry] = []
    async with connect(urls, network=group.net.host("reader")) as log:
        async for entry in log.tail():
            seen.append(entry)
            if len(seen) == 5:
                break
    term = seen[-1].term
    group.kill(*group.names)
    for name in group.names:
        group.machines[name].disk.wipe()
    await group.start()
    await group.serving()
    group.kill(group.master)  # a term above the old one, and its TERM entry where the reader stood
    await group.until(lambda: leads(group), "another leads")
    await group.serving()
    for number in range(5):
        await group.append(b"new %d" % number)
    async with connect(urls, network=group.net.host("reader")) as log:
        with pytest.raises(NotInLog) as told:
            async for _ in log.tail(seen[-1].vlsn + 1, after_term=term):
                pass
    assert (told.value.vlsn, told.value.term) == (seen[-1].vlsn, term)
    assert told.value.found > term
    await group.stop()
