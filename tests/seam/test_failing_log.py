"""Clients of a master whose disk fails for good."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.fakes.loop import virtual
from tests.seam.nodes import Group

WRITERS = 64


@virtual
async def test_an_append_that_was_never_logged_is_told_so_when_the_masters_disk_fails() -> None:
    """Other appends are queued while one group is written: they are not logged, and another node accepts them."""
    group = Group(5)
    await group.start()
    await group.serving()
    master, told = group.master, list[dict[str, Any]]()

    async def write(number: int) -> None:
        while not group.fatal:
            status, answer = await group.append(b"%04d" % number, to=master)
            if status != 200:
                told.append(answer)
                return

    writers = asyncio.gather(*(write(number) for number in range(WRITERS)))
    await asyncio.sleep(0.2)
    group.machines[master].disk.fail_at(lambda call: call.name in ("write", "sync"), times=1 << 30)
    await asyncio.wait_for(writers, 30)
    slugs = {answer["type"] for answer in told}
    assert told and slugs <= {"no-master", "outcome-unknown"}, told
    assert "no-master" in slugs
    await group.stop()
