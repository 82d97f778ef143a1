"""A pipeline in a simulation: workers of one consumer log each output with the position after its input.

    position ─► read from there, of any node ─► stage an output for each entry ─► commit, with the position after them

Three workers share one name, so a slower worker is refused, and nothing of its transaction is logged.  At the end every
entry below the position has exactly one output, except entries that were cleaned before they were read.  In some seeds
two clients of the library make another pipeline (``impatient``), which is checked in the same way.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tests.sim.transactions import PAUSES_S, Sent, TransactionClient
from vlsn.state.consumers import Position, key_of

if TYPE_CHECKING:
    from tests.sim.clients import Clients
    from tests.sim.watch import Watch

WORKERS = 3
MADE = b"out"
"""The beginning of pipelines' outputs, which pipelines skip as inputs."""
ENTRIES_MAX = 5
PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class Pipeline:
    consumer: str
    output: bytes
    """The beginning of its outputs; the VLSN of the input follows it."""

    def check(self, watch: Watch) -> None:
        """Checks at the end that each entry below the position has one output."""
        values, name = watch.ledger.values, self.consumer
        outputs = Counter(int(value.split(b":")[1]) for value in values.values() if value.startswith(self.output))
        twice = [vlsn for vlsn, count in outputs.items() if count > 1]
        watch.hold(not twice, f"doubled: {name} has made more than one output of the entries at VLSNs {twice[:5]}")
        ends, passed = next_of(watch, name), watch.transactions.passed(name)
        wanted = {vlsn for vlsn, value in values.items() if vlsn < ends and not value.startswith(MADE)}
        lacks = sorted(wanted - set(outputs) - passed)
        watch.hold(
            not lacks, f"lost: {name} is at VLSN {ends}, and has made nothing of the entries at VLSNs {lacks[:5]}"
        )
        early = sorted(set(outputs) - wanted)
        watch.hold(not early, f"{name} is at VLSN {ends}, and has made something of VLSNs {early[:5]}")


BY_HTTP, BY_LIBRARY = Pipeline("pipeline", b"out:"), Pipeline("library", b"out by library:")
PATH = f"/v1/consumers/{BY_HTTP.consumer}"


def next_of(watch: Watch, consumer: str) -> int:
    """Returns a consumer's position, by durable COMMITs; 1 without one."""
    kept = watch.transactions.small.get(key_of(consumer))
    return msgspec.json.decode(kept.value, type=Position).next if kept is not None else 1


class Worker(TransactionClient):
    def __init__(self, clients: Clients, number: int) -> None:
        super().__init__(clients, 2 * number, name=f"w{number}")
        self._made = 0

    async def run(self) -> None:
        while not self._clients.over:
            await self._pause(PAUSE_S)
            placed = await self._position()
            if placed is not None:
                await self._work(*placed)

    async def _work(self, begins: int, at: int) -> None:
        """Does the next step, from the position that the COMMIT at ``at`` has set."""
        status, answer, headers = await self._call("GET", f"/v1/entries?from={begins}&limit={ENTRIES_MAX}")
        if status == 410:
            self._books.passes(BY_HTTP.consumer, begins, answer["first"])
            await self._call("PUT", PATH, msgspec.json.encode({"next": answer["first"], "at": at}))
            return
        if status != 200 or int(headers["Vlsnlog-Next"]) <= begins:
            return
        self._made += 1
        found = [row["vlsn"] for row in answer["rows"] if not row["value"].startswith(MADE.decode())]
        change = {"next": int(headers["Vlsnlog-Next"]), "at": at}
        if not found:
            await self._call("PUT", PATH, msgspec.json.encode(change))
            return
        handle = await self._begin()
        if handle is None:
            return
        sent = Sent([], nowhere="no commit was sent")
        self._books.sent.append(sent)
        outputs = [BY_HTTP.output + b"%d:%s.%d" % (vlsn, self._name.encode(), self._made) for vlsn in found]
        if await self._stage_call(handle, sent, outputs):
            await asyncio.sleep(self._rng.choice(PAUSES_S))
            await self._commit(handle, sent, msgspec.json.encode({"positions": {BY_HTTP.consumer: change}}))

    async def _position(self) -> tuple[int, int] | None:
        """Asks any node, or the master; a node's answer is durable."""
        status, answer, _ = await self._call("GET", PATH)
        if status == 404 and answer["type"] == "not-found":
            return 1, 0
        if status != 200:
            return None
        self._books.placed(self._name, key_of(BY_HTTP.consumer), answer["at"], answer["next"])
        return answer["next"], answer["at"]
