"""Provides the Spark context for an audit: the active context, or a new one that is stopped afterwards.

Audits run plain RDD jobs. A task is a Python function over segments, and its result is a few hundred bytes, so neither
SQL nor a session is needed. Tasks run this interpreter and import this package, on a cluster as on this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from threading import Event, Thread
from typing import IO, Any, Final, TypeVar
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway

from repl.audit.source import Unreadable
from repl.audit.workers import equip

T = TypeVar("T")
R = TypeVar("R")
Progress = Callable[[str, int, int], None]
"""A callback for progress. The arguments are the running step, the number of finished tasks of the step, and the number
of all its tasks."""

_LOG4J: Final = Path(__file__).with_name("log4j2.properties")
_PERIOD_S: Final = 0.2
_MISSING: Final = re.compile(r"No module named '([\w.]+)'")


@contextmanager
def spark_context(master: str) -> Iterator[SparkContext]:
    """Returns the active Spark context, with its own master. Without an active context, starts one on ``master``.
    Raises ``Unreadable`` if Spark cannot start."""
    active = SparkContext._active_spark_context
    if active is not None:
        equip(active)
        yield active
        return
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise Unreadable("the audit runs on Spark, which needs Java 17 or newer: install openjdk-17-jre-headless")
    with TemporaryFile() as notes:
        try:
            with _uninterrupted() as interrupted:
                context = _started(_conf(master), notes)
        except Exception as error:  # py4j and the JVM raise many types of errors
            notes.seek(0)
            said = [*notes.read().decode(errors="replace").splitlines(), *str(error).splitlines()]
            reason = next((line for line in said if "Exception" in line or "Error" in line), str(error))
            raise Unreadable(f"Spark did not start on {master}: {reason.strip()}") from error
    try:
        if interrupted:
            raise KeyboardInterrupt
        context.setLogLevel("ERROR")
        equip(context)
        yield context
    finally:
        context.stop()


@contextmanager
def _uninterrupted() -> Iterator[list[int]]:
    """Delays Ctrl-C while the JVM starts, because a JVM that is abandoned then does not end by itself."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return

    def note(number: int, frame: object) -> None:
        noted.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # once Spark runs, Spark has set its own signal handler
            signal.signal(signal.SIGINT, before)


def _started(conf: SparkConf, notes: IO[bytes]) -> SparkContext:
    """Starts Spark. The output of the JVM and its workers is written to ``notes``."""
    gateway = None
    if SparkContext._gateway is None:
        gateway = launch_gateway(conf, {"stdout": notes, "stderr": notes})
    try:
        return SparkContext(conf=conf, gateway=gateway)
    except BaseException:
        if gateway is not None:
            gateway.proc.kill()
        raise


def _conf(master: str) -> SparkConf:
    conf = SparkConf().setMaster(master).setAppName("vlsnlog audit")
    conf.set("spark.ui.enabled", "false").set("spark.ui.showConsoleProgress", "false")
    if master.startswith("local"):
        conf.set("spark.driver.host", "127.0.0.1").set("spark.driver.bindAddress", "127.0.0.1")
        # The JVM only starts workers and passes small results: with C1 alone and the serial collector it starts
        # fastest.
        options = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile={_LOG4J.as_uri()}"
        conf.set("spark.driver.extraJavaOptions", options)
    return conf


class SparkJobs:
    """Runs functions in Spark tasks, one task for each item, and counts the tasks that ran."""

    def __init__(self, context: SparkContext, progress: Progress | None) -> None:
        self._context = context
        self._progress = progress
        self._attempts: set[int] = set()

    @property
    def cores(self) -> int:
        return int(self._context.defaultParallelism)

    @property
    def tasks(self) -> int:
        return len(self._attempts)

    def run(self, what: str, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Returns the results of ``work`` on each item, in the order of the items. An exception in a task ends the
        job."""
        if not items:
            return []
        with self._watched(what, len(items)), _missing_told():
            rows = self._context.parallelize(items, len(items)).map(partial(_counted, work)).collect()
        self._attempts.update(attempt for attempt, _ in rows)
        return [result for _, result in rows]

    def grouped(
        self,
        what: str,
        read: Callable[[T], Iterator[tuple[int, Any]]],
        items: Sequence[T],
        work: Callable[[tuple[int, list[Any]]], R],
        groups: int,
    ) -> list[R]:
        """Calls ``read`` on each item. After a shuffle, calls ``work`` on each key and the values that were read under
        this key."""
        if not items:
            return []
        with self._watched(what, len(items) + groups), _missing_told():
            pairs = self._context.parallelize(items, len(items)).flatMap(partial(_counted_each, read))
            rows = pairs.groupByKey(groups).map(partial(_counted, partial(_of_group, work))).collect()
        for attempt, (attempts, _) in rows:
            self._attempts |= {attempt, *attempts}
        return [result for _, (_, result) in rows]

    @contextmanager
    def _watched(self, what: str, total: int) -> Iterator[None]:
        """Labels the Spark jobs that run within this context, and reports their progress."""
        group = f"vlsnlog-audit-{uuid4()}"
        self._context.setJobGroup(group, f"vlsnlog audit: {what}")
        if self._progress is None:
            yield
            return
        progress, ended = self._progress, Event()
        tracker = self._context.statusTracker()

        def watch() -> None:
            while not ended.wait(_PERIOD_S):
                progress(what, min(total, _done(tracker, group)), total)

        progress(what, 0, total)
        thread = Thread(target=watch, name="audit-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        progress(what, total, total)


@contextmanager
def _missing_told() -> Iterator[None]:
    """If a worker's Python has no vlsnlog or another needed package, replaces Spark's long text by one line. Raises
    ``Unreadable``."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        found = _MISSING.search(str(error))
        if found is None:
            raise
        raise Unreadable(
            f"the Python of Spark's workers has no {found[1]}: install vlsnlog for it, or name one that has it "
            "(PYSPARK_PYTHON=/path/of/an/environment/bin/python)"
        ) from None


def _attempt() -> int:
    """Returns the id of the Spark task attempt that runs this code."""
    task = TaskContext.get()
    assert task is not None
    return int(task.taskAttemptId())


def _counted(work: Callable[[Any], Any], item: object) -> tuple[int, Any]:
    """Returns the result of ``work`` on an item, with the id of the task attempt."""
    return _attempt(), work(item)


def _counted_each(read: Callable[[Any], Iterator[tuple[int, Any]]], item: object) -> Iterator[tuple[int, Any]]:
    """Yields the results of ``read``, each with the id of the task attempt."""
    attempt = _attempt()
    return ((key, (attempt, value)) for key, value in read(item))


def _of_group(
    work: Callable[[tuple[int, list[Any]]], Any], group: tuple[int, Iterable[tuple[int, Any]]]
) -> tuple[set[int], Any]:
    """Returns the result of ``work`` on the values that ``_counted_each`` yielded under one key. Also returns the ids
    of the attempts that read these values."""
    attempts, values = zip(*group[1], strict=True)
    return set(attempts), work((group[0], list(values)))


def _done(tracker: Any, group: str) -> int:
    stages = (
        stage
        for job in tracker.getJobIdsForGroup(group)
        if (found := tracker.getJobInfo(job))
        for stage in found.stageIds
    )
    return sum(info.numCompletedTasks for stage in stages if (info := tracker.getStageInfo(stage)))
