"""Positions of consumers. A COMMIT entry sets positions as named values, alone or together with a transaction's
entries.

This module checks the new position against the log. The position that a commit replaces is checked later, when the
commit enters the queue (``name_conflicts``).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping

import msgspec

from repl.api import ConsumerAt, ConsumerChange, Puts
from repl.group.member import Member
from repl.names.commits import CommitLead, commit_alone
from repl.names.position_lags import ConsumerLags
from vlsn.errors import BadArgument, NotFound, OutcomeUnknown, ProducersMissing, TooLarge, Trimmed
from vlsn.ids import NUMBER_MAX
from vlsn.state.cdc_consumers import paused_key, paused_since, paused_value
from vlsn.state.consumers import CONSUMERS_MAX, Placed, Position, held_in, is_of_another_group, key_of, position_of
from vlsn.write.local_log import LocalLog

REPLICATED_PREFIX = "cdc."
"""The prefix of the names of CDC consumers' positions."""
_BY = re.compile(r"[0-9a-f]{16}\Z")


async def confirm_end(lead: CommitLead, changes: Mapping[str, ConsumerChange]) -> None:
    """Confirms that this node leads, if one of the positions is past the end of its log. A deposed master may be
    missing entries that a consumer has read from another node; it must not refuse the position as a mistake. Raises
    ``NotMaster``."""
    if is_past(lead.log, changes):
        await lead.read_index()


def is_past(log: LocalLog, changes: Mapping[str, ConsumerChange]) -> bool:
    """Returns whether one of the positions is past the end of this log."""
    end = int(log.view.allocated) + 1
    return any(change.next > end and not is_of_another_group(name) for name, change in changes.items())


def puts_of(log: LocalLog, changes: Mapping[str, ConsumerChange]) -> Puts:
    """Returns the names and values that set these positions. Raises ``BadArgument``, ``TooLarge``."""
    values: dict[str, bytes | None] = {}
    expects: dict[str, int] = {}
    for name, change in changes.items():
        key = key_of(name)
        values[key] = msgspec.json.encode(_position(log, name, key, change))
        if change.at is not None:
            expects[key] = change.at
    return Puts(values, expects)


def set_by(log: LocalLog, name: str, change: ConsumerChange) -> Placed | None:
    """Returns the position that an earlier copy of the same commit has set, or None."""
    placed = position_of(log.view.history.small.get(key_of(name)))
    if placed is None or not change.by:
        return None
    return placed if (placed.position.by, placed.position.next) == (change.by, change.next) else None


def check_kept(log: LocalLog, name: str, change: ConsumerChange) -> None:
    """Raises ``Trimmed`` if the entry at the position was cleaned away, or is about to be."""
    first = int(log.care.holds.floor) + 1
    if change.next < first and not is_of_another_group(name):
        raise Trimmed(f"VLSN {change.next} was cleaned away; the first still here is {first}", first=first)


def _position(log: LocalLog, name: str, key: str, change: ConsumerChange) -> Position:
    if change.by and _BY.match(change.by) is None:
        raise BadArgument(f"by: {change.by[:40]!r} is not 16 hex digits")
    if not 1 <= change.next <= NUMBER_MAX or not 0 <= change.term <= NUMBER_MAX:
        raise BadArgument(f"next: {change.next} of term {change.term} is no position")
    if is_of_another_group(name):
        return Position(change.next, change.term, change.by)
    end = int(log.view.allocated) + 1
    if change.next > end:
        raise BadArgument(f"next: {change.next} is not in 1–{end}: the log ends at VLSN {end - 1}")
    small = log.view.history.small
    if key not in small and len(held_in(small)) >= CONSUMERS_MAX:
        raise TooLarge(f"{CONSUMERS_MAX} consumers have positions already; delete one that is not needed")
    return Position(change.next, by=change.by)


class NodePositions:
    """The named positions of a node's group. ``leads`` returns the master's term, or raises ``NotMaster``."""

    def __init__(self, member: Member, leads: Callable[[], CommitLead]) -> None:
        self.member = member
        self._leads = leads

    async def consumers(self) -> list[ConsumerAt]:
        """Returns all positions, by name. Raises ``ProducersMissing`` while this node has lost the small state."""
        lags = self._lags()
        await lags.look()
        return lags.told()

    async def consumer(self, name: str) -> ConsumerAt:
        """Returns one position. Raises ``BadArgument``, ``NotFound``, and the errors of ``consumers``."""
        key_of(name)
        found = await self._lags().told_of(name)
        if found is None:
            raise NotFound(f"consumer {name} has no position here")
        return found

    async def set_consumer(self, name: str, change: ConsumerChange, timeout_s: float) -> ConsumerAt:
        """Sets a position; durable on return. Raises before the position is logged: ``StaleTerm`` if another commit has
        replaced the position that this one starts from, ``BadArgument``, ``Trimmed``, ``TooLarge``, or ``WrongVersion``
        if the group's level is too low for positions. Also raises the errors of an append."""
        lead = self._leads()
        deadline = asyncio.get_running_loop().time() + timeout_s
        again = set_by(lead.log, name, change)
        if again is None:
            await confirm_end(lead, {name: change})
            puts = puts_of(lead.log, {name: change})
            check_kept(lead.log, name, change)
            await commit_alone(lead, puts, deadline)
        elif not await lead.reads.reached(again.at, deadline):
            raise OutcomeUnknown(f"the position of {name} is logged at VLSN {again.at}, and not durable yet")
        return await self.consumer(name)

    async def delete_consumer(self, name: str, at: int | None, timeout_s: float) -> None:
        """Deletes a position; durable on return. Raises ``NotFound``, and the errors of ``set_consumer``."""
        lead, key = self._leads(), key_of(name)
        if key not in lead.log.view.history.small:
            raise NotFound(f"consumer {name} has no position here")
        values: dict[str, bytes | None] = {key: None}
        if name.startswith(REPLICATED_PREFIX):  # a later CDC consumer of the same name must not begin paused
            values[paused_key(name.removeprefix(REPLICATED_PREFIX))] = None
        puts = Puts(values, {} if at is None else {key: at})
        await commit_alone(lead, puts, asyncio.get_running_loop().time() + timeout_s)

    def capture_paused_us(self, consumer: str) -> int:
        """Returns the time when a CDC consumer of the group was paused (µs since the epoch); 0 if it is not paused. All
        entries in this node's log count, durable or not."""
        self._lags()
        return paused_since(self.member.opened().log.view.history.small.get(paused_key(consumer)))

    async def pause_capture(self, consumer: str, since_us: int, timeout_s: float) -> None:
        """Logs the time when a CDC consumer was paused, 0 if it is not paused; durable on return. Raises
        ``VlsnLogError``."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        await commit_alone(self._leads(), Puts({paused_key(consumer): paused_value(since_us)}), deadline)

    def _lags(self) -> ConsumerLags:
        opened = self.member.opened()
        lacks_to = opened.log.view.history.small.lacks_to
        if lacks_to:
            raise ProducersMissing(
                f"this node has lost the small state up to VLSN {lacks_to}, and asks the other members"
            )
        return opened.part(ConsumerLags)
