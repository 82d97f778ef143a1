"""Positions of consumers, made what a COMMIT sets: alone, or with a transaction's entries.

What is asked for is checked against the log as it is; which position it starts from is judged later, in the order of
the queue (``puts``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from repl.api import ConsumerChange, Puts
from repl.lead.leading import Leading
from vlsn.errors import BadArgument, TooLarge, Trimmed
from vlsn.ids import NUMBER_MAX
from vlsn.state.consumers import CONSUMERS_MAX, Placed, Position, held_in, is_of_another_group, key_of, position_of
from vlsn.write.local_log import LocalLog

_BY = re.compile(r"[0-9a-f]{16}\Z")


async def confirm_end(lead: Leading, changes: Mapping[str, ConsumerChange]) -> None:
    """Confirms the lead where a position lies past its log's end. A master that was unseated and does not know it yet
    lacks what was read elsewhere, and must not call that a mistake. Raises ``NotMaster``."""
    if is_past(lead.log, changes):
        await lead.read_index()


def is_past(log: LocalLog, changes: Mapping[str, ConsumerChange]) -> bool:
    """Says whether a position lies past the log's end."""
    end = int(log.view.allocated) + 1
    return any(change.next > end and not is_of_another_group(name) for name, change in changes.items())


def puts_of(log: LocalLog, changes: Mapping[str, ConsumerChange]) -> Puts:
    """Makes what sets these positions. Raises ``BadArgument``, ``TooLarge``."""
    values: dict[str, bytes | None] = {}
    expects: dict[str, int] = {}
    for name, change in changes.items():
        key = key_of(name)
        values[key] = msgspec.json.encode(_position(log, name, key, change))
        if change.at is not None:
            expects[key] = change.at
    return Puts(values, expects)


def set_by(log: LocalLog, name: str, change: ConsumerChange) -> Placed | None:
    """Finds the position that this very commit has set, when it was sent before."""
    placed = position_of(log.view.history.small.get(key_of(name)))
    if placed is None or not change.by:
        return None
    return placed if (placed.position.by, placed.position.next) == (change.by, change.next) else None


def check_kept(log: LocalLog, name: str, change: ConsumerChange) -> None:
    """Raises ``Trimmed`` where what is to be read next was cleaned away, or is about to be."""
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
