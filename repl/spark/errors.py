"""Words to the person who runs a query: errors as one line, without a worker's traceback, and what went otherwise."""

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
"""PySpark's own switch; a worker that reports an exception ends right after it, so nobody else is quieted."""


def one_line(call: Callable[P, R]) -> Callable[P, R]:
    """Wraps a method that Spark calls: our own errors leave a worker as one line."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return call(*args, **kwargs)
        except VlsnLogError:
            quiet()
            raise

    return called


def each_one_line(call: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
    """Wraps a generator as ``one_line`` does a call."""

    @wraps(call)
    def called(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        try:
            yield from call(*args, **kwargs)
        except VlsnLogError:
            quiet()
            raise

    return called


def quiet() -> None:
    """Hides the traceback of the error that this process is about to report, if Spark runs it as a worker."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and (spec.name or "").startswith("pyspark."):
        os.environ[HIDE] = "1"


def tell(text: str) -> None:
    """Reports a deviation from the request: Spark shows a worker's stderr."""
    print(f"vlsnlog: {text}", file=sys.stderr, flush=True)
