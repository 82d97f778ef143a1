"""Changes of the group's members, which the master makes in one term.

    add NAME ─► ask the node at its URL ─► GROUP lists it, secondary ─► fed ─► caught up ─► GROUP: electable
    a wiped member comes back ─► fed, does not count ─► caught up ─► GROUP: its new incarnation ─► counts
    remove NAME ─► GROUP without it ─► durable: its feed stops; if it is the master itself: hands over, resigns

A GROUP entry in the log lists the members. An incarnation is a random number that a new, empty store draws.

1. One change is made at a time, and only if ``membership.check_change`` allows it. A change that could not become
   durable is refused before it is logged.
2. The members of a GROUP entry count from the moment when the entry is sealed: ``follow`` is called before any feed
   sends the entry.
3. The master completes two changes by itself: for a joining member that has caught up, and for a member that came back
   as another incarnation. The next master can continue these changes from the log and the feeds.
4. Catching up is measured in rounds. A replica has caught up when it reaches, within an election timeout, the log's
   end at the start of the round (Raft's dissertation, §4.2.1).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec

from feeder.feeder import Feeder
from repl.group import founding, membership
from repl.group.founding import parse_hex
from repl.group.member import OpenMember
from repl.group.membership import Add, Change, Move, Prefer, Promote, Remove, counting, listed_as
from repl.group.peers import ask
from repl.lead.handing_over import HandingOver
from repl.lead.level_raising import next_raise
from repl.lead.logged_settings import settings_of
from repl.lead.tenure import Tenure
from repl.shared import undisturbed
from vlsn.errors import (
    BadArgument,
    GroupBusy,
    NotListed,
    NotMaster,
    OutcomeUnknown,
    VlsnLogError,
)
from vlsn.format.block import EntryKind
from vlsn.format.records import GroupEntry, Member
from vlsn.ids import NULL_VLSN, Incarnation, NodeName, Vlsn

LOOK_S = 0.2
CHANGE_TIMEOUT_S = 10.0
"""Seconds that a request to change the group waits for the change to become durable."""


@dataclass(slots=True)
class _Round:
    """One round in which a replica must reach the log's end at the start of the round."""

    began_s: float
    target: Vlsn
    caught_up: bool = False
    """True if the round before this one took at most an election timeout."""


