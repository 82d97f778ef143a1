"""Consumers: named positions in the small state, and the holds that follow from them.

    consumer/billing          {"next": 41}                billing has read this log up to VLSN 40
    consumer/orders/billing   {"next": 7, "term": 1}      … and the log of group ``orders`` up to 6: no hold here

A COMMIT entry sets a position, alone or with the entries made from the ones read. So it becomes durable, and is rolled
back, with them. The VLSN of that COMMIT identifies the position: a change names it, and nothing is logged where another
position has come since.

Each node places the holds itself, from its own log. A position that may still be rolled back lets nothing go.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from vlsn.errors import BadArgument
from vlsn.ids import NULL_TERM, NUMBER_MAX, Vlsn, is_name, is_part
from vlsn.state.holds import FollowingHolds, Holds, Owner
from vlsn.state.small_state import Kept, SmallState, decoded, under

PREFIX = "consumer/"
CONSUMERS_MAX = 512
"""Positions that hold a log: each hold is looked at whenever something is to go."""


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a position: ``next`` is the VLSN to be read next, ``by`` what its writer calls this one commit, 16
    hex digits, to know it again.  ``term``, of the VLSN before ``next`` (0: not known), is of another group's log: this
    log knows its own, and the same commit, sent again later, sets the same."""

    next: int
    term: int = NULL_TERM
    by: str = ""


class Placed(NamedTuple):
    """A position, and the VLSN of the COMMIT that set it."""

    at: Vlsn
    position: Position


_decoder = msgspec.json.Decoder(Position)


@lru_cache(CONSUMERS_MAX)
def key_of(name: str) -> str:
    """Returns the name in the small state of consumer ``name``, or ``GROUP/NAME`` for one that reads the log of another
    group. Raises ``BadArgument``."""
    group, _, own = name.rpartition("/")
    if not is_part(own) or (group and not (is_name(group) and is_part(group))) or name.startswith("/"):
        raise BadArgument(
            f"{name[:100]!r} is no name of a consumer: 1–64 of [A-Za-z0-9._-], not . or .., behind GROUP/ where it "
            "reads another group's log"
        )
    return PREFIX + name


def is_of_another_group(name: str) -> bool:
    return "/" in name


def position_of(kept: Kept | None) -> Placed | None:
    """Reads a position; None where there is none, or something else lies there."""
    position = decoded(kept, _decoder)
    if kept is None or position is None or not 0 < position.next <= NUMBER_MAX:
        return None
    return Placed(kept.vlsn, position)


def positions_in(kept: Mapping[str, Kept]) -> dict[str, Placed]:
    """Returns all positions by the names of their consumers, in their order."""
    return under(kept, PREFIX, position_of)


def held_in(kept: Mapping[str, Kept]) -> dict[str, Vlsn]:
    """Returns the first VLSN that each consumer of this log still needs."""
    found = {name: Vlsn(placed.position.next) for name, placed in positions_in(kept).items()}
    return {name: vlsn for name, vlsn in found.items() if not is_of_another_group(name)}


class ConsumerHolds(FollowingHolds):
    """The holds of one log's consumers. On the owner's thread only, under the latch."""

    def __init__(self, holds: Holds, small: SmallState) -> None:
        super().__init__(holds, Owner.CONSUMER)
        self._small = small

    def place(self, durable: Vlsn) -> None:
        """Places the holds as of ``durable``."""
        self.follow(held_in(self._small.as_of(durable)) if self._small or self._held else {})
