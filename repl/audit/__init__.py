"""The audit: a Spark job that proves copies of a log equal.

A node imports none of this, as little as ``repl.spark``, the data source, which has its name here too.  That is
imported when it is asked for: the audit's tasks import this package, and have no use for Arrow.  So is the job: a
repair runs without Spark.
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
