"""The clients of a simulation: plain ones that send once, producers that repeat until a certain answer, readers.

Each answer to a client is compared with the watch at once, and noted for the end.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import msgspec

from tests.sim import durability
from tests.sim.consumers import Consumers
from tests.sim.group import SimGroup
from tests.sim.impatient import ImpatientClients
from tests.sim.library import LibraryClient
from tests.sim.library_transactions import CLIENTS, LibraryTransactions
from tests.sim.pipeline import WORKERS, Worker
from tests.sim.report import Report
from tests.sim.transactions import TransactionClient
from vlsn.errors import VlsnLogError

UNKNOWN = frozenset(("outcome-unknown", "internal"))
NEVER = frozenset(("out-of-sequence", "unknown-producer", "duplicate-forgotten", "too-large"))
"""Answers that a producer never receives if it repeats each submission until it is acknowledged."""
SIZES = (12, 200, 1500, 5000)
FORGOTTEN = frozenset(("out-of-sequence", "unknown-producer"))
"""Answers that such a producer receives if the log remembers fewer producers than there are."""
LARGE_RATE = 0.02
LARGEST_BYTES = 61_120
"""The largest value that fits a segment of 64 KiB with frame, block and padding."""
NAMED_BYTES = 24
"""Bytes of a producer's name in the largest value …"""
NAMED_LARGE = 32
"""… and every so many-th submission of a producer is of that size."""
TIMEOUT_S = 1.5
PAUSE_S = 1.0
STALE_RATE = 0.7
"""The rate at which a linearizable read asks a deposed master, if there is one."""


def _size(rng: Random) -> int:
    if rng.random() >= LARGE_RATE:
        return rng.choice(SIZES)
    return rng.choice((LARGEST_BYTES, LARGEST_BYTES, LARGEST_BYTES + 1, rng.randrange(SIZES[-1], LARGEST_BYTES)))


