"""Batch reads. Visible mode reads the durable entries, in partitions over all sources. Physical mode reads every frame
(a block's envelope) of one copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from repl.audit.plan import WAVES, Part, packed
from repl.audit.source import Gone, Unreadable
from repl.audit.sources import source_of
from repl.spark import places
from repl.spark.columns import batch_of
from repl.spark.copies import Copies, Share, again, layout_of, left_out
from repl.spark.errors import each_one_line, one_line, tell
from repl.spark.group_of import one_group
from repl.spark.layout import Layout, Piece
from repl.spark.options import AS_USUAL, Asked, ReadOptions
from repl.spark.physical import log_batches
from repl.spark.scan import read_piece
from vlsn.errors import BadArgument, Damaged, VlsnLogError
from vlsn.format.key_filter import KeyFilter
from vlsn.format.rows import Rows
from vlsn.ids import NUMBER_MAX
from vlsn.limits import MIB

CORES: Final = 4
"""A log is divided for at least this many cores, because a data source cannot ask Spark for the number of cores."""
PIECE_BYTES_MIN: Final = MIB
"""The smallest size of a partition in bytes; smaller partitions cost more time than they save."""


@dataclass
class SegmentsPartition(InputPartition):  # type: ignore[misc]
    """Whole segments of one copy."""

    node: str
    durable: int
    parts: tuple[Part, ...]


class PhysicalReader(DataSourceReader):  # type: ignore[misc]
    """Reads every frame of one source."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        if len(options.sources) > 1:
            raise BadArgument("mode=physical shows one copy: load one source, and join what several show")
        text = options.sources[0]
        self._source = places.source_of(text, options.asked) if places.is_url(text) else source_of(text)
        self._options = options
        self._names = names

    @one_line
    def partitions(self) -> list[InputPartition]:
        survey = self._source.survey(0)
        one_group({self._source.text: Layout(self._source, survey).group}, self._options.asked.group)
        runs = packed([survey], cores=CORES, partition_bytes=self._options.partition_bytes)
        return [SegmentsPartition(survey.node, survey.dtvlsn, run) for run in runs or [()]]

    @each_one_line
    def read(self, partition: SegmentsPartition) -> Iterator[Any]:
        for batch in log_batches(self._source, partition.parts, partition.node, partition.durable):
            yield batch.select(list(self._names))


@dataclass
class PiecePartition(InputPartition):  # type: ignore[misc]
    """A piece of the log, and the index of the source that is tried first. ``group`` identifies the log's group.
    ``term`` is the term of the entry before the piece, 0 if unknown."""

    copy: int
    piece: Piece
    group: str = ""
    term: int = 0


