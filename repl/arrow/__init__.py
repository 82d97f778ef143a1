"""The Arrow door: a log's entries as Arrow record batches, for polars, DuckDB, pandas and whatever else takes them.

Beside the audit the only package that imports PyArrow, on the first call: ``vlsnlog[arrow]`` brings it.
"""

from repl.arrow.read import read_arrow

__all__ = ["read_arrow"]
