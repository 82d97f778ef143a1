"""The settings of one destination, and the name that they have in the small state (``destinations``)."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

import msgspec

from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX, is_part
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


@lru_cache(DESTINATIONS_MAX)
def key_of(name: str) -> str:
    """Returns the name in the small state for destination ``name``. Raises ``BadArgument`` for a bad name."""
    if not is_part(name):
        raise BadArgument(f"{name[:100]!r} is no name of a destination: 1–64 of [A-Za-z0-9._-], not . or ..")
    return PREFIX + name
