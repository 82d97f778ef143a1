"""Names of the files that a consumer publishes: a pattern, and what stands in its places."""

from __future__ import annotations

from datetime import UTC, datetime

from repl.cdc.consumer import CdcContext
from repl.cdc_options import PATTERN_PLACE


class FileNames:
    """The pattern of one consumer, checked with its options.

    ``{first}`` and ``{last}`` are VLSNs of 20 digits, ``{date}`` and ``{hour}`` those of the first event, in UTC."""

    def __init__(self, pattern: str, ending: str, context: CdcContext) -> None:
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
        return PATTERN_PLACE.sub(lambda place: values[place[1]], self._pattern)
