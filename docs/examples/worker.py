"""A worker: it reads orders from the log and keeps each customer's total in SQLite.

    python worker.py http://127.0.0.1:7701,http://127.0.0.1:7702 totals.db

The worker's position in the log is in the database, too, and moves in the transaction that counts the orders: killed at
any moment and started again, the worker counts each order once.
"""

import asyncio
import signal
import sqlite3
import sys

from vlsnlog import NotInLog, Page, Trimmed, connect

TABLES = """
create table if not exists totals (customer text primary key, cents integer not null);
create table if not exists place (one integer primary key check (one = 1), next_vlsn integer, term integer);
create table if not exists refused (vlsn integer primary key, reason text not null);
"""


def use(database: sqlite3.Connection, page: Page) -> None:
    """Counts the orders of a page of entries and moves the position past them, in one transaction."""
    with database:
        for entry in page.entries:
            if entry.key != b"order":
                continue
            try:
                order = entry.json()
                added = str(order["customer"]), int(order["cents"])
            except (ValueError, TypeError, KeyError) as fault:  # one bad entry is set aside
                database.execute("insert into refused values (?, ?)", (entry.vlsn, repr(fault)))
                continue
            database.execute(
                "insert into totals values (?, ?) on conflict do update set cents = cents + excluded.cents", added
            )
        database.execute("insert or replace into place values (1, ?, ?)", (page.next_vlsn, page.term))


async def work(urls: str, database: sqlite3.Connection) -> None:
    next_vlsn, term = database.execute("select next_vlsn, term from place").fetchone() or (None, 0)
    async with connect(urls) as log:
        # The term of the last counted entry is sent, too: a log without that entry refuses the read.
        async for page in log.tail_pages(next_vlsn, after_term=term or None):
            use(database, page)


async def main(urls: str, path: str) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    database = sqlite3.connect(path)
    database.executescript(TABLES)
    try:
        await work(urls, database)  # runs for ever, through lost nodes and changes of the master
    except asyncio.CancelledError:
        return 0  # SIGTERM, between two pages of entries
    except Trimmed as gone:
        print(f"orders up to VLSN {gone.first - 1} were cleaned away before they were counted", file=sys.stderr)
    except NotInLog as other:
        print(f"what was counted up to VLSN {other.vlsn} is not in the log any more: count anew", file=sys.stderr)
    finally:
        database.close()
    return 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1], sys.argv[2])))
