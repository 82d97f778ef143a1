"""Spark's part of an audit played in this process: what goes to a task, and what comes back, is pickled."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from repl.audit.findings import AuditReport
from repl.audit.job import audit
from repl.audit.source import source_of
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


def audited(*copies: Copy | Path | str, jobs: LocalJobs | None = None) -> AuditReport:
    paths = [str(copy.path) if isinstance(copy, Copy) else str(copy) for copy in copies]
    return audit([source_of(path) for path in paths], jobs or LocalJobs())
