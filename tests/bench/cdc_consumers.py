"""The consumers that the benchmark runs in its nodes: one that counts, and those that do what they must not.

``Counts`` writes what it saw into a file that the benchmark maps, so that a figure costs no question:

    0        8     16        24      32
    |entries |last |began ns |now ns |      then, with ``stamps``, 16 bytes for each entry: its VLSN, and when it came

Times are ``perf_counter_ns``, which all processes of a machine share.
"""

from __future__ import annotations

import mmap
import os
import time
from pathlib import Path
from struct import Struct
from typing import Final

from repl.cdc import CdcConsumer
from repl.cdc.consumer import CdcContext, CdcEvents

HEAD: Final = Struct("<qqqq")
STAMP: Final = Struct("<qq")


class Counts(CdcConsumer):
    """Takes everything, and returns True."""

    def start(self, context: CdcContext) -> None:
        path = Path(context.options["counts"])
        stamps = int(context.options.get("stamps", 0))
        size = HEAD.size + stamps * STAMP.size
        path.touch()
        os.truncate(path, size)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), size)
        self._stamps = stamps
        self._entries = self._began = 0

    def on_events(self, events: CdcEvents) -> bool:
        now = time.perf_counter_ns()
        count = self._entries
        self._began = self._began or now
        last = 0
        if self._stamps:
            for event in events:
                last = event.vlsn
                if count < self._stamps:
                    STAMP.pack_into(self._map, HEAD.size + count * STAMP.size, last, time.perf_counter_ns())
                count += 1
        else:
            for event in events:
                last = event.vlsn
                count += 1
        self._entries = count
        HEAD.pack_into(self._map, 0, count, last, self._began, time.perf_counter_ns())
        return True


class Spins(CdcConsumer):
    """Never returns, and computes."""

    def on_events(self, events: CdcEvents) -> bool:
        while True:
            pass


class Eats(CdcConsumer):
    """Takes all the memory that it may have."""

    def on_events(self, events: CdcEvents) -> bool:
        eaten = []
        while True:
            eaten.append(bytes(b"x" * (1 << 20)))


class Exits(CdcConsumer):
    """Ends its process."""

    def on_events(self, events: CdcEvents) -> bool:
        os._exit(7)


class Prints(CdcConsumer):
    """Prints without end."""

    def on_events(self, events: CdcEvents) -> bool:
        while True:
            print("x" * 1000)


class NeverReads(CdcConsumer):
    """Takes nothing of what it is sent, and never returns."""

    def on_events(self, events: CdcEvents) -> bool:
        while True:
            time.sleep(3600)
