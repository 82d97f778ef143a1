"""The pauses between a client's tries of one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, Final

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential
from tenacity.wait import wait_base

EAGER_S: Final = 1.0
"""The pauses stay short for this many seconds, because most changes of master take no longer."""
EAGER_PAUSE_S: Final = 0.1
PAUSE_MAX_S: Final = 1.0


class Backoff(wait_base):
    """A random pause between two tries. During the first second of a fault the pause is between 0 and 0.1 s. Later the
    upper bound doubles with each try, up to 1 s.

    Use a new ``Backoff`` for each fault. Time is measured by the event loop's clock, because tenacity's own clock
    ignores the virtual time of tests.
    ignores the virtual time of tests.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._eager = wait_random_exponential(multiplier=EAGER_PAUSE_S / 2, max=EAGER_PAUSE_S)
        self._later = wait_random_exponential(multiplier=EAGER_PAUSE_S / 4, max=PAUSE_MAX_S)

    def __call__(self, retry_state: RetryCallState) -> float:
        eager = self._loop.time() - self._began_s < EAGER_S
        return (self._eager if eager else self._later)(retry_state)


def retrying(
    may_pass: Callable[[BaseException], bool],
    *,
    until: float = inf,
    stop: Callable[[RetryCallState], bool] | None = None,
    sleep: Any = asyncio.sleep,
    before_sleep: Any = None,
) -> AsyncRetrying:
    """Makes a loop that calls again after each error for which ``may_pass`` is true. The loop stops with the call's
    error if ``stop`` returns true, or if the call fails at or after ``until`` (the event loop's time)."""
    loop = asyncio.get_running_loop()
    return AsyncRetrying(
        wait=Backoff(),
        stop=stop or (lambda _: loop.time() >= until),
        retry=retry_if_exception(may_pass),
        sleep=sleep,
        before_sleep=before_sleep,
        reraise=True,
    )
