"""Copies an LMDB environment while another process may write to it. The environment itself is never opened.

LMDB never overwrites the pages to which its two newest meta pages lead, and it writes the meta page of a commit last.
So if the meta pages are equal before and after copying, the copy is one committed state, whatever was written
meanwhile.
"""

from __future__ import annotations

import mmap
import os
import shutil
from typing import Final

from vlsn.errors import LogInUse
from vlsn.real.regular_files import open_regular

ATTEMPTS: Final = 5
"""The number of attempts to copy, if a commit interrupts each of them. A checkpoint or idle end is written at most once
a second."""
_METAS_BYTES: Final = 2 * mmap.PAGESIZE


def copy_environment(source: str, target: str) -> None:
    """Copies the data file ``source`` to ``target``. Raises ``FileNotFoundError``. Raises ``LogInUse`` if the file was
    written to during each of ``ATTEMPTS`` attempts."""
    for _ in range(ATTEMPTS):
        before = _metas(source)
        shutil.copyfile(source, target)
        if before == _metas(target) == _metas(source):
            return
    raise LogInUse(f"{source} was written to each time that it was copied; try again")


def _metas(path: str) -> bytes:
    with open(path, "rb", opener=open_regular) as file:
        return os.pread(file.fileno(), _METAS_BYTES, 0)
