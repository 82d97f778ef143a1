"""The first step of the command ``vlsnlog``: Ctrl-C ends the process at once, without output.

That changes only while a command has something to clean up (``signals.py``). A ``KeyboardInterrupt`` would otherwise
print an unexpected traceback, and would be lost inside a finaliser.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what is below `signal`, which takes as long to load as all before it
import sys


def main() -> int:
    """Runs the command and returns its exit status."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # otherwise it is ignored, and stays so
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from repl.cli.main import main as run
    from repl.cli.signals import end_at_once

    try:
        return run()
    finally:
        end_at_once()


if __name__ == "__main__":
    sys.exit(main())
