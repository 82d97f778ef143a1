"""The place at which a reader begins: ``?from=17``, ``?from=start``, ``?from=end``.

``start``, like no ``from`` at all, is the first entry there is; ``end`` lies behind what is durable at this node then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from repl.http import query
from repl.http.services import Reads

PARAMETERS = frozenset({"from"})
START, END = "start", "end"


@dataclass(frozen=True, slots=True)
class StartingPoint:
    """A VLSN (None: the first there is), or the end."""

    from_vlsn: int | None = None
    at_end: bool = False

    @classmethod
    def asked(cls, fields: Mapping[str, str]) -> StartingPoint:
        """Raises ``BadArgument``."""
        begin = fields.get("from")
        if begin in (START, END):
            return cls(at_end=begin == END)
        return cls(query.whole(fields, "from", None, 1, query.VLSN_MAX))

    def vlsn(self, reads: Reads) -> int | None:
        """Returns the VLSN to read from; None for the first there is."""
        return reads.end() if self.at_end else self.from_vlsn
