"""The cost of exactly-once producers to a node: a submission, a checkpoint, an open, a restore.

The table, the state record and LMDB are a node's own; the code around them in a node is left out.  Producers submit in
turns, so that each is heard of again when all others were.  A checkpoint's part on the owner's thread holds the event
loop up. The rest runs on another thread; beside it an idle loop measures how long it was held up at most.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from repl.node.process import tune_interpreter
from tests.bench.report import Aimed, Figures, Sections
from vlsn.errors import BadArgument
from vlsn.ids import Vlsn
from vlsn.limits import PRODUCERS_MAX, PRODUCERS_MIN, STATE_MAP_BYTES
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state.history import History
from vlsn.state.state_store import StateRecord, StateStore

ROUNDS: Final = 5
TURNS: Final = 10
TICK_S: Final = 0.0002


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--producers", type=int, default=50_000, help="how many submit, in turns")


def measured(options: argparse.Namespace) -> Sections:
    """Runs in a temporary directory (``TMPDIR``), which is removed.  Times are of the processor unless they say more;
    of a checkpoint medians over the rounds.  Raises ``BadArgument``."""
    if not PRODUCERS_MIN <= options.producers <= PRODUCERS_MAX:
        raise BadArgument(f"{PRODUCERS_MIN} to {PRODUCERS_MAX} producers")
    with tempfile.TemporaryDirectory(prefix="vlsnlog-bench-") as directory, _as_in_a_node():
        bench = Bench(f"{directory}/state", options.producers)
        yield f"{options.producers:,} producers in turns", bench.submissions()
        yield "a checkpoint", [bench.checkpoints(changed) for changed in (100, 1_000, options.producers)]
        yield "an open, and a restore", bench.restore()


@contextmanager
def _as_in_a_node() -> Iterator[None]:
    """Sets the interpreter as a node's process does: how soon threads take turns, and when it looks for garbage."""
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    tune_interpreter()
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class Bench:
    def __init__(self, path: str, producers: int) -> None:
        self._path, self._producers = path, producers
        self._history = History(StateRecord(vlsn=Vlsn(1), level=2, level_vlsn=Vlsn(1)))
        if producers > self._history.producers.limit:
            self._history.producers.limit_from(1, producers)
        self._next = [0] * producers
        self._last = 1
        self._refused = 0
        """Submissions of producers that the table had forgotten."""

    def submissions(self) -> Figures:
        began = time.thread_time()
        for _ in range(TURNS):
            self._submit(range(self._producers))
        took_s, count = time.thread_time() - began, TURNS * self._producers
        self._keep()
        return {
            "submissions": count,
            "refused": Aimed(self._refused, "= 0"),
            "us_each_in_the_table": round(took_s / count * 1e6, 2),
        }

    def checkpoints(self, changed: int) -> Figures:
        """Measures checkpoints of which so many producers have changed."""
        figures = []
        for number in range(ROUNDS):
            start = number * changed % max(1, self._producers - changed)
            self._submit(range(start, start + changed))
            figures.append(self._keep())
        home, cpu, keeper, held_up = (list(column) for column in zip(*figures, strict=True))
        return {
            "changed": changed,
            "at_home_ms": round(statistics.median(home), 2),
            "keeper_cpu_ms": round(statistics.median(cpu), 1),
            "keeper_ms": round(statistics.median(keeper), 1),
            "loop_held_up_ms": round(max(held_up), 1),
        }

    def restore(self) -> Figures:
        """Measures opens, and putting the whole record together for a node that restores."""
        opening = [_cpu(self._open)[1] for _ in range(ROUNDS)]
        snapshot, home_s = _cpu(lambda: self._history.snapshot(Vlsn(self._last), trimmed_to=Vlsn(0), first_segment=0))
        record, made_s = _cpu(snapshot)
        return {
            "open_ms": round(statistics.median(opening) * 1e3),
            "restore_at_home_ms": round(home_s * 1e3, 2),
            "restore_on_another_thread_ms": round(made_s * 1e3),
            "record_bytes": len(record.producers.lives),
            "store_bytes": sum(each.stat().st_size for each in Path(self._path).iterdir()),
        }

    def _submit(self, numbers: range) -> None:
        """Notes a submission of each, as it is looked for and sealed."""
        table, following = self._history.producers, self._next
        for number in numbers:
            at = self._last + 1
            life = table.find(number + 1, at=at)
            if following[number] and (life is None or life.next != following[number]):
                self._refused += 1
            table.note([(number + 1, following[number], at, at, 1)])
            following[number] += 1
            self._last = at

    def _keep(self) -> tuple[float, float, float, float]:
        """Makes a checkpoint. Returns milliseconds: processor time on the owner's thread and on the keeper's, the
        keeper's wall time, and the loop's longest wait."""
        history, vlsn = self._history, Vlsn(self._last)
        began = time.thread_time()
        history.settle(vlsn)
        kept = history.checkpoint(vlsn, trimmed_to=Vlsn(0), first_segment=0)
        home_s = time.thread_time() - began
        took: list[float] = []

        def save() -> None:
            # A store has one thread that writes; a thread of each checkpoint opens it anew, and is not measured for it.
            store = StateStore(LmdbStores().open(self._path, map_bytes=STATE_MAP_BYTES))
            opened.set()
            began, began_cpu = time.perf_counter(), time.thread_time()
            record, changes = kept()
            store.save(record=record, changes=changes)
            took.extend((time.thread_time() - began_cpu, time.perf_counter() - began))
            store.close()

        keeper, opened = threading.Thread(target=save), threading.Event()
        held_up = 0.0
        keeper.start()
        opened.wait()
        while len(took) < 2:
            before = time.perf_counter()
            time.sleep(TICK_S)
            held_up = max(held_up, time.perf_counter() - before - TICK_S)
        keeper.join()
        return home_s * 1e3, took[0] * 1e3, took[1] * 1e3, held_up * 1e3

    def _open(self) -> History:
        store = StateStore(LmdbStores().open(self._path, map_bytes=STATE_MAP_BYTES))
        try:
            history = History(store.record())
        finally:
            store.close()
        assert len(history.producers) == len(self._history.producers)
        return history


def _cpu(call: Callable[[], Any]) -> tuple[Any, float]:
    """Returns what the call gives, and the seconds of processor time that it took."""
    began = time.thread_time()
    result = call()
    return result, time.thread_time() - began
