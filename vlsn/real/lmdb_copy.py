"""A copy of an LMDB environment that another process may be writing; the environment itself is never opened.

LMDB writes only pages that its newest two meta pages do not reach, and a meta page last.  So a copy between two
looks at equal meta pages is one committed state, whatever was being written meanwhile.
"""

from __future__ import annotations

import mmap
import os
import shutil
from typing import Final

from vlsn.errors import LogInUse
from vlsn.real.regular_files import open_regular

ATTEMPTS: Final = 5
"""Tries, each of which met a commit; a checkpoint or idle end comes at most once a second."""
_METAS_BYTES: Final = 2 * mmap.PAGESIZE


def copy_environment(source: str, target: str) -> None:
    """Copies the data file ``source`` to ``target``.  Raises ``FileNotFoundError``, or ``LogInUse`` when it was
    written to during each of ``ATTEMPTS``."""
    for _ in range(ATTEMPTS):
        before = _metas(source)
        shutil.copyfile(source, target)
        if before == _metas(target) == _metas(source):
            return
    raise LogInUse(f"{source} was written to each time that it was copied; try again")


def _metas(path: str) -> bytes:
    with open(path, "rb", opener=open_regular) as file:
        return os.pread(file.fileno(), _METAS_BYTES, 0)
