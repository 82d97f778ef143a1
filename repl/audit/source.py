"""Sources: where an audit reads a copy of the log from.  A directory, or a live node over HTTP.

A source is a small value that travels to the tasks; whatever it opens, it opens there.  Both kinds return the same
bytes: those of the segment files, up to the synced end.  Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from repl.audit.plan import Indexed, Part, Survey
from vlsn.errors import VlsnLogError
from vlsn.format.records import RollbackStart
from vlsn.ids import Lsn
from vlsn.seams import Buffer


class Unreadable(VlsnLogError):
    """A source, or a file of it, cannot be read at all; the message says which, and what to do."""

    slug = "bad-argument"
    retry_safe = True


class Gone(Unreadable):
    """A node that answers nothing any more: whatever else is asked of it now, it will not give."""


class Source(Protocol):
    @property
    def text(self) -> str:
        """The source as the user gave it."""
        ...

    @property
    def path(self) -> str:
        """The directory's absolute path, or the URL."""
        ...

    @property
    def near(self) -> bool:
        """Says whether many small reads cost no more than a large one."""
        ...

    def survey(self, index: int) -> Survey:
        """Surveys its segments and bounds; reads headers and the log's two ends. Raises ``Unreadable``."""
        ...

    def read(self, part: Part, start: int, end: int, into: bytearray | None = None) -> Buffer:
        """Returns bytes ``start`` to ``end`` (exclusive) of a segment; fewer only where the file ends. They may lie in
        ``into``, if it is large enough, until the next read into it."""
        ...

    def fill(self, part: Part, spans: Sequence[tuple[int, int]], into: bytearray) -> None:
        """Reads each span (start, end) of a segment to where it lies in ``into``; of a source that is ``near``."""
        ...

    def rollbacks(self, from_number: int) -> list[tuple[Lsn, RollbackStart]]:
        """Returns the ROLLBACK_STARTs that segments from ``from_number`` on hold by now, and where they lie."""
        ...

    def sidecar(self, part: Part) -> bytes | None:
        """Returns the bytes of the segment's sidecar; None where there is none to be had."""
        ...

    def indexed(self, parts: Sequence[Part]) -> dict[int, Indexed]:
        """Returns the index's mappings of these segments, by their numbers; an empty result where the index is in use,
        or where there is none. Reads no bucket of others."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """A task's result when its source cannot be read. ``fatal``: the results of the other tasks do not count either."""

    reason: str
    fatal: bool = False
