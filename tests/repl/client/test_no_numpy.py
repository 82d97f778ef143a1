"""A client without NumPy: its tests pass as they do with it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NEED_NUMPY = {"test_batch_rows.py", "test_sink_batch.py"}
"""Tests of what only Spark's and a node's modules use."""
FORMATS = ("format/test_block.py", "format/test_batch.py", "format/test_transactions.py", "format/test_key_filter.py")


@pytest.mark.long
def test_the_tests_of_a_client_pass_without_numpy() -> None:
    own = [path for path in sorted(HERE.glob("test_*.py")) if path.name not in {*NEED_NUMPY, Path(__file__).name}]
    formats = [HERE.parents[1] / "vlsn" / path for path in FORMATS]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.fakes.no_numpy", "-p", "no:cacheprovider", "-n", "0"]
    workers = HERE.parents[1] / "repl" / "destinations" / "test_message_batch.py"
    done = subprocess.run([*command, *own, *formats, workers], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
