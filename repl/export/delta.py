"""Exports a log to a Delta table, without Spark: ``vlsnlog export --format delta``. Each entry is in the table once.

    log ─► record batches ─► Parquet files ─► _delta_log/N.json, the commit point: the files, and
                                              txn vlsnlog/GROUP       the batch's last VLSN
                                              txn vlsnlog/GROUP/term  … /time, /crc: the block at that VLSN

1. Version N of a table is created once. A batch is committed as the version after the one that was read, and is not
   tried again by the library. So of two exporters one commits, and the other finds the position moved.
2. The position is in the table itself, as application transactions. They stay when the table's history is cleaned.
3. Files of a batch that was not committed belong to no version. ``VACUUM`` removes them.
4. Others may keep the table in order (``UPKEEP``). If they have written rows, or restored an earlier version, the
   position says nothing about the rows, and the export is refused.

The library does not sync: after a power cut, the last versions of a table on a local disk may be damaged.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from repl.client.reader import LINEARIZABLE
from repl.export.manifest import BadTarget, Fenced, Gap, Mark
from repl.export.origin import Origin, Requested, check_same_log, origin_of
from repl.export.request import Request, check_request
from repl.spark.places import is_url
from vlsn.errors import BadArgument, Lagging, Unreachable

if TYPE_CHECKING:
    from deltalake import DeltaTable

NEEDS: Final = "--format delta needs deltalake and PyArrow; install them with: pip install 'vlsnlog[delta]'"
APP: Final = "vlsnlog"
_CONFIGURATION: Final = ("vlsnlog.group", "vlsnlog.key_prefix", "vlsnlog.begin")
_FIRST: Final = "vlsnlog.first"
"""The table's property with the first VLSN that it is to have."""
_LAST: Final = "vlsnlog.last"
"""A commit's field with the last VLSN of its batch."""
UPKEEP: Final = ("OPTIMIZE", "VACUUM START", "VACUUM END", "CREATE TABLE", "ADD COLUMN", "SET TBLPROPERTIES")
"""The operations of others after which a table has the same rows."""
HISTORY_MAX: Final = 10_000
"""The most versions, since the last batch, that are looked at."""
TRIES_MAX: Final = 20
"""How often a batch is committed anew, because somebody else has changed the table meanwhile."""


@dataclass(frozen=True, slots=True)
class DeltaBatch:
    """A committed batch: the table's ``version`` that has it, its VLSNs, and the rows and files that it added."""

    version: int
    first: int
    last: int
    rows: int
    files: int
    gap: Gap | None


@dataclass(slots=True)
class _Read:
    """How many rows the table's writer has taken, and the error with which the source ended."""

    rows: int = 0
    error: BaseException | None = None


def run_delta_export(
    request: Request,
    *,
    on_batch: Callable[[DeltaBatch], None] = lambda batch: None,
    on_trouble: Callable[[str], None] = lambda text: None,
) -> int:
    """Exports entries to the Delta table at ``request.to``, and returns the last VLSN that the table has; 0 without
    any. ``on_batch`` is called after each commit, ``on_trouble`` with the reason why a continuous export waits.

    After any interruption a new start continues after the last commit. Raises ``BadArgument`` and ``BadTarget`` before
    anything is written. Also raises ``Fenced``, ``Trimmed``, ``Unreachable``, ``Damaged``."""
    _check(request)
    origin = origin_of(request.source)
    try:
        return _DeltaExport(request, origin, on_batch, on_trouble).run()
    finally:
        origin.close()


def _check(request: Request) -> None:
    if find_spec("deltalake") is None or find_spec("pyarrow") is None:
        raise BadArgument(NEEDS)
    check_request(request)
    if request.partition_by:
        raise BadArgument("--partition-by: a Delta table is written without partitions; filter by vlsn or time")
    if not is_url(request.source) and not os.path.isdir(request.source):
        raise BadArgument(f"{request.source}: is no directory; name one stopped node's, or http:// URLs")


