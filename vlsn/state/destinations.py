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

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import msgspec

from vlsn.errors import BadArgument
from vlsn.ids import Vlsn
from vlsn.limits import (
    DESTINATIONS_MAX,
)
from vlsn.state.acks import Acked, AckTable
from vlsn.state.destination_settings import FULL_POLICIES as FULL_POLICIES
from vlsn.state.destination_settings import PREFIX as PREFIX
from vlsn.state.destination_settings import DestinationSettings as DestinationSettings
from vlsn.state.destination_settings import key_of as key_of
from vlsn.state.holds import FollowingHolds, Holds, Owner
from vlsn.state.small_state import Kept, SmallState, decoded, under


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
