"""The exactly-once client against real nodes in one process, whose connections and nodes fail. Every append is
acknowledged, and in the log once, in the order of its client's calls."""

from __future__ import annotations

import asyncio
from random import Random
from random import seed as seed_global

import pytest

from repl import connect
from repl.client.connect import Client
from tests.fakes.loop import run
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group

CLIENTS = 3
APPENDS = 100


async def write(log: Client, name: str, rng: Random, told: dict[bytes, int]) -> None:
    """Appends, several under way at once, and notes the answer to each."""

    async def one(number: int) -> None:
        value = f"{name}/{number}".encode()
        if number % 5:
            told[value] = await log.append(value, key=b"k" if number % 7 == 0 else None)
        else:
            more = [value, value + b"/2", value + b"/3"]
            first, last = await log.append_many(more)
            assert last - first == 2
            told.update(zip(more, range(first, last + 1), strict=True))

    tasks = []
    for number in range(APPENDS):
        tasks.append(asyncio.create_task(one(number)))
        await asyncio.sleep(rng.choice((0, 0, 0.001, 0.02, 0.1, 0.6)))
    await asyncio.gather(*tasks)


def led_by(group: Group) -> str:
    """Returns the node that leads, or might lead."""
    return next((name for name, node in group.nodes.items() if node.log is not None and node.member.is_master()), "n1")


async def disturb(group: Group, rng: Random, struck: list[str]) -> None:
    while True:
        await asyncio.sleep(rng.uniform(0.05, 0.5))
        struck.append(rng.choice(("cut", "cut", "mute", "deaf", "alone", "kill", "power", "all")))
        victim = led_by(group) if rng.random() < 0.8 else rng.choice(group.names)
        others = [name for name in group.names if name != victim]
        match struck[-1]:
            case "cut":
                group.net.cut("client", victim)
            case "mute":
                group.net.block(victim, "client")
            case "deaf":
                group.net.block("client", victim)
            case "alone":
                group.net.split([victim], others)
            case "all":
                group.kill(*group.names, power=rng.random() < 0.5)
                await asyncio.sleep(0.1)
                await group.start()
            case kind:
                group.kill(victim, power=kind == "power")
                await asyncio.sleep(rng.uniform(0, 1))
                await group.start(victim)
        await asyncio.sleep(rng.choice((0.01, 0.3, 3.0)))
        group.net.heal()


async def story(seed: int) -> None:
    group, rng = Group(seed), Random(f"once/{seed}")
    seed_global(seed)  # what the client draws its pauses from
    group.net.cut_rate = 0.01
    await group.start()
    await group.serving()
    told: dict[bytes, int] = {}
    struck: list[str] = []
    disturbing = asyncio.create_task(disturb(group, rng, struck))
    urls = ",".join(group.url(name) for name in group.names)
    names = [f"w{number}" for number in range(CLIENTS)]
    async with asyncio.TaskGroup() as tasks:
        for name in names:

            async def client(name: str = name) -> None:
                async with connect(urls, timeout_s=300, exactly_once=True, network=group.client) as log:
                    await write(log, name, Random(f"{name}/{seed}"), told)

            tasks.create_task(client())
    disturbing.cancel()
    await asyncio.gather(disturbing, return_exceptions=True)
    group.net.cut_rate = 0
    group.net.heal()
    for name in group.names:
        if name not in group.nodes:
            await group.start(name)
    await group.until(lambda: all(node.log is not None for node in group.nodes.values()), "all are open")
    await group.serving()
    await group.until(lambda: len({node.dtvlsn() for node in group.nodes.values()}) == 1, "all have the same")
    for name in group.names:
        read = await group.read(name)
        assert {value: vlsn for vlsn, value in read.items()} == told
        assert len(read) == len(told) == CLIENTS * APPENDS * 7 // 5
        for writer in names:
            mine = [value for value in read.values() if value.startswith(f"{writer}/".encode())]
            assert mine == sorted(mine, key=lambda value: int(value.split(b"/")[1])), writer
    assert len(struck) >= 3, struck
    assert not group.fatal
    await group.stop()


@pytest.mark.parametrize("seed", seeds(3))
def test_every_append_is_there_once_and_in_order_whatever_fails(seed: int) -> None:
    run(story(seed))
