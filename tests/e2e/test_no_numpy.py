"""A client process that cannot import NumPy, beside real nodes: it does all that a client does."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.group import Group

PROGRAM = """\
import asyncio
import sys
sys.modules["numpy"] = None

from repl import connect, connect_sync

URL, MANY = sys.argv[1], 300


async def main():
    async with connect(URL, exactly_once=True) as log:
        first = await log.append(b"one", key=b"bare-0")
        many = [b"%d" % number for number in range(MANY)]
        await log.append_many(many, keys=[b"bare-%d" % (number % 7) for number in range(MANY)])
        async with log.transaction() as txn:
            for number in range(MANY):
                await txn.append(b"t%d" % number, key=b"bare-t")
        values = [b"one", *many, *(b"t%d" % number for number in range(MANY))]
        read = [entry async for entry in log.read(from_vlsn=first)]
        assert [entry.value for entry in read] == values
        assert [entry.value async for entry in log.tail(first, limit=len(values))] == values
        keyed = [entry.value async for entry in log.read(from_vlsn=first, key_prefix=b"bare-t")]
        assert keyed == values[-MANY:]
        later = [entry.value async for entry in log.read(at=read[-1].time)]
        assert later and later == values[-len(later):]
        consumer = log.consumer("bare", from_vlsn=first)
        async for entry in consumer:
            await consumer.commit()
            if entry.value == values[-1]:
                break
        await log.destinations.put("bare", prefix="bare-")
        await log.destinations.move("bare", first)
        worker, seen = log.destination("bare", prefetch=200), []
        async for batch in worker.batches():
            if not seen:
                try:
                    batch.vlsns
                except ModuleNotFoundError as error:
                    print(error)
            seen += [message.value for message in batch]
            await worker.ack(batch if len(seen) % 2 else batch[::-1])
            if seen[-1] == values[-1]:
                break
        assert seen == values
        taken = await log.destination("bare").take(10, wait_s=0.0)
        assert len(taken) == 0
        try:
            log.block_pages(first)
        except ModuleNotFoundError as error:
            print(error)


asyncio.run(main())
with connect_sync(URL) as log:
    print(len([entry for entry in log.read(from_vlsn=1)]) > 2 * MANY)
print(sorted(name for name in sys.modules if name.startswith("numpy")), sys.modules["numpy"])
"""


def test_a_client_without_numpy_appends_reads_and_works(group: Group) -> None:
    command = [sys.executable, "-c", PROGRAM, ",".join(group.urls.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    extra = "install it with: pip install 'vlsnlog-client[numpy]'"
    assert done.stdout.splitlines() == [
        f"Messages.vlsns needs NumPy; {extra}",
        f"block_pages needs NumPy; {extra}",
        "True",
        "['numpy'] None",
    ]
