"""Levels. A level is one number for all formats and meanings that a binary supports. Higher levels include lower ones.

Level 1 has all formats, messages and meanings from the time when levels were introduced. If no level is stated, level 1
is assumed. Level 2 adds transactions, more settings in COMMIT entries, and appends that request less than a sync. Level
3 adds destinations, whose acknowledgements are noted in COMMIT entries. Level 4 adds delays before a destination's
messages are delivered again, and a limit on its delivered but unacknowledged messages. Level 5 adds the tokens of
clients, and requires that members sign all calls to each other. A node without the group's key does not support level
5. A binary supports a range of levels, ``LEVELS``. Two binaries that communicate need a level in common.

The group's level is stored in its log. A COMMIT entry sets the level, and a rollback may undo this. A level that is
durable is never undone. Code checks ``LogView.level`` before it writes anything that only a later level supports:

    if log.view.level >= 2: every member supports level 2, for ever: a kind, field or limit of level 2 may be written

    raise, on the master    all members support it ─► its own node file ─► COMMIT sealed ─► durable: may be written
    on a replica            COMMIT received ─► node file says 2, synced ─► block written, acknowledged
    an older binary         refuses that node file, and every segment begun since; it gets no feed of that log
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta

from vlsn.errors import BadBody, WrongVersion

LEVEL_MAX = 65_535
"""The highest level that a peer may claim."""
Level = Annotated[int, Meta(ge=1, le=LEVEL_MAX)]
_TEXT = re.compile(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?\Z")


class Levels(NamedTuple):
    """The levels from ``min`` to ``max``. In JSON, a range of levels is an array of the numbers ``min`` and ``max``."""

    min: Level
    max: Level

    def __str__(self) -> str:
        """Formats the levels as ``1`` or ``1-2``, the text of an HTTP header."""
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"

    def below(self, level: int) -> Levels:
        """Returns the levels up to ``level`` − 1. The lowest level is always kept."""
        return Levels(self.min, max(self.min, min(self.max, level - 1)))

    def hold(self, level: int) -> bool:
        return self.min <= level <= self.max

    def read(self, level: int) -> bool:
        """Returns whether a file of ``level`` can be read. Files of lower levels can always be read."""
        return 1 <= level <= self.max

    def check_log(self, level: int, whose: str) -> None:
        """Raises ``WrongVersion`` if a log whose newest entry sets ``level`` cannot be read and written here."""
        if not self.hold(level):
            advice = "run a later one" if level > self.max else "raise the level with the release before this one first"
            raise WrongVersion(f"{whose} is of level {level}; this vlsnlog speaks level {self}: {advice}")

    def check_peer(self, theirs: Levels, *, own: str, peer: str) -> None:
        """Checks that ``own``, with these levels, and ``peer``, with the levels ``theirs``, have a level in common.
        Raises ``BadBody`` or ``WrongVersion`` if they have no level in common."""
        if theirs.min > theirs.max:
            raise BadBody(f"{peer} states levels from {theirs.min} to {theirs.max}")
        if theirs.max < self.min or self.max < theirs.min:
            older = own if self.max < theirs.min else peer
            raise WrongVersion(f"{peer} speaks level {theirs}, {own} level {self}: run a later vlsnlog on {older}")


LEVEL_1 = Levels(1, 1)
TRANSACTIONS = 2
"""The level from which on blocks may contain transactions."""
DURABILITIES = 2
"""The level from which on appends may request less than a sync."""
DESTINATIONS = 3
"""The level from which on COMMIT entries may contain acknowledgements."""
REDELIVERY = 4
"""The level from which on a destination may have ``redelivery_delay_s`` and ``max_out``."""
SIGNED = 5
"""The level from which on all calls between members must be signed with the group's key."""
TOKENS = SIGNED
"""The level from which on the small state may hold tokens of clients. Releases before count its limits differently."""
LEVELS = Levels(1, 5)
"""The levels that this binary supports."""
BRINGS = {
    TRANSACTIONS: "transactions, consumers' positions, settings of the group, appends with less than a sync",
    DESTINATIONS: "destinations",
    REDELIVERY: "destinations' redelivery delays, and their limit on messages that are out (max_out)",
    SIGNED: "calls between members signed with the group's key, https URLs of members, tokens of clients",
}
"""The additions of each level, described for people."""
HTTPS_URLS = SIGNED
"""The level from which on members may have ``https`` URLs. Releases before TLS refuse a greeting with an ``https``
URL."""


def unread(what: str, version: int, last: int, *, number: str = "version") -> WrongVersion:
    """Makes the error for ``what``, whose ``version`` this binary does not support although the checksum is correct.
    This binary supports versions up to ``last``."""
    reads = f"{number}s 1 to {last}" if last > 1 else f"{number} 1"
    return WrongVersion(f"{what} of {number} {version}; this vlsnlog reads {reads}: run a later one")


def named(error: WrongVersion, path: str) -> WrongVersion:
    """Returns ``error`` with the file's ``path`` in its text."""
    return WrongVersion(f"{path}: {error}")


def read_levels(text: str) -> Levels:
    """Parses the levels in the text of an HTTP header. Raises ``WrongVersion`` for any other text, since no common
    level is known then."""
    match = _TEXT.match(text)
    if match is None or max(int(match[1]), int(match[2] or 1)) > LEVEL_MAX:
        raise WrongVersion(f"{text[:20]!r} is no range of levels, as 1 or 1-2 are")
    return Levels(int(match[1]), int(match[2] or match[1]))
