"""Forks: a child has its parent's memory and none of its threads, so what rests on a thread is told there.

    gunicorn --preload, Celery, multiprocessing     opened in the parent, used in the child: ``LogClosed``, at once

What is shared with the parent (a lock, sockets, an event loop's poll) stays as it is: the parent goes on with it.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class OfThreads(Protocol):
    def forked(self) -> None:
        """In the child, on its only thread, before anything else; takes no lock, for one may be held for ever."""
        ...


def tell_of_forks(one: OfThreads) -> None:
    """For as long as ``one`` lives."""
    _told.add(one)


_told: WeakSet[OfThreads] = WeakSet()
"""Of this process."""


def _forked() -> None:
    for one in list(_told):
        one.forked()


os.register_at_fork(after_in_child=_forked)
