"""Words to the person who runs a query: Spark shows what a worker writes to stderr."""

from __future__ import annotations

import sys


def tell(text: str) -> None:
    """Tells what went otherwise than asked."""
    print(f"vlsnlog: {text}", file=sys.stderr, flush=True)
