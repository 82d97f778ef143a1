"""The CDC consumers of one node: each has a record while the node runs, and a worker while the log is open.

records   orders  invoices  mirror    settings, state, counts: from the node's start to its stop
workers   orders  invoices            while one log is open; ``mirror`` runs on the master, which this node is not
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from repl.cdc.child_feed import Joined
from repl.cdc.host import CdcHost, CdcNode
from repl.cdc.position_stores import LocalPositions, ReplicatedPositions
from repl.cdc.record import CdcRecord, CdcState, not_below
from repl.cdc.worker import CdcWorker
from repl.cdc_settings import CdcSettings
from repl.names.positions import REPLICATED_PREFIX
from vlsn.errors import BadArgument, NotFound, NotMaster
from vlsn.state.consumers import positions_in
from vlsn.together import together

LOOK_S = 0.1
"""Seconds between two checks whether this node is the master."""
OTHERS_S = 1.0
"""Seconds between two searches for consumers that the group has and this node's settings do not name."""
STUCK = (CdcState.PARKED, CdcState.NOT_CONFIGURED)
"""The states that only a person's order or other settings can change."""
NOT_HERE = "it runs on the master, which this node is not"


class CdcConsumers:
    """All CDC consumers of one node. ``event`` reports events of the node by name."""

    def __init__(self, settings: Sequence[CdcSettings], node: CdcNode, event: Callable[..., None]) -> None:
        self.records = {each.name: CdcRecord(each) for each in settings}
        self._workers: dict[str, CdcWorker] = {}
        self._node = node
        self.name = node.name
        self.event = event
        self._host: CdcHost | None = None

    async def run(self, host: CdcHost) -> None:
        """Runs the consumers while one log is open."""
        self._host = host
        joined = Joined()
        try:
            playing = {name: self._play(record, host, joined) for name, record in self.records.items()}
            await together(**playing, **{"": self._look_for_others(host)})
        finally:
            self._host = None

    async def close(self) -> None:
        """Stops all children and waits until they have ended. If this call is cancelled, the workers kill the
        children that still run."""
        await asyncio.gather(*(worker.close() for worker in self._workers.values()))

    async def _play(self, record: CdcRecord, host: CdcHost, joined: Joined) -> None:
        """Runs one consumer as long as it belongs on this node (a consumer of the master: while this node is the
        master)."""
        follows_master = record.settings.run_on == "master"
        while True:
            while follows_master and not host.is_master():
                record.state, record.reason = CdcState.WAITING, NOT_HERE
                await asyncio.sleep(LOOK_S)
            worker = self._made(record, host, joined)
            self._workers[record.settings.name] = worker
            running = asyncio.create_task(worker.run(), name=f"cdc-{record.settings.name}")
            try:
                while not running.done() and (not follows_master or host.is_master()):
                    await asyncio.wait([running], timeout=LOOK_S if follows_master else None)
            finally:
                self._workers.pop(record.settings.name, None)
                running.cancel()
                await asyncio.wait([running])
            if follows_master:
                # the position is read again later, because the next master stores new ones
                record.next, record.moved, record.paused_us = 0, False, 0

    async def _look_for_others(self, host: CdcHost) -> None:
        """On the master, reports consumers that the group has a position of, but that the master's settings do not
        name."""
        said: set[str] = set()
        while True:
            found = self._not_configured(host)
            for name in sorted(found.keys() - said):
                self.event("cdc.not_configured", consumer=name, next=found[name])
            said = set(found)
            await asyncio.sleep(OTHERS_S)

    def _not_configured(self, host: CdcHost | None) -> dict[str, int]:
        """Returns the positions, by name, of consumers with ``run_on = "master"`` that are missing in this node's
        settings. Returns nothing if this node is not the master."""
        if host is None or not host.is_master():
            return {}
        small = host.log.view.history.small
        mine = {name for name, record in self.records.items() if record.settings.run_on == "master"}
        return {
            name.removeprefix(REPLICATED_PREFIX): placed.position.next
            for name, placed in (positions_in(small.as_of(host.reads.durable)) if small else {}).items()
            if name.startswith(REPLICATED_PREFIX) and name.removeprefix(REPLICATED_PREFIX) not in mine
        }

    def _made(self, record: CdcRecord, host: CdcHost, joined: Joined) -> CdcWorker:
        settings, node = record.settings, self._node
        positions = (
            LocalPositions(
                node.disk,
                node.directory,
                group=node.group,
                name=settings.name,
                offload=host.storing,
                begun=host.begun,
                number=node.random.u64,
            )
            if settings.run_on == "node"
            else ReplicatedPositions(host.positions, settings.name)
        )
        record.next = 0
        return CdcWorker(record, node=node, host=host, positions=positions, joined=joined, event=self.event)

    # Status and orders.

    def told(self) -> list[dict[str, Any]]:
        """Returns the status of every consumer in the order of the settings. On the master this includes consumers
        that the settings do not name."""
        others = self._not_configured(self._host)
        return [
            *(self._told(record) for record in self.records.values()),
            *(self._told(_other(name, next_vlsn)) for name, next_vlsn in others.items()),
        ]

    def stuck(self) -> dict[str, tuple[CdcState, str]]:
        """Returns the consumers that need a person: for each name, the state and the reason."""
        others = self._not_configured(self._host)
        records = (*self.records.values(), *(_other(name, next_vlsn) for name, next_vlsn in others.items()))
        return {each.settings.name: (each.state, each.reason) for each in records if each.state in STUCK}

    def told_of(self, name: str) -> dict[str, Any]:
        """Returns the status of one consumer. Raises ``NotFound``."""
        record, others = self.records.get(name), self._not_configured(self._host)
        if record is None and name in others:
            record = _other(name, others[name])
        return self._told(record or self._record(name))

    def _told(self, record: CdcRecord) -> dict[str, Any]:
        name = record.settings.name
        worker, host, counts = self._workers.get(name), self._host, record.counts
        if record.state is CdcState.NOT_CONFIGURED:
            worker = None
        feed = worker.feed if worker is not None else None
        source = feed.source if feed is not None else None
        taken = feed.next if feed is not None and feed.next else record.next
        lag_vlsns = lag_s = lag_segments = None
        if host is not None and taken:
            durable = host.reads.durable
            lag_vlsns = max(0, durable + 1 - taken)
            if not lag_vlsns:
                lag_segments, lag_s = 0, 0.0
            elif (here := host.segment_of(taken)) and (end := host.segment_of(durable)):
                lag_segments = end - here
            if lag_vlsns and feed is not None and feed.time_us:
                lag_s = max(0.0, (self._node.clock.wall_us() - feed.time_us) / 1e6)
        return {
            "name": name,
            "consumer": record.settings.consumer,
            "run_on": record.settings.run_on,
            "state": record.state.value,
            "reason": record.why,
            "paused_us": record.paused_us or None,
            "mode": source.mode.value if source is not None else None,
            "pid": worker.pid if worker is not None and worker.pid else None,
            "next": record.next or None,
            "taken": taken or None,
            "lag_vlsns": lag_vlsns,
            "lag_s": lag_s,
            "lag_segments": lag_segments,
            "in_flight_bytes": feed.in_flight if feed is not None else 0,
            "buffer_bytes": host.log.view.ring.bytes if host is not None else 0,
            "buffer_bytes_max": host.log.view.ring.bytes_max if host is not None else 0,
            "last_captured": counts.last or None,
            "entries": counts.entries,
            "segments": counts.segments,
            "commits": counts.commits,
            "switches": {"to_buffer": counts.to_buffer, "to_archive": counts.to_archive},
            "starts": counts.restarts,
            "failures": record.failures,
            "lost": {"first": record.lost[0], "last": record.lost[1]} if record.lost[1] else None,
        }

    async def pause(self, name: str) -> dict[str, Any]:
        worker = self._worker(name)
        await worker.carry_out("pause", worker.pause())
        return self.told_of(name)

    async def resume(self, name: str) -> dict[str, Any]:
        worker = self._worker(name)
        await worker.carry_out("resume", worker.resume())
        return self.told_of(name)

    async def reset(self, name: str, to: int | str) -> dict[str, Any]:
        """Moves a consumer to a VLSN, ``start`` or ``end``. Raises ``NotFound``, ``NotMaster``, and the errors of
        ``CdcWorker.move``."""
        worker = self._worker(name)
        before = await worker.carry_out("reset", worker.move(worker.host.vlsn_of(to)))
        return {**self.told_of(name), "before": before}

    async def skip(self, name: str, to: int) -> dict[str, Any]:
        """Moves a consumer forward, and returns the VLSNs that are skipped. Raises as ``reset``."""
        worker, record = self._worker(name), self._record(name)
        first = record.lost[0] or record.next
        if not first:
            raise BadArgument(f"{name} has no position to skip from; `vlsnlog cdc move {name} --to {to}` sets one")
        if to <= first:
            raise BadArgument(not_below(name, first, to))
        lost = record.lost[0]
        before = await worker.carry_out("skip", worker.move(to, forward=True))
        first = lost or before
        self.event("cdc.skipped", consumer=name, first=first, last=to - 1)
        return {**self.told_of(name), "skipped": {"first": first, "last": to - 1}}

    async def resend(self, name: str, first: int, last: int) -> dict[str, Any]:
        worker = self._worker(name)
        await worker.carry_out("resend", worker.resend(first, last))
        return {**self.told_of(name), "resending": {"first": first, "last": last}}

    def _record(self, name: str) -> CdcRecord:
        record = self.records.get(name)
        if record is None:
            raise NotFound(f"no CDC consumer is called {name[:40]!r} in this node's settings")
        return record

    def _worker(self, name: str) -> CdcWorker:
        record = self._record(name)
        worker = self._workers.get(name)
        if worker is None:
            master = record.settings.run_on == "master" and self._host is not None
            raise NotMaster(f"{name}: {NOT_HERE}" if master else "the node's log is not open")
        return worker


def _other(name: str, next_vlsn: int) -> CdcRecord:
    """Makes the record of a consumer that has a position in the group, but is missing in this node's settings."""
    why = (
        "the group has its position, which holds the log, and the settings of this node, the master, do not name it: "
        f'write its table [[cdc]] with run_on = "master" into them, or '
        f"`vlsnlog consumer delete {REPLICATED_PREFIX}{name}`"
    )
    settings = CdcSettings(name=name, consumer="", run_on="master")
    return CdcRecord(settings, CdcState.NOT_CONFIGURED, why, next=next_vlsn)
