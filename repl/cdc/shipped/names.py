"""Names of the files that a consumer publishes: a pattern, and what stands in its places."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from repl.cdc.consumer import CdcContext
from vlsn.errors import BadArgument

DEFAULT: Final = "{consumer}-{first}-{last}"
PLACES: Final = ("consumer", "node", "group", "first", "last", "date", "hour")
LONGEST: Final = 200
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_PLAIN: Final = re.compile(r"[A-Za-z0-9._=/-]*\Z")


class FileNames:
    """The pattern of one consumer.

    ``{first}`` and ``{last}`` are VLSNs of 20 digits, ``{date}`` and ``{hour}`` those of the first event, in UTC."""

    def __init__(self, pattern: str, ending: str, context: CdcContext) -> None:
        """Raises ``BadArgument``."""
        unknown = [place for place in _PLACE.findall(pattern) if place not in PLACES]
        rest = _PLACE.sub("", pattern)
        if unknown or not _PLAIN.match(rest):
            said = ", ".join(f"{{{place}}}" for place in PLACES)
            raise BadArgument(f"options: pattern: {pattern[:LONGEST]!r}; write A-Z a-z 0-9 . _ = / - and {said}")
        if "{first}" not in pattern:
            raise BadArgument(
                f"options: pattern: {pattern[:LONGEST]!r} has no {{first}}: two files would have one name"
            )
        steps = pattern.split("/")
        if any(step in ("", ".", "..") for step in steps) or len(pattern) > LONGEST:
            raise BadArgument(
                f"options: pattern: {pattern[:LONGEST]!r} is no relative path of at most {LONGEST} characters"
            )
        self._pattern = pattern + ending
        self._known = {"consumer": context.name, "node": context.node, "group": context.group}

    def of(self, first: int, last: int, time_us: int) -> str:
        """Returns the name of the file with events ``first`` to ``last``, the first one at ``time_us``."""
        at = datetime.fromtimestamp(min(time_us, 253_402_300_799_000_000) // 1_000_000, UTC)
        values = {
            **self._known,
            "first": f"{first:020}",
            "last": f"{last:020}",
            "date": f"{at:%Y-%m-%d}",
            "hour": f"{at:%H}",
        }
        return _PLACE.sub(lambda place: values[place[1]], self._pattern)
