"""The work of an audit's tasks: they survey a source, read and check segments, and search ranges for differences.

If a source cannot be read, the task returns a ``Failure``. A task raises no exception for it, because Spark would run
the task again and then end the job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from repl.audit.check import check_segment
from repl.audit.difference import RangeTask, first_differences
from repl.audit.digest import Checksums
from repl.audit.findings import Finding
from repl.audit.names import reused
from repl.audit.plan import Bounds, Indexed, Part, Survey
from repl.audit.segment_audit import SegmentAudit
from repl.audit.segment_buffer import segment_buffer
from repl.audit.source import Failure, Gone, Source, Unreadable
from repl.audit.unread import Missed
from repl.audit.windows import read_plain
from vlsn.errors import WrongVersion
from vlsn.format.records import RollbackStart
from vlsn.ids import Lsn
from vlsn.levels import named

R = TypeVar("R")


def survey(item: tuple[int, Source]) -> Survey | Failure:
    index, source = item
    return tried(lambda: source.survey(index))


def read(
    sources: list[Source], bounds: Bounds, samples: int, checksums: Checksums, parts: tuple[Part, ...]
) -> list[SegmentAudit | Missed] | Failure:
    """Reads a task's segments one after the other; one segment at a time is in memory. The result for an unreadable
    segment is ``Missed``. If the node is gone, all segments after it are ``Missed`` too."""
    return tried(lambda: list(_each_read(sources[parts[0].source], parts, bounds, samples, checksums)))


def _each_read(
    source: Source, parts: tuple[Part, ...], bounds: Bounds, samples: int, checksums: Checksums
) -> Iterator[SegmentAudit | Missed]:
    indexed = source.indexed([part for part in parts if part.indexed])
    gone = ""
    for part in parts:
        why = gone
        if not gone:
            try:
                yield _read_one(source, part, bounds, indexed.get(part.number), samples, checksums)
                continue
            except Gone as error:
                why = gone = str(error)
            except Unreadable as error:
                why = str(error)
        yield Missed(part.source, part.number, why)


def _read_one(
    source: Source, part: Part, bounds: Bounds, indexed: Indexed | None, samples: int, checksums: Checksums
) -> SegmentAudit:
    try:
        into = segment_buffer(part.end)
        plain = read_plain(source, part, into, checksums) if source.near else None
        buf = source.read(part, 0, part.end, into) if plain is None else memoryview(into)[: part.end]
        # the sidecar is read after its segment, because a rollback removes the sidecar before it sets a flag
        sidecar = source.sidecar(part)
        fill = partial(source.fill, part, into=into)
        return check_segment(buf, part, source.text, bounds, sidecar, indexed, samples, plain, checksums, fill)
    except WrongVersion as error:
        raise named(error, source.text) from None


def rollbacks(item: tuple[Source, int]) -> list[tuple[Lsn, RollbackStart]] | Failure:
    source, number = item
    return tried(lambda: source.rollbacks(number))


def compare(sources: list[Source], task: RangeTask) -> list[Finding] | Failure:
    return tried(lambda: first_differences(task, sources))


def look_for_names(sources: list[Source], task: RangeTask) -> list[Finding] | Failure:
    return tried(lambda: reused(task, sources))


def tried(work: Callable[[], R]) -> R | Failure:
    try:
        return work()
    except Unreadable as error:
        return Failure(str(error))
    except WrongVersion as error:
        return Failure(str(error), fatal=True)


def succeeded(results: Sequence[R | Failure]) -> list[R]:
    """Returns the results of tasks that must all succeed. Raises ``Unreadable`` for the first failure."""
    done, failures = parted(results)
    if failures:
        raise Unreadable(failures[0])
    return done


def parted(results: Sequence[R | Failure]) -> tuple[list[R], list[str]]:
    """Returns the results of the tasks that succeeded, and the reasons why others failed. Raises ``Unreadable`` for a
    fatal failure."""
    failures = [result for result in results if isinstance(result, Failure)]
    for failure in failures:
        if failure.fatal:
            raise Unreadable(failure.reason)
    done = [result for result in results if not isinstance(result, Failure)]
    return done, list(dict.fromkeys(failure.reason for failure in failures))
