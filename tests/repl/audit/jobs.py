"""Spark's part of an audit played in this process: a task's input and result are pickled."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from repl.audit.digest import Checksums
from repl.audit.history import HistoryPart
from repl.audit.job import audit
from repl.audit.report import AuditReport
from repl.audit.since import Since
from repl.audit.sources import source_of
from tests.repl.audit.logs import Copy

T = TypeVar("T")
R = TypeVar("R")


class LocalJobs:
    def __init__(self) -> None:
        self.cores = 2
        self.tasks = 0
        self.log: list[tuple[str, int]] = []
        self.returned_bytes = 0

    def run(self, what: str, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        self.log.append((what, len(items)))
        self.tasks += len(items)
        results: list[R] = []
        for item in items:
            there, sent = pickle.loads(pickle.dumps((work, item)))
            back = pickle.dumps(there(sent))
            self.returned_bytes += len(back)
            results.append(pickle.loads(back))
        return results

    def grouped(
        self,
        what: str,
        read: Callable[[T], Iterator[tuple[int, Any]]],
        items: Sequence[T],
        work: Callable[[tuple[int, list[Any]]], R],
        groups: int,
    ) -> list[R]:
        self.tasks += len(items)
        by_key: dict[int, list[Any]] = defaultdict(list)
        for item in items:
            there, sent = pickle.loads(pickle.dumps((read, item)))
            for key, value in there(sent):
                by_key[key].append(pickle.loads(pickle.dumps(value)))
        return self.run(what, work, list(by_key.items()))


class Before(LocalJobs):
    """Jobs before one of which something happens."""

    def __init__(self, what: str, happens: Callable[[], object]) -> None:
        super().__init__()
        self._what, self._happens = what, happens

    def run(self, what: str, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        if what == self._what:
            self._happens()
        return super().run(what, work, items)


def audited(
    *copies: Copy | Path | str,
    jobs: LocalJobs | None = None,
    history: Sequence[HistoryPart] | None = None,
    since: Since | None = None,
    checksums: Checksums = Checksums.SHA256,
    report: str = "",
) -> AuditReport:
    paths = [str(copy.path) if isinstance(copy, Copy) else str(copy) for copy in copies]
    return audit([source_of(path) for path in paths], jobs or LocalJobs(), history, since, checksums, report)
