"""Destinations: named subscriptions with acknowledgements. The settings of destinations are in the small state (the
log's table of names and values).

    dest/orders     {"uuid": "8a87…", "prefix": "order-", "full_policy": "page", …}

A COMMIT entry sets, changes or removes the settings, so the settings are rolled back, restored and made durable with
the log. The acknowledgements are kept in a table of their own (``acks``), under the destination's ``uuid``. A
destination that is dropped and created again gets another uuid, and so has none of the old acknowledgements.

A message is a DATA entry whose key begins with the prefix, except the destination's own dead letters
(``vlsn/format/messages``). The id of a message is its VLSN.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, NamedTuple

import msgspec

from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX, Vlsn, is_part
from vlsn.levels import DESTINATIONS, REDELIVERY
from vlsn.limits import (
    ACK_TIMEOUT_S_MAX,
    ATTEMPTS_MAX,
    DESTINATION_KEY_BYTES_MAX,
    DESTINATIONS_MAX,
    OUT_MAX,
    REDELIVERY_DELAY_S_MAX,
    REDELIVERY_FACTOR_MAX,
)
from vlsn.state.acks import Acked, AckTable
from vlsn.state.holds import FollowingHolds, Holds, Owner
from vlsn.state.small_state import Kept, SmallState, decoded, under

PREFIX: Final = "dest/"
FULL_POLICIES: Final = ("page", "drop", "block", "fail")
PAGE_FULL_POLICIES: Final = ("drop", "fail")
DEAD_LETTER: Final = "dead_letter"
"""The key of dead letters (reports of messages that no worker could process), unless the settings name another key."""
RANGES: Final[dict[str, tuple[float, float]]] = {
    "max_bytes": (0, NUMBER_MAX),
    "max_messages": (0, NUMBER_MAX),
    "page_limit_bytes": (0, NUMBER_MAX),
    "page_limit_messages": (0, NUMBER_MAX),
    "ack_timeout_s": (0.05, ACK_TIMEOUT_S_MAX),
    "attempts_max": (1, ATTEMPTS_MAX),
    "redelivery_delay_s": (0.0, REDELIVERY_DELAY_S_MAX),
    "redelivery_factor": (1.0, REDELIVERY_FACTOR_MAX),
    "redelivery_delay_s_max": (0.0, REDELIVERY_DELAY_S_MAX),
    "max_out": (0, OUT_MAX),
}
"""The smallest and the largest value of each setting that is a number."""
_UUID: Final = re.compile(r"[0-9a-f]{16}\Z", re.ASCII)


class DestinationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings of a destination. A limit of 0 means that there is no limit."""

    uuid: str
    prefix: str = ""
    """The prefix of the keys of the destination's messages. If it is empty, all entries are messages."""
    max_bytes: int = 0
    """The bytes of unacknowledged messages (keys and values) from which on the destination is full."""
    max_messages: int = 0
    full_policy: str = FULL_POLICIES[0]
    ack_timeout_s: float = 30.0
    """The seconds after which an unacknowledged message is delivered again."""
    attempts_max: int = 5
    """The number of deliveries after which a message is dead: it is not delivered again."""
    dead_letter: str = DEAD_LETTER
    """The key of the destination's dead letters."""
    page_limit_bytes: int = 0
    """The bytes in page files (files with the messages of cleaned segments) from which on ``page_full_policy``
    applies."""
    page_limit_messages: int = 0
    """The number of messages in page files, acknowledged or not, from which on ``page_full_policy`` applies."""
    page_full_policy: str = PAGE_FULL_POLICIES[1]
    paused: bool = False
    redelivery_delay_s: float = 0.0
    """The delay in seconds before a message is delivered again after its first attempt was rejected or timed out."""
    redelivery_factor: float = 1.0
    """The factor by which ``redelivery_delay_s`` grows after each further attempt."""
    redelivery_delay_s_max: float = 0.0
    """The longest delay that ``redelivery_factor`` may produce."""
    max_out: int = 0
    """The most messages that may be out at once, which means delivered and not yet acknowledged."""

    @property
    def level(self) -> int:
        """The group's level (version of the formats) that the settings need. A binary of an earlier level could not
        read the settings."""
        later = (self.redelivery_delay_s, self.redelivery_factor - 1.0, self.redelivery_delay_s_max, self.max_out)
        return REDELIVERY if any(later) else DESTINATIONS

    def redelivery_delay(self, attempts: int) -> float:
        """Returns the delay in seconds for a message that was rejected or timed out ``attempts`` times, from 1 on."""
        most = self.redelivery_delay_s_max or REDELIVERY_DELAY_S_MAX
        try:
            return min(self.redelivery_delay_s * self.redelivery_factor ** (attempts - 1), most)
        except OverflowError:
            return most if self.redelivery_delay_s else 0.0

    def check(self) -> None:
        """Raises ``BadArgument`` for settings that no destination can have."""
        if _UUID.match(self.uuid) is None:
            raise BadArgument(f"uuid: {self.uuid[:40]!r} is not 16 hex digits")
        for name in ("prefix", "dead_letter"):
            if len(getattr(self, name).encode()) > DESTINATION_KEY_BYTES_MAX:
                raise BadArgument(f"{name}: more than {DESTINATION_KEY_BYTES_MAX} bytes")
        if not self.dead_letter:
            raise BadArgument("dead_letter: a key of 1 byte or more")
        for name, policies in (("full_policy", FULL_POLICIES), ("page_full_policy", PAGE_FULL_POLICIES)):
            if (given := getattr(self, name)) not in policies:
                raise BadArgument(f"{name}: {given[:40]!r} is none of {', '.join(policies)}")
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise BadArgument(f"{name}: {getattr(self, name)} is not in {low}–{high}")
        if self.full_policy != FULL_POLICIES[0] and not (self.max_bytes or self.max_messages):
            raise BadArgument(f"full_policy {self.full_policy} needs max_bytes or max_messages")
        if 0 < self.redelivery_delay_s_max < self.redelivery_delay_s:
            raise BadArgument(f"redelivery_delay_s_max: {self.redelivery_delay_s_max} is under redelivery_delay_s")


