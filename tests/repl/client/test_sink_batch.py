"""A numbered batch: its plan by the sink's state, as a table; resets; a group that never answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from repl.api import SinkAt
from repl.client.sink_batch import Batch, Plan, plan_of, write_batch
from tests.fakes.loop import virtual
from tests.repl.client.test_batch_rows import rows
from vlsn.errors import SinkRefused, Unreachable
from vlsn.state.sinks import SinkState

A, B = "query-a", "query-b"
DIGEST = "0" * 32


def placed(query: str, batch: int, part: int, parts: int, *, former: tuple[str, ...] = (), at: int = 90) -> SinkAt:
    total = 10 * parts
    state = SinkState(query, batch, part, parts, 10 * part if part < parts else total, total, DIGEST, 50, former)
    state.check()
    return SinkAt("orders", at, state)


def asked(query: str, number: int, total: int = 30) -> Batch:
    return Batch("orders", query, number, total)


def test_the_first_batch_of_a_sink_may_have_any_number() -> None:
    assert plan_of(asked(A, 7), None) == plan_of(asked(A, 7), None, True) == plan_of(asked(A, 7), None, 90) == Plan()


def test_nothing_is_left_of_a_batch_that_is_whole_and_the_next_one_begins() -> None:
    assert plan_of(asked(A, 41), placed(A, 41, 3, 3)) == Plan(90, 3, 30, 50, DIGEST)
    assert plan_of(asked(A, 42), placed(A, 41, 3, 3)) == Plan(90)
    assert plan_of(asked(A, 99), placed(A, 41, 3, 3)) == Plan(90), "an empty batch leaves no state"


def test_a_batch_that_is_not_whole_goes_on_behind_its_last_part() -> None:
    assert plan_of(asked(A, 41), placed(A, 41, 2, 3)) == Plan(90, 2, 20, 50, DIGEST)
    one = SinkAt("orders", 90, SinkState(A, 41, 1, 3, 10, 30, DIGEST))
    assert plan_of(asked(A, 41), one).first == 80, "part 1 lies right before its COMMIT"


@pytest.mark.parametrize(
    ("batch", "state", "why"),
    [
        (asked(A, 40), placed(A, 41, 3, 3), "checkpoint is older"),
        (asked(A, 0), placed(A, 41, 3, 3), "checkpoint is older"),
        (asked(A, 42), placed(A, 41, 2, 3), "2 of 3 parts of the earlier batch"),
        (asked(A, 41, 31), placed(A, 41, 2, 3), "had 30 rows .* and has 31"),
        (asked(A, 41, 31), placed(A, 41, 3, 3), "had 30 rows .* and has 31"),
        (asked(B, 0), placed(A, 41, 3, 3), "a new checkpoint"),
        (asked(B, 41), placed(A, 41, 3, 3), "a new checkpoint"),
        (asked(B, 42), placed(A, 41, 3, 3), "a new checkpoint"),
        (asked(B, 42), placed(A, 41, 3, 3, former=(B,)), "has replaced this one"),
    ],
)
def test_what_does_not_follow_is_refused_by_sink_both_batches_and_the_option(
    batch: Batch, state: SinkAt, why: str
) -> None:
    with pytest.raises(SinkRefused, match=why) as told:
        plan_of(batch, state)
    for name in ("'orders'", f"batch {state.state.batch} ", f"batch {batch.number} ", ".option('sinkReset', 90)"):
        assert name in str(told.value)
    for reset in (89, 91):
        with pytest.raises(SinkRefused):
            plan_of(batch, state, reset)
    plan = plan_of(batch, state, 90)
    assert (plan.at, plan.part, plan.rows) == (90, 0, 0), "the state that it names is forgotten"


def test_a_reset_without_a_name_takes_a_sink_from_another_query_once() -> None:
    plan = plan_of(asked(B, 0), placed(A, 41, 2, 3), True)
    assert plan == Plan(90, former=(A,))
    mine = SinkAt("orders", 95, plan.change(asked(B, 0), parts=1, rows=30, digest=DIGEST).state)
    with pytest.raises(SinkRefused, match="has replaced this one"):
        plan_of(asked(A, 42), mine, True)
    assert plan_of(asked(B, 0), mine, True).rows == 30, "left in place it does nothing more"
    for number, older in ((0, placed(B, 1, 1, 1)), (1, placed(B, 0, 1, 2))):
        with pytest.raises(SinkRefused):
            plan_of(asked(B, number), older, True)


def test_the_names_that_are_remembered_are_bounded() -> None:
    state = placed(A, 1, 1, 1)
    for number in range(40):
        batch = asked(f"q{number}", 0)
        plan = plan_of(batch, state, True)
        change = plan.change(batch, parts=1, rows=30, digest=DIGEST)
        change.state.check()
        state = SinkAt("orders", 90, change.state)
    assert state.state.former == tuple(f"q{number}" for number in range(31, 39))


class Silent:
    """A client of a group whose nodes answer nothing."""

    urls = ("http://n1", "http://n2")

    def __init__(self) -> None:
        self.endpoints = self.sinks = self

    async def get(self, name: str) -> SinkAt:
        await asyncio.Event().wait()
        raise AssertionError(name)


@virtual
async def test_a_batch_of_a_silent_group_fails_once_its_time_is_over() -> None:
    log: Any = Silent()
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(Unreachable, match="http://n1, http://n2: silence for 5 s"):
        await write_batch(log, asked(A, 0, 1), rows([[(b"k", b"v")]]), give_up_s=5.0)
    assert loop.time() - began == pytest.approx(5.0)
