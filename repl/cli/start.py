"""The first step of the command ``vlsnlog``: Ctrl-C ends the process at once, without output.

Only a command with something to clean up changes that (``signals.py``). Python's default, a ``KeyboardInterrupt``,
would print a traceback, and would be lost inside a finaliser.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what is below `signal`, which takes as long to load as all before it
import sys


def main() -> int:
    """Runs the command and returns its exit status."""
    # any other handler means that Ctrl-C is ignored, and it stays so
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from repl.cli.main import main as run
    from repl.cli.signals import end_at_once

    try:
        return run()
    finally:
        end_at_once()


if __name__ == "__main__":
    sys.exit(main())
