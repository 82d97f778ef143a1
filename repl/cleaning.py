"""A node's cleaning: when it may, with which holds, and what it says of it.

1. A node cleans only while it leads or follows, knows its group, and is told what to keep (``retention_bytes``,
   ``retention_age_s``); every ``cleaning_period_s``, and when a person asks.
2. Age is judged by this node's clock against the master's that sealed.  So before anything goes for its age every
   member is asked for its clock: those that answer must be a majority with this one, and none may be more than a
   minute off.  A clock that jumped by a year empties no log.
3. The master holds the log for every other member of the group, fed or not, from the last VLSN that it acknowledged;
   for one that has not been fed yet in this lead, all there is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from feeder.acks import majority
from repl import founding
from repl.offload import settle
from repl.peers import ask_all
from vlsn.cleaning import CleaningReport
from vlsn.errors import Trimmed
from vlsn.holds import Hold, Owner
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.limits import CLOCK_DIFFERENCE_MAX_S
from vlsn.local import LocalLog
from vlsn.records import GroupEntry

if TYPE_CHECKING:
    from repl.node import Node


class Cleaning:
    """Cleans one node's log.  ``run`` returns never."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._log = node.opened()
        self._said = ""
        self.paused = ""
        """Why nothing goes, or nothing for its age; empty while cleaning is free to go."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._node.config.cleaning_period_s)
            if self._log.options.retention:
                await self.clean()

    async def clean(self) -> CleaningReport:
        """One pass; its files are gone on return."""
        pause, pause_age = self._pause(), ""
        if not pause and self._log.options.retention_age_s:
            due = await self._passed(dry_run=True)
            if any(fate.reason == "age" for fate in due.segments):
                pause_age = await self._clocks()
        report = await self._passed(pause=pause, pause_age=pause_age)
        self.paused = report.paused
        self._tell(report)
        return report

    async def dry_run(self) -> CleaningReport:
        """What a pass would do now, were it not paused; ``paused`` says whether it is."""
        pause = self._pause()
        return await self._passed(dry_run=True, pause=pause or self.paused)

    def _passed(self, *, dry_run: bool = False, pause: str = "", pause_age: str = "") -> asyncio.Future[CleaningReport]:
        done: asyncio.Future[CleaningReport] = asyncio.get_running_loop().create_future()
        self._log.cleaner.run(settle(done), dry_run=dry_run, pause=pause, pause_age=pause_age)
        return done

    def _pause(self) -> str:
        node = self._node
        if node.state not in ("MASTER", "REPLICA"):
            return f"the node neither leads nor follows ({node.state})"
        if self._log.history.group is None:
            return "the group in this log is not known"
        return ""

    async def _clocks(self) -> str:
        """Why nothing may go for its age, after a look at the members' clocks."""
        node, clock = self._node, self._node.seams.clock
        before = clock.wall_us()
        others = [name for name in node.members.listed if name != node.name]
        answers = await ask_all(node, founding.DISCOVERY, others)
        after = clock.wall_us()
        for name, answer in answers.items():
            apart = max(answer.clock_us - after, before - answer.clock_us) / 1e6
            if apart > CLOCK_DIFFERENCE_MAX_S:
                return f"the clock of {name} differs by {apart:.0f} s"
        if len(answers) + 1 < majority(len(node.members.listed)):
            return f"only {len(answers)} of {len(others)} members have told their clocks"
        return ""

    def _tell(self, report: CleaningReport) -> None:
        node = self._node
        if report.segments:
            node.event("cleaned", segments=len(report.segments), bytes=report.bytes, first=report.first)
        if report.paused != self._said:
            self._said = report.paused
            node.event("cleaning.paused" if report.paused else "cleaning.resumed", why=report.paused)


class FeederHolds:
    """The holds of one lead; ``on_dropped`` gets a replica's name and the first VLSN that will be left."""

    def __init__(self, log: LocalLog, own: str, on_dropped: Callable[[str, Vlsn], None]) -> None:
        self._log = log
        self._own = own
        self._on_dropped = on_dropped
        self._held: dict[str, Hold] = {}

    def follow(self, group: GroupEntry) -> None:
        """The members have changed: a new one has not said yet how far it is, one that is gone holds nothing."""
        names = {member.name for member in group.members} - {self._own}
        for name in sorted(names - set(self._held)):
            self.matched(name, NULL_VLSN)
        for name in sorted(set(self._held) - names):
            self._log.holds.release(self._held.pop(name))

    def matched(self, replica: str, at: Vlsn) -> None:
        """``replica`` has everything up to ``at``, the end of a block.  Raises ``Trimmed``."""
        self._held[replica] = self._log.holds.place(
            Owner.FEEDER, replica, at, on_dropped=lambda first: self._on_dropped(replica, first)
        )

    def acknowledged(self, replica: str, synced: Vlsn) -> None:
        if replica in self._held:
            self._held[replica].advance(synced)

    def release(self) -> None:
        for hold in self._held.values():
            self._log.holds.release(hold)


def overtaken(replica: str, first: Vlsn) -> Trimmed:
    """What a feed ends with whose hold was dropped."""
    return Trimmed(
        f"the log was cleaned past what {replica} has; it begins at {first}, and needs a network restore", first=first
    )


def told(report: CleaningReport, node: str) -> dict[str, Any]:
    """The report as JSON shows it."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    return {"node": node, "bytes": report.bytes, **document}