class PlacedDestination(NamedTuple):
    """The settings of a destination, and the VLSN of the COMMIT that set the settings."""

    at: Vlsn
    settings: DestinationSettings


@dataclass(frozen=True)
class DestinationView:
    """A read-only view of a destination as of a durable VLSN, for paging, holds and delivery."""

    name: str
    settings: DestinationSettings
    acked: Acked

    @property
    def uuid(self) -> str:
        return self.settings.uuid

    @cached_property
    def prefix(self) -> bytes:
        return self.settings.prefix.encode()

    @cached_property
    def letters(self) -> bytes:
        """The key of the destination's dead letters (reports of messages that no worker could process)."""
        return self.settings.dead_letter.encode()

    @property
    def floor(self) -> Vlsn:
        """The VLSN up to which no message of the destination has to be kept."""
        return self.acked.kept_floor


_decoder = msgspec.json.Decoder(DestinationSettings)


@lru_cache(DESTINATIONS_MAX)
def key_of(name: str) -> str:
    """Returns the name in the small state for destination ``name``. Raises ``BadArgument`` for a bad name."""
    if not is_part(name):
        raise BadArgument(f"{name[:100]!r} is no name of a destination: 1–64 of [A-Za-z0-9._-], not . or ..")
    return PREFIX + name


def settings_of(kept: Kept | None) -> PlacedDestination | None:
    """Decodes the settings of a destination. Returns None if the value is missing or is not the settings of a
    destination."""
    settings = decoded(kept, _decoder)
    if kept is None or settings is None:
        return None
    try:
        settings.check()
    except BadArgument:
        return None
    return PlacedDestination(kept.vlsn, settings)


def settings_in(kept: Mapping[str, Kept]) -> dict[str, PlacedDestination]:
    """Returns all settings by the names of their destinations, ordered by name."""
    return under(kept, PREFIX, settings_of)


def views_of(kept: Mapping[str, Kept], acks: AckTable) -> list[DestinationView]:
    """Returns all destinations of a log, as of the VLSN up to which acknowledgements are folded (``AckTable.advance``).

    A destination is left out if its settings are durable but its acknowledgements are not yet, or if the
    acknowledgements belong to another uuid.
    """
    placed = settings_in(kept)
    tables = {name: acks.folded.get(each.settings.uuid) for name, each in placed.items()}
    return [
        DestinationView(name, placed[name].settings, acked)
        for name, acked in list(tables.items())[:DESTINATIONS_MAX]
        if acked is not None
    ]


class Destinations(FollowingHolds):
    """The destinations of one log, and the holds that the destinations place on the log. This object is used on the
    owner's thread only, under the log's latch."""

    def __init__(self, holds: Holds, small: SmallState, acks: AckTable) -> None:
        super().__init__(holds, Owner.DESTINATION)
        self._small = small
        self._acks = acks

    def views(self) -> list[DestinationView]:
        """Returns all destinations as of the VLSN up to which acknowledgements are folded. Acknowledgements are folded
        only up to a VLSN that is durable, and synced on this node."""
        if not len(self._acks):
            return []
        return views_of(self._small.as_of(self._acks.folded_to), self._acks)

    def place(self) -> None:
        """Places a hold on the log for each destination, at the destination's first unacknowledged message."""
        self.follow({view.name: Vlsn(view.acked.floor + 1) for view in self.views()})
