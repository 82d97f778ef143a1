"""Exports: writes a log's entries as files of a data lake, in batches that a manifest commits.

    from repl.export import Request, run_export
    run_export(Request(source="URL,URL", to="s3://bucket/lake", format="parquet", partition_by="date"))

    log ──► Spark tasks ──► staged files ──► manifest (commit point) ──► files in place
                                               └── last VLSN and its block: where the next batch begins

No node imports this package. ``docs/export.md`` is for users; ``commit`` describes the protocol.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repl.export.job import run_export
    from repl.export.request import Request

__all__ = ["Request", "run_export"]


def __getattr__(name: str) -> object:
    if name in __all__:
        from repl.export import job, request

        return getattr(request if name == "Request" else job, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
