"""Three equal copies of a log, made as replicas write them: the same blocks into three directories of stopped nodes.

Blocks are handed over whole, a run of 4 MiB at a time, so that a log is made about as fast as the disk takes it; it has
sidecars, an index and a node file, as any log has.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from repl.bench.local.fill import Filler, block_runs

NODES: Final = ("n1", "n2", "n3")


def paths(root: Path) -> list[str]:
    """Returns the directories of the copies in ``root``."""
    return [str(root / node) for node in NODES]


def grow(root: Path, *, size: int, entries: int, entry_bytes: int) -> int:
    """Appends the same blocks to each copy in ``root``, ``size`` bytes to all of them together, and closes them.
    Makes copies that are not there. Returns the bytes of their segments now."""
    with ExitStack() as stack:
        fillers = [
            stack.enter_context(closing(Filler(path, node))) for path, node in zip(paths(root), NODES, strict=True)
        ]
        first, term = fillers[0].log.view.allocated + 1, fillers[0].term
        left = size // len(NODES)
        for run in block_runs(first, term=term, entries=entries, size=entry_bytes):
            for filler in fillers:
                filler.append(run)
            left -= run.bytes
            if left <= 0:
                break
        for filler in fillers:
            filler.drain()
    return bytes_of(root)


def bytes_of(root: Path) -> int:
    """Returns the bytes of all segments in ``root``, with what is allocated behind their ends."""
    return sum(path.stat().st_size for path in root.glob("*/*.vlog"))


def forget(root: Path) -> None:
    """Drops what the page cache has of the copies in ``root``; what is not written yet is written first."""
    os.sync()
    for path in root.glob("*/*.vlog"):
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
