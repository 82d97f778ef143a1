"""The first step of the command ``vlsnlog``: Ctrl-C ends it without a word while its modules are being loaded, too."""

from __future__ import annotations

import signal


def main() -> int:
    """Its exit status."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:  # else it is ignored, and stays so
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from repl.cli.main import main as run

    signal.signal(signal.SIGINT, handler)
    return run()
