"""Cleaning on a node: its conditions, its holds and its reports. Cleaning removes the oldest segments of the log.

1. A node cleans only while it is master or replica, knows its group, and has a retention (``retention_bytes``,
   ``retention_age_s``). A cleaning runs once in ``cleaning_period_s``, and when a person requests it.
2. The age of an entry is this node's clock minus the time that the entry's master stored in it. So before entries are
   removed by age, every member is asked for its clock. A majority, this node included, must have answered, and no clock
   may differ by more than a minute. So a clock that jumps by a year empties no log. A node without other members
   believes its own clock within bounds (``vlsn/aging``).
3. A node keeps entries that other members still need, even if it is a replica (``member_holds``). A replica cleans only
   once a master has reported the members' positions.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from feeder.majority import majority
from repl.group import founding
from repl.group.member import OpenMember
from repl.group.peers import ask_all
from repl.offload import settle
from vlsn.limits import CLOCK_DIFFERENCE_MAX_S
from vlsn.write.cleaner import CleaningReport


class Cleaning:
    """Cleans one node's log. ``run`` never returns."""

    def __init__(self, opened: OpenMember) -> None:
        self._opened = opened
        self._member = opened.member
        self._log = opened.log
        self._said = ""
        self.paused = ""
        """Why cleaning removes nothing, or nothing by age; "" if it may remove entries."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._member.config.cleaning_period_s)
            if self._log.options.retention:
                await self.clean()

    async def clean(self) -> CleaningReport:
        """Runs one cleaning pass. On return the removed files are deleted."""
        await self._hear_of_holds()
        pause, pause_age, agree = self._pause(), "", False
        if not pause and self._log.options.retention_age_s:
            due = await self._passed(dry_run=True, clocks_agree=True)
            if any(fate.reason == "age" for fate in due.segments):
                pause_age = await self._clocks()
                agree = not pause_age and self._has_others
        report = await self._passed(pause=pause, pause_age=pause_age, clocks_agree=agree)
        self.paused = report.paused
        self._tell(report)
        return report

    async def dry_run(self) -> CleaningReport:
        """Reports what a pass would remove now if cleaning were not paused. ``paused`` in the report is the reason for
        a pause."""
        await self._hear_of_holds()
        pause = self._pause()
        return await self._passed(dry_run=True, pause=pause or self.paused, clocks_agree=self._has_others)

    @property
    def _has_others(self) -> bool:
        return len(self._member.members.listed) > 1

    def _passed(
        self, *, dry_run: bool = False, pause: str = "", pause_age: str = "", clocks_agree: bool = False
    ) -> asyncio.Future[CleaningReport]:
        done: asyncio.Future[CleaningReport] = asyncio.get_running_loop().create_future()
        self._log.care.cleaner.run(
            settle(done), dry_run=dry_run, pause=pause, pause_age=pause_age, clocks_agree=clocks_agree
        )
        return done

    def _pause(self) -> str:
        member = self._member
        if member.state not in ("MASTER", "REPLICA"):
            return f"the node neither leads nor follows ({member.state})"
        if self._log.view.history.group is None:
            return "the group in this log is not known"
        if not self._opened.holds.known:
            return "no master has reported the positions of the other members yet"
        return ""

    async def _hear_of_holds(self) -> None:
        """On a replica, asks the master for the positions from which members still need the log."""
        member, role = self._member, self._opened.role
        master = role.master if role is not None else None
        if member.state == "REPLICA" and master is not None and master in member.members.urls:
            await ask_all(member, founding.DISCOVERY, [master])

    async def _clocks(self) -> str:
        """Asks for the members' clocks. Returns why no entry may be removed by age; "" if entries may be removed."""
        member, clock = self._member, self._member.seams.clock
        before = clock.wall_us()
        others = [name for name in member.members.listed if name != member.name]
        answers = await ask_all(member, founding.DISCOVERY, others)
        after = clock.wall_us()
        for name, answer in answers.items():
            apart = max(answer.clock_us - after, before - answer.clock_us) / 1e6
            if apart > CLOCK_DIFFERENCE_MAX_S:
                return f"the clock of {name} differs by {apart:.0f} s"
        if len(answers) + 1 < majority(len(member.members.listed)):
            return f"only {len(answers)} of {len(others)} members have reported their clocks"
        return ""

    def _tell(self, report: CleaningReport) -> None:
        member = self._member
        if report.segments:
            member.event("cleaned", segments=len(report.segments), bytes=report.bytes, first=report.first)
        if report.paused != self._said:
            self._said = report.paused
            member.event("cleaning.paused" if report.paused else "cleaning.resumed", why=report.paused)


def told(report: CleaningReport, node: str) -> dict[str, Any]:
    """Returns the report of a cleaning as a JSON document."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    return {"node": node, "bytes": report.bytes, **document}
