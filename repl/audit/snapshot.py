"""What the ``state`` store of a running node says, read from a copy: an environment that another process has open
is never opened here.

LMDB writes only pages that its newest two meta pages do not reach, and a meta page last.  So a copy between two
looks at equal meta pages is one committed state, whatever was being written meanwhile.
"""

from __future__ import annotations

import mmap
import shutil
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from vlsn.chain import Stated, read_stated
from vlsn.frame import FRAME_BYTES
from vlsn.ids import Lsn
from vlsn.lmdb_store import DATA_FILE, LmdbStores
from vlsn.recovery import STATE_NAME

ATTEMPTS: Final = 5
"""A commit in each of them, and there is more to read in the log itself than ``state`` could add."""
_METAS_BYTES: Final = 2 * mmap.PAGESIZE


def running_stated(directory: str) -> Stated:
    """Synced ends that checkpoint and idle end of a node that runs give; none where they cannot be read just now."""
    source = Path(directory, STATE_NAME, DATA_FILE)
    with TemporaryDirectory(prefix="vlsnlog-audit-") as temporary:
        copy = Path(temporary, STATE_NAME, DATA_FILE)
        copy.parent.mkdir()
        for _ in range(ATTEMPTS):
            try:
                before = _metas(source)
                shutil.copyfile(source, copy)
            except FileNotFoundError:
                return Stated()
            if before == _metas(copy) == _metas(source):
                return _whole_frames(read_stated(LmdbStores(), temporary))
    return Stated()


def _whole_frames(stated: Stated) -> Stated:
    """With ends where frames end: a checkpoint vouches for the log before its CHECKPOINT_END, and a piece of that."""
    ends = [Lsn(at - FRAME_BYTES) if at - FRAME_BYTES == stated.checkpoint_end else at for at in stated.ends]
    return replace(stated, ends=ends)


def _metas(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_METAS_BYTES)
