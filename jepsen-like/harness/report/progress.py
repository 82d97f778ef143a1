"""Progress: one line of a terminal that is overwritten; elsewhere a line each ``EACH_S``."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time

from harness.group.watch import Watch
from harness.nemesis.nemesis import Nemesis
from harness.ops import Recorder

TICK_S = 0.2
EACH_S = 10.0
CLEAR = "\r\x1b[2K"


class Progress:
    """Shows the stage of a run and its figures.  With ``quiet`` it prints nothing."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._terminal = sys.stdout.isatty() and not quiet
        self._quiet = quiet
        self._stage, self._seconds, self._since = "", 0.0, time.monotonic()
        self._recorder: Recorder | None = None

    def of(self, recorder: Recorder, watch: Watch, nemesis: Nemesis) -> None:
        self._recorder, self._watch, self._nemesis = recorder, watch, nemesis

    def stage(self, name: str, seconds: float = 0.0) -> None:
        self._stage, self._seconds, self._since = name, seconds, time.monotonic()
        self._show()

    async def run(self) -> None:
        """Shows progress until cancelled; also flushes the history."""
        said = time.monotonic()
        while True:
            await asyncio.sleep(TICK_S)
            if self._recorder is not None:
                self._recorder.flush()
            if self._terminal or time.monotonic() - said >= EACH_S:
                said = time.monotonic()
                self._show()

    def say(self, line: str = "") -> None:
        """Prints a line that stays."""
        if not self._quiet:
            print((CLEAR if self._terminal else "") + line, flush=True)

    def _show(self) -> None:
        if self._quiet:
            return
        if self._terminal:
            width = shutil.get_terminal_size().columns - 1
            sys.stdout.write(CLEAR + self._line()[:width])
            sys.stdout.flush()
        else:
            print(self._line(), flush=True)

    def _line(self) -> str:
        at = time.monotonic() - self._since
        parts = [f"{self._stage} {at:.0f}/{self._seconds:.0f} s" if self._seconds else self._stage]
        if self._recorder is not None:
            counts = self._recorder.counts
            parts.append(f"{counts['ok']:,} ok {counts['fail']:,} fail {counts['info']:,} info")
            parts.append(f"master {self._watch.master or '-'}, {self._watch.changes} changes")
            struck = ", ".join(f"{kind} {count}" for kind, count in sorted(self._nemesis.struck.items()))
            parts.append(struck or "no fault yet")
            parts += [f"now: {', '.join(self._nemesis.now.values())}"] if self._nemesis.now else []
        return "  ".join(parts)
