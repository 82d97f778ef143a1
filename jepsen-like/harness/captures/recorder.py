"""The consumer under test: it records each event, synced, before it answers.

It runs in a child process of a node.  Each life of it has a file of its own, outside of the nodes' directories, with a
line for its start, one for each call of ``on_events``, one for its stop:

    leads-n2-88123456789-4711.jsonl      {"f":"start","next":41, …} {"f":"events","vlsns":[41,43],"next":44,"said":true}

A line is on the disk before the call returns, so everything that a node stores was recorded before.  The behaviour of a
recorder changes every few seconds, by chance; once the file ``settled`` exists it behaves well.
"""

from __future__ import annotations

import json
import os
import time
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from harness.values import number_of
from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvents

SETTLED = "settled"
TEMPER_S = (1.0, 6.0)


class Temper(NamedTuple):
    """The probabilities of what a call does."""

    says_false: float = 0.0
    takes_few: float = 0.0
    takes_nothing: float = 0.0
    sleeps: float = 0.0
    raises: float = 0.0
    exits: float = 0.0


WELL = Temper()
TEMPERS = (
    WELL,
    WELL,
    Temper(says_false=0.7, takes_few=0.3),
    Temper(takes_few=0.8, sleeps=0.3),
    Temper(takes_nothing=0.3, says_false=0.3),
    Temper(sleeps=1.0),
    Temper(raises=0.05, says_false=0.3),
    Temper(exits=0.05, takes_few=0.5, says_false=0.3),
)
SLEEPS_S = 0.4


class OnPurpose(Exception):
    """Raised by the recorder."""


class Recorder(CdcConsumer):
    """One process of one consumer."""

    def start(self, context: CdcContext) -> None:
        folder = Path(context.options["directory"])
        began_ns = time.monotonic_ns()
        name = f"{context.name}-{context.node}-{began_ns}-{os.getpid()}.jsonl"
        self._settled = folder / SETTLED
        self._file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._chance = Random(f"{context.options['seed']} {name}")
        self._temper, self._until_s = WELL, 0.0
        self._write(
            "start",
            name=context.name,
            node=context.node,
            run_on=context.run_on,
            next=context.next,
            term=context.term,
            moved=context.moved,
            pid=os.getpid(),
            parent=os.getppid(),
            at=began_ns,
        )

    def on_events(self, events: CdcEvents) -> bool:
        chance, temper = self._chance, self._now()
        if chance.random() < temper.takes_nothing:
            return chance.random() < 0.5
        if chance.random() < temper.sleeps:
            time.sleep(chance.uniform(0.0, SLEEPS_S))
        few = chance.randint(1, 5) if chance.random() < temper.takes_few else None
        taken = list(islice(events, few))
        said = chance.random() >= temper.says_false
        fault = chance.random()
        raises = fault < temper.raises
        exits = not raises and fault < temper.raises + temper.exits
        self._write(
            "events",
            vlsns=[each.vlsn for each in taken],
            terms=[each.term for each in taken],
            txns=[each.txn for each in taken],
            numbers=[number_of(each.value, each.key or b"") for each in taken],
            next=events.next_vlsn,
            said=said and not raises and not exits,
        )
        if raises:
            raise OnPurpose(f"behind VLSN {events.next_vlsn - 1}")
        if exits:
            os._exit(chance.choice((0, 3)))
        return said

    def stop(self) -> None:
        self._write("stop")

    def _now(self) -> Temper:
        now_s = time.monotonic()
        if now_s > self._until_s:
            self._until_s = now_s + self._chance.uniform(*TEMPER_S)
            self._temper = self._chance.choice(TEMPERS)
        return WELL if self._settled.exists() else self._temper

    def _write(self, what: str, **more: Any) -> None:
        line = json.dumps({"f": what, "at": time.monotonic_ns(), **more}, separators=(",", ":")) + "\n"
        data = line.encode()
        while data:
            data = data[os.write(self._file, data) :]
        os.fsync(self._file)
