"""A node's calls that use destinations; only the master can answer such calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from repl.api import DestinationChange, Puts
from repl.destinations import orders
from repl.destinations.delivered import Delivered
from repl.destinations.deliveries import Deliveries
from repl.destinations.delivery import Delivery, Worker
from repl.destinations.description import destinations_of, told
from repl.destinations.handed import Holder
from repl.destinations.pager import Pager
from repl.group.member import Member
from repl.names.commits import CommitLead, commit_alone
from repl.shared import undisturbed
from vlsn.errors import NotFound, OutcomeUnknown
from vlsn.format.vlsn_set import Vlsns, VlsnSet


class DestinationsLead(CommitLead, Protocol):
    """The master's term, as far as destinations use it."""

    @property
    def destinations(self) -> Deliveries: ...


class NodeDestinations:
    """The destinations of a node's group. ``leads`` returns the master's term, or raises ``NotMaster``.

    Every call raises ``NotMaster``, and ``WrongVersion`` if the group's level is too low for destinations. Every call
    also raises ``ProducersMissing`` while this node has lost its table of destinations. A call with a name also raises
    ``BadArgument``, ``NotFound``.
    """

    def __init__(self, member: Member, leads: Callable[[], DestinationsLead]) -> None:
        self.member = member
        self._leads = leads

    async def destinations(self) -> list[dict[str, Any]]:
        lead = self._checked()
        await lead.destinations.settle_in()
        return destinations_of(lead.log, lead.destinations, self.member.opened().part(Pager))

    async def destination(self, name: str) -> dict[str, Any]:
        lead = self._checked()
        await lead.destinations.of(name)
        found = next((view for view in lead.log.care.destinations.views() if view.name == name), None)
        if found is None:
            raise NotFound(f"there is no destination {name}")
        return told(lead.log, found, lead.destinations, self.member.opened().part(Pager))

    async def set_destination(
        self, name: str, change: DestinationChange, timeout_s: float
    ) -> tuple[dict[str, Any], bool]:
        """Creates a destination, or changes it; durable on return. Returns whether the destination was created. Raises
        ``StaleTerm``, ``TooLarge``, ``Trimmed``, and the errors of an append."""
        lead, deadline = self._checked(), asyncio.get_running_loop().time() + timeout_s
        placed = orders.placed_in(lead.log, name)
        if placed is None:
            uuid = change.uuid or f"{self.member.seams.random.u64() or 1:016x}"
            await self._commit(lead, orders.made(lead.log, name, change, uuid), deadline)
            lead.destinations.followed()
            self.member.event("destination.made", destination=name, uuid=uuid)
            return await self.destination(name), True
        puts = orders.changed(lead.log, name, placed, change)
        if puts is not None:
            await self._commit(lead, puts, deadline)
            lead.destinations.followed()
        else:
            await self._reached(lead, placed.at, deadline)
        return await self.destination(name), False

    async def drop_destination(self, name: str, timeout_s: float) -> None:
        lead, deadline = self._checked(), asyncio.get_running_loop().time() + timeout_s
        await self._commit(lead, orders.dropped(name, orders.found_in(lead.log, name)), deadline)
        self.member.event("destination.dropped", destination=name)

    async def order(
        self, name: str, order: str, to: int | str | None, vlsns: Vlsns | None, timeout_s: float
    ) -> dict[str, Any]:
        """Executes ``pause``, ``resume``, ``move``, ``retry-dead`` or ``delete-dead``; durable on return.
        ``retry-dead`` and ``delete-dead`` apply to the dead messages in ``vlsns``; None means all. Raises
        ``NotFound`` if one of ``vlsns`` is not dead."""
        lead, deadline = self._checked(), asyncio.get_running_loop().time() + timeout_s
        delivery = await lead.destinations.of(name)
        placed = orders.found_in(lead.log, name)
        puts: Puts | None
        match order:
            case "move":
                assert to is not None
                puts = orders.moved(lead.log, name, placed, to)
            case "retry-dead":
                dead = delivery.dead(None if vlsns is None else VlsnSet.of(vlsns))
                if dead:
                    delivery.acks.check_retry(dead)
                puts = orders.tried_again(placed, dead) if dead else None
            case "delete-dead":
                assert vlsns is not None
                puts = orders.deleted(placed, delivery.dead(VlsnSet.of(vlsns)))
            case _:
                puts = orders.paused(name, placed, order == "pause")
        if puts is not None:
            await self._commit(lead, puts, deadline)
            lead.destinations.followed()
            if order == "retry-dead" and dead:
                delivery.retry(dead)
            if order == "move":
                self.member.event("destination.moved", destination=name, to=to)
        return await self.destination(name)

    async def worker(self, name: str) -> Worker:
        return (await self._checked().destinations.of(name)).worker()

    async def messages(self, name: str, most: int, wait_s: float, room: Holder) -> Delivered:
        """Takes messages for one caller. Raises ``QueueFull``, ``Damaged``."""
        delivery = await self._checked().destinations.of(name)
        return await delivery.messages(most, wait_s, room)

    async def peek(self, name: str, most: int) -> Delivered:
        """Shows the next unacknowledged messages, and takes none."""
        delivery = await self._checked().destinations.of(name)
        return await delivery.peek(most)

    async def ack(self, name: str, vlsns: Vlsns, uuid: str, wait_s: float) -> None:
        """Acknowledges messages; durable on return unless ``wait_s`` is 0. ``uuid`` selects one creation of the
        destination; "" accepts any. Raises ``OutcomeUnknown``, ``QueueFull``, ``BadArgument``."""
        delivery = await self._meant(name, uuid)
        told = delivery.ack(VlsnSet.of(vlsns), wait=wait_s > 0)
        if told is None:
            return
        try:
            async with asyncio.timeout(wait_s):
                await undisturbed(told)
        except TimeoutError:
            raise OutcomeUnknown("acknowledged, and not durable yet: acknowledge them again") from None

    async def nack(self, name: str, vlsns: Vlsns, uuid: str, reason: str, delay_s: float | None) -> None:
        """Returns messages for redelivery after ``delay_s`` seconds, or after the delay of the settings for None."""
        (await self._meant(name, uuid)).nack(vlsns, reason, delay_s)

    async def _meant(self, name: str, uuid: str) -> Delivery:
        delivery = await self._checked().destinations.of(name)
        if uuid and uuid != delivery.uuid:
            raise NotFound(f"destination {name} has uuid {delivery.uuid} now; the one with {uuid} was dropped")
        return delivery

    def _checked(self) -> DestinationsLead:
        lead = self._leads()
        lead.destinations.check_level()
        return lead

    async def _commit(self, lead: DestinationsLead, puts: Puts, deadline: float) -> None:
        appended = await commit_alone(lead, puts, deadline)
        await self._reached(lead, appended.last, deadline)

    async def _reached(self, lead: DestinationsLead, vlsn: int, deadline: float) -> None:
        """Returns once this node has applied VLSN ``vlsn`` to its tables."""
        log, loop = lead.log, asyncio.get_running_loop()
        while True:
            log.view.fold_acks()
            if log.view.history.acks.folded_to >= vlsn:
                return
            if loop.time() >= deadline:
                raise OutcomeUnknown(f"the change is logged at VLSN {vlsn}, and not synced here yet")
            await asyncio.sleep(0.005)
