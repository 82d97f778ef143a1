"""An export as a Spark job, batch after batch, until the requested range is exported.

    driver   check ─► claim ─► plan a batch ─► run tasks ─► commit ─► next batch
    tasks                       read some VLSNs of it, write staged files

A batch ends at the end of a block, so a transaction is in one batch. ``continuous`` continues with entries as they
become durable. A continuous export is one loop with one record of the position, the last manifest. A streaming query
would keep a second record in its checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from repl.audit.session import Progress, SparkJobs, spark_context
from repl.export.commit import Committer, difference
from repl.export.manifest import DataFile, Manifest, Settings
from repl.export.objects import Target, target_of
from repl.export.origin import Origin, Requested, check_same_log, origin_of
from repl.export.partitioning import escaped, partitioning_of
from repl.export.request import Request, check_request
from repl.export.writing import FORMATS, Plan
from repl.files.parquet import COLUMNS
from repl.spark.batch import VisibleReader
from repl.spark.options import Use, read_options
from vlsn.errors import BadArgument, Damaged, Lagging, Trimmed, Unreachable, VlsnLogError, said_of
from vlsn.real.clock import SystemClock


def run_export(
    request: Request,
    *,
    on_batch: Callable[[Manifest], None] = lambda manifest: None,
    on_trouble: Callable[[str], None] = lambda text: None,
    on_spark: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
) -> Manifest | None:
    """Exports entries, and returns the last manifest of the target, or None if there was nothing to export.
    ``on_batch`` is called with each batch once its files have their names. ``on_trouble`` is called with the reason why
    a continuous export waits. ``on_spark`` is called once Spark runs.

    After any interruption a new start continues where the target's last manifest ends. Raises ``BadArgument`` and
    ``BadTarget`` before anything is written. Also raises ``Fenced``, ``Trimmed``, ``Unreachable``, ``Damaged``."""
    _check(request)
    target = target_of(request.to, one_exporter=request.one_exporter)
    origin = origin_of(request.source)
    try:
        settings = Settings(
            group=origin.group(),
            format=request.format,
            partition_by=request.partition_by,
            key_prefix=escaped(request.key_prefix),
            begin=request.begin.text if request.begin is not None else "",
        )
        export = _Export(request, settings, target, origin, on_batch, on_trouble, on_spark, progress)
        return export.run()
    finally:
        origin.close()


def _check(request: Request) -> None:
    if request.format not in FORMATS:
        raise BadArgument(f"--format is {request.format!r}; it must be {' or '.join(FORMATS)}")
    partitioning_of(request.partition_by)
    check_request(request)


class _Export:
    def __init__(
        self,
        request: Request,
        settings: Settings,
        target: Target,
        origin: Origin,
        on_batch: Callable[[Manifest], None],
        on_trouble: Callable[[str], None],
        on_spark: Callable[[], None],
        progress: Progress | None,
    ) -> None:
        self._request, self._settings, self._target, self._origin = request, settings, target, origin
        self._on_batch, self._on_trouble = on_batch, on_trouble
        self._on_spark, self._progress = on_spark, progress
        self._range = Requested(request, origin)
        self._exporter = uuid4().hex
        self._committer = Committer(target, self._exporter, SystemClock().wall_us)

    def run(self) -> Manifest | None:
        # the begin is read before the target is created, so that an unreadable source leaves no target
        begin = self._range.begin()
        if not self._committer.begun() and self._range.end() < begin and not self._request.continuous:
            return None
        held = self._committer.open()
        try:
            if held is not None:
                self._check_held(held)
            if held is not None and held.last >= self._range.end() and not self._request.continuous:
                return held
            with spark_context(self._request.spark_master) as context:
                self._on_spark()
                self._committer.claim(self._settings, begin)
                self._go_on(SparkJobs(context, self._progress))
            return self._committer.last
        finally:
            self._committer.close()

    def _check_held(self, held: Manifest) -> None:
        if held.settings.group == self._settings.group and (text := difference(held.settings, self._settings)):
            raise BadArgument(f"{self._target.text} was begun with {text}: go on with the same, or use another --to")
        self._check_same_log(held)

    def _check_same_log(self, held: Manifest) -> None:
        check_same_log(self._origin, self._target.text, group=held.settings.group, last=held.last, mark=held.mark)

    def _go_on(self, jobs: SparkJobs) -> None:
        continuous, goal = self._request.continuous, 0 if self._request.continuous else self._range.end()
        while True:
            with self._patient():
                end = goal or self._range.end()
                while self._last < end:
                    self._on_batch(self._batch(jobs, end))
                if not continuous or self._range.is_past(end):
                    return
            time.sleep(self._request.interval_s)

    @property
    def _last(self) -> int:
        assert self._committer.last is not None
        return self._committer.last.last

    @contextmanager
    def _patient(self) -> Iterator[None]:
        """Keeps a continuous export running through temporary errors, for example if no node of the group answers."""
        try:
            yield
        except (Unreachable, Lagging) as error:
            if not self._request.continuous:
                raise
            self._on_trouble(f"{error}; trying again every {self._request.interval_s:g} s")

    def _batch(self, jobs: SparkJobs, end: int) -> Manifest:
        held = self._committer.last
        assert held is not None
        self._check_same_log(held)
        is_open = held.mark is None and not held.settings.begin
        first, gap = self._range.first_after(held.last, is_open=is_open)
        block = self._origin.block_at(min(first + self._request.batch_entries - 1, end))
        last = min(block.last, end)
        files = self._write(jobs, first, last)
        return self._committer.commit(first, last, block.mark, files, gap=gap)

    def _write(self, jobs: SparkJobs, first: int, last: int) -> list[DataFile]:
        given = {"path": self._request.source, "from": str(first), "to": str(last)}
        if self._request.key_prefix:
            given["keyPrefix"] = self._request.key_prefix.decode("utf-8", "surrogateescape")
        reader = VisibleReader(read_options(given, Use.BATCH), COLUMNS)
        request = self._request
        plan = Plan(self._target, self._exporter, request.format, request.partition_by, request.file_bytes)
        partitions = reader.partitions()
        done = jobs.run(f"VLSN {first} on", _Task(reader, plan), partitions)
        files = [file for each in done if isinstance(each, list) for file in each]
        failed = [each for each in done if isinstance(each, TaskFailed)]
        if failed:
            for file in files:
                self._target.remove(file.staged)
            self._committer.check_not_fenced()
            raise failed[0].error()
        return files


@dataclass(frozen=True, slots=True)
class TaskFailed:
    """A task's result if it could not read or write: the error as text."""

    slug: str
    text: str
    first: int = 0

    def error(self) -> VlsnLogError:
        match self.slug:
            case Trimmed.slug:
                return Trimmed(self.text, first=self.first)
            case Damaged.slug:
                return Damaged(self.text)
            case Unreachable.slug:
                return Unreachable(self.text)
            case _:
                return BadArgument(self.text)


class _Task:
    """Reads one partition of a batch and writes its rows."""

    def __init__(self, reader: VisibleReader, plan: Plan) -> None:
        self._reader, self._plan = reader, plan

    def __call__(self, partition: Any) -> list[DataFile] | TaskFailed:
        try:
            return self._plan.write(self._reader.read(partition))
        except VlsnLogError as error:
            return TaskFailed(error.slug, str(error), getattr(error, "first", 0))
        except OSError as error:
            return TaskFailed("io", f"{self._plan.target.text}: {said_of(error)}")