class Clients:
    """All clients; they end once ``over`` is set and their current calls are done."""

    def __init__(
        self,
        group: SimGroup,
        report: Report,
        *,
        plain: int,
        producers: int,
        readers: int,
        linearizable: int,
        libraries: int,
        transactions: int,
        few_producers: bool,
        keeps_what_was_synced: bool,
        destinations: bool = False,
        impatient: bool = False,
    ) -> None:
        self.group = group
        self.report = report
        self.over = False
        self.acknowledged: dict[int, bytes] = {}
        self.latest = 0
        """The highest VLSN that was reported to any client as durable."""
        self.refused: set[bytes] = set()
        self.keeps_what_was_synced = keeps_what_was_synced
        """True if no disk rots, is lost, or is replaced by an older one."""
        self.losses: list[tuple[float, str]] = []
        """The times when unsynced bytes may have been lost with a machine's power, a process, a medium."""
        self.few_producers = few_producers
        """True if the log may forget some producers."""
        jobs = [self._plain(number) for number in range(plain)]
        jobs += [self._producer(number) for number in range(producers)]
        jobs += [self._reader(number) for number in range(readers)]
        jobs += [self._linearizable(number) for number in range(linearizable)]
        jobs += [LibraryClient(self, number).run() for number in range(libraries)]
        jobs += [TransactionClient(self, number).run() for number in range(transactions)]
        jobs += [Worker(self, number).run() for number in range(WORKERS if transactions else 0)]
        jobs += [LibraryTransactions(self, number).run() for number in range(CLIENTS if transactions else 0)]
        of_the_group = durability.is_the_groups(report.seed)
        there = durability.CLIENTS if durability.are_there(report.seed) else 0
        self.early = [durability.DurabilityClient(self, number, by_setting=of_the_group) for number in range(there)]
        jobs += [each.run() for each in self.early]
        if of_the_group:
            jobs.append(durability.person(self))
        self.consumers = Consumers(self) if destinations else None
        jobs += self.consumers.jobs() if self.consumers is not None else []
        self.impatient = ImpatientClients(self) if impatient else None
        jobs += self.impatient.jobs() if self.impatient is not None else []
        self.tasks = [asyncio.create_task(job) for job in jobs]

    def losses_since(self, time_s: float) -> set[str]:
        return {kind for at, kind in self.losses if at >= time_s}

    def _rng(self, kind: str, number: int) -> Random:
        return Random(f"{kind}/{self.report.seed}/{number}")

    def target(self, rng: Random) -> str:
        """Returns mostly the reported master, sometimes any node: also a deposed master."""
        return self.group.master if rng.random() < 0.7 else rng.choice(self.group.names)

    def leads_no_more(self, rng: Random) -> str:
        """Returns a master that a newer one has replaced without its knowledge."""
        leading = [
            name for name, node in self.group.nodes.items() if node.member.is_master() and name != self.group.master
        ]
        return rng.choice(leading) if leading and rng.random() < STALE_RATE else ""

    async def _plain(self, number: int) -> None:
        rng = self._rng("client", number)
        count = 0
        while not self.over:
            value = f"{number}.{count}:".encode().ljust(_size(rng), b"x")
            acks = rng.choice(("majority", "majority", "all", "none"))
            count += 1
            listed = self.group.books.listed_so_far()
            status, answer = await self.append(self.target(rng), value, acks=acks)
            if status == 200 and acks == "all" and set(answer["durability"].values()) == {"sync"}:
                self.group.books.all_have(answer, listed)
            self._limit_holds(len(value), status, answer)
            if status == 200 and answer["durable"]:
                self.acknowledge(answer["first"], value)
            elif status == 200 and set(answer["durability"].values()) != {"sync"}:  # the group asks for less
                self.report.met[durability.EARLY] += 1
            elif status == 200 or answer["type"] in UNKNOWN:
                self.report.unknown += 1
            else:
                self.report.refused += 1
                self.refused.add(value)
            await asyncio.sleep(rng.uniform(0.0, PAUSE_S))

    def _limit_holds(self, size: int, status: int, answer: dict[str, Any]) -> None:
        """Checks that a value is refused as too large exactly if it is."""
        fits, refused = size <= LARGEST_BYTES, status != 200 and answer["type"] == "too-large"
        said = f"an append of {size} bytes, of which {LARGEST_BYTES} fit, is answered with {status}, {answer}"
        self.group.watch.hold(not refused if fits else status != 200, said)
        self.report.met["an append of the largest size"] += size == LARGEST_BYTES and status == 200
        self.report.met["an append one byte too large"] += refused

    async def _producer(self, number: int) -> None:
        """Sends exactly once: repeats the same submission until it is acknowledged, at any node.  A forgotten producer
        begins again under another name, with its next submission: the outcome of this one stays unknown."""
        rng = self._rng("producer", number)
        watch = self.group.watch
        producer, sequence, born, lives = number + 1, 0, 0, 0
        while not self.over:
            size = LARGEST_BYTES - NAMED_BYTES if sequence % NAMED_LARGE == number else SIZES[sequence % len(SIZES)]
            value = f"p{number}.{lives}.{sequence}:".encode().ljust(size, b"y")
            name = f"&producer={producer:016x}&sequence={sequence}&born={born}"
            status, answer = await self.append(self.target(rng), value, acks="majority", more=name)
            if status != 200 and answer["type"] in FORGOTTEN and self.few_producers:
                self.report.met["a producer that is forgotten"] += 1
                lives += 1
                producer, sequence, born = 100 * lives + number + 1, 0, self.latest
                continue
            if status != 200:
                watch.hold(answer["type"] not in NEVER, f"producer {number} hears {answer}")
                self.report.repeated += 1
                await asyncio.sleep(rng.uniform(0.0, PAUSE_S))
                continue
            watch.hold(answer["durable"], f"producer {number} was told of what is not durable: {answer}")
            self.report.duplicates += answer.get("duplicate", False)
            self.acknowledge(answer["first"], value)
            sequence += 1
            await asyncio.sleep(rng.uniform(0.0, PAUSE_S))

    async def append(self, to: str, value: bytes, *, acks: str, more: str = "") -> tuple[int, dict[str, Any]]:
        """Returns status and answer; without an answer it is ``outcome-unknown``."""
        self.report.operations += 1
        try:
            response = await self.group.client.request(
                "POST",
                f"{self.group.url(to)}/v1/entries?acks={acks}&timeout={TIMEOUT_S}{more}",
                headers={"Content-Type": "application/octet-stream"},
                body=value,
                timeout_s=TIMEOUT_S + 0.5,
            )
        except (VlsnLogError, OSError):
            return 0, {"type": "outcome-unknown"}
        if response.status == 307:
            return 307, {"type": "redirected"}
        return response.status, msgspec.json.decode(bytes(response.body))

    def acknowledge(self, vlsn: int, value: bytes) -> None:
        self.report.acknowledged += 1
        self.group.watch.shown("a client", vlsn, value)
        self.acknowledged[vlsn] = value
        self.latest = max(self.latest, vlsn)

    async def _linearizable(self, number: int) -> None:
        """Checks that a linearizable read of any node returns all entries acknowledged before it."""
        rng = self._rng("linearizable", number)
        while not self.over:
            await asyncio.sleep(rng.uniform(0.0, PAUSE_S))
            if not (wanted := self.latest):
                continue
            name = self.leads_no_more(rng) or self.target(rng)
            path = f"/v1/entries?from={wanted}&limit=1&consistency=linearizable&timeout={TIMEOUT_S}"
            try:
                response = await self.group.client.request(
                    "GET", self.group.url(name) + path, timeout_s=TIMEOUT_S + 0.5
                )
            except (VlsnLogError, OSError):
                continue
            if response.status == 200:
                self.report.operations += 1
                self.report.linearizable += 1
                said = f"a linearizable read of {name} did not show VLSN {wanted}, acknowledged before it"
                lines = bytes(response.body).splitlines()
                self.group.watch.hold(bool(lines) and msgspec.json.decode(lines[0])["vlsn"] == wanted, said)

    async def _reader(self, number: int) -> None:
        """Follows the log from node to node from its position; cleaned entries are skipped."""
        rng = self._rng("reader", number)
        at = 1
        while not self.over:
            name = rng.choice(self.group.names)
            try:
                response = await self.group.client.request(
                    "GET", f"{self.group.url(name)}/v1/entries?from={at}&wait=2", timeout_s=5.0
                )
            except (VlsnLogError, OSError):
                await asyncio.sleep(0.5)
                continue
            body = bytes(response.body)
            if response.status == 410:
                at = max(at, msgspec.json.decode(body)["first"])
                continue
            if response.status != 200:
                await asyncio.sleep(0.5)
                continue
            self.report.operations += 1
            lines = body.splitlines()
            self.group.watch.transactions.shown(f"a reader of {name}", len(lines), response.headers)
            for line in lines:
                entry = msgspec.json.decode(line)
                self.group.watch.hold(entry["vlsn"] >= at, f"a reader of {name} went back to {entry['vlsn']}")
                self.group.watch.shown(f"a reader of {name}", entry["vlsn"], entry["value"].encode())
                self.report.read += 1
            at = int(response.headers["Vlsnlog-Next"])
            await asyncio.sleep(rng.uniform(0.0, 0.4))
