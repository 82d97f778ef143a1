"""Finds the process behind a connection, which the kernel lists as holder of its other end."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TABLE = Path("/proc/net/tcp")


def owner_of(peer_port: int, own_port: int, pids: Iterable[int]) -> int | None:
    """Finds the one of ``pids`` that holds the socket from ``peer_port`` to ``own_port`` (127.0.0.1). None if none of
    them does, or if the socket is already closed."""
    inode = _inode_of(peer_port, own_port)
    if inode is None:
        return None
    link = f"socket:[{inode}]"
    for pid in pids:
        if _holds(pid, link):
            return pid
    return None


def _inode_of(local_port: int, remote_port: int) -> str | None:
    local, remote = f":{local_port:04X}", f":{remote_port:04X}"
    with _TABLE.open() as lines:
        next(lines)
        for line in lines:
            fields = line.split(None, 10)
            if fields[1].endswith(local) and fields[2].endswith(remote):
                return None if fields[9] == "0" else fields[9]
    return None


def _holds(pid: int, link: str) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):
            try:
                if os.readlink(f"{folder}/{name}") == link:
                    return True
            except OSError:
                continue
    except OSError:
        return False
    return False
