"""The Arrow door's speed beside raw ceilings: ``python -m tests.repl.arrow.measure [MB]``, in a temporary directory.

Three nodes as processes hold entries of 100 bytes in batches of 1,000; each reader reads all of them, in turns, ROUNDS
times, after one turn that is not counted.  MB are of values.  The ratio is to the ceiling of the same round: pages of
blocks over HTTP that nobody looks at, for a group; reading the segments' bytes into memory, for a directory; copying
it, for a page in memory.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

from repl import connect, connect_sync, read_arrow
from repl.arrow.batches import batches_of
from repl.client.block_pages import checked_rows
from repl.client.reader import BLOCKS_TYPE
from repl.net.network import AiohttpNetwork
from tests.e2e.group import NAMES, Group
from tests.repl.audit.logs import numbered
from vlsn.ids import NUMBER_MAX

ROUNDS = 5
ENTRY_BYTES = 100
BATCH_ENTRIES = 1000
PAGE_BLOCKS = 40
UNDER_WAY = 8


async def fill(url: str, batches: int) -> None:
    values = [b"%0*d" % (ENTRY_BYTES, number) for number in range(BATCH_ENTRIES)]
    async with connect(url, timeout_s=60) as log:
        for start in range(0, batches, UNDER_WAY):
            await asyncio.gather(*(log.append_many(values) for _ in range(min(UNDER_WAY, batches - start))))


async def raw_pages(url: str) -> None:
    network, at, durable = AiohttpNetwork(), 1, 1
    try:
        while at <= durable:
            asked = f"{url}/v1/entries?from={at}"
            response = await network.request("GET", asked, headers={"Accept": BLOCKS_TYPE}, timeout_s=30)
            at, durable = int(response.headers["Vlsnlog-Next"]), int(response.headers["Vlsnlog-Durable"])
    finally:
        await network.close()


def arrow(source: str) -> None:
    assert sum(batch.num_rows for batch in read_arrow(source)) % BATCH_ENTRIES == 0


def entries(url: str) -> None:
    with connect_sync(url) as log:
        assert sum(len(page.entries) for page in log.read_pages()) % BATCH_ENTRIES == 0


def raw_files(directory: Path) -> None:
    for path in sorted(directory.glob("*.vlog")):
        into = bytearray(path.stat().st_size)
        with path.open("rb", buffering=0) as file:
            assert file.readinto(into) == len(into)


def copied(held: bytes) -> Callable[[], None]:
    return lambda: [bytearray(held)].clear()


def made_batches(page: bytes) -> None:
    rows = checked_rows(memoryview(page))
    assert rows is not None
    assert sum(batch.num_rows for batch in batches_of(rows, 1, NUMBER_MAX)) == rows.rows


def compare(name: str, value_bytes: int, works: dict[str, Callable[[], object]], rounds: int = ROUNDS) -> None:
    taken: dict[str, list[float]] = {work: [] for work in works}
    for turn in range(rounds + 1):
        for work, run in works.items():
            begun = monotonic()
            run()
            if turn:
                taken[work].append(monotonic() - begun)
    ceiling = taken[next(iter(works))]
    for work, seconds in taken.items():
        ratio = median(low / high for low, high in zip(ceiling, seconds, strict=True))
        speed = value_bytes / 1e6 / median(seconds)
        print(f"{name}: {work:<34} {speed:8.0f} MB/s  {ratio:5.2f} of the ceiling", flush=True)


def main(megabytes: int) -> None:
    batches = megabytes * 1_000_000 // (ENTRY_BYTES * BATCH_ENTRIES)
    value_bytes = batches * BATCH_ENTRIES * ENTRY_BYTES
    page = b"".join(each + bytes(-len(each) & 7) for each in numbered(PAGE_BLOCKS, BATCH_ENTRIES, ENTRY_BYTES))
    in_memory: dict[str, Callable[[], object]] = {
        "its bytes copied": copied(page),
        "checked whole": lambda: checked_rows(memoryview(page)),
        "checked, and made batches": lambda: made_batches(page),
    }
    compare("one page", PAGE_BLOCKS * BATCH_ENTRIES * ENTRY_BYTES, in_memory, rounds=20 * ROUNDS)
    with TemporaryDirectory(prefix="vlsnlog-measure-") as place:
        group = Group(Path(place))
        try:
            group.start()
            url, urls = group.urls["n2"], ",".join(group.urls.values())
            asyncio.run(fill(urls, batches))
            group.settle()
            works: dict[str, Callable[[], object]] = {
                "raw block pages over HTTP": lambda: asyncio.run(raw_pages(url)),
                "read_arrow": lambda: arrow(url),
                "entries, connect_sync().read_pages": lambda: entries(url),
            }
            compare("one node", value_bytes, works)
            group.stop(*NAMES)
            directory = group.path("n2")
            works = {
                "the segments' bytes read": lambda: raw_files(directory),
                "the values' bytes copied": copied(bytes(value_bytes)),
                "read_arrow": lambda: arrow(str(directory)),
            }
            compare("directory", value_bytes, works)
        finally:
            group.end()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
