"""A replicated log: node, group, HTTP, command line, client, audit.

    from repl import connect, connect_sync      # the same as `from vlsnlog import …`

The package has the names of ``vlsnlog``, the errors that calls raise included.
"""

from __future__ import annotations

# type checkers assume that this name is true; importing `typing` would take most of the time before a command starts
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from vlsnlog import *  # noqa: F403


def __getattr__(name: str) -> Any:
    # imported on first use, so that the command line starts without aiohttp and NumPy
    import vlsnlog

    if name == "__all__" or (not name.startswith("_") and hasattr(vlsnlog, name)):
        return getattr(vlsnlog, name)
    raise AttributeError(f"module 'repl' has no attribute {name!r}")
