"""``python -m repl.bench.waking``: what threads that share a sync reach with next to nothing of a log's own work.

Each of N threads puts a lock of its own on a list and waits for it; one thread takes the list, sleeps for a sync, and
has the threads woken one by another, as the embedded log does.  ``--append-us`` and ``--group-us`` are Python
that is spent on each append and on each group with the interpreter's lock held, ``--write`` is a write before the sync.
Printed: appends and syncs a second, and the syncs beside those of a loop of the sleep alone.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time

from vlsn.real.threads import OneShot, Relay


class _Model:
    def __init__(self, options: argparse.Namespace, descriptor: int) -> None:
        self._options = options
        self._descriptor = descriptor
        self._latch = threading.RLock()
        self._waiting: list[OneShot] = []
        self._wanted = threading.Semaphore(0)
        self._idle = True
        self.syncs = 0

    def append(self) -> None:
        for _ in range(self._options.appends):
            _spend(self._options.append_us)
            shot = OneShot()
            with self._latch:
                self._waiting.append(shot)
                wake, self._idle = self._idle, False
            if wake:
                self._wanted.release()
            shot.wait()

    def write(self, appends: int) -> None:
        relay = Relay(())
        while appends:
            with self._latch:
                group, self._waiting = self._waiting, []
                self._idle = not group
            if not group:
                relay.finish()
                self._wanted.acquire()
                continue
            relay.pass_on()
            if self._options.write:
                os.pwrite(self._descriptor, b"x" * 800, 0)
            time.sleep(self._options.sync_us / 1e6)
            self.syncs += 1
            appends -= len(group)
            _spend(self._options.group_us)
            relay.finish()
            relay = Relay(group)
        relay.finish()


def _spend(microseconds: float) -> None:
    until = time.perf_counter() + microseconds / 1e6
    while microseconds and time.perf_counter() < until:
        pass


def _sleeps_a_second(sync_us: float) -> float:
    began = time.perf_counter()
    for _ in range(500):
        time.sleep(sync_us / 1e6)
    return 500 / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m repl.bench.waking", description=__doc__)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--appends", type=int, default=2_000, help="of each thread")
    parser.add_argument("--sync-us", type=float, default=90, help="asked of sleep, which takes 10 to 70 more")
    parser.add_argument("--append-us", type=float, default=0)
    parser.add_argument("--group-us", type=float, default=0)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    raw = _sleeps_a_second(options.sync_us)
    with tempfile.TemporaryFile() as file:
        model = _Model(options, file.fileno())
        appends = options.threads * options.appends
        threads = [threading.Thread(target=model.append) for _ in range(options.threads)]
        threads.append(threading.Thread(target=model.write, args=(appends,)))
        began = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - began
    syncs = model.syncs / seconds
    print(
        f"{appends / seconds:,.0f} appends/s, {appends / model.syncs:.1f} a sync, "
        f"{syncs:,.0f} of {raw:,.0f} syncs/s: {syncs / raw:.2f}"
    )


if __name__ == "__main__":
    main()
