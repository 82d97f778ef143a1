"""A node's process: what it does with memory that was freed."""

from __future__ import annotations

import subprocess
import sys

from vlsn.limits import MIB

PROGRAM = """
import asyncio
from repl.node import process

def own_bytes():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024

async def main():
    before = own_bytes()
    large = b"." * (16 << 20)
    del large  # glibc keeps twice as much from now on
    many = [b"." * (64 << 10) for _ in range(400)]
    stays = b"." * (64 << 10)  # and all that lies below this
    many.clear()
    held = own_bytes()
    process.GIVE_BACK_S = 0.01
    process.give_back(asyncio.get_running_loop())
    many = [b"." * (64 << 10) for _ in range(400)]
    many.clear()
    await asyncio.sleep(0)
    deadline = asyncio.get_running_loop().time() + 20
    while own_bytes() - before > 4 << 20 and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(0.01)
    print(held - before, own_bytes() - before)

asyncio.run(main())
"""


def test_freed_memory_is_given_back_again_and_again_whatever_was_freed_before() -> None:
    """Halves of messages of 16 MiB are such."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    held, left = map(int, ran.stdout.split())
    assert held > 20 * MIB
    assert left <= 4 * MIB
