"""The budget of scans: a node sends its segments at one total rate, and appends are served meanwhile."""

from __future__ import annotations

import asyncio

import msgspec

from repl.read.scan_pace import ScanPace
from tests.fakes.clock import FakeClock
from tests.fakes.loop import virtual
from tests.seam.test_mending import filled
from vlsn.limits import MIB

RATE = MIB
PIECE = 16 << 10


@virtual
async def test_all_scans_together_get_the_bytes_a_second_that_the_node_gives() -> None:
    group = await filled(11, {}, scan_bytes_per_s=RATE)
    url = f"{group.url('n1')}/v1/segments"
    listing = msgspec.json.decode((await group.client.request("GET", url, timeout_s=5.0)).body)
    number = next(each["number"] for each in listing["segments"] if each["end"] >= PIECE)
    loop = asyncio.get_running_loop()
    begun, pieces = loop.time(), 64

    async def scan() -> None:
        for _ in range(pieces // 4):
            asked = {"Range": f"bytes=0-{PIECE - 1}"}
            answer = await group.client.request("GET", f"{url}/{number}", headers=asked, timeout_s=5.0)
            assert (answer.status, len(bytes(answer.body))) == (206, PIECE)

    await asyncio.gather(*(scan() for _ in range(4)))
    spent = loop.time() - begun
    assert spent >= (pieces - 1) * PIECE / RATE
    assert spent < 2 * pieces * PIECE / RATE
    await group.stop()


@virtual
async def test_quiet_times_are_not_saved_up() -> None:
    loop = asyncio.get_running_loop()
    pace = ScanPace(FakeClock(loop.time), RATE)
    await asyncio.sleep(100)
    begun = loop.time()
    for _ in range(3):
        await pace.take(RATE)
    assert 1.9 <= loop.time() - begun <= 2.1
