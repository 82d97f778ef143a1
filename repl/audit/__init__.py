"""The audit: a Spark job that proves copies of a log equal, and a Spark data source of its entries.

The only package that imports PySpark and PyArrow; a node imports none of this.  The data source is imported when
it is asked for: the audit's tasks import this package too, and have no use for Arrow.
"""

from typing import TYPE_CHECKING

from repl.audit.findings import AuditReport, Finding, SourceReport
from repl.audit.job import run_audit
from repl.audit.source import Unreadable

if TYPE_CHECKING:
    from repl.audit.datasource import VlsnLogDataSource

__all__ = ["AuditReport", "Finding", "SourceReport", "Unreadable", "VlsnLogDataSource", "run_audit"]


def __getattr__(name: str) -> object:
    if name == "VlsnLogDataSource":
        from repl.audit.datasource import VlsnLogDataSource

        return VlsnLogDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
