"""The child's side of a consumer: its reports of committed positions to its node."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from repl.cdc import messages
from repl.cdc.child.capture import COMMIT_S, Capture
from repl.cdc.consumer import CdcConsumer, CdcEvent
from repl.cdc.messages import Commit, Failed, Start, Taken, ToNode
from tests.repl.cdc.test_events import blocks_of, message_of

COUNT = 2000
START = Start(
    name="orders", consumer="a:B", node="n1", group="g", next=1, options={}, memory_bytes_max=1 << 26
)  # fmt: skip


class OneByOne(CdcConsumer):
    """Takes one event in each call, which takes so long, and commits it; fails at one VLSN."""

    def __init__(self, advance: Callable[[], None], fails_at: int) -> None:
        self._advance = advance
        self._fails_at = fails_at

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        self._advance()
        if next(events).vlsn == self._fails_at:
            raise ValueError("it fails\n  here\n  ^")
        return True


def said(call_s: float, fails_at: int = 0) -> list[ToNode]:
    """Returns what a child says of one message, behind its READY."""
    now_s = 0.0

    def advance() -> None:
        nonlocal now_s
        now_s += call_s

    told: list[ToNode] = []
    capture = Capture(
        lambda message: told.append(messages.of_child(message)),
        lambda name: OneByOne(advance, fails_at),
        sleep=lambda seconds: None,
        monotonic_s=lambda: now_s,
    )
    capture.heard(messages.encode(START))
    begun = len(told)
    blocks, _ = blocks_of([[(b"", b"%d" % number) for number in range(COUNT)]], 1)
    capture.heard(message_of(blocks))
    return told[begun:]


def test_positions_that_come_faster_than_they_can_be_stored_are_not_all_told() -> None:
    told = said(20e-6)
    took_s = COUNT * 20e-6
    assert len(told) <= took_s / COMMIT_S + 2, "a node hears of some in a second, however many there are"
    last = told[-1]
    assert isinstance(last, Taken) and last.commit == Commit(COUNT, COUNT + 1), "and of the last one at once"


def test_positions_that_come_slowly_are_all_told() -> None:
    told = [each for each in said(2 * COMMIT_S) if isinstance(each, Commit)]
    assert [each.next for each in told] == list(range(2, COUNT + 1))


@pytest.mark.parametrize("fails_at", [2, 1999])
def test_what_was_committed_is_told_before_a_failure(fails_at: int) -> None:
    told = said(20e-6, fails_at)
    assert isinstance(told[-1], Failed)
    assert [each.next for each in told if isinstance(each, Commit)][-1] == fails_at


def test_the_last_line_of_a_reason_is_all_that_was_raised() -> None:
    failed = said(20e-6, 2)[-1]
    assert isinstance(failed, Failed) and failed.reason.splitlines()[-1] == "ValueError: it fails here ^"
