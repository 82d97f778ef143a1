"""A worker that appends exactly one invoice for each order to the log, however often it is killed.

    python billing.py http://127.0.0.1:7701,http://127.0.0.1:7702

The worker's position is in the log under the name "billing", and is committed in one transaction with the invoices:
any worker of that name, on any machine, continues where the last one stopped.
"""

import asyncio
import signal
import sys

from vlsnlog import StaleTerm, VlsnLogError, connect

AGAIN_S = 1.0


async def work(urls: str) -> None:
    async with connect(urls, codec="json") as log:
        billing = log.consumer("billing", from_vlsn="start")
        while True:
            try:
                async for entry in billing:
                    if entry.key != b"order":
                        continue
                    try:
                        invoice = {"order": entry.vlsn, "customer": entry.json()["customer"]}
                    except (ValueError, TypeError, KeyError) as fault:  # one bad entry does not stop the worker
                        print(f"no order: VLSN {entry.vlsn}: {fault!r}", file=sys.stderr)
                        continue
                    async with log.transaction() as txn:
                        await txn.append(invoice, key="invoice")
                        await txn.commit_position(billing)  # set with this order's invoice, or not at all
            except StaleTerm:
                print("another worker named billing has taken over", file=sys.stderr)
                return
            except VlsnLogError as error:
                # The client has tried until its deadline. The loop begins again at the position in the log.
                print(f"{error}; again in {AGAIN_S} s", file=sys.stderr)
                await asyncio.sleep(AGAIN_S)


async def main(urls: str) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await work(urls)
    except asyncio.CancelledError:
        pass  # SIGTERM: a cancelled transaction is in the log with its position, or not at all


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
