"""Spark's access to the log: the data source ``vlsnlog``, which reads batches and streams, and writes.

    from repl.spark import VlsnLogDataSource
    spark.dataSource.register(VlsnLogDataSource)

The data source is imported only on first use, so ``options`` and ``errors`` work without PySpark.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from repl.spark.datasource import VlsnLogDataSource

__all__ = ["VlsnLogDataSource"]


def __getattr__(name: str) -> object:
    if name == "VlsnLogDataSource":
        from repl.spark.datasource import VlsnLogDataSource

        return VlsnLogDataSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
