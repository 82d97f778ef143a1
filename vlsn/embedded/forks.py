"""Forks. A forked child process has its parent's memory but not its parent's threads. So objects that need threads are
notified in the child.

    gunicorn --preload, Celery, multiprocessing     opened in the parent, used in the child: ``LogClosed``, at once

Resources that the child shares with the parent (a lock, sockets, an event loop's poll) are not changed, since the
parent continues to use them.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class OfThreads(Protocol):
    def forked(self) -> None:
        """Is called in the child after the fork, on the child's only thread. This method must not acquire a lock, since
        in the child a lock may be held for ever."""
        ...


def tell_of_forks(one: OfThreads) -> None:
    """Notifies ``one`` of each fork of this process, as long as ``one`` lives."""
    _told.add(one)


_told: WeakSet[OfThreads] = WeakSet()
"""The objects of this process that are notified of forks."""


def _forked() -> None:
    for one in list(_told):
        one.forked()


os.register_at_fork(after_in_child=_forked)
