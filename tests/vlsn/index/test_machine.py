"""The index against a plain list of blocks: blocks, flushes, cuts and crashes in any order.

``VLSNLOG_EXAMPLES=20 pytest …`` runs twenty times as many.
"""

from __future__ import annotations

import os
import tempfile
from typing import Any

from hypothesis import settings

from tests.vlsn.index.machine import FailingWritesMachine, IndexMachine
from vlsn.real.lmdb_store import LmdbStores
from vlsn.seams import Stores


class LmdbIndexMachine(IndexMachine):
    """The same on LMDB, in a map so small that it grows."""

    def make_stores(self) -> Stores:
        self.directory = tempfile.TemporaryDirectory(prefix="vlsnlog-index-")
        self.path = f"{self.directory.name}/index"
        return LmdbStores()

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.index.close()
            self.directory.cleanup()


TIMES = int(os.environ.get("VLSNLOG_EXAMPLES", "1"))

TestIndex: Any = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=40 * TIMES, stateful_step_count=25, deadline=None)
TestFailingWrites: Any = FailingWritesMachine.TestCase
TestFailingWrites.settings = settings(max_examples=20 * TIMES, stateful_step_count=20, deadline=None)
TestLmdbIndex: Any = LmdbIndexMachine.TestCase
TestLmdbIndex.settings = settings(max_examples=6 * TIMES, stateful_step_count=15, deadline=None)
