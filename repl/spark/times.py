"""Finds the VLSN of a time in one copy: the first VLSN up to which the highest block time is at or past that time.

A node answers from its index. In a directory, blocks are read in order; a binary search could be wrong, because
block times may fall where masters' clocks differ. A stopped node's stored index shows which segments to read. Any
other copy is read from the beginning up to that time, once, when the read is planned.
"""

from __future__ import annotations

import numpy as np

from repl.audit.directory import DirectorySource
from repl.audit.live import LiveSource
from repl.audit.source import Unreadable
from repl.client.sync import connect_sync
from repl.spark.layout import Layout
from repl.spark.scan import read_piece
from vlsn.errors import LogInUse, Unreachable
from vlsn.limits import MIB
from vlsn.offline.stopped_log import StoppedLog
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores

ASK_S = 10.0
"""A node may take this many seconds to answer, unless the source has its own limit."""
LOOK_BYTES = 32 * MIB
"""Bytes of a copy that are read together."""


def vlsn_at(layout: Layout, time_us: int) -> int:
    """Returns the VLSN of the time ``time_us``, or one past the copy's durable end. Raises ``Unreadable``,
    ``Damaged``."""
    source = layout.source
    if isinstance(source, LiveSource):
        try:
            timeout_s, token_file = source.give_up_s or ASK_S, source.token_file or None
            with connect_sync(source.text, timeout_s=timeout_s, token_file=token_file) as log:
                return int(log.vlsn_at(time_us))
        except Unreachable as error:
            raise Unreadable(f"{source.text}: {error}") from error
    if type(source) is DirectorySource:
        try:
            return min(int(StoppedLog(PosixDisk(), LmdbStores(), source.path).at_time(time_us)), layout.end + 1)
        except LogInUse:
            pass  # only the node itself may open its index; the segments can be read without it
    return _looked_for(layout, time_us)


def _looked_for(layout: Layout, time_us: int) -> int:
    if not layout.first:
        return 1
    for piece in layout.pieces(layout.first, layout.end, LOOK_BYTES):
        for rows, _ in read_piece(layout.source, piece):
            late = np.flatnonzero(rows.headers["clock_us"] >= time_us)
            if len(late):
                return max(int(rows.headers["first_vlsn"][late[0]]), layout.first)
    return layout.end + 1
