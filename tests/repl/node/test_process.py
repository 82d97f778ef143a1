"""A node's process: memory that was freed, and faults that no task receives."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from repl.node.process import report_fault
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


def test_a_fault_that_no_task_receives_is_logged_unless_it_is_of_a_closed_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = "unable to perform operation on <TCPTransport closed=True>; the handler is closed"
    faults: dict[str, list[Exception]] = {
        "Fatal error on SSL protocol": [RuntimeError(closed), RuntimeError("another"), ValueError(closed)],
        "a deadline was missed": [RuntimeError(closed)],
    }
    loop = asyncio.new_event_loop()
    logged: list[object] = []
    monkeypatch.setattr(loop, "default_exception_handler", lambda context: logged.append(context["exception"]))
    try:
        for message, raised in faults.items():
            for fault in raised:
                report_fault(loop, {"message": message, "exception": fault})
    finally:
        loop.close()
    assert logged == [*faults["Fatal error on SSL protocol"][1:], *faults["a deadline was missed"]]
