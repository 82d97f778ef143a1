"""Consumers. A consumer is a named reading position in the small state (the log's table of names and values). A
position places a hold on the log: cleaning keeps the entries from the position on.

    consumer/billing          {"next": 41}                billing has read this log up to VLSN 40
    consumer/orders/billing   {"next": 7, "term": 1}      … and the log of group ``orders`` up to 6: no hold here

A COMMIT entry sets a position. A transaction may contain both the COMMIT and the consumer's results, so that position
and results are durable, or rolled back, together. The VLSN of the COMMIT identifies the position. The next change of
the position names that VLSN, and is refused if the position was set again since.

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
"""The most positions that place a hold on the log. Each hold is checked whenever segments are to be removed."""


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """The value of a position. ``next`` is the VLSN to be read next. ``by`` is a number of 16 hex digits, by which the
    writer recognises its own commit. If the position is in another group's log, ``term`` is the term of the VLSN before
    ``next`` (0: not known). A position in this log has no ``term``, since the term can be read from this log. So a
    commit that is sent again later sets the same value."""

    next: int
    term: int = NULL_TERM
    by: str = ""


class Placed(NamedTuple):
    """A consumer's position, and the VLSN of the COMMIT that set the position."""

    at: Vlsn
    position: Position


_decoder = msgspec.json.Decoder(Position)


@lru_cache(CONSUMERS_MAX)
def key_of(name: str) -> str:
    """Returns the name in the small state for consumer ``name``. For a consumer that reads the log of another group,
    ``name`` is ``GROUP/NAME``. Raises ``BadArgument`` for a bad name."""
    group, _, own = name.rpartition("/")
    if not is_part(own) or (group and not (is_name(group) and is_part(group))) or name.startswith("/"):
        raise BadArgument(
            f"{name[:100]!r} is no name of a consumer: 1–64 of [A-Za-z0-9._-], not . or .., after GROUP/ if it "
            "reads another group's log"
        )
    return PREFIX + name


def is_of_another_group(name: str) -> bool:
    return "/" in name


def position_of(kept: Kept | None) -> Placed | None:
    """Decodes a position. Returns None if the value is missing or is not a position."""
    position = decoded(kept, _decoder)
    if kept is None or position is None or not 0 < position.next <= NUMBER_MAX:
        return None
    return Placed(kept.vlsn, position)


def positions_in(kept: Mapping[str, Kept]) -> dict[str, Placed]:
    """Returns all positions by the names of their consumers, ordered by name."""
    return under(kept, PREFIX, position_of)


def held_in(kept: Mapping[str, Kept]) -> dict[str, Vlsn]:
    """Returns, for each consumer of this log, the first VLSN that the consumer still needs."""
    found = {name: Vlsn(placed.position.next) for name, placed in positions_in(kept).items()}
    return {name: vlsn for name, vlsn in found.items() if not is_of_another_group(name)}


class ConsumerHolds(FollowingHolds):
    """The holds that a log's consumers place on it. The holds are used on the owner's thread only, under the log's
    latch."""

    def __init__(self, holds: Holds, small: SmallState) -> None:
        super().__init__(holds, Owner.CONSUMER)
        self._small = small

    def place(self, durable: Vlsn) -> None:
        """Places the holds that follow from the positions as of VLSN ``durable``."""
        self.follow(held_in(self._small.as_of(durable)) if self._small or self._held else {})
