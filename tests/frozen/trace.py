"""``make trace``: the files and rooms that one operation enters, in steady state, as a table.

    python -m tests.frozen.trace [--json | --steps append]

Real nodes on fakes run in one process and one thread, in virtual time, so every count is the same each time.
A row is one operation on a group of so many nodes, with the client's part of it:

    append      one plain POST of one entry, until its answer
    position    a named consumer's next entry, which is durable already, and the commit behind it
    message     one message of a destination, taken and acknowledged
    cdc         one plain POST, until the position behind its event is stored for each CDC consumer of the group

Each operation runs ``WARM`` times before any is counted, so that start-up counts for nothing.
Then it runs ``SAMPLES`` times, and the run with the fewest calls is the row: a heartbeat beside a run only adds.

* calls: how often a function of the product begins; the part after an await or a yield is no new call;
* functions, files: those of which a call began;
* rooms: the folders of those files;
* changes: how often a call begins in another room than the call before it.

Comprehensions belong to the function around them.  Nothing of ``tests`` counts: disks, network, threads and children
are fakes, and what stands in their place in a real node is not entered.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType

import click
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from repl import connect
from repl.cdc.consumer import CdcConsumer, CdcEvent
from repl.cdc_settings import cdc_settings
from tests.fakes.children import FakeChild, FakeChildren
from tests.fakes.loop import run
from tests.seam.nodes import Group
from vlsn.levels import LEVELS
from vlsn.seams import Buffer

ROOT = Path(__file__).parents[2]
PRODUCT = ("vlsn", "feeder", "replica", "repl")
SIZES = (1, 3)
WARM = 20
SAMPLES = 15
PAUSE_S = 0.05
"""Virtual seconds between two runs: background work of one ends before the next begins."""
Operation = Callable[[], Awaitable[object]]
Call = tuple[str, str]
"""The file and the function, a call of which began."""


@dataclass(frozen=True, slots=True)
class Row:
    """One operation's counts on a group of ``nodes``."""

    operation: str
    nodes: int
    calls: int
    functions: int
    files: int
    rooms: int
    changes: int


# The counting.


@cache
def _file_of(code: CodeType) -> str:
    """Returns the product's file that it is in, from the root of the tree; empty for any other."""
    path = Path(code.co_filename)
    if code.co_name in ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>", "<module>"):
        return ""
    if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] not in PRODUCT:
        return ""
    return str(path.relative_to(ROOT))


@cache
def _begins(code: CodeType, at: int) -> bool:
    """Says whether a frame at that instruction begins; one that goes on has another argument of RESUME there."""
    return code.co_code[at + 1] & 3 == 0


@contextmanager
def traced() -> Iterator[list[Call]]:
    """Notes the calls of this thread, in their order."""
    calls: list[Call] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and (file := _file_of(code)) and _begins(code, frame.f_lasti):
            calls.append((file, code.co_qualname))

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def counted(operation: str, nodes: int, calls: list[Call]) -> Row:
    files = [file for file, _ in calls]
    rooms = [file.rpartition("/")[0] for file in files]
    changes = sum(one != other for one, other in pairwise(rooms))
    return Row(operation, nodes, len(calls), len(set(calls)), len(set(files)), len(set(rooms)), changes)


async def least(operation: Operation, ready: Operation) -> list[Call]:
    """Returns the calls of the run with the fewest; ``ready`` comes before each run and is not counted."""
    found: list[list[Call]] = []
    for number in range(WARM + SAMPLES):
        await ready()
        await asyncio.sleep(PAUSE_S)
        with traced() as calls:
            await operation()
        if number >= WARM:
            found.append(calls)
    return min(found, key=len)


# The operations.


class Taker(CdcConsumer):
    """Takes every event, and commits behind each call's last one."""

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        for _ in events:
            pass
        return True


