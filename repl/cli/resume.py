"""Continues the append of a file under a producer's name: the log shows which lines it has already.

A file is always divided into the same bodies (atomic appends), and body N is submission N of the producer for
``--producer NAME``. When the command is run again, it asks the log which submission is expected next. The command
compares the last logged submission with the file, and continues after it. A body without an answer is sent again under
its old name, and the log accepts it once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING

from repl.cli.lines import Body, Key
from vlsn.errors import OutOfSequence, Trimmed

if TYPE_CHECKING:
    from repl.api import Appended
    from repl.client.connect import Client


@dataclass
class Named:
    """The bodies of a file that are still to be appended, as submissions of one producer. ``sequence`` is the number of
    the next submission."""

    log: Client
    name: str
    producer: int
    sequence: int
    born: int
    lines: int
    """The number of lines of the file that are in the log already."""
    last: int
    """The VLSN of the last line that is in the log already; 0 for none."""

    async def append_batch(self, values: list[bytes], *, keys: list[Key] | None) -> Appended:
        sequence, self.sequence = self.sequence, self.sequence + 1
        return await self.log.submit(values, keys=keys, producer=self.producer, sequence=sequence, born=self.born)


async def resume(log: Client, name: str, bodies: Iterator[Body]) -> Named:
    """Removes from ``bodies`` those that are in the log already. Raises ``OutOfSequence`` if the log has other contents
    for this producer."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()
    producer = int.from_bytes(digest[:8], "little") or 1
    at = await log.producer_at(producer)
    body, lines = await asyncio.to_thread(_skip, bodies, at.place.next)
    if at.place.next and not await _is_there(log, at.place.first, at.place.last, body):
        where = f"from line {lines - len(body) + 1} on" if body is not None else "after its end"
        raise OutOfSequence(
            f"VLSN {at.place.first} to {at.place.last}, the last that producer {name} has appended, differ from this "
            f"file {where}: it is another file, has changed, or --key differs; give another --producer"
        )
    return Named(log, name, producer, at.place.next, at.durable, lines, at.place.last)


def _skip(bodies: Iterator[Body], count: int) -> tuple[Body | None, int]:
    """Returns the last of the first ``count`` bodies (None if there are fewer), and the number of lines in these
    bodies."""
    body: Body | None = None
    lines = 0
    for _ in range(count):
        body = next(bodies, None)
        if body is None:
            break
        lines += len(body)
    return body, lines


async def _is_there(log: Client, first: int, last: int, body: Body | None) -> bool:
    """Returns whether the log has ``body`` at these VLSNs. If the entries were cleaned away, only their number is
    compared."""
    if body is None or len(body) != last - first + 1:
        return False
    try:
        found = [(entry.key, entry.value) async for entry in log.read(first, last)]
    except Trimmed:
        return True
    return found == list(zip(body.keys or repeat(None), body.values, strict=False))
