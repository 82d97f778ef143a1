"""A client's reads without NumPy, beside the same reads with it.

Three nodes of its own, and small entries in blocks of ``--batch``. Two reader processes (``bare_reader``), of which one
cannot import NumPy, read all of them by turns: with, without, without, with. The rates are in entries a second of the
reader's processor time; the first read of each process, which imports NumPy, does not count.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import AsyncIterator
from statistics import median

from repl.bench.target import Own
from repl.client.connect import connect
from tests.bench.process import Child
from tests.bench.report import Aimed, Section

WAYS = ("read", "tail")


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=100, help="of an entry")
    parser.add_argument("--batch", type=int, action="append", help="entries of a block; default: 10, 1000")
    parser.add_argument("--rounds", type=int, default=4, help="of four reads each")


async def measured(options: argparse.Namespace) -> AsyncIterator[Section]:
    cores = sorted(os.sched_getaffinity(0))
    async with Own() as own, connect(own.urls) as log:
        for batch in options.batch or [10, 1000]:
            value, count = bytes(options.bytes), options.entries // batch * batch
            first = (await log.append_many([value] * batch))[0]
            for _ in range(count // batch - 1):
                await log.append_many([value] * batch)
            for way in WAYS:
                asked = {"first": first, "entries": count, "way": way}
                with (
                    Child("bare_reader", own.urls, "numpy", cores=cores) as numpy,
                    Child("bare_reader", own.urls, "bare", cores=cores) as bare,
                ):

                    def rate(child: Child, asked: dict[str, object] = asked) -> int:
                        child.send(asked)
                        answer = child.answer()
                        assert answer["numpy"] == (child is not bare and batch > 64)  # noqa: B023
                        return int(answer["entries_per_s"])

                    rate(numpy), rate(bare)
                    turns = [rate(child) for _ in range(options.rounds) for child in (numpy, bare, bare, numpy)]
                fast = [turn for at, turn in enumerate(turns) if at % 4 in (0, 3)]
                slow = [turn for at, turn in enumerate(turns) if at % 4 in (1, 2)]
                yield (
                    f"{way} of {count:,} entries of {options.bytes} bytes in blocks of {batch:,}",
                    {
                        "with_numpy": median(fast),
                        "without": median(slow),
                        "ratio": Aimed(round(median(slow) / median(fast), 3), "≥ 0.4"),
                    },
                )
