"""``read_arrow``: the entries of a group, a node, or a stopped node's directory, as a stream of record batches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from importlib.util import find_spec
from itertools import chain
from typing import TYPE_CHECKING

from repl.client.reader import DURABLE, Consistency
from repl.client.starting import Begin, keys_of
from repl.client.sync import connect_sync
from vlsn.errors import BadArgument
from vlsn.format.rows import Rows
from vlsn.offline.stopped_log import StoppedLog
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.seams import Buffer
from vlsn.times import time_us

if TYPE_CHECKING:
    import pyarrow as pa

NEEDS_PYARROW = "read_arrow needs PyArrow; install it with: pip install 'vlsnlog[arrow]'"
Asked = tuple[Rows, int, int]
"""The rows of blocks, with the first and the last requested VLSN."""


def read_arrow(
    source: str | os.PathLike[str],
    from_vlsn: Begin = None,
    to_vlsn: int | None = None,
    *,
    at: datetime | int | None = None,
    key: Buffer | None = None,
    key_prefix: Buffer | None = None,
    consistency: Consistency = DURABLE,
    timeout_s: float = 10.0,
) -> pa.RecordBatchReader:
    """Reads entries as Arrow record batches with one row for each entry: ``vlsn`` and ``term`` (uint64), ``time``
    (timestamp of µs, UTC: when the master sealed it), ``key`` (binary, null without a key) and ``value`` (binary).

    ``source`` is a node's URL, the URLs of a group, separated by commas, or the directory of a stopped node. If a node
    of a group fails, the next one is read. From a directory the durable entries are read. The range is from
    ``from_vlsn`` (default: the first VLSN) to ``to_vlsn`` (default: the durable end at the start), both inclusive. The
    log's own entries have no rows. ``from_vlsn``, ``at``, ``key``, ``key_prefix`` and ``consistency`` are as in
    ``connect(…).read``; ``consistency`` is for URLs only. Keys are compared in this process, by column, because a node
    sends whole blocks.

    Memory holds little: from a node, an answer of about 4 MiB and the next one; from a directory, one segment; and the
    batches that the caller keeps. A large block is one batch, without a copy of its keys and values. Small blocks are
    collected into batches. Batches are checked like every read.

    Raises ``ModuleNotFoundError`` without PyArrow, and ``BadArgument``, ``Unreachable``, ``Trimmed``, ``Damaged``,
    ``LogInUse`` … If the first batch fails, the error is raised at once, otherwise when the failing batch is read."""
    if find_spec("pyarrow") is None:
        raise ModuleNotFoundError(NEEDS_PYARROW, name="pyarrow")
    from repl.arrow.batches import reader_of

    place = os.fspath(source)
    keys = keys_of(key, key_prefix)
    if at is not None and from_vlsn is not None:
        raise BadArgument("from_vlsn and at: only one of them says where to begin")
    for name, vlsn in (("from_vlsn", from_vlsn), ("to_vlsn", to_vlsn)):
        if isinstance(vlsn, str) and (name, vlsn) not in (("from_vlsn", "start"), ("from_vlsn", "end")):
            raise BadArgument(f"{name}: {vlsn!r} is no VLSN")
        if isinstance(vlsn, int) and vlsn < 1:
            raise BadArgument(f"{name} is {vlsn}; the first VLSN is 1")
    if place.startswith(("http://", "https://")):
        found = _of_group(place, from_vlsn, to_vlsn, at, consistency, timeout_s)
    elif "://" in place:
        raise BadArgument(f"{place}: a source is http:// URLs, or the directory of a stopped node")
    elif consistency != DURABLE:
        raise BadArgument(f"consistency={consistency}: only a running group can confirm it; a directory is as it is")
    else:
        found = _of_directory(place, from_vlsn, to_vlsn, at)
    return reader_of(_begun(found), keys)


def _of_group(
    urls: str,
    from_vlsn: Begin,
    to_vlsn: int | None,
    at: datetime | int | None,
    consistency: Consistency,
    timeout_s: float,
) -> Iterator[Asked]:
    with connect_sync(urls, timeout_s=timeout_s) as log:
        # a reader of blocks begins at the first VLSN of a block, unless a VLSN was requested
        begin = from_vlsn if isinstance(from_vlsn, int) else 1
        end = 0
        for page in log.block_pages(from_vlsn, to_vlsn, at=at, consistency=consistency):
            end = end or min(page.durable, to_vlsn or page.durable)
            if page.rows is not None:
                yield page.rows, begin, end


def _of_directory(directory: str, from_vlsn: Begin, to_vlsn: int | None, at: datetime | int | None) -> Iterator[Asked]:
    if not os.path.isdir(directory):
        raise BadArgument(f"{directory}: is no directory; name a stopped node's, or http:// URLs")
    log = StoppedLog(PosixDisk(), LmdbStores(), os.path.abspath(directory))
    begin = from_vlsn if isinstance(from_vlsn, int) else 0
    if from_vlsn == "end":
        begin = log.durable + 1
    elif at is not None:
        begin = max(log.at_time(time_us(at)), log.first)
    yield from log.rows(begin, to_vlsn or 0, keep=True)


def _begun(found: Iterator[Asked]) -> Iterator[Asked]:
    """Reads the first item now, so that an error is raised to the caller and not to a later reader of batches."""
    first = next(found, None)
    return iter(()) if first is None else chain((first,), found)
