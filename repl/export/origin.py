"""The log that is exported, as the driver asks it: its group, its bounds, and what lies at a VLSN.

A group, or one node, over HTTP; or the directory of a stopped node.  Rows are the tasks' to read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from repl.audit.source import source_of
from repl.client.sync import connect_sync
from repl.export.manifest import BadTarget, Manifest, Mark
from vlsn.errors import BadArgument, NotYet, Trimmed
from vlsn.format.rows import Rows
from vlsn.offline.stopped_log import StoppedLog
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores

LAG_S: Final = 10.0
"""Seconds that a node which lags is given to reach what another one has shown."""
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class BlockAt:
    """The block that holds a VLSN: its first and last one, and its mark."""

    first: int
    last: int
    mark: Mark


class Origin(Protocol):
    @property
    def text(self) -> str:
        """The source as the user gave it."""
        ...

    def group(self) -> str: ...

    def first(self) -> int:
        """Returns the first VLSN there is; one past the end where there is none."""
        ...

    def end(self, at_least: int = 0) -> int:
        """Returns the last VLSN that is durable; 0 where there is none. A node that lags is given time to reach
        ``at_least``."""
        ...

    def at_time(self, time_us: int) -> int:
        """Returns the first VLSN sealed then or later; one past the end where there is none."""
        ...

    def block_at(self, vlsn: int) -> BlockAt:
        """Raises ``Trimmed`` below the first, ``NotYet`` past the end."""
        ...

    def close(self) -> None: ...


class GroupOrigin:
    def __init__(self, urls: str) -> None:
        self._urls = urls
        self._log = connect_sync(urls)
        self._log.__enter__()

    @property
    def text(self) -> str:
        return self._urls

    def group(self) -> str:
        return self._log.group_name()

    def first(self) -> int:
        return self._log.first_vlsn()

    def end(self, at_least: int = 0) -> int:
        deadline = time.monotonic() + LAG_S
        while (end := self._log.durable_vlsn()) < at_least and time.monotonic() < deadline:
            time.sleep(POLL_S)  # with several URLs, the next one may answer
        return end

    def at_time(self, time_us: int) -> int:
        return self._log.vlsn_at(time_us)

    def block_at(self, vlsn: int) -> BlockAt:
        deadline = time.monotonic() + LAG_S
        while True:
            pages = self._log.block_pages(vlsn, vlsn)
            try:
                return _found((page.rows for page in pages if page.rows is not None), vlsn, self._urls)
            except NotYet:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def close(self) -> None:
        self._log.close(flush=False)


class DirectoryOrigin:
    def __init__(self, text: str) -> None:
        path = os.path.abspath(text)
        if not os.path.isdir(path):
            raise BadArgument(f"{text}: is no directory; name a stopped node's, or http:// URLs")
        self._text = text
        self._log = StoppedLog(PosixDisk(), LmdbStores(), path)

    @property
    def text(self) -> str:
        return self._text

    def group(self) -> str:
        return source_of(self._text).survey(0).group

    def first(self) -> int:
        return int(self._log.first) or self.end() + 1

    def end(self, at_least: int = 0) -> int:
        return int(self._log.durable)

    def at_time(self, time_us: int) -> int:
        return min(int(self._log.at_time(time_us)), self.end() + 1)

    def block_at(self, vlsn: int) -> BlockAt:
        return _found((rows for rows, _, _ in self._log.rows(vlsn, vlsn)), vlsn, self._text)

    def close(self) -> None: ...


def origin_of(text: str) -> Origin:
    """Opens the source. Raises ``BadArgument``, ``LogInUse``; a group is asked later."""
    if text.startswith(("http://", "https://")):
        return GroupOrigin(text)
    if "://" in text:
        raise BadArgument(f"{text}: a source is http:// URLs, or the directory of a stopped node")
    return DirectoryOrigin(text)


def check_same_log(origin: Origin, held: Manifest, target: str) -> None:
    """Raises ``BadTarget`` unless the log is the one that was exported up to ``held``, as far as it still has that."""
    if (group := origin.group()) != held.settings.group:
        raise BadTarget(
            f"{target} holds group {held.settings.group!r}, and {origin.text} is group {group!r}: use another --to"
        )
    if held.mark is None:
        return
    end, first = origin.end(held.last), origin.first()
    if held.last > end:
        raise BadTarget(
            f"{target} holds VLSN up to {held.last}, and {origin.text} is durable up to {end}: it lags, was cut, or is "
            "another log; try again, or name other nodes of the group"
        )
    try:
        mark = origin.block_at(max(held.last, first)).mark
    except Trimmed:
        return  # just now: the next look finds it
    if (held.last >= first and mark != held.mark) or mark.term < held.mark.term:
        raise BadTarget(
            f"{origin.text} is not the log that {target} holds up to VLSN {held.last}: it has another block there, of "
            f"term {mark.term} and not {held.mark.term}; it was cut, or is another group of that name: use another --to"
        )


def _found(all_rows: Iterable[Rows], vlsn: int, text: str) -> BlockAt:
    for rows in all_rows:
        heads = rows.headers
        firsts = heads["first_vlsn"].astype(np.int64)
        at = int(np.searchsorted(firsts, vlsn, side="right")) - 1
        if at >= 0 and vlsn < int(firsts[at]) + int(heads["count"][at]):
            head = heads[at]
            mark = Mark(int(head["term"]), int(head["clock_us"]), int(head["body_crc"]))
            return BlockAt(int(firsts[at]), int(firsts[at]) + int(head["count"]) - 1, mark)
    raise NotYet(f"{text}: VLSN {vlsn} is not durable there")
