"""A plugin of pytest: what a client has in common with a node works without NumPy (``-p tests.fakes.no_numpy``).

Nodes of the same process need NumPy itself, so it is not hidden from them. A client's own imports are checked in a
process of its own (``tests/e2e/test_no_numpy.py``).
"""

from __future__ import annotations

from vlsn.format import arrays

assert not arrays.works.cache_info().misses, "loaded too late"
arrays.numpy_is_there = lambda: False
