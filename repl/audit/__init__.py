"""The audit: a Spark job that proves copies of a log equal.

A node imports neither this package nor the data source ``repl.spark``, whose name is also available here. The data
source is imported only on first use, because the audit's tasks import this package and do not need Arrow. The job is
imported on first use too, because a repair runs without Spark.
"""

from typing import TYPE_CHECKING

from repl.audit.findings import Finding
from repl.audit.report import AuditReport, SourceReport
from repl.audit.source import Unreadable

if TYPE_CHECKING:
    from repl.audit.job import run_audit
    from repl.spark.datasource import VlsnLogDataSource

__all__ = ["AuditReport", "Finding", "SourceReport", "Unreadable", "VlsnLogDataSource", "run_audit"]


def __getattr__(name: str) -> object:
    if name == "VlsnLogDataSource":
        from repl.spark.datasource import VlsnLogDataSource

        return VlsnLogDataSource
    if name == "run_audit":
        from repl.audit.job import run_audit

        return run_audit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
