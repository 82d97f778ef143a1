"""A mirror across a partition that drops packets between two groups: the same order, each entry once.

MIRROR_PARTITION_S=130 pytest tests/jepsen/test_cdc_mirror_partition.py      a partition of minutes
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest
from harness.group.namespaces import Namespaces, Refused

from repl import connect_sync
from tests.e2e.cdc_pages import example, toml
from tests.e2e.test_cdc import One, eventually

pytestmark = pytest.mark.real
PARTITION_S = float(os.environ.get("MIRROR_PARTITION_S", "8"))
"""Seconds: more than the 5 that the mirror's calls are tried for."""
BOTH_WAYS = (("here", "there"), ("there", "here"))


def values(one: One) -> list[bytes]:
    with connect_sync(one.url, timeout_s=30.0) as log:
        return [entry.value for entry in log.read(consistency="linearizable")]


def test_a_mirror_is_the_source_once_over_a_partition_of_packets(tmp_path: Path) -> None:
    asyncio.run(_partitioned(tmp_path))


async def _partitioned(tmp_path: Path) -> None:
    try:
        spaces = await Namespaces.open(("here", "there"))
    except Refused as error:
        pytest.skip(str(error))
    groups: dict[str, One] = {}
    try:
        for name in ("there", "here"):
            (tmp_path / name).mkdir()
            address = f"{spaces.address(name)}:7701"
            table = toml(example("mirror.md", url=groups["there"].url, group="there")) if name == "here" else ""
            words = spaces.launcher(name)
            groups[name] = One(
                tmp_path / name,
                table,
                group=name,
                url=f"http://{address}",
                launcher=words,
                settings={"listen": address, "insecure": True},
            )
            await asyncio.to_thread(groups[name].start)
        here, there = groups["here"], groups["there"]
        await asyncio.to_thread(here.append, *[b"before %d" % number for number in range(50)])
        await asyncio.to_thread(eventually, lambda: len(values(there)) == 50, "the mirror works")

        await spaces.block(BOTH_WAYS, "hold")
        ends_s, count = time.monotonic() + PARTITION_S, 0
        while time.monotonic() < ends_s:
            await asyncio.to_thread(here.append, b"meanwhile %d" % count)
            count += 1
            await asyncio.sleep(0.2)
        assert await spaces.met(BOTH_WAYS) > 0, "packets were dropped"
        told = here.told("copy")
        assert told["state"] in ("running", "backoff", "starting") and told["lag_vlsns"] != 0, told
        assert told["failures"] == 0, "a group that is away is no failure"
        assert 50 <= len(values(there)) < 50 + count // 2, "nothing gets there"
        if PARTITION_S > 60:
            with suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(here.pid("copy"), signal.SIGKILL)  # what it has sent may be taken when packets pass again
        await spaces.heal(BOTH_WAYS)

        await asyncio.to_thread(here.append, b"after")
        await asyncio.to_thread(eventually, lambda: len(values(there)) >= 51 + count, "all is there", 120.0)
        assert values(there) == values(here)
        assert values(here)[50:] == [*(b"meanwhile %d" % number for number in range(count)), b"after"]
        assert here.told("copy")["state"] == "running"
    finally:
        for one in groups.values():
            if one.process is not None and one.process.poll() is None:
                one.end()
        await spaces.close()
