"""Runs a consumer in its child process, from START to STOP.

    START ─► HELLO, its class is created, start() ─► READY ─► BLOCKS ─► on_events(), again and again ─► TAKEN
                                                                  True ─► COMMIT (in TAKEN) ─► COMMITTED
    STOP ─► stop() ─► STOPPED                  an exception ─► FAILED, and the process ends

The process has one thread. During a call of the consumer it reads no message, so a slow consumer is sent no more
than one window. The process does not wait for its commits to be stored: the node stores the newest commit and
reports its number.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import fields
from importlib import import_module
from importlib.metadata import entry_points
from typing import Final, Literal

from repl.cdc import messages
from repl.cdc.child.events import Events
from repl.cdc.consumer import CdcConsumer, CdcContext, CdcPosition, CdcUnavailable
from repl.cdc.messages import (
    REASON_CHARACTERS_MAX,
    WAIT_S_MAX,
    Commit,
    Committed,
    Failed,
    Hello,
    Ready,
    Start,
    Stop,
    Stopped,
    Taken,
    ToNode,
)
from vlsn.errors import BadArgument, BadBody
from vlsn.ids import NUMBER_MAX

NOTHING_TAKEN_S: Final = (0.01, 1.0)
"""After a call of the consumer that took no event, the process pauses: at first and at most for these seconds."""
COMMIT_S: Final = 0.01
"""The shortest time in seconds between two COMMITs within one BLOCKS message. The node stores only the newest
position, so more COMMITs would be of no use."""
WORD_S: Final = 1.0
"""A child that works on one message reports after this many seconds that it is still working."""


class Capture:
    """One consumer, and the handling of its messages. The owner of the connection passes each message of the node to
    ``heard`` until ``over`` is true."""

    def __init__(
        self,
        send: Callable[[bytes], None],
        load: Callable[[str], CdcConsumer],
        *,
        sleep: Callable[[float], None],
        monotonic_s: Callable[[], float],
    ) -> None:
        """``load`` creates the consumer from ``module:Class``."""
        self._send_bytes = send
        self._load = load
        self._sleep = sleep
        self._monotonic_s = monotonic_s
        self._consumer: CdcConsumer | None = None
        self._events: Events | None = None
        self._next = 0
        self._last: int | None = None
        self._commits = 0
        self._committed_s = 0.0
        self._untold: Commit | None = None
        """A committed position that the child has not sent to the node yet."""
        self._started = False
        self._said_s = 0.0
        self.over = False
        self.failed = False

    def heard(self, message: bytes) -> None:
        """Handles one message of the node; this includes calling the consumer. Raises ``BadBody``."""
        try:
            if messages.is_blocks(message):
                if self._consumer is None:
                    raise BadBody("BLOCKS came before START")
                self._events = Events(message, self._next, self._last)
                self._taken(self._consumer, self._events)
                self._events.close()
                self._events = None
                return
            order = messages.of_node(message)
            if isinstance(order, Start) and self._consumer is None:
                self._start(order)
            elif isinstance(order, Stop) and self._consumer is not None:
                self._consumer.stop()
                self._send(Stopped())
                self.over = True
            elif not isinstance(order, Committed) or order.number > self._commits:
                raise BadBody(f"{type(order).__name__} out of turn")
        except BadBody:
            raise
        except CdcUnavailable as error:
            why = str(error)[:REASON_CHARACTERS_MAX] or type(error).__name__
            self._fail(why, "unavailable", min(max(error.after_s, 0.0), WAIT_S_MAX))
        except Exception as error:  # the user's code may raise any exception
            refused = isinstance(error, BadArgument) and not self._started
            self._fail(str(error) if refused else _told(error), "refused" if refused else "failed")

    def _start(self, start: Start) -> None:
        self._next, self._last = start.next, start.last
        self._send(Hello())
        self._consumer = consumer = self._load(start.consumer)
        own = consumer.start(CdcContext(**{each.name: getattr(start, each.name) for each in fields(CdcContext)}))
        term = 0
        if isinstance(own, CdcPosition):
            own, term = own
        if own is not None:
            if type(own) is not int or not 1 <= own <= NUMBER_MAX or not 0 <= term <= NUMBER_MAX:
                raise BadArgument(f"start() returned {own!r}; a position is a VLSN from 1 on, or None")
            self._next = own
        self._started = True
        self._send(Ready(own, term))

    def _taken(self, consumer: CdcConsumer, events: Events) -> None:
        """Delivers the events of one message to the consumer, in as many calls as the consumer needs."""
        began, calls, idle = self._monotonic_s(), 0, NOTHING_TAKEN_S[0]
        while not events.over:
            before = events.next_vlsn
            self._next = before
            wanted = consumer.on_events(events)
            calls += 1
            now_s = self._monotonic_s()
            if now_s - self._said_s > WORD_S:
                self._send(Taken(0, before, events.last_time, 0, 0.0))
            if events.next_vlsn == before:  # no event was taken: the same as if the consumer had returned False
                self._sleep(idle)
                idle = min(2 * idle, NOTHING_TAKEN_S[1])
                continue
            idle = NOTHING_TAKEN_S[0]
            if wanted:
                position = wanted if type(wanted) is int else events.next_vlsn
                if not 1 <= position <= events.next_vlsn:
                    raise BadArgument(f"on_events() returned {position}; it has taken up to {events.next_vlsn - 1}")
                self._commits += 1
                self._untold = Commit(self._commits, position)
                if not events.over and now_s - self._committed_s >= COMMIT_S:
                    self._committed_s = now_s
                    self._tell_commit()
        self._next = events.next_vlsn
        last, self._untold = self._untold, None
        taken_s = self._monotonic_s() - began
        taken = Taken(events.bytes, self._next, events.last_time, calls, taken_s, last, events.count, events.given)
        self._send(taken)

    def _tell_commit(self) -> None:
        if self._untold is not None:
            self._send(self._untold)
            self._untold = None

    def _fail(self, reason: str, kind: Literal["failed", "refused", "unavailable"], after_s: float = 0.0) -> None:
        self._tell_commit()
        self._send(Failed(reason, max(self._next, self._given()), kind, after_s))
        self.over = self.failed = True

    def _given(self) -> int:
        """Returns the VLSN of the last event that the consumer has taken; 0 for none."""
        return self._events.given if self._events is not None else 0

    def _send(self, message: ToNode) -> None:
        self._said_s = self._monotonic_s()
        self._send_bytes(messages.encode(message))


ENTRY_POINTS: Final = "vlsnlog.cdc"
"""The group of Python entry points in which an installed package registers short names for its consumers."""


def load(name: str) -> CdcConsumer:
    """Imports ``module:Class``, or the class that the entry point ``name`` registers, and creates an instance.
    Raises ``BadArgument``, and the errors of the module."""
    module, _, path = name.partition(":")
    if path:
        found: object = import_module(module)
        for part in path.split("."):
            found = getattr(found, part, None)
    else:
        named = entry_points(group=ENTRY_POINTS)
        if name not in named.names:
            raise BadArgument(f"no consumer is called {name!r}; there are {', '.join(sorted(named.names))}")
        found = named[name].load()
    if not isinstance(found, type) or not callable(getattr(found, "on_events", None)):
        raise BadArgument(f"{name} is no class with on_events(events)")
    made: CdcConsumer = found()
    return made


def _told(error: Exception) -> str:
    """Formats an exception with its traceback. Of a long text only the end is kept, so that the exception's own
    message is always included."""
    text, own = "".join(traceback.format_exception(error)), "".join(traceback.format_exception_only(error))
    if own.count("\n") > 1:
        text += " ".join(own.split())
    return text if len(text) <= REASON_CHARACTERS_MAX else "…" + text[-REASON_CHARACTERS_MAX:]
