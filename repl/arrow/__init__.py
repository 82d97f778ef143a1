"""A log's entries as Arrow record batches, for polars, DuckDB, pandas and other Arrow readers.

Only this package and the audit import PyArrow, both on first use; the extra ``vlsnlog[arrow]`` installs it.
"""

from repl.arrow.read import read_arrow

__all__ = ["read_arrow"]
