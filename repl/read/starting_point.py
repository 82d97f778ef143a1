"""The place where a reader begins: ``?from=17``, ``?from=start``, ``?from=end``, or ``?at=2026-01-31T12:00:00Z``.

The default is ``start``, the log's first entry. ``end`` is just after the last entry that is durable on this node now.
``at`` is the first entry up to which the highest block time is at or past that time (``Reads.find_time``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repl.api import END, START
from repl.read.reads import Reads
from repl.web import query
from repl.web.calls import Parameter
from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX
from vlsn.times import time_of

BEGINNING = (
    Parameter(
        "from",
        "The first VLSN; `start` (as without it): the log's first entry; `end`: after the durable end.",
        {"oneOf": [{"type": "integer", "minimum": 1, "maximum": query.VLSN_MAX}, {"enum": [START, END]}]},
    ),
    Parameter(
        "at",
        "In place of `from`, a time: ISO 8601, or microseconds since the epoch.",
        {"oneOf": [{"type": "string", "format": "date-time"}, {"type": "integer", "minimum": 0}]},
    ),
)
"""The parameters that say where a read begins."""


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """The begin of a read: a VLSN (None: the log's first), the end, or a time in microseconds since the epoch."""

    from_vlsn: int | None = None
    at_end: bool = False
    time_us: int | None = None

    @classmethod
    def asked(cls, fields: Mapping[str, str]) -> StartingPoint:
        """Reads the begin from a request's fields. Raises ``BadArgument``."""
        begin, at = fields.get("from"), fields.get("at")
        if at is not None:
            if begin is not None:
                raise BadArgument("from and at: only one of them says where to begin")
            whole = at.isascii() and at.isdigit()
            return cls(time_us=query.whole_of(at, "at", 0, NUMBER_MAX) if whole else time_of(at))
        if begin in (START, END):
            return cls(at_end=begin == END)
        return cls(query.whole(fields, "from", None, 1, query.VLSN_MAX))

    async def vlsn(self, reads: Reads) -> int | None:
        """Returns the VLSN at which to begin, or None for the log's first. Raises the same errors as
        ``Reads.find_time``."""
        if self.at_end:
            return reads.durable + 1
        return self.from_vlsn if self.time_us is None else await reads.find_time(self.time_us)
