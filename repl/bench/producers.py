"""``bench producers``: what exactly-once producers cost a node: a submission, a checkpoint, an open, a restore.

The table, the state record and LMDB are a node's own; what stands around them in a node is left out.  Producers submit
in turns, so that each is heard of again when all others were.  A checkpoint's part at home is what holds the event loop
up; the rest is another thread's, beside which a loop that does nothing else looks how long it was held up at most.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from repl.node.process import tune_interpreter
from vlsn.errors import BadArgument
from vlsn.ids import Vlsn
from vlsn.limits import PRODUCERS_MAX, PRODUCERS_MIN, STATE_MAP_BYTES
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state.history import History
from vlsn.state.state_store import StateRecord, StateStore

ROUNDS: Final = 5
TURNS: Final = 10
TICK_S: Final = 0.0002


@dataclass(frozen=True, slots=True)
class CheckpointFigures:
    """Medians over the rounds, in milliseconds."""

    changed: int
    """The producers that were heard of since the checkpoint before."""
    home_ms: float
    """Processor time, as ``keeper_cpu_ms``: other work of the machine is not in it."""
    keeper_cpu_ms: float
    keeper_ms: float
    """From its beginning to the end of LMDB's sync."""
    held_up_ms: float
    """The longest that the loop was held up beside the keeper, the worst of all rounds."""


@dataclass(frozen=True, slots=True)
class ProducersFigures:
    producers: int
    submissions: int
    refused: int
    """Submissions of producers that the table had forgotten."""
    submission_us: float
    checkpoints: list[CheckpointFigures]
    open_ms: float
    """Processor time, as the next two."""
    restore_home_ms: float
    restore_ms: float
    """Putting the whole record together for who restores, on another thread."""
    record_bytes: int
    store_bytes: int

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        return [
            f"{self.producers:,} producers in turns, {self.submissions:,} submissions: {self.refused:,} refused, "
            f"{self.submission_us:.2f} µs each in the table",
            *(
                f"checkpoint, {each.changed:,} of them changed: {each.home_ms:.2f} ms at home; on the keeper's "
                f"thread {each.keeper_cpu_ms:.1f} ms, {each.keeper_ms:.1f} ms with what it waits for, beside which the "
                f"loop waited {each.held_up_ms:.1f} ms at most"
                for each in self.checkpoints
            ),
            f"open: {self.open_ms:.0f} ms; for a restore: {self.restore_home_ms:.2f} ms at home, "
            f"{self.restore_ms:.0f} ms on another thread, {self.record_bytes / 1e6:.1f} MB; "
            f"state/ {self.store_bytes / 1e6:.1f} MB",
        ]


def run_producers(*, producers: int = 50_000, level: int = 2) -> ProducersFigures:
    """Runs in a temporary directory (``TMPDIR``), which is removed."""
    if not PRODUCERS_MIN <= producers <= PRODUCERS_MAX:
        raise BadArgument(f"{PRODUCERS_MIN} to {PRODUCERS_MAX} producers")
    directory = Path(tempfile.mkdtemp(prefix="vlsnlog-bench-"))
    try:
        with _as_in_a_node():
            return _Bench(str(directory / "state"), producers, level).run()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


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


class _Bench:
    def __init__(self, path: str, producers: int, level: int) -> None:
        self._path, self._producers = path, producers
        self._history = History(StateRecord(vlsn=Vlsn(1), level=level, level_vlsn=Vlsn(1)))
        if producers > self._history.producers.limit:
            self._history.producers.limit_from(1, producers)
        self._next = [0] * producers
        self._last = 1
        self._refused = 0

    def run(self) -> ProducersFigures:
        everybody = range(self._producers)
        began = time.thread_time()
        for _ in range(TURNS):
            self._submit(everybody)
        took_s = time.thread_time() - began
        submissions = TURNS * self._producers
        self._keep()
        checkpoints = [self._measured(min(changed, self._producers)) for changed in (100, 1_000, self._producers)]
        opening = [_cpu(self._open)[1] for _ in range(ROUNDS)]
        snapshot, home_s = _cpu(lambda: self._history.snapshot(Vlsn(self._last), trimmed_to=Vlsn(0), first_segment=0))
        record, made_s = _cpu(snapshot)
        return ProducersFigures(
            producers=self._producers,
            submissions=submissions,
            refused=self._refused,
            submission_us=took_s / submissions * 1e6,
            checkpoints=checkpoints,
            open_ms=statistics.median(opening) * 1e3,
            restore_home_ms=home_s * 1e3,
            restore_ms=made_s * 1e3,
            record_bytes=len(record.producers.lives),
            store_bytes=sum(each.stat().st_size for each in Path(self._path).iterdir()),
        )

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

    def _measured(self, changed: int) -> CheckpointFigures:
        figures = []
        for number in range(ROUNDS):
            start = number * changed % max(1, self._producers - changed)
            self._submit(range(start, start + changed))
            figures.append(self._keep())
        home, cpu, keeper, held_up = (list(column) for column in zip(*figures, strict=True))
        return CheckpointFigures(
            changed, statistics.median(home), statistics.median(cpu), statistics.median(keeper), max(held_up)
        )

    def _keep(self) -> tuple[float, float, float, float]:
        """Makes a checkpoint. Returns milliseconds: processor time at home, on the keeper's thread, that from its begin
        to its end, and how long the loop was held up at most."""
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
