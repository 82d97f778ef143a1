"""A simulated machine: what its processes leave on disk, and that a dead process has no further effect."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from repl.web.types import Request, Response
from tests.fakes.loop import run, virtual
from tests.fakes.machine import Machine, Process
from tests.fakes.net import FakeNet
from tests.fakes.seeds import seeds
from vlsn.errors import Unreachable
from vlsnlog.testing.fakes.disk import StopHere


def new_machine(seed: int = 0) -> Machine:
    loop = asyncio.get_running_loop()
    machine = Machine("n1", loop, FakeNet(loop, Random(seed)), Random(seed))
    machine.disk.make_directory("/n1")
    machine.disk.settle()
    return machine


async def count_up(process: Process) -> None:
    """Acts as a small node: appends a byte, synced, again and again; serves its count."""
    disk = process.seams.disk
    create = not disk.exists("/n1/count")
    file = disk.open("/n1/count", write=True, create=create)
    disk.sync_directory("/n1")
    worker = process.seams.threads.worker("writer")
    loop = asyncio.get_running_loop()

    async def handler(request: Request) -> Response:
        return Response(200, {}, str(file.size()).encode())

    await process.network.serve("n1", 7701, handler)

    def append() -> None:
        file.write(file.size(), [b"x"])
        file.sync()

    try:
        while True:
            done = loop.create_future()
            worker.submit(append, done.set_result, done.set_exception)
            await done
    finally:
        disk.remove("/n1/count")  # what a killed process must not come to


@virtual
async def test_a_killed_process_does_nothing_more_and_its_bytes_stay() -> None:
    machine = new_machine()
    client = machine.net.host("client")
    first = machine.boot()
    task = first.start(count_up(first))
    await asyncio.sleep(0.5)
    count = int((await client.request("GET", "http://n1:7701/", timeout_s=1)).body)
    assert count > 10
    machine.kill()
    await asyncio.sleep(1)
    assert task.done()
    assert len(machine.disk.content("/n1/count")) >= count
    with pytest.raises(Unreachable, match="refused"):
        await client.request("GET", "http://n1:7701/", timeout_s=1)

    second = machine.boot()
    second.start(count_up(second))
    await asyncio.sleep(0.5)
    assert int((await client.request("GET", "http://n1:7701/", timeout_s=1)).body) > count
    machine.kill()


@pytest.mark.parametrize("seed", seeds(20))
@virtual
async def test_a_power_cut_keeps_what_was_synced_and_told(seed: int) -> None:
    machine = new_machine(seed)
    process = machine.boot()
    process.start(count_up(process))
    await asyncio.sleep(0.2)
    synced = len(machine.disk.durable_content("/n1/count"))
    assert synced > 10
    machine.power_cut(tear=True)
    assert len(machine.disk.content("/n1/count")) >= synced


def test_the_process_ends_at_a_disk_call_and_the_machine_boots_again() -> None:
    async def main(number: int) -> None:
        machine = new_machine()
        process = machine.boot()
        task = process.start(count_up(process))
        machine.disk.stop_at(len(machine.disk.calls) + number)
        await asyncio.sleep(1)
        assert machine.process is None
        assert not process.alive
        assert task.done()
        with pytest.raises(StopHere):
            process.seams.disk.exists("/n1")
        again = machine.boot()
        again.start(count_up(again))
        await asyncio.sleep(1)
        assert len(machine.disk.content("/n1/count")) > 10

    for number in range(1, 12):
        run(main(number))


@virtual
async def test_a_kill_ends_what_the_process_s_tasks_and_timers_have_started() -> None:
    loop = asyncio.get_running_loop()
    machine = new_machine()
    alive: set[str] = set()

    async def live_on(name: str) -> None:
        alive.add(name)
        try:
            await asyncio.Event().wait()
        finally:
            alive.discard(name)

    async def handler(request: Request) -> Response:
        loop.create_task(live_on("of a handler"))
        return Response()

    async def node() -> None:
        await process.network.serve("n1", 7701, handler)
        loop.create_task(live_on("of a task"))
        loop.call_later(0.1, lambda: loop.create_task(live_on("of a timer")))
        loop.call_later(5.0, lambda: loop.create_task(live_on("of a timer after the kill")))
        loop.call_later(5.0, lambda: 1 // 0)

    process = machine.boot()
    await process.start(node())
    client = machine.net.host("client")
    await client.request("GET", "http://n1:7701/", timeout_s=1)
    of_client = loop.create_task(live_on("of the client"))
    await asyncio.sleep(1)
    assert alive == {"of a task", "of a timer", "of a handler", "of the client"}
    machine.kill()
    await asyncio.sleep(10)
    assert alive == {"of the client"}
    of_client.cancel()


def test_a_fault_of_a_live_process_fails_the_run() -> None:
    async def broken() -> None:
        raise ZeroDivisionError("a bug")

    async def main() -> None:
        process = new_machine().boot()
        await process.start(broken())

    with pytest.raises(ZeroDivisionError):
        run(main())


@virtual
async def test_clocks_are_wrong_by_what_the_machine_says() -> None:
    machine = new_machine()
    before = machine.boot().clock.wall_us()
    machine.kill()
    machine.clock_offset_us = -3_600_000_000
    await asyncio.sleep(1)
    assert machine.boot().clock.wall_us() == before + 1_000_000 - 3_600_000_000