class Changes:
    """The changes of the group in one term. ``run`` never returns."""

    def __init__(self, lead: Tenure, handing_over: HandingOver) -> None:
        self._lead = lead
        self._handing_over = handing_over
        self._member = lead.member
        self._log = lead.log
        self.at = NULL_VLSN
        """The VLSN of the newest GROUP entry, whose members count."""
        self.settled = False
        """True once the newest GROUP entry is durable. Before that, the members of the preceding GROUP entry count as
        well."""
        self._under_way: asyncio.Future[Vlsn] | None = None
        self._rounds: dict[Feeder, _Round] = {}
        self._waits = ""
        """Why the master's own next change is not made yet; "" if no change waits."""

    # Which members count.

    def follow(self) -> None:
        """Uses the members of the newest GROUP entry in the log from now on."""
        at = self._log.view.history.group_vlsn
        if at != self.at:
            self.at, self.settled = at, self._log.view.dtvlsn >= at
            self._count()

    def durable_rose(self, durable: Vlsn) -> None:
        """Called when the durable end (DTVLSN) of this term has risen while the newest GROUP entry is not
        ``settled``."""
        if durable < self.at:
            return
        self.settled = True
        self._count()
        group = self._group()
        self._member.event("group.durable", vlsn=self.at, members=",".join(each.name for each in group.members))
        self._lead.end_feeds_of(
            [name for name in self._lead.feeders if not membership.is_listed(group, name)],
            NotListed(f"the GROUP entry at VLSN {self.at} no longer lists it"),
        )
        if self._under_way is not None and not self._under_way.done():
            self._under_way.set_result(self.at)

    def end(self) -> None:
        """Fails a pending change, because the term ends."""
        if self._under_way is not None and not self._under_way.done():
            self._under_way.set_exception(
                OutcomeUnknown("this node stopped leading before the change of the group was durable")
            )
            self._under_way.exception()  # marks the error as seen, because the caller may have left

    def _count(self) -> None:
        book, log = self._lead.book, self._log
        effective = counting(log.view.history.groups, log.view.dtvlsn)
        book.set_group(founding.electable_incarnations(effective), self._lead.start)
        self._lead.holds.follow(self._group())

    def _group(self) -> GroupEntry:
        group = self._log.view.history.group
        assert group is not None
        return group

    # Users' changes.

    async def change(self, change: Change) -> dict[str, Any]:
        """Makes a change of the group; durable on return. Logs nothing if the group is so already: an order whose
        answer was lost is sent again. Raises before the change is logged: ``BadArgument``, ``GroupBusy``,
        ``InsufficientReplicas``, ``NoSpace`` or ``NotMaster``. Also raises ``OutcomeUnknown``."""
        membership.check_level(change, self._log.view.level)
        match change:
            case Add():
                member_url = change.url.rstrip("/")
                incarnation = await self._who_answers(NodeName(change.name), member_url)
                proposed = membership.with_member(self._group(), change, incarnation)
            case Move():
                incarnation = await self._who_is_moved(NodeName(change.name), change.url.rstrip("/"))
                proposed = membership.with_url(self._group(), change, incarnation)
            case Remove():
                proposed = membership.without_member(self._group(), change.name)
            case Promote():
                proposed = membership.with_electable(
                    self._group(), change.name, caught_up=self._has_caught_up(change.name)
                )
            case Prefer():
                proposed = membership.with_priority(self._group(), change.name, change.priority)
        if proposed == self._group() and self.settled:
            return {"vlsn": self.at, **document(self._lead.opened)}
        self._member.event("group.change", change=change.__struct_config__.tag, member=change.name)
        durable = self._append(proposed)
        try:
            async with asyncio.timeout(CHANGE_TIMEOUT_S):
                vlsn = await undisturbed(durable)
        except TimeoutError:
            raise OutcomeUnknown(
                f"the change is logged, but not durable after {CHANGE_TIMEOUT_S:.0f} s; it may become so, or not"
            ) from None
        return {"vlsn": vlsn, **document(self._lead.opened)}

    async def _who_answers(self, name: NodeName, url: str) -> str:
        """Returns the incarnation of the node that answers at ``url``. Raises ``BadArgument``."""
        try:
            return (await ask(self._member, name, url, founding.DISCOVERY)).incarnation
        except (VlsnLogError, OSError) as error:
            raise BadArgument(
                f"{name} does not answer: {error}; start it first, with all members in its settings"
            ) from None

    async def _who_is_moved(self, name: NodeName, url: str) -> str:
        """Returns the incarnation of the node at a member's new ``url``; it may be this node. Raises
        ``BadArgument``."""
        member = self._member
        if name == member.name:
            try:
                await member.network.request(
                    "GET", f"{url}/healthz", timeout_s=member.config.connect_timeout_s, peer=name
                )
            except (VlsnLogError, OSError) as error:
                raise BadArgument(f"{name} does not answer there: {error}") from None
        return await self._who_answers(name, url)

    def _append(self, proposed: GroupEntry) -> asyncio.Future[Vlsn]:
        """Appends a GROUP entry. The future completes with the entry's VLSN when the entry is durable."""
        lead, log = self._lead, self._log
        if lead.heir is not None:
            raise NotMaster(f"this node is handing over to {lead.heir}; try again")
        if self._under_way is not None and not self._under_way.done():
            raise GroupBusy("another change of the group is under way; one at a time")
        if (refusal := log.refusal) is not None:
            raise refusal
        live = frozenset(
            {lead.own, *(Incarnation(each.incarnation) for each in lead.feeders.values() if lead.hears(each))}
        )
        membership.check_change(
            log.view.history.groups, proposed, durable=lead.book.durable, term_start=lead.start, live=live
        )
        entry = msgspec.structs.replace(proposed, previous=log.view.history.group_vlsn)
        durable: asyncio.Future[Vlsn] = asyncio.get_running_loop().create_future()
        self._under_way = durable
        log.append_entries([EntryKind.GROUP], [entry.encode()], lambda _: None)
        return durable

    # The master's changes.

    async def run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()
            if self.settled and listed_as(self._group(), self._member.name, self._lead.own) is None:
                await self._leave()
            why = ""
            try:
                await self._go_on()
            except VlsnLogError as error:
                why = str(error)
            if why != self._waits:
                self._waits = why
                self._member.event("group.waits", why=why or "for nothing")

    def _look(self) -> None:
        now = self._member.seams.clock.monotonic_s()
        most = max(self._member.config.election_timeout_s, 2 * LOOK_S)
        rounds: dict[Feeder, _Round] = {}
        for feeder in self._lead.feeders.values():
            if not feeder.streaming:
                continue
            old = self._rounds.get(feeder)
            if old is None:
                rounds[feeder] = _Round(now, self._log.view.allocated)
            elif feeder.acked >= old.target:
                rounds[feeder] = _Round(now, self._log.view.allocated, now - old.began_s <= most)
            else:
                rounds[feeder] = old
                old.caught_up &= now - old.began_s <= most
        self._rounds = rounds

    def _has_caught_up(self, name: str) -> bool:
        feeder = self._lead.feeders.get(name)
        found = self._rounds.get(feeder) if feeder is not None else None
        return found is not None and found.caught_up

    async def _go_on(self) -> None:
        """Makes the next change that the master makes by itself: for a member that has caught up."""
        group = self._group()
        for member in group.members:
            if not self._has_caught_up(member.name):
                continue
            incarnation = self._lead.feeders[member.name].incarnation
            if parse_hex(member.incarnation) != incarnation:
                proposed = membership.with_incarnation(group, member.name, Incarnation(incarnation))
                await self._append(proposed)
                self._member.counts.readmitted += 1
                self._member.event(
                    "group.readmitted", member=member.name, incarnation=f"{incarnation:016x}", before=member.incarnation
                )
                return
            if member.joining:
                await self._append(membership.with_electable(group, member.name, caught_up=True))
                self._member.event("group.promoted", member=member.name)
                return

    async def _leave(self) -> None:
        """Hands mastership over, because this master is no longer a member."""
        lead, member = self._lead, self._member
        try:
            await self._handing_over.run(None)
        except VlsnLogError as error:
            member.event("hand_over.failed", why=str(error))
        await lead.electing.resign(lead.term, "this node was removed from the group")


