"""Forks: a child has its parent's memory, but none of its threads, so objects that need them are notified.

    gunicorn --preload, Celery, multiprocessing     opened in the parent, used in the child: ``LogClosed``, at once

Things shared with the parent (a lock, sockets, an event loop's poll) stay as they are: the parent goes on with them.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class OfThreads(Protocol):
    def forked(self) -> None:
        """Is called after the fork in the child, on its only thread; takes no lock, which may be held for ever."""
        ...


def tell_of_forks(one: OfThreads) -> None:
    """Tells ``one`` of each fork, for as long as it lives."""
    _told.add(one)


_told: WeakSet[OfThreads] = WeakSet()
"""The objects of this process that are notified."""


def _forked() -> None:
    for one in list(_told):
        one.forked()


os.register_at_fork(after_in_child=_forked)
