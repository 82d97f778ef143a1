"""Levels: one number for the formats and meanings that a binary knows; higher ones can do more.

Level 1 is every format, message and meaning as they were when levels began, and what is meant where none is told.
Level 2 brings transactions, settings in COMMIT entries beside the level, and appends that ask for less than a sync.
Level 3 brings destinations, whose acknowledgements COMMIT entries note.
Level 4 brings destinations' delays before messages are delivered again, and their limit of messages that are out.
A binary speaks a range of levels, ``LEVELS``; two that talk to each other need one in common.

The group's level is a fact of its log: a COMMIT entry sets it, a rollback takes it back, and what is durable stays.
``LogView.level`` is what code asks before it writes what only a later level has:

    if log.view.level >= 2: every member reads level 2, for ever: a kind, field or limit of level 2 may be written

    raise, on the master    every member told it ─► its own node file ─► COMMIT sealed ─► durable: may be written
    on a replica            COMMIT has come ─► node file says 2, synced ─► block written, acknowledged
    an older binary         refuses that node file, and every segment begun since; a feed of that log is refused it
"""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from msgspec import Meta

from vlsn.errors import BadBody, WrongVersion

LEVEL_MAX = 65_535
"""The highest level that is believed of a peer."""
Level = Annotated[int, Meta(ge=1, le=LEVEL_MAX)]
_TEXT = re.compile(r"([1-9][0-9]{0,4})(?:-([1-9][0-9]{0,4}))?\Z")


class Levels(NamedTuple):
    """The levels from ``min`` to ``max``, as a JSON array of the two."""

    min: Level
    max: Level

    def __str__(self) -> str:
        """Formats as ``1``, or ``1-2``: the text of a header."""
        return str(self.min) if self.min == self.max else f"{self.min}-{self.max}"

    def hold(self, level: int) -> bool:
        return self.min <= level <= self.max

    def read(self, level: int) -> bool:
        """Says whether a file of ``level`` can be read: those of earlier levels always can."""
        return 1 <= level <= self.max

    def check_log(self, level: int, whose: str) -> None:
        """Checks that a log of ``level``, by its newest entry, can be read here and written to. Raises
        ``WrongVersion``."""
        if not self.hold(level):
            advice = "run a later one" if level > self.max else "raise the level with the release before this one first"
            raise WrongVersion(f"{whose} is of level {level}; this vlsnlog speaks level {self}: {advice}")

    def check_peer(self, theirs: Levels, *, own: str, peer: str) -> None:
        """Checks that ``peer`` and ``own``, which speaks these levels, have one in common. Raises ``BadBody``,
        ``WrongVersion``."""
        if theirs.min > theirs.max:
            raise BadBody(f"{peer} tells of levels from {theirs.min} to {theirs.max}")
        if theirs.max < self.min or self.max < theirs.min:
            older = own if self.max < theirs.min else peer
            raise WrongVersion(f"{peer} speaks level {theirs}, {own} level {self}: run a later vlsnlog on {older}")


LEVEL_1 = Levels(1, 1)
TRANSACTIONS = 2
"""The level from which on blocks may hold transactions."""
DURABILITIES = 2
"""The level from which on appends may ask for less than a sync."""
DESTINATIONS = 3
"""The level from which on COMMIT entries may note acknowledgements."""
REDELIVERY = 4
"""The level from which on a destination may have a redelivery delay, and ``max_out``."""
LEVELS = Levels(1, 4)
"""The levels of this binary."""


def unread(what: str, version: int, last: int, *, number: str = "version") -> WrongVersion:
    """Makes the error for ``what``, whose checksum is right and whose ``version`` this binary does not read. It reads
    those up to ``last``."""
    reads = f"{number}s 1 to {last}" if last > 1 else f"{number} 1"
    return WrongVersion(f"{what} of {number} {version}; this vlsnlog reads {reads}: run a later one")


def named(error: WrongVersion, path: str) -> WrongVersion:
    """Makes ``error`` name the file at ``path``."""
    return WrongVersion(f"{path}: {error}")


def read_levels(text: str) -> Levels:
    """Parses the levels in the text of a header. Raises ``WrongVersion``: there is no level that is known to be
    common."""
    match = _TEXT.match(text)
    if match is None or max(int(match[1]), int(match[2] or 1)) > LEVEL_MAX:
        raise WrongVersion(f"{text[:20]!r} is no range of levels, as 1 or 1-2 are")
    return Levels(int(match[1]), int(match[2] or match[1]))