class VisibleReader(DataSourceReader):  # type: ignore[misc]
    """Reads the entries that a majority has synced; each entry is read once."""

    def __init__(self, options: ReadOptions, names: tuple[str, ...]) -> None:
        self._options = places.placed(options)
        self._names = names
        self._low, self._high = 1, NUMBER_MAX
        self._keys = KeyFilter.of(None, options.key_prefix)

    @one_line
    def partitions(self) -> list[InputPartition]:
        return again(self._planned)

    def _planned(self) -> list[InputPartition]:
        copies = Copies.asked(self._options)
        first, last = copies.bounds(self._options)
        first, last = max(first, self._low), min(last, self._high)
        target = max(min(self._options.partition_bytes, copies.bytes // (WAVES * CORES)), PIECE_BYTES_MIN)
        return [PiecePartition(share.copy, share.piece, copies.group) for share in copies.shares(first, last, target)]

    @each_one_line
    def read(self, partition: InputPartition) -> Iterator[Any]:
        if not isinstance(partition, PiecePartition):
            return  # without partitions, Spark runs one empty task
        asked = replace(self._options.asked, group=partition.group)
        shares, at, last = [Share(partition.copy, partition.piece)], partition.piece.first, partition.piece.last
        while shares:
            try:
                for share in shares:
                    for rows, behind in rows_of_any(self._options.sources, share.copy, share.piece, asked):
                        batch = batch_of(rows, at, last, self._names, self._keys)
                        at = behind
                        if batch is not None:
                            yield batch
                return
            except Gone:
                raise
            except (Unreadable, Damaged) as error:
                at, shares = again(partial(self._left, at, last, asked, error))

    def _left(self, at: int, last: int, asked: Asked, error: VlsnLogError) -> tuple[int, list[Share]]:
        """Plans the rest of a read of VLSN ``at`` to ``last`` whose task failed with ``error`` because the log was
        cleaned past ``at``. Returns the first VLSN that remains, and the shares from that VLSN on. Raises ``error``
        if the log was not cleaned past ``at``, and ``Trimmed`` unless the cleaned VLSNs may be left out."""
        copies = Copies.of(self._options.sources, asked)
        if copies.first <= at:
            raise error
        left_out(at, copies.first, self._options)
        return copies.first, copies.shares(copies.first, last, self._options.partition_bytes)


class PushdownReader(VisibleReader):
    """Reads only the entries that match the query's conditions on ``vlsn`` and ``key``. Spark uses this reader only
    if ``spark.sql.python.filterPushdown.enabled`` is set. PySpark 4.3 then uses one plan for all queries of a load:
    the plan with the conditions of the last query."""

    @one_line
    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        left = [each for each in filters if not self._takes(each)]
        if len(left) < len(filters):
            tell(
                "pushdown: whatever else uses this DataFrame reads no more than these conditions ask for; load another"
            )
        return iter(left)

    def _takes(self, condition: Filter) -> bool:
        """Narrows the read by one condition. Returns False if Spark must evaluate the condition itself."""
        column, value = getattr(condition, "attribute", ()), getattr(condition, "value", None)
        if column == ("vlsn",) and isinstance(value, int):
            match condition:
                case EqualTo():
                    low, high = value, value
                case GreaterThan():
                    low, high = value + 1, NUMBER_MAX
                case GreaterThanOrEqual():
                    low, high = value, NUMBER_MAX
                case LessThan():
                    low, high = 1, value - 1
                case LessThanOrEqual():
                    low, high = 1, value
                case _:
                    return False
            self._low, self._high = max(self._low, low), min(self._high, high)
            return True
        if column == ("key",) and isinstance(condition, EqualTo) and isinstance(value, bytes | bytearray) and value:
            return self._takes_key(bytes(value))
        return False

    def _takes_key(self, key: bytes) -> bool:
        """Narrows the read to one key. The key must not be empty, because an empty key in the log means no key, which
        is null in SQL."""
        if self._keys is not None and not (self._keys.prefix and self._keys.has(key)):
            if self._keys != KeyFilter(key):
                self._high = 0  # no entry has two different keys, so nothing is read
            return True
        self._keys = KeyFilter(key)
        return True


def rows_of_any(texts: Sequence[str], copy: int, piece: Piece, asked: Asked = AS_USUAL) -> Iterator[tuple[Rows, int]]:
    """Yields the blocks of a piece as ``read_piece`` does, from source ``copy`` of ``texts``. If this source fails,
    another source continues at the VLSN reached. If all sources fail, raises the first source's error, but prefers
    the error of a node that has answered."""
    at = piece.first
    asked = replace(asked, give_up_s=asked.give_up_s / len(texts))
    failed: VlsnLogError | None = None
    order = [copy, *(index for index in range(len(texts)) if index != copy)]
    for index in order:
        try:
            source = places.source_of(texts[index], asked)
            pieces = [piece]
            if failed is not None:
                layout = layout_of(source)
                if not layout.holds(at, piece.last):
                    continue
                pieces = layout.pieces(at, piece.last, PIECE_BYTES_MIN * WAVES)
            for each in pieces:
                for rows, behind in read_piece(source, replace(each, first=max(each.first, at))):
                    at = behind
                    yield rows, behind
            return
        except VlsnLogError as error:
            if len(order) > 1:
                tell(f"{error}; VLSN {at} is looked for in the other sources")
            failed = error if failed is None or (isinstance(failed, Gone) and not isinstance(error, Gone)) else failed
    assert failed is not None
    raise failed
