"""Appends that request less than a sync, in a simulation: the promise of each answer, and the fate of the entry.

    append, with a random durability ─► durable: acknowledged, like any append
                                     └► early ─► durable at its VLSN: kept
                                              └► another entry there, or none: lost, which needs a loss that it allows

An entry with an early answer of `write_no_sync` survives a process, one of `no_sync` does not.  A process that ends for
its disk, and a restore, lose unsynced entries like a power cut.  This is checked in seeds whose disks keep synced
bytes, for acks of a majority; all other invariants of appends are checked for these in every seed.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

import msgspec

from tests.seam.nodes import JSON
from tests.sim.transactions import are_there as is_of_level_2
from vlsn.errors import VlsnLogError

if TYPE_CHECKING:
    from tests.sim.clients import Clients

RATE, OF_THE_GROUP = 0.4, 0.3
"""The share of the seeds of level 2 with such clients, and of these the share in which the group's setting is lower."""
CLIENTS = 4
LEVELS = ("sync", "write_no_sync", "no_sync")
SETTINGS = ("write_no_sync", "no_sync", "sync,no_sync", "no_sync,sync", "sync")
SYNC_INTERVALS_S = (0.1, 0.1, 2.0)
"""The nodes' usual interval, or one so long that faults hit unsynced entries."""
PAUSE_S, BURST = 0.5, 4
PERSON_S = 6.0
EARLY = "an append answered before its sync"


def are_there(seed: int) -> bool:
    """Says whether that seed has such clients. This is drawn separately, so that other seeds run as before."""
    return is_of_level_2(seed) and Random(f"durability/{seed}").random() < RATE


def is_the_groups(seed: int) -> bool:
    return are_there(seed) and Random(f"durability of the group/{seed}").random() < OF_THE_GROUP


class DurabilityClient:
    """Sends some appends at once, and later compares the promises of their answers with the durable log."""

    def __init__(self, clients: Clients, number: int, *, by_setting: bool) -> None:
        self._clients, self._group, self._report = clients, clients.group, clients.report
        self._rng = Random(f"durability/{number}/{clients.report.seed}")
        self._number, self._count = number, 0
        self._by_setting = by_setting
        self._early: list[tuple[float, int, bytes, bool]] = []
        """Time of sending, VLSN, value, and whether the end of a process may lose it."""

    async def run(self) -> None:
        rng = self._rng
        while not self._clients.over:
            await asyncio.gather(*(self._append() for _ in range(rng.randrange(1, BURST + 1))))
            self.settle()
            await asyncio.sleep(rng.uniform(0.0, PAUSE_S))

    async def _append(self) -> None:
        rng, clients = self._rng, self._clients
        self._count += 1
        value = f"d{self._number}.{self._count}:".encode().ljust(rng.choice((12, 200, 1500)), b"d")
        asked = f"&durability={rng.choice(LEVELS)},{rng.choice(LEVELS)}"
        began = self._group.loop.time()
        acks = rng.choice(("majority", "majority", "all", "none"))
        status, answer = await clients.append(
            clients.target(rng), value, acks=acks, more="" if self._by_setting else asked
        )
        if status == 200 and answer["durable"]:
            clients.acknowledge(answer["first"], value)
        elif status == 200:
            self._report.met[EARLY] += 1
            if acks != "none":
                in_memory = "no_sync" in answer["durability"].values()
                self._early.append((began, answer["first"], value, in_memory))
        elif answer["type"] == "outcome-unknown" or answer["type"] == "internal":
            self._report.unknown += 1
        else:
            clients.refused.add(value)

    def settle(self, *, over: bool = False) -> None:
        """Checks the answers whose VLSN is durable by now; with ``over``, all of them."""
        watch, left = self._group.watch, []
        for began, vlsn, value, in_memory in self._early:
            if vlsn > watch.durable_last and not over:
                left.append((began, vlsn, value, in_memory))
                continue
            kept = watch.values.get(vlsn) == value
            losses = self._clients.losses_since(began)
            self._report.met["an early answer that outlived a process"] += kept and "process" in losses
            self._report.met["an early answer that was lost"] += not kept
            excused = bool(losses & ({"power", "medium"} | ({"process"} if in_memory else set())))
            said = (
                f"{value[:20]!r} was promised at VLSN {vlsn} ({began:.3f}), and is lost; since then: {sorted(losses)}"
            )
            watch.hold(kept or excused or not self._clients.keeps_what_was_synced, said)
        self._early = left


async def person(clients: Clients) -> None:
    """Changes the group's setting now and then."""
    rng = Random(f"durability's person/{clients.report.seed}")
    first = True
    while not clients.over:
        level = SETTINGS[0] if first else rng.choice(SETTINGS)
        local, _, replica = level.partition(",")
        body = msgspec.json.encode({"durability": {"local": local, "replica": replica or local}})
        url = f"{clients.group.url(clients.group.master)}/v1/admin/group/settings"
        try:
            response = await clients.group.client.request("POST", url, headers=JSON, body=body, timeout_s=11.0)
            first = first and response.status != 200
        except (VlsnLogError, OSError):
            pass
        await asyncio.sleep(0.2 if first else rng.uniform(0.0, 2 * PERSON_S))