# Description.


def document(opened: OpenMember) -> dict[str, Any]:
    """Makes the document of ``GET /v1/group``. On the master the document includes the lag of each member, and whether
    the level can be raised."""
    opened.check()
    member, log = opened.member, opened.log
    group = log.view.history.group
    return {
        "group": member.config.group,
        "node": member.config.name,
        "state": member.state,
        "master": member.master_name(),
        "term": log.node_file.record.term,
        "vlsn": log.view.history.group_vlsn,
        "previous": group.previous if group is not None else 0,
        "durable": group is not None and log.view.dtvlsn >= log.view.history.group_vlsn,
        "level": log.view.level,
        "settings": settings_of(log),
        "upgrade": next_raise(opened.role) if isinstance(opened.role, Tenure) else None,
        "members": [_told(opened, each) for each in group.members] if group is not None else [],
    }


def _told(opened: OpenMember, member: Member) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(member)
    told |= {"fed": None, "lag_vlsns": None, "other_incarnation": ""}
    told["levels"] = opened.member.spoken().get(NodeName(member.name))
    lead = opened.role
    if not isinstance(lead, Tenure):
        return told
    feeder = lead.feeders.get(member.name)
    if member.name == opened.member.name:
        told |= {"fed": True, "lag_vlsns": 0}
    elif feeder is None:
        told["fed"] = False
    else:
        told |= {"fed": lead.hears(feeder), "lag_vlsns": max(0, opened.log.view.range.last - feeder.acked)}
        if parse_hex(member.incarnation) != feeder.incarnation:
            told["other_incarnation"] = f"{feeder.incarnation:016x}"
    return told
