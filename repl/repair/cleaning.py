"""A node's cleaning: its conditions, its holds and its reports.

1. A node cleans only while it leads or follows, knows its group, and has a retention (``retention_bytes``,
   ``retention_age_s``). It does so every ``cleaning_period_s``, and when a person asks.
2. Age is judged by this node's clock against the master's that sealed.  So before anything goes for its age every
   member is asked for its clock: those that answer must be a majority with this one, and none may be more than a
   minute off.  A clock that jumped by a year empties no log.  A node that has no other member to ask believes its
   clock within bounds (``vlsn/aging``).
3. It holds entries that other members still need, also as a replica (``member_holds``). A replica cleans only once a
   master has reported how far they are.
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
    """Cleans one node's log.  ``run`` returns never."""

    def __init__(self, opened: OpenMember) -> None:
        self._opened = opened
        self._member = opened.member
        self._log = opened.log
        self._said = ""
        self.paused = ""
        """The reason why nothing goes, or nothing for its age; empty while cleaning is free to go."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._member.config.cleaning_period_s)
            if self._log.options.retention:
                await self.clean()

    async def clean(self) -> CleaningReport:
        """Runs one pass; its files are gone on return."""
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
        """Reports what a pass would do now, were it not paused; ``paused`` says whether it is."""
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
            return "no master has told yet how far the other members are"
        return ""

    async def _hear_of_holds(self) -> None:
        """Asks the master, on a replica, how far the members are now."""
        member, role = self._member, self._opened.role
        master = role.master if role is not None else None
        if member.state == "REPLICA" and master is not None and master in member.members.urls:
            await ask_all(member, founding.DISCOVERY, [master])

    async def _clocks(self) -> str:
        """Returns why nothing may go for its age, after a look at the members' clocks."""
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
            return f"only {len(answers)} of {len(others)} members have told their clocks"
        return ""

    def _tell(self, report: CleaningReport) -> None:
        member = self._member
        if report.segments:
            member.event("cleaned", segments=len(report.segments), bytes=report.bytes, first=report.first)
        if report.paused != self._said:
            self._said = report.paused
            member.event("cleaning.paused" if report.paused else "cleaning.resumed", why=report.paused)


def told(report: CleaningReport, node: str) -> dict[str, Any]:
    """Formats the report as JSON shows it."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    return {"node": node, "bytes": report.bytes, **document}
