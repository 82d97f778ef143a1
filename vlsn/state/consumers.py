"""Consumers: named positions in the small state, and the holds that follow from them.

    consumer/billing          {"next": 41}                billing has read this log up to VLSN 40
    consumer/orders/billing   {"next": 7, "term": 1}      … and the log of group ``orders`` up to 6: no hold here

A COMMIT entry sets a position, either alone or together with the entries that were made from the entries read. So the
position becomes durable, and is rolled back, together with those entries. The VLSN of that COMMIT identifies the
position. A change of the position names that VLSN, and is not logged if the position was set again since.

Each node derives the holds from its own log. A position that may still be rolled back frees no part of the log.
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
"""The most positions that hold a log. Each hold is checked whenever segments are to be removed."""


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a position. ``next`` is the VLSN to be read next. ``by`` is the number that its writer gave this
    commit, 16 hex digits, so that the writer recognises the commit. If the position is in another group's log, ``term``
    is the term of the VLSN before ``next`` (0: not known). A position in this log has no ``term``, since this log knows
    its own terms, and the same commit, sent again later, sets the same value."""

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
    """Returns the name in the small state for consumer ``name``, or for ``GROUP/NAME`` if the consumer reads the log of
    another group. Raises ``BadArgument`` for a bad name."""
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
    """Reads a position. Returns None if the value is missing or is not a position."""
    position = decoded(kept, _decoder)
    if kept is None or position is None or not 0 < position.next <= NUMBER_MAX:
        return None
    return Placed(kept.vlsn, position)


def positions_in(kept: Mapping[str, Kept]) -> dict[str, Placed]:
    """Returns all positions by the names of their consumers, ordered by name."""
    return under(kept, PREFIX, position_of)


def held_in(kept: Mapping[str, Kept]) -> dict[str, Vlsn]:
    """Returns the first VLSN that each consumer of this log still needs."""
    found = {name: Vlsn(placed.position.next) for name, placed in positions_in(kept).items()}
    return {name: vlsn for name, vlsn in found.items() if not is_of_another_group(name)}


class ConsumerHolds(FollowingHolds):
    """The holds of one log's consumers on this log. Only the owner's thread may use them, under the latch."""

    def __init__(self, holds: Holds, small: SmallState) -> None:
        super().__init__(holds, Owner.CONSUMER)
        self._small = small

    def place(self, durable: Vlsn) -> None:
        """Places the holds that follow from the positions as of ``durable``."""
        self.follow(held_in(self._small.as_of(durable)) if self._small or self._held else {})
