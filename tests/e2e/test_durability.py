"""Answers before a sync, of real processes: written entries outlive them all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from repl.client.connect import connect
from tests.e2e.calls import call
from tests.e2e.commands import run
from tests.e2e.group import NAMES, Group
from vlsn.errors import VlsnLogError

pytestmark = pytest.mark.feature("durability")

WRITERS = 16
ANSWERS = 400
NEVER_S = 60.0


@pytest.mark.parametrize(
    "by_setting",
    [pytest.param(False, id="each append asks"), pytest.param(True, id="the group's setting", marks=pytest.mark.long)],
)
def test_what_was_written_on_a_majority_outlives_the_kill_of_every_node(tmp_path: Path, by_setting: bool) -> None:
    group = Group(tmp_path, sync_interval_s=NEVER_S)
    told: dict[int, bytes] = {}
    asked = None if by_setting else "write_no_sync"

    async def load() -> None:
        enough = asyncio.Event()

        async def writer(number: int) -> None:
            count = 0
            while not enough.is_set():
                value = b"%d.%d" % (number, count)
                count += 1
                try:
                    answer = await log.append_batch([value], durability=asked)
                except VlsnLogError:
                    return
                assert not answer.durable and str(answer.durability) == "write_no_sync,write_no_sync", answer
                told[answer.first] = value
                if len(told) >= ANSWERS:
                    enough.set()

        async with connect(group.master, timeout_s=60.0) as log:
            writers = [asyncio.create_task(writer(number)) for number in range(WRITERS)]
            async with asyncio.timeout(180):
                await enough.wait()
            await asyncio.to_thread(group.kill, *NAMES)
            for task in writers:
                task.cancel()
            await asyncio.wait(writers)
            await log.close(flush=False)

    try:
        group.start()
        if by_setting:
            done = run("group", "set", "durability=write_no_sync", "--url", group.urls["n1"])
            assert (done.status, b"durability write_no_sync,write_no_sync" in done.out) == (0, True), done
        durable = group.status("n1")["dtvlsn"]
        asyncio.run(load())
        assert min(told) > durable
        group.start()
        group.settle()
        for name in NAMES:
            answer = call("GET", f"{group.urls[name]}/v1/entries?from={durable + 1}&limit=10000")
            lines = [json.loads(line) for line in answer.body.splitlines()]
            assert {line["vlsn"]: line["value"].encode() for line in lines}.items() >= told.items(), name
    finally:
        group.end()
