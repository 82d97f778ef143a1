"""Destinations: named subscriptions with acknowledgements, their settings in the small state.

    dest/orders     {"uuid": "8a87…", "prefix": "order-", "full_policy": "page", …}

Set, changed and removed by a COMMIT, so the settings are rolled back, restored and made durable with the log.  What was
acknowledged lies under the ``uuid`` in a table of its own (``acks``): a destination that is dropped and made anew has
another one, and knows nothing of the acknowledgements of the old one.

A message is a DATA entry whose key begins with the prefix, but for the destination's own dead letters
(``vlsn/format/messages``); its id is its VLSN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from vlsn.errors import BadArgument, Trimmed
from vlsn.ids import NUMBER_MAX, Vlsn, is_part
from vlsn.limits import (
    ACK_TIMEOUT_S_MAX,
    ATTEMPTS_MAX,
    DESTINATION_KEY_BYTES_MAX,
    DESTINATIONS_MAX,
)
from vlsn.state.acks import Acked, AckTable
from vlsn.state.holds import Hold, Holds, Owner
from vlsn.state.small_state import Kept, SmallState

PREFIX: Final = "dest/"
FULL_POLICIES: Final = ("page", "drop", "block", "fail")
PAGE_FULL_POLICIES: Final = ("drop", "fail")
DEAD_LETTER: Final = "dead_letter"
"""The key of dead letters where none is given."""
_UUID: Final = re.compile(r"[0-9a-f]{16}\Z", re.ASCII)


class DestinationSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The settings of a destination; 0 for a limit that there is not."""

    uuid: str
    prefix: str = ""
    """The beginning of its messages' keys; all entries where it is empty."""
    max_bytes: int = 0
    """The unacknowledged bytes, keys and values, from which on it is full."""
    max_messages: int = 0
    full_policy: str = FULL_POLICIES[0]
    ack_timeout_s: float = 30.0
    """The seconds after which an unacknowledged message is delivered again."""
    attempts_max: int = 5
    """The deliveries after which a message is dead."""
    dead_letter: str = DEAD_LETTER
    """The key of the dead letters."""
    page_limit_bytes: int = 0
    """The bytes of pages from which on ``page_full_policy`` holds …"""
    page_limit_messages: int = 0
    """… or the messages in these, acknowledged since or not."""
    page_full_policy: str = PAGE_FULL_POLICIES[1]
    paused: bool = False

    def check(self) -> None:
        """Raises ``BadArgument`` for what no destination can be."""
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
        for name, low, high in (
            ("max_bytes", 0, NUMBER_MAX),
            ("max_messages", 0, NUMBER_MAX),
            ("page_limit_bytes", 0, NUMBER_MAX),
            ("page_limit_messages", 0, NUMBER_MAX),
            ("ack_timeout_s", 0.05, ACK_TIMEOUT_S_MAX),
            ("attempts_max", 1, ATTEMPTS_MAX),
        ):
            if not low <= getattr(self, name) <= high:
                raise BadArgument(f"{name}: {getattr(self, name)} is not in {low}–{high}")
        if self.full_policy != FULL_POLICIES[0] and not (self.max_bytes or self.max_messages):
            raise BadArgument(f"full_policy {self.full_policy} needs max_bytes or max_messages")


class PlacedDestination(NamedTuple):
    """Settings, and the VLSN of the COMMIT that set them."""

    at: Vlsn
    settings: DestinationSettings


@dataclass(frozen=True)
class DestinationView:
    """A destination as of a durable VLSN, to read: for paging, holds and delivery."""

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
        """The key of its dead letters."""
        return self.settings.dead_letter.encode()

    @property
    def floor(self) -> Vlsn:
        """The VLSN up to which nothing of it is kept any more."""
        return self.acked.kept_floor

    def is_acked(self, vlsns: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Marks those that it is not to keep; dead ones are kept, for they may be tried again."""
        return self.acked.lets_go(vlsns)


_decoder = msgspec.json.Decoder(DestinationSettings)


def key_of(name: str) -> str:
    """Returns the name in the small state of destination ``name``. Raises ``BadArgument``."""
    if not is_part(name):
        raise BadArgument(f"{name[:100]!r} is no name of a destination: 1–64 of [A-Za-z0-9._-], not . or ..")
    return PREFIX + name


def settings_of(kept: Kept | None) -> PlacedDestination | None:
    """Reads settings; None where there are none, or something else lies there."""
    if kept is None:
        return None
    try:
        settings = _decoder.decode(kept.value)
        settings.check()
    except (msgspec.DecodeError, UnicodeDecodeError, BadArgument):
        return None
    return PlacedDestination(kept.vlsn, settings)


def settings_in(kept: Mapping[str, Kept]) -> dict[str, PlacedDestination]:
    """Returns all settings by the names of their destinations, in their order."""
    found = {name.removeprefix(PREFIX): settings_of(kept[name]) for name in sorted(kept) if name.startswith(PREFIX)}
    return {name: placed for name, placed in found.items() if placed is not None}


def views_of(kept: Mapping[str, Kept], acks: AckTable) -> list[DestinationView]:
    """Returns all destinations of a log, as far as its acknowledgements are folded (``AckTable.advance``).

    One whose settings are durable and whose table is not, or was of another uuid, is not there yet."""
    placed = settings_in(kept)
    tables = {name: acks.get(each.settings.uuid) for name, each in placed.items()}
    return [
        DestinationView(name, placed[name].settings, acked)
        for name, acked in list(tables.items())[:DESTINATIONS_MAX]
        if acked is not None
    ]


class Destinations:
    """The destinations of one log, and the holds that they place on it.  At home only, under the latch.  ``dropped`` is
    told of one that lay too far behind, with the first VLSN that will be left."""

    def __init__(self, holds: Holds, small: SmallState, acks: AckTable) -> None:
        self._holds = holds
        self._small = small
        self._acks = acks
        self._held: dict[str, Hold] = {}
        self.dropped: Callable[[str, Vlsn], None] = lambda name, first: None

    def views(self) -> list[DestinationView]:
        """Returns all of them as far as acknowledgements are folded: durable, and synced here."""
        if not len(self._acks):
            return []
        return views_of(self._small.as_of(self._acks.folded_to), self._acks)

    def place(self) -> None:
        """Places the holds of all that is not acknowledged. One whose next VLSN was cleaned away holds nothing."""
        wanted = {view.name: Vlsn(view.acked.floor + 1) for view in self.views()}
        for name in [name for name in self._held if name not in wanted]:
            self._holds.release(self._held.pop(name))
        for name, vlsn in wanted.items():
            hold = self._held.get(name)
            if hold is not None and hold.live and vlsn >= hold.vlsn:
                hold.advance(vlsn)
                continue
            try:
                told = partial(self.dropped, name)
                self._held[name] = self._holds.place(Owner.DESTINATION, name, vlsn, on_dropped=told)
            except (Trimmed, BadArgument):
                if hold is not None:
                    self._holds.release(self._held.pop(name))
