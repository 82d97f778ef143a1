"""Sources: an audit reads each copy of the log from a source, which is a directory or a live node over HTTP.

A source is a small value that is sent to the tasks; it opens files or connections only in the task. Both kinds of
source return the same bytes: the segment files, up to the synced end. A source never writes.
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
    """A source, or one of its files, cannot be read; the error's message names the file and the remedy."""

    slug = "bad-argument"
    retry_safe = True


class Gone(Unreadable):
    """A node no longer answers, so all further requests to this node would fail, too."""


class Source(Protocol):
    @property
    def text(self) -> str:
        """The source as the user has written it."""
        ...

    @property
    def path(self) -> str:
        """The directory's absolute path, or the URL."""
        ...

    @property
    def near(self) -> bool:
        """Returns whether many small reads cost no more than one large read."""
        ...

    def survey(self, index: int) -> Survey:
        """Surveys the source's segments and bounds. Reads only headers and the two ends of the log. Raises
        ``Unreadable``."""
        ...

    def read(self, part: Part, start: int, end: int, into: bytearray | None = None) -> Buffer:
        """Returns bytes ``start`` to ``end`` (exclusive) of a segment, fewer only if the file ends. If ``into`` is
        large enough, the result may be a part of ``into``, valid until the next read into it."""
        ...

    def fill(self, part: Part, spans: Sequence[tuple[int, int]], into: bytearray) -> None:
        """Reads each span (start, end) of a segment into the same offsets of ``into``. Only a source that is ``near``
        supports this."""
        ...

    def rollbacks(self, from_number: int) -> list[tuple[Lsn, RollbackStart]]:
        """Returns the rollbacks (ROLLBACK_STARTs with their LSNs) that the segments from ``from_number`` on contain
        now."""
        ...

    def sidecar(self, part: Part) -> bytes | None:
        """Returns the bytes of the segment's sidecar (index file), or None if no sidecar is available."""
        ...

    def indexed(self, parts: Sequence[Part]) -> dict[int, Indexed]:
        """Returns the index's mappings of these segments, by segment number. The result is empty if the index is in use
        or missing. Mappings of other segments are not read."""
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """A task's result if its source cannot be read. ``fatal`` means that the results of the other tasks are useless,
    too."""

    reason: str
    fatal: bool = False
