"""Appends of an embedded log whose callers wait. This module decides when each append gets its answer, and which
answer.

    sealed ─► waiting, in log order ─► synced(last) ─► appends up to ``last`` are answered, by a relay
                    └► failed ─► ``OutcomeUnknown``

All calls are made on the owner's thread (``seams.Worker``), under the log's latch.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from vlsn.errors import LogFailed, OutcomeUnknown, VlsnLogError
from vlsn.format.submission import Submission
from vlsn.ids import Vlsn
from vlsn.real.threads import LoopShot, OneShot, Relay
from vlsn.state.options import Durability
from vlsn.write.queue import Pending
from vlsn.write.write_cycle import LogListener

if TYPE_CHECKING:
    from vlsn.write.local_log import LocalLog


class WaitingAppend(Pending):
    """An append whose caller gets exactly one answer, through ``shot``."""

    __slots__ = ("_told", "shot")

    def __init__(self, submission: Submission, durability: Durability, shot: OneShot | LoopShot) -> None:
        super().__init__(submission, durability)
        self.shot = shot
        self._told = False

    def tell(self, error: VlsnLogError | None = None) -> None:
        if not self._told:
            self._told = True
            self.shot.give(error)

    def tell_by_relay(self) -> OneShot | None:
        """Answers like ``tell``. If a thread waits for the answer, returns the thread's ``OneShot``; the caller must
        then wake the thread with it."""
        if self._told or not isinstance(self.shot, OneShot):
            self.tell()
            return None
        self._told = True
        return self.shot

    def refused(self, error: VlsnLogError) -> None:
        self.tell(error)


class WaitingAppends(LogListener):
    """Answers the waiting appends of ``log``. This object is set as the log's listener before the first append."""

    log: LocalLog

    def __init__(self, latch: AbstractContextManager[object]) -> None:
        self._latch = latch
        self._for_sync: deque[WaitingAppend] = deque()
        self._for_write: deque[WaitingAppend] = deque()
        self._relay = Relay(())

    def sealed(self, pendings: list[Pending]) -> None:
        for pending in pendings:
            assert isinstance(pending, WaitingAppend)
            if pending.durability is Durability.SYNC:
                self._for_sync.append(pending)
            elif pending.durability is Durability.WRITE_NO_SYNC:
                self._for_write.append(pending)

    def written(self, last_vlsn: Vlsn) -> None:
        self._tell(self._for_write, last_vlsn)

    def synced(self, last_vlsn: Vlsn) -> None:
        if self.log.options.durable_when_synced:
            self.log.view.raise_dtvlsn(last_vlsn)
        self._tell(self._for_write, last_vlsn)
        self._tell(self._for_sync, last_vlsn)

    def failed(self, error: LogFailed) -> None:
        with self._latch:  # an append that is synced meanwhile gets that answer, and no other
            self._failed(error)

    def _failed(self, error: LogFailed) -> None:
        self._relay.finish()
        waiting = [*self._for_write, *self._for_sync]
        self._for_write.clear()
        self._for_sync.clear()
        for pending in waiting:
            unknown = OutcomeUnknown(f"the log failed while this was being synced: {error}")
            unknown.__cause__ = error
            pending.tell(unknown)

    def _tell(self, waiting: deque[WaitingAppend], last_vlsn: Vlsn) -> None:
        """Answers all appends up to ``last_vlsn``, and the earlier appends that the previous relay has not reached yet.
        While this thread has another group to write, it wakes only one of the waiting threads, and the woken threads
        wake the others."""
        if not waiting or waiting[0].last > last_vlsn:
            return
        self._relay.finish()
        shots = []
        while waiting and waiting[0].last <= last_vlsn:
            if (shot := waiting.popleft().tell_by_relay()) is not None:
                shots.append(shot)
        self._relay = Relay(shots)
        if self.log.cycle.group is not None:
            self._relay.pass_on()
        else:
            self._relay.finish()
