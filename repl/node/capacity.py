"""Computes how many readers may wait at a node, from the memory and the file descriptors that the node may use.

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
"""The memory reckoned for each waiting reader, including its socket's memory in the kernel: twice the measured
amount."""
MEMORY_SHARE = 16
"""Waiting readers may use one part in ``MEMORY_SHARE`` of the memory."""
READERS_LEAST = 256
READERS_MOST = 65_536
FILES_KEPT = 1_024
"""The file descriptors kept for segments, LMDB and connections to other members."""
FILES_LEAST = 256
"""A node does not start with fewer descriptors than this. If it ran out of them later, it could not open its next
segment, and would end."""
FILES_MOST = 1 << 20
"""The descriptors reckoned with if the process has no limit."""
_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def readers_of(setting: int, *, files: int, memory: int) -> int:
    """Returns how many readers may wait: the setting or, if the setting is 0, as many as memory and descriptors allow.
    Raises ``BadArgument`` if there are too few descriptors for the setting."""
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
    """Raises ``BadArgument`` if the node may use fewer than ``FILES_LEAST`` descriptors."""
    if files < FILES_LEAST:
        raise BadArgument(
            f"a node needs {FILES_LEAST} file descriptors at least, and this process may have {files}:"
            " raise its limit (ulimit -n, LimitNOFILE=)"
        )


def connections_of(readers: int, *, files: int) -> int:
    """Returns how many connections may be open at once. If descriptors are few, this is half of them."""
    return max(min(readers + OTHERS_MAX + KEPT, files - FILES_KEPT), min(2 * KEPT, files // 2))


def files_most() -> int:
    """Returns how many file descriptors this process may use, once it has raised its limit as far as allowed."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if most != resource.RLIM_INFINITY else FILES_MOST


def memory_bytes() -> int:
    """Returns the memory of this machine, or of the container that the process runs in."""
    found = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _LIMITS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            found = min(found, int(text))
    return found