class _DeltaExport:
    def __init__(
        self,
        request: Request,
        origin: Origin,
        on_batch: Callable[[DeltaBatch], None],
        on_trouble: Callable[[str], None],
    ) -> None:
        self._request, self._origin = request, origin
        self._on_batch, self._on_trouble = on_batch, on_trouble
        self._range = Requested(request, origin)
        self._group = origin.group()
        self._app = f"{APP}/{self._group}"
        self._settings = dict(
            zip(
                _CONFIGURATION,
                (self._group, request.key_prefix.hex(), request.begin.text if request.begin is not None else ""),
                strict=True,
            )
        )

    def run(self) -> int:
        if not self._is_begun():
            begin = self._range.begin()
            if self._range.end() < begin and not self._request.continuous:
                return 0
            self._create(begin)
        table = self._opened()
        self._check_table(table)
        last = self._last(table) or int(table.metadata().configuration[_FIRST]) - 1
        while True:
            try:
                end = self._range.end()
                while last < end:
                    table, batch = self._batch(table, last, end)
                    last = batch.last
                    self._on_batch(batch)
                if not self._request.continuous or self._range.is_past(end):
                    return last if self._last(table) else 0
            except (Unreachable, Lagging) as error:
                if not self._request.continuous:
                    raise
                self._on_trouble(f"{error}; trying again every {self._request.interval_s:g} s")
            time.sleep(self._request.interval_s)

    # The table.

    def _is_begun(self) -> bool:
        """Returns whether there is a table. Raises ``BadTarget`` if something else is there."""
        from deltalake import DeltaTable

        to = self._request.to
        with self._faults():
            if DeltaTable.is_deltatable(to):
                return True
        if "://" not in to and os.path.exists(to) and (not os.path.isdir(to) or os.listdir(to)):
            raise BadTarget(f"{to} has files, and is no Delta table: use another --to")
        return False

    def _opened(self) -> DeltaTable:
        from deltalake import DeltaTable

        with self._faults():
            return DeltaTable(self._request.to)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        """Raises ``BadTarget`` for a fault of the table or of its store."""
        from deltalake.exceptions import DeltaError

        try:
            yield
        except (DeltaError, OSError, ValueError) as error:
            raise BadTarget(f"{self._request.to}: {str(error)[:500]}") from None

    def _create(self, begin: int) -> None:
        """Creates the table. If another exporter has created it meanwhile, the checks find that one's settings."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            DeltaTable.create(
                self._request.to,
                _schema(),
                mode="error",
                description=f"entries of the group {self._group} of vlsnlog",
                configuration={"delta.appendOnly": "true", **self._settings, _FIRST: str(begin)},
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError, ValueError) as error:
            if not self._is_begun():
                raise BadTarget(f"{self._request.to}: {str(error)[:500]}") from None

    def _check_table(self, table: DeltaTable) -> None:
        """Raises ``BadTarget`` unless this log and these options have begun the table, and ``BadArgument`` for other
        options."""
        import pyarrow as pa

        to, held = self._request.to, table.metadata().configuration
        if not {*_CONFIGURATION, _FIRST} <= held.keys():
            raise BadTarget(f"{to} is a Delta table that no export has made: use another --to")
        self._check_same_log(table)
        if any(held.get(name) != value for name, value in self._settings.items()):
            raise BadArgument(f"{to} was begun with another --from or --key-prefix: continue with the same")
        there = pa.schema(table.schema().to_arrow())
        if [(each.name, each.type) for each in there] != [(each.name, each.type) for each in _schema()]:
            raise BadTarget(f"{to} has other columns now: {', '.join(there.names)}")
        for version in table.history(HISTORY_MAX):  # the newest first
            if version.get(_LAST) == str(self._last(table)):
                break
            if (operation := version.get("operation")) not in UPKEEP:
                raise BadTarget(
                    f"{to}: version {version.get('version')} is a {operation} of somebody else, after which its rows "
                    "are not those of the log: restore the version before it into another table, or use another --to"
                )

    def _check_same_log(self, table: DeltaTable) -> None:
        last = self._last(table)
        mark = self._mark(table) if last else None
        group = table.metadata().configuration[_CONFIGURATION[0]]
        check_same_log(self._origin, self._request.to, group=group, last=last, mark=mark)

    def _last(self, table: DeltaTable) -> int:
        """Returns the last VLSN that the table has; 0 before the first batch."""
        return table.transaction_version(self._app) or 0

    def _mark(self, table: DeltaTable) -> Mark:
        term, time_us, crc = (table.transaction_version(f"{self._app}/{name}") or 0 for name in ("term", "time", "crc"))
        return Mark(term, time_us, crc)

    # A batch.

    def _batch(self, table: DeltaTable, held: int, end: int) -> tuple[DeltaTable, DeltaBatch]:
        """Commits the next batch. Returns the table with it. Raises ``Fenced`` if another exporter was sooner."""
        from deltalake import CommitProperties, Transaction, write_deltalake
        from deltalake.exceptions import CommitFailedError, DeltaError

        before = self._last(table)
        self._check_same_log(table)
        first, gap = self._range.first_after(held, is_open=not before and self._request.begin is None)
        block = self._origin.block_at(min(first + self._request.batch_entries - 1, end))
        last, mark = min(block.last, end), block.mark
        marks = {"term": mark.term, "time": mark.time_us, "crc": mark.crc32c}
        said = {_FIRST: str(first), _LAST: str(last)}
        if gap is not None:
            said["vlsnlog.gap"] = f"{gap.first}-{gap.last}"
        properties = CommitProperties(
            custom_metadata=said,
            max_commit_retries=0,
            app_transactions=[
                Transaction(self._app, last),
                *(Transaction(f"{self._app}/{name}", value) for name, value in marks.items()),
            ],
        )
        for _ in range(TRIES_MAX):
            read = _Read()
            try:
                write_deltalake(
                    table,
                    self._rows(first, last, read),
                    mode="append",
                    target_file_size=self._request.file_bytes,
                    commit_properties=properties,
                )
            except CommitFailedError:
                table = self._opened()
                if self._last(table) != before:
                    raise Fenced(f"{self._request.to}: another export has continued it") from None
                self._check_table(table)
                continue
            except (DeltaError, OSError) as error:
                if read.error is not None:
                    raise read.error from None
                raise BadTarget(f"{self._request.to}: {str(error)[:500]}") from None
            table = self._opened()
            files = int(table.history(1)[0].get("operationMetrics", {}).get("num_added_files", 0))
            return table, DeltaBatch(table.version(), first, last, read.rows, files, gap)
        raise Fenced(f"{self._request.to}: somebody else changed the table {TRIES_MAX} times while a batch was written")

    def _rows(self, first: int, last: int, read: _Read) -> Any:
        """Reads the batch as Arrow record batches, with the columns of the table."""
        import pyarrow as pa

        from repl.arrow.read import read_arrow

        source, prefix, schema = self._request.source, self._request.key_prefix or None, _schema()
        # a node that is behind the master would end before ``last``, and is asked to catch up first
        freshness = {"consistency": LINEARIZABLE} if is_url(source) else {}
        found = read_arrow(source, first, last, key_prefix=prefix, **freshness)  # type: ignore[arg-type]

        def batches() -> Iterator[Any]:
            try:
                for each in found:
                    read.rows += each.num_rows
                    yield each.cast(schema)
            except BaseException as error:  # the library would wrap it in an error of its own
                read.error = error
                raise

        return pa.RecordBatchReader.from_batches(schema, batches())


def _schema() -> Any:
    """Returns the table's columns. Delta has no unsigned numbers, and VLSNs never reach 2**63."""
    import pyarrow as pa

    from repl.arrow.batches import SCHEMA

    return pa.schema([pa.field(each.name, pa.int64() if each.type == pa.uint64() else each.type) for each in SCHEMA])
