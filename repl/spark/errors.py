"""Messages to the user of a query: one-line errors without a worker's traceback, and warnings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Final, ParamSpec, TypeVar

from vlsn.errors import VlsnLogError

P = ParamSpec("P")
R = TypeVar("R")

HIDE: Final = "SPARK_HIDE_TRACEBACK"
"""PySpark's environment variable that hides tracebacks. A worker ends right after it reports an exception, so
setting the variable affects no other error."""


def one_line(call: Callable[P, R]) -> Callable[P, R]:
    """Wraps a method that Spark calls, so that the errors of this project are reported as one line."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except VlsnLogError:
            quiet()
            raise

    return called


def each_one_line(call: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """Wraps a generator in the same way as ``one_line`` wraps a method."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from call(*args, **kwargs)
        except VlsnLogError:
            quiet()
            raise

    return called


def quiet() -> None:
    """Hides the traceback of the error that this process is about to report, if this process is a worker of Spark."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and (spec.name or "").startswith("pyspark."):
        os.environ[HIDE] = "1"


def tell(text: str) -> None:
    """Reports on stderr that a read differs from the request. Spark shows stderr of workers, too."""
    print(f"vlsnlog: {text}", file=sys.stderr, flush=True)
