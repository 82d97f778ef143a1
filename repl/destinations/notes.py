"""Notes of acknowledgements: collected for a moment, logged by one COMMIT, and answered when that COMMIT is durable.

    ack {5,6} ─┐
    ack {9}    ├─ 20 ms, or 4,096 of them ─► COMMIT {acks} ─► durable: folded (``vlsn/state/acks``), answered
    tries 2    ┘  or 256, and no note is under way

A collected acknowledgement stops the delivery of its message at once, and becomes final with its COMMIT. If a note
cannot be logged, its messages are delivered again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from repl.api import Appended
from repl.destinations.limits import GATHER_S, NOTE_ACKS, NOTE_ACKS_SOON, NOTE_S, NOTE_SOON_S, NOTES_UNDER_WAY_MAX
from vlsn.errors import NotMaster, VlsnLogError
from vlsn.format.records import AckNote, CommitEntry
from vlsn.format.submission import Submission, Transaction
from vlsn.format.vlsn_set import VlsnSet

Done = Callable[[Appended | VlsnLogError], None]
Submit = Callable[[Submission, Done], object]
"""Logs a submission. ``done`` is called once the submission is durable or refused. Raises an error if the submission
is refused at once."""


class Noted(Protocol):
    """The destination that a note belongs to."""

    @property
    def uuid(self) -> str: ...

    def skipped(self) -> VlsnSet:
        """Returns the VLSNs that were skipped since the last call. The next note acknowledges the skipped VLSNs."""
        ...

    def noted(self, done: VlsnSet) -> None:
        """Called when the acknowledgements of these VLSNs are durable."""
        ...

    def given_back(self, done: VlsnSet) -> None:
        """Called when the acknowledgements of these VLSNs could not be logged."""
        ...


@dataclass(slots=True)
class _Gathered:
    done: list[VlsnSet] = field(default_factory=list)
    tries: dict[int, list[int]] = field(default_factory=dict)
    waiters: list[asyncio.Future[None]] = field(default_factory=list)
    count: int = 0


class Notes:
    """The notes of one master's term. ``close`` is called when the term ends."""

    def __init__(self, submit: Submit, folded: Callable[[], None]) -> None:
        """``folded`` applies durable acknowledgements to the table."""
        self._submit = submit
        self._fold = folded
        self._open: dict[Noted, _Gathered] = {}
        self._under_way: dict[int, list[tuple[Noted, VlsnSet, list[asyncio.Future[None]]]]] = {}
        self._number = 0
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        """The event loop's time at which the timer is due. The time is kept here because uvloop returns no
        ``TimerHandle`` for a call that is due within a millisecond."""
        self._closed = False
        self._noted_s = -NOTE_S
        """The event loop's time of the last note."""
        self.logged = 0
        """The number of notes that became durable."""

    def add(self, of: Noted, done: VlsnSet, *, wait: bool) -> asyncio.Future[None] | None:
        """Collects an acknowledgement of these VLSNs. With ``wait`` the future completes when the acknowledgement is
        durable."""
        gathered = self._open.setdefault(of, _Gathered())
        gathered.done.append(done)
        gathered.count += done.count
        told: asyncio.Future[None] | None = None
        if wait:
            told = asyncio.get_running_loop().create_future()
            gathered.waiters.append(told)
        self._ask()
        return told

    def tried(self, of: Noted, attempts: dict[int, int]) -> None:
        """Records attempts of messages, by VLSN, from the second attempt on."""
        gathered = self._open.setdefault(of, _Gathered())
        for vlsn, attempt in attempts.items():
            gathered.tries.setdefault(attempt, []).append(vlsn)
        gathered.count += len(attempts)
        self._ask()

    def under_way(self, of: Noted) -> VlsnSet:
        """Returns the VLSNs whose acknowledgement is logged and not durable yet."""
        return VlsnSet.covering_all(
            [done for parts in self._under_way.values() for each, done, _ in parts if each is of]
        )

    def forget(self, of: Noted) -> None:
        """Discards the acknowledgements that were collected for a destination, because it was dropped or moved."""
        gathered = self._open.pop(of, None)
        for waiter in gathered.waiters if gathered is not None else ():
            _settle(waiter, None)

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        gone = NotMaster("this node has stopped leading; acknowledged messages may be delivered again")
        waiters = [waiter for gathered in self._open.values() for waiter in gathered.waiters]
        self._open.clear()
        for waiter in waiters:
            _settle(waiter, gone)

    # One note.

    def _ask(self) -> None:
        if self._closed or not self._open or len(self._under_way) >= NOTES_UNDER_WAY_MAX:
            return
        count = sum(gathered.count for gathered in self._open.values())
        loop = asyncio.get_running_loop()
        now = loop.time()
        soon = count >= NOTE_ACKS_SOON and not self._under_way
        when = self._noted_s + NOTE_SOON_S if soon else max(now + GATHER_S, self._noted_s + NOTE_S)
        if count < NOTE_ACKS and when > now and self._timer is not None and when >= self._timer_s:
            return
        if self._timer is not None:
            self._timer.cancel()
        if count >= NOTE_ACKS or when <= now:
            self._note()
        else:
            self._timer, self._timer_s = loop.call_at(when, self._note), when

    def _note(self) -> None:
        self._timer = None
        self._noted_s = asyncio.get_running_loop().time()
        notes: dict[str, AckNote] = {}
        parts: list[tuple[Noted, VlsnSet, list[asyncio.Future[None]]]] = []
        room = NOTE_ACKS
        for of in list(self._open):
            if room <= 0:
                break
            gathered = self._open.pop(of)
            done = VlsnSet.covering_all([*gathered.done, of.skipped()])
            waiters = gathered.waiters
            if done.intervals > room:
                rest, done = done.behind(room), done.head(room)
                self._open[of] = _Gathered([rest], {}, waiters, rest.count)
                waiters = []
            tries = {count: VlsnSet.of(vlsns).pack() for count, vlsns in gathered.tries.items()}
            notes[of.uuid] = AckNote(done=done.pack(), tries=tries)
            room -= done.intervals + len(gathered.tries)
            parts.append((of, done, waiters))
        if parts:
            self._log(notes, parts)
        self._ask()

    def _log(self, notes: dict[str, AckNote], parts: list[tuple[Noted, VlsnSet, list[asyncio.Future[None]]]]) -> None:
        self._number += 1
        number = self._number
        self._under_way[number] = parts
        try:
            self._submit(Transaction((), CommitEntry(acks=notes).encode()), lambda result: self._told(number, result))
        except VlsnLogError as error:
            self._told(number, error)

    def _told(self, number: int, result: Appended | VlsnLogError) -> None:
        parts = self._under_way.pop(number)
        if isinstance(result, Appended):
            self.logged += 1
            self._fold()
        for of, done, waiters in parts:
            if isinstance(result, Appended):
                of.noted(done)
            else:
                of.given_back(done)
            for waiter in waiters:
                _settle(waiter, None if isinstance(result, Appended) else result)
        self._ask()


def _settle(waiter: asyncio.Future[None], error: VlsnLogError | None) -> None:
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(error)
        waiter.exception()  # marks the error as seen, because the client may have left
