"""A directory of files that a consumer writes. Each file is published once and completely, even after crashes.

    NAME.FIRST.part      an unfinished file from VLSN FIRST on
    NAME.FIRST.open      an open file that has events already, and accepts more
    NAME.state           the last published file: its name, its former part, and the position after it
    NAME.lock            allows one process at a time

A file is published in these steps. Each step is durable before the next step begins:

1. The unfinished file (``.part``) and its name are synced.
2. The state is written to a new file, which is renamed over the old state. *Commit point*: the position is now after
   the published file.
3. The unfinished file is renamed to its final name, in any folder below the directory.

    cut before 2             the part is not published, and is removed; its events are delivered again
    cut between 2 and 3      the state names the part and its file: the next start renames the part
"""

from __future__ import annotations

import errno
import posixpath
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from repl.cdc.consumer import CdcContext, CdcUnavailable
from repl.files.directory import Directory
from vlsn.errors import BadArgument, Damaged, LogInUse
from vlsn.format.checksum import crc
from vlsn.ids import NUMBER_MAX
from vlsn.limits import KIB
from vlsn.seams import Disk

STATE_BYTES_MAX: Final = 64 * KIB
PART: Final = "part"
OPEN: Final = "open"
FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The last published file, its unfinished name (empty for none), and the position after the file. ``moved_us``
    is the last order of a person that was executed (``CdcContext.moved_us``)."""

    group: str
    consumer: str
    next: int
    term: int
    part: str
    file: str
    moved_us: int = 0


@contextmanager
def room(directory: str) -> Iterator[None]:
    """Turns two errors into ``CdcUnavailable``: a full disk, and a directory that another process holds."""
    try:
        yield
    except LogInUse as error:
        raise CdcUnavailable(f"{directory}: another process writes there: {error}") from None
    except OSError as error:
        if error.errno in FULL:
            raise CdcUnavailable(f"{directory}: {error}") from None
        raise


class Folder(Directory):
    """The files of one consumer in one directory. Call ``open`` first; ``close`` releases the lock."""

    def __init__(self, disk: Disk, path: str, *, group: str, consumer: str) -> None:
        super().__init__(disk, path)
        self.published: Published | None = None
        self._group = group
        self._consumer = consumer
        self._state = f"{consumer}.state"

    def open(self) -> None:
        """Opens the directory, and creates a missing directory. Completes the rename of the file published last.
        Raises ``LogInUse`` if another process holds the directory, ``Damaged``, and ``BadArgument`` if the directory
        belongs to another group."""
        self.make()
        self.hold(f"{self._consumer}.lock")
        self.published = state = self._read_state()
        if state is not None:
            if state.group != self._group:
                raise BadArgument(
                    f"options: directory: {self.path} has files of group {state.group}, this is {self._group}"
                )
            if state.part and self.exists(state.part):
                self._put(state)
        for first in self.unfinished(PART):
            self.remove(self.name_of(first, PART))

    def name_of(self, first: int, kind: str) -> str:
        """Returns the name of an unfinished file that begins at VLSN ``first``."""
        return f"{self._consumer}.{first:020}.{kind}"

    def unfinished(self, kind: str) -> list[int]:
        """Returns the first VLSNs of the unfinished files."""
        wanted = re.compile(re.escape(self._consumer) + rf"\.(\d{{20}})\.{kind}\Z")
        return [int(found[1]) for name in self.names() if (found := wanted.match(name))]

    def publish(self, part: str, file: str, *, next_vlsn: int, term: int) -> None:
        """Publishes the synced file ``part`` as ``file``. From the commit point on the position is ``next_vlsn``.
        Raises ``BadArgument`` if ``file`` exists already."""
        if self.exists(file):
            raise BadArgument(f"{self.path_of(file)} exists already; move it away")
        self.sync()
        state = Published(self._group, self._consumer, next_vlsn, term, part, file, self._obeyed_us())
        self._store(state)
        self._put(state)

    def is_moved(self, context: CdcContext) -> bool:
        """Returns whether a person has moved the consumer by an order that was not executed here yet."""
        return context.moved and (not context.moved_us or context.moved_us != self._obeyed_us())

    def move(self, context: CdcContext) -> None:
        """Sets the position of ``context`` and records its order, durable on return. Published files stay in place."""
        order_us = context.moved_us if context.moved else self._obeyed_us()
        self._store(
            Published(self._group, self._consumer, context.next, context.position_term, "", "", moved_us=order_us)
        )

    def _obeyed_us(self) -> int:
        return self.published.moved_us if self.published is not None else 0

    def _store(self, state: Published) -> None:
        body = msgspec.json.encode(state)
        self.replace(self._state, f"{self._state}.new", [body, b"\n%08x\n" % crc(body)])
        self.published = state

    def _put(self, state: Published) -> None:
        """Renames an unfinished file to its final name, durable on return."""
        self.make(posixpath.dirname(state.file))
        self.rename(state.part, state.file)
        self.sync(state.file)

    def _read_state(self) -> Published | None:
        if not self.exists(self._state):
            return None
        data = self.read(self._state, STATE_BYTES_MAX)
        body, _, rest = data.partition(b"\n")
        try:
            if rest != b"%08x\n" % crc(body):
                raise ValueError("its checksum is wrong")
            state = msgspec.json.decode(body, type=Published)
            if not 1 <= state.next <= NUMBER_MAX or not 0 <= state.term <= NUMBER_MAX:
                raise ValueError(f"no position: {state.next} behind term {state.term}")
            return state
        except (ValueError, msgspec.MsgspecError) as error:
            raise Damaged(
                f"{self.path_of(self._state)}: {error}; this file records which events the others have"
            ) from None
