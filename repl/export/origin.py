"""The log that is exported, as the driver reads it: its group, its bounds, and the block at a VLSN.

The source is a group or one node over HTTP, or directories of nodes. The tasks of the export read the rows.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from repl.client.sync import connect_sync
from repl.export.manifest import BadTarget, Gap, Mark
from repl.export.request import Request
from repl.spark.copies import Copies
from repl.spark.layout import NEAR_BYTES
from repl.spark.options import Use, read_options
from repl.spark.places import is_url
from repl.spark.scan import read_piece
from vlsn.errors import BadArgument, NotYet, Trimmed
from vlsn.format.rows import Rows

LAG_S: Final = 10.0
"""A lagging node has this many seconds to reach a VLSN that another node has reported."""
POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class BlockAt:
    """The last VLSN of the block at a requested VLSN, and the mark (term, time, checksum) that identifies the block."""

    last: int
    mark: Mark


class GroupOrigin:
    """Running nodes of one group. ``text`` is the source as the user has typed it."""

    def __init__(self, urls: str) -> None:
        self.text = urls
        self._log = connect_sync(urls)
        self._log.__enter__()

    def group(self) -> str:
        return self._log.group_name()

    def first(self) -> int:
        """Returns the log's first VLSN. For a log without entries, returns one past the end."""
        return self._log.first_vlsn()

    def end(self, at_least: int = 0) -> int:
        """Returns the last durable VLSN; 0 for a log without entries. A lagging node has some time to reach
        ``at_least``."""
        deadline = time.monotonic() + LAG_S
        while (end := self._log.durable_vlsn()) < at_least and time.monotonic() < deadline:
            time.sleep(POLL_S)  # with several URLs, another node may answer next time
        return end

    def at_time(self, time_us: int) -> int:
        """Returns the first VLSN that was sealed at ``time_us`` or later. Returns one past the end if there is none."""
        return self._log.vlsn_at(time_us)

    def block_at(self, vlsn: int) -> BlockAt:
        """Finds the block at ``vlsn``. Raises ``Trimmed`` below the first VLSN, ``NotYet`` past the end."""
        deadline = time.monotonic() + LAG_S
        while True:
            pages = self._log.block_pages(vlsn, vlsn)
            try:
                return _found((page.rows for page in pages if page.rows is not None), vlsn, self.text)
            except NotYet:
                if time.monotonic() > deadline:
                    raise
                time.sleep(POLL_S)

    def close(self) -> None:
        self._log.close(flush=False)


class CopiesOrigin:
    """Directories of one group's nodes, as the data source reads them, surveyed only once."""

    def __init__(self, text: str) -> None:
        self._options = read_options({"path": text}, Use.BATCH)
        self.text = text
        for each in self._options.sources:
            if "://" not in each and not os.path.isdir(each):
                raise BadArgument(f"{each}: is no directory; name a node's, or http:// URLs")
        self._copies = Copies.of(self._options.sources)

    def group(self) -> str:
        return next(iter(self._copies.layouts.values())).survey.group

    def first(self) -> int:
        return self._copies.first or self.end() + 1

    def end(self, at_least: int = 0) -> int:
        return self._copies.end

    def at_time(self, time_us: int) -> int:
        return min(self._copies.bounds(replace(self._options, since_us=time_us))[0], self.end() + 1)

    def block_at(self, vlsn: int) -> BlockAt:
        if vlsn < self.first():
            raise Trimmed(f"{self.text}: VLSN {vlsn} was cleaned away", first=self.first())
        shares = self._copies.shares(vlsn, min(vlsn, self.end()), NEAR_BYTES)
        found = (read_piece(self._copies.layouts[share.copy].source, share.piece) for share in shares)
        return _found((rows for pieces in found for rows, _ in pieces), vlsn, self.text)

    def close(self) -> None: ...


Origin = GroupOrigin | CopiesOrigin


def origin_of(text: str) -> Origin:
    """Opens the source. A group is called for the first time later. Raises ``BadArgument``, ``Unreadable``."""
    return GroupOrigin(text) if is_url(text) else CopiesOrigin(text)


def check_same_log(origin: Origin, target: str, *, group: str, last: int, mark: Mark | None) -> None:
    """Raises ``BadTarget`` unless the log contains what ``target`` has of ``group`` up to VLSN ``last``, as far as the
    log still has these entries. ``mark`` identifies the block at ``last``; None if nothing was exported yet."""
    if (own := origin.group()) != group:
        raise BadTarget(f"{target} holds group {group!r}, and {origin.text} is group {own!r}: use another --to")
    if mark is None:
        return
    end, first = origin.end(last), origin.first()
    if last > end:
        raise BadTarget(
            f"{target} holds VLSN up to {last}, and {origin.text} is durable up to {end}: it lags, was cut, or is "
            "another log; try again, or name other nodes of the group"
        )
    try:
        found = origin.block_at(max(last, first)).mark
    except Trimmed:
        return  # the block was cleaned just now, which the next call reports
    if (last >= first and found != mark) or found.term < mark.term:
        raise BadTarget(
            f"{origin.text} is not the log that {target} holds up to VLSN {last}: it has another block there, of "
            f"term {found.term} and not {mark.term}; it was cut, or is another group of that name: use another --to"
        )


class Requested:
    """The VLSNs that an export is asked for, of the log as it is now."""

    def __init__(self, request: Request, origin: Origin) -> None:
        self._request, self._origin = request, origin

    def begin(self) -> int:
        """Returns the first VLSN that a new target receives."""
        bound = self._request.begin
        if bound is None:
            return self._origin.first()
        if bound.vlsn:
            return bound.vlsn
        return self._origin.end() + 1 if bound.time_us is None else self._origin.at_time(bound.time_us)

    def end(self) -> int:
        """Returns the last VLSN that is both requested and durable."""
        end, upto = self._origin.end(), self._request.upto
        if upto is None:
            return end
        return min(end, upto.vlsn if upto.time_us is None else self._origin.at_time(upto.time_us + 1) - 1)

    def is_past(self, end: int) -> bool:
        """Returns whether the whole request is exported, so that all later entries are after ``--to-vlsn``."""
        upto = self._request.upto
        return upto is not None and (end >= upto.vlsn if upto.time_us is None else end < self._origin.end())

    def first_after(self, last: int, *, is_open: bool) -> tuple[int, Gap | None]:
        """Returns the first VLSN of the batch after ``last``, and the VLSNs that are missing before it. ``is_open``:
        the target has no batch, and begins wherever the log begins. Raises ``Trimmed``."""
        due, there = last + 1, self._origin.first()
        if there <= due:
            return due, None
        if is_open:
            return there, None
        if not self._request.skip_trimmed:
            raise Trimmed(
                f"{self._origin.text} begins at VLSN {there}, and VLSN {due} is due: retention has removed what was "
                "not exported yet; --skip-trimmed goes on there, and records the gap",
                first=there,
            )
        return there, Gap(due, there - 1)


def _found(all_rows: Iterable[Rows], vlsn: int, text: str) -> BlockAt:
    for rows in all_rows:
        heads = rows.headers
        firsts = heads["first_vlsn"].astype(np.int64)
        at = int(np.searchsorted(firsts, vlsn, side="right")) - 1
        if at >= 0 and vlsn < int(firsts[at]) + int(heads["count"][at]):
            head = heads[at]
            mark = Mark(int(head["term"]), int(head["clock_us"]), int(head["body_crc"]))
            return BlockAt(int(firsts[at]) + int(head["count"]) - 1, mark)
    raise NotYet(f"{text}: VLSN {vlsn} is not durable there")
