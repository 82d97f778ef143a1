"""The number of readers that may wait at a node, from the memory and the file descriptors that it may have.

descriptors   | log, peers | others: appends, producers, reads |  waiting readers  |
                 FILES_KEPT      OTHERS_MAX + KEPT                  readers_max
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from repl.net.places import KEPT, OTHERS_MAX
from vlsn.errors import BadArgument
from vlsn.limits import KIB

READER_BYTES = 32 * KIB
"""Memory that a waiting reader is taken to cost, its socket's in the kernel too: twice what one was seen to."""
MEMORY_SHARE = 16
"""Waiting readers are given one part in so many of the memory."""
READERS_LEAST = 256
READERS_MOST = 65_536
FILES_KEPT = 1_024
"""File descriptors for segments, LMDB and connections to other members."""
FILES_LEAST = 256
"""Descriptors without which a node does not start: past its last one it opens no segment, and ends."""
FILES_MOST = 1 << 20
"""Descriptors that are reckoned with where the process has no limit."""
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def readers_of(setting: int, *, files: int, memory: int) -> int:
    """Returns how many readers may wait: the setting, or where that is 0 what memory and descriptors allow. Raises
    ``BadArgument`` for a setting that there are too few descriptors for."""
    room = files - FILES_KEPT - KEPT
    if setting:
        if setting > room - READERS_LEAST:
            raise BadArgument(
                f"readers_max: {setting} readers need {setting + READERS_LEAST + KEPT + FILES_KEPT} file descriptors,"
                f" and this process may have {files}: raise its limit (ulimit -n, LimitNOFILE=), or lower the setting"
            )
        return setting
    by_memory = min(max(memory // MEMORY_SHARE // READER_BYTES, READERS_LEAST), READERS_MOST)
    return max(min(by_memory, max(room - OTHERS_MAX, room // 2)), 1)


def check_files(files: int) -> None:
    """Raises ``BadArgument`` where a node may have fewer descriptors than ``FILES_LEAST``."""
    if files < FILES_LEAST:
        raise BadArgument(
            f"a node needs {FILES_LEAST} file descriptors at least, and this process may have {files}:"
            " raise its limit (ulimit -n, LimitNOFILE=)"
        )


def connections_of(readers: int, *, files: int) -> int:
    """Returns how many connections may be there at once; half of the descriptors where these are few."""
    return max(min(readers + OTHERS_MAX + KEPT, files - FILES_KEPT), min(2 * KEPT, files // 2))


def files_most() -> int:
    """Returns the file descriptors that this process may have once it has raised its limit as far as it may."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if most != resource.RLIM_INFINITY else FILES_MOST


def memory_bytes() -> int:
    """Returns the memory of this machine, or of the container that the process is in."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            found = min(found, int(text))
    return found
