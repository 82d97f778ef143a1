"""The place where a reader begins: ``?from=17``, ``?from=start``, ``?from=end``, or ``?at=2026-01-31T12:00:00Z``.

``start``, and neither of them, is the first entry there is; ``end`` is behind what is durable at this node just then;
``at`` the first entry whose block, or one before it, was sealed at that time or later (``Reads.find_time``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repl.read.reads import Reads
from repl.web import query
from vlsn.errors import BadArgument
from vlsn.ids import NUMBER_MAX
from vlsn.times import time_of

PARAMETERS = frozenset({"from", "at"})
START, END = "start", "end"


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A VLSN (None: the log's first), the end, or a time in microseconds since the epoch."""

    from_vlsn: int | None = None
    at_end: bool = False
    time_us: int | None = None

    @classmethod
    def asked(cls, fields: Mapping[str, str]) -> StartingPoint:
        """Reads the place from a request's fields. Raises ``BadArgument``."""
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
        """Returns the VLSN to read from, or None for the log's first. Raises the same errors as ``Reads.find_time``."""
        if self.at_end:
            return reads.durable + 1
        return self.from_vlsn if self.time_us is None else await reads.find_time(self.time_us)
