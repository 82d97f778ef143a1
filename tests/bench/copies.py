"""Three equal copies of a log, made as replicas write them: the same blocks into three directories of stopped nodes.

Blocks are handed over whole, a run of 4 MiB at a time, so that a log is made about as fast as the disk takes it; it has
sidecars, an index and a node file, as any log has.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from unittest.mock import patch

from tests.bench.local_fill import Filler

NODES: Final = ("n1", "n2", "n3")


def paths(root: Path) -> list[str]:
    """Returns the directories of the copies in ``root``."""
    return [str(root / node) for node in NODES]


def grow(root: Path, *, size: int, entries: int, entry_bytes: int) -> None:
    """Appends the same blocks to each copy in ``root``, ``size`` bytes to all of them together, and closes them.
    Makes copies that are not there."""
    with ExitStack() as stack:
        logs: list[Filler] = []
        for path, node in zip(paths(root), NODES, strict=True):
            with patch("vlsn.embedded.log.NODE_NAME", node):  # by which the audit tells the copies apart
                log = stack.enter_context(Filler.open(path))
            assert isinstance(log, Filler)
            logs.append(log)
        left = size // len(NODES)
        for run in logs[0].runs(entries=entries, size=entry_bytes):
            for log in logs:
                log.hand_over(run)
            left -= run.bytes
            if left <= 0:
                break
        for log in logs:
            log.drain()


def forget(root: Path) -> None:
    """Drops the copies in ``root`` from the page cache, after their unwritten pages were written."""
    os.sync()
    for path in root.glob("*/*.vlog"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
