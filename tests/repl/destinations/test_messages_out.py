"""Messages that are out: their deadlines, delays and attempts."""

from __future__ import annotations

from itertools import count

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from repl.destinations.message_columns import MessageColumns
from repl.destinations.messages_out import Found, MessagesOut
from vlsn.format.vlsn_set import VlsnSet
from vlsn.state.acks import Tries
from vlsn.state.destinations import DestinationSettings

NOTED = Tries(np.array([42]), np.array([3]))
"""Before this lead, VLSN 42 was delivered three times."""


def handed(out: MessagesOut, *messages: tuple[int, int], deadline: float = 30.0) -> tuple[int, dict[int, int]]:
    """Hands out messages by VLSN and the hash of their key."""
    vlsns = np.array([vlsn for vlsn, _ in messages])
    found = Found(0)
    found.add(MessageColumns(vlsns), vlsns - 1, np.array([key for _, key in messages], np.uint64))
    return out.hand_out(found, vlsns, NOTED, deadline)


def test_attempts_go_on_from_the_table_and_a_message_taken_back_has_used_none() -> None:
    out = MessagesOut(count(1))
    assert handed(out, (41, 1), (42, 2)) == (1, {42: 4})
    assert handed(out, (43, 1)) == (2, {})
    assert out.attempts(np.array([41, 42, 50]), NOTED) == {41: 1, 42: 4, 50: 0}
    back, later = out.take_back(np.array([41]))
    assert (back.vlsns.tolist(), later.vlsns.tolist(), len(out)) == ([41], [43], 1)
    out.end_attempts({41: 1})
    out.take_back(np.array([42]))
    assert [out.tried(vlsn, NOTED) for vlsn in (41, 42, 43)] == [1, 3, 0]
    assert out.tried(42, Tries(np.array([42]), np.array([4]))) == 3, "the fourth was noted, and is taken back"
    assert handed(out, (41, 1), (42, 2), (43, 1)) == (3, {41: 2, 42: 4})
    assert out.acknowledge(VlsnSet.of([41])).vlsns.tolist() == [41]
    assert out.tried(41, NOTED) == 0
    assert out.learn(np.array([42]), NOTED) == {}, "it is known here"


def test_an_answer_is_late_past_its_deadline_and_a_delayed_message_is_due_once() -> None:
    out = MessagesOut(count(1))
    handed(out, (41, 0), (44, 0), deadline=30.0)
    handed(out, (45, 0), deadline=40.0)
    assert not len(out.late(29.9))
    out.acknowledge(VlsnSet.of([41]))
    assert out.late(30.0).tolist() == [44]
    out.shorten(20.0)
    back, _ = out.take_back(out.late(20.0))
    assert out.late(20.0).tolist() == [45], "the next answer"
    assert not out.delay(back, [0.0], 20.0)
    assert out.delay(back, [5.0], 20.0)
    assert (len(out), out.delayed, out.table.last) == (1, 1, 45)
    assert not len(out.due(24.9))
    assert out.due(25.0).tolist() == [44]
    out.take_back(np.array([44]))
    assert (len(out), out.delayed) == (1, 0)


def test_a_delay_of_an_acknowledged_message_is_not_kept_until_its_time() -> None:
    out = MessagesOut(count(1))
    for vlsn in range(1, 1_000):
        handed(out, (vlsn, 0))
        back, _ = out.take_back(np.array([vlsn]))
        out.delay(back, [86_400.0], vlsn)
        out.acknowledge(VlsnSet.of([vlsn]))
    assert out.delayed == 0 and len(out._due) < 200


@given(st.floats(0.0, 86_400.0), st.floats(1.0, 100.0), st.floats(0.0, 86_400.0), st.integers(1, 1_000))
@example(0.0, 42.0, 0.0, 191)
def test_a_delay_grows_up_to_its_limit(delay_s: float, factor: float, most_s: float, attempts: int) -> None:
    made = DestinationSettings(
        "0" * 16, redelivery_delay_s=delay_s, redelivery_factor=factor, redelivery_delay_s_max=most_s
    )
    found = made.redelivery_delay(attempts)
    assert 0.0 <= found <= (most_s or 86_400.0)
    assert found <= made.redelivery_delay(attempts + 1)
    assert (found > 0.0) == (delay_s > 0.0)
