"""A reader process that reads a log each time that it is asked: ``python -m tests.bench.bare_reader URLS numpy|bare``.

A line of JSON asks for a way to read, and how many entries there are. The answer is the rate, in entries a second of
the processor time of this process: a machine that does other work, too, has less wall time for it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import msgspec


async def _read(urls: str, first: int, entries: int, way: str) -> int:
    from repl.client.connect import connect

    async with connect(urls) as log:
        if way == "tail":
            return sum([1 async for _ in log.tail(first, limit=entries)])
        return sum([1 async for _ in log.read(first, first + entries - 1)])


def main(urls: str, how: str) -> None:
    if how == "bare":
        sys.modules["numpy"] = None  # type: ignore[assignment]
    for line in sys.stdin.buffer:
        asked: dict[str, Any] = msgspec.json.decode(line)
        began = time.process_time()
        count = asyncio.run(_read(urls, asked["first"], asked["entries"], asked["way"]))
        seconds = time.process_time() - began
        assert count == asked["entries"]
        answer = {"entries_per_s": round(count / seconds), "numpy": sys.modules.get("numpy") is not None}
        print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
