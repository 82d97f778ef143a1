"""Spark's door to the log: the data source ``vlsnlog``, to read a batch, to read a stream, and to write.

    from repl.spark import VlsnLogDataSource
    spark.dataSource.register(VlsnLogDataSource)

Imported when it is asked for: ``options`` and ``errors`` need no PySpark.
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