class Children(FakeChildren):
    """Children that count the messages that a position is stored."""

    def __init__(self) -> None:
        super().__init__()
        self.classes["trace:Taker"] = Taker
        self.stored = 0

    async def start(self, name: str) -> FakeChild:
        child = await super().start(name)
        send = child.send

        async def sent(message: Buffer) -> None:
            self.stored += b'"committed"' in bytes(message)
            await send(message)

        child.send = sent  # type: ignore[method-assign]
        return child


class Traced(Group):
    def made_children(self, name: str) -> Children:
        return Children()

    async def all_durable(self) -> None:
        """Waits until every node knows all to be durable."""
        last = self.nodes[self.master].opened().log.view.range.last
        await self.until(lambda: all(node.dtvlsn() >= last for node in self.nodes.values()), "all is durable")

    def stored(self) -> int:
        return min(children.stored for children in self.children.values() if isinstance(children, Children))


async def appends(group: Traced) -> list[Call]:
    return await least(partial(group.append, b"a value", to=group.master), group.all_durable)


async def positions(group: Traced) -> list[Call]:
    master = group.master
    async with connect(group.url(master), network=group.client) as log:
        consumer = log.consumer("billing", from_vlsn="start")
        reading = aiter(consumer)

        async def ready() -> None:
            await group.append(b"a value", to=master)
            await group.all_durable()

        async def operation() -> None:
            await anext(reading)
            await consumer.commit()

        return await least(operation, ready)


async def messages(group: Traced) -> list[Call]:
    master = group.master
    async with connect(group.url(master), network=group.client) as log:
        await log.destinations.put("orders", from_="end")
        destination = log.destination("orders")

        async def ready() -> None:
            await group.append(b"a value", to=master)
            await group.all_durable()

        async def operation() -> None:
            (message,) = await destination.take(1, 5.0)
            await message.ack()

        return await least(operation, ready)


async def events(group: Traced) -> list[Call]:
    master = group.master

    async def operation() -> None:
        before = group.stored()
        await group.append(b"a value", to=master)
        await group.until(lambda: group.stored() > before, "the position is stored")

    return await least(operation, group.all_durable)


OPERATIONS: dict[str, Callable[[Traced], Awaitable[list[Call]]]] = {
    "append": appends,
    "position": positions,
    "message": messages,
    "cdc": events,
}


def calls_of(operation: str, nodes: int) -> list[Call]:
    """Returns the calls of one operation on a group of ``nodes``, which is made for it alone."""

    async def main() -> list[Call]:
        tables = [{"name": "orders", "consumer": "trace:Taker"}] if operation == "cdc" else []
        group = Traced(1, nodes, levels=LEVELS, cdc=cdc_settings(tables, lambda text, place: int(text)))
        await group.start()
        await group.serving()
        calls = await OPERATIONS[operation](group)
        await group.stop()
        return calls

    return run(main())


def table_of(found: list[Row]) -> Table:
    table = Table("operation", box=SIMPLE_HEAD)
    for name in list(asdict(found[0]))[1:]:
        table.add_column(name, justify="right")
    for row in found:
        table.add_row(*map(str, asdict(row).values()))
    return table


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The rows as JSON, and the files of each.")
@click.option("--steps", type=click.Choice(list(OPERATIONS)), help="Each call of one operation on one node, in order.")
def main(as_json: bool, steps: str | None) -> None:
    """Prints the calls, functions, files, rooms and changes of room of one operation each."""
    logging.disable()
    try:
        found = {(name, nodes): calls_of(name, nodes) for name in OPERATIONS for nodes in SIZES}
    finally:
        logging.disable(logging.NOTSET)  # the tests of this process log again
    rows = [counted(name, nodes, calls) for (name, nodes), calls in found.items()]
    if steps:
        print("\n".join(f"{file} {function}" for file, function in found[steps, SIZES[0]]))
    elif as_json:
        entered = [sorted({file for file, _ in calls}) for calls in found.values()]
        each = [asdict(row) | {"entered": files} for row, files in zip(rows, entered, strict=True)]
        print(msgspec.json.format(msgspec.json.encode(each), indent=1).decode())
    else:
        Console().print(table_of(rows))


if __name__ == "__main__":
    main()
