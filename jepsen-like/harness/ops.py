"""The history of a run: operations as JSON lines, written while it runs.

    {"index":7,"time":1203345678,"process":"w2","type":"invoke","f":"append","value":{"numbers":[41,42]}}
    {"index":9,"time":1206001234,"process":"w2","type":"ok","f":"append","value":{"numbers":[41,42],"first":57}}

``time``: ns since the run began, monotonic.  An operation ends in one of three ways:

    ok    it happened                       fail    it did not happen, and never will
    info  it may have happened, or may yet

| f | process | value |
|---|---|---|
| append | a writer | ``numbers``: one atomic append; ``burst``: one of several sent at once; ``txn``: a transaction |
| | | ok: ``first`` VLSN |
| seek | a reader | its next poll begins at ``from`` VLSN; ``nodes`` that it may ask |
| poll | a reader | ok: ``vlsns``, ``terms``, ``numbers`` of one page; the log's own entries have 0, or -2: COMMIT |
| look | a reader | reads new entries, linearizable; ok: ``to`` is the last VLSN that it read |
| final | ``final`` | a page of ``node`` from the first VLSN to ``to``, after healing; info: it served no more |
| status | ``watch`` | info: a node's status, when it changed |
| cdc | ``captures`` | info: a node's report on its consumers |
| position | ``captures`` | info: the content of a position file of a node that is down |
| left | ``captures`` | info: processes of consumers that run when no node does |
| members | ``nemesis``, ``group`` | info: a change begins or ends, with ``members`` and ``electable`` at that time |
| kill, pause … | ``nemesis`` | info: a fault begins or ends; ``struck`` if it had its effect |
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import msgspec

Type = Literal["invoke", "ok", "fail", "info"]


class Op(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the history."""

    index: int
    time: int
    process: str
    type: Type
    f: str
    value: dict[str, Any] = {}
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.time / 1e9


class Recorder:
    """Writes a history.  Not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.ops: list[Op] = []
        self.counts = {"ok": 0, "fail": 0, "info": 0}
        """The outcomes of appends."""
        self._number = 0
        self._began_ns = time.monotonic_ns()
        self._encoder = msgspec.json.Encoder()
        self._file = path.open("wb", buffering=1 << 16)

    def now_s(self) -> float:
        """Returns the seconds since the run began."""
        return (time.monotonic_ns() - self._began_ns) / 1e9

    @property
    def began_ns(self) -> int:
        """The beginning of the run, by the machine's monotonic clock."""
        return self._began_ns

    def next_number(self) -> int:
        """Returns a number for one value, used once."""
        self._number += 1
        return self._number

    def record(self, process: str, type: Type, f: str, value: dict[str, Any] | None = None, error: str = "") -> Op:
        op = Op(len(self.ops), time.monotonic_ns() - self._began_ns, process, type, f, value or {}, error)
        self.ops.append(op)
        self._file.write(self._encoder.encode(op) + b"\n")
        if f == "append" and type != "invoke":
            self.counts[type] += 1
        return op

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_history(path: Path) -> list[Op]:
    """Reads a history as it was written."""
    decoder = msgspec.json.Decoder(Op)
    with path.open("rb") as lines:
        return [decoder.decode(line) for line in lines]


def numbered(ops: Iterable[tuple[str, Type, str, dict[str, Any]]]) -> list[Op]:
    """Makes a history by hand: operations (process, type, f, value), in their order, a millisecond apart."""
    return [
        Op(index, index * 1_000_000, process, type, f, value) for index, (process, type, f, value) in enumerate(ops)
    ]
