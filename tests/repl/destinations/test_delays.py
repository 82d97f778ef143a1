"""The delays of messages that came back, held against a dict."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from repl.destinations.delays import Delays
from vlsn.state.destinations import DestinationSettings

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 4), st.integers(0, 50)),
        st.tuples(st.just("came_in"), st.integers(0, 200), st.integers(1, 4)),
        st.tuples(st.just("over"), st.integers(0, 10)),
    ),
    max_size=200,
)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_each_number_is_over_once_in_its_time_unless_all_of_it_came_in(steps: list[tuple[Any, ...]]) -> None:
    delays, model, said = Delays(), dict[int, tuple[int, float]](), set[int]()
    now_s, numbers = 0.0, 0
    for name, *rest in steps:
        if name == "add":
            numbers += 1
            messages, delay_s = rest
            delays.add(numbers, messages, now_s + delay_s)
            model[numbers] = messages, now_s + delay_s
        elif name == "came_in" and model:
            number = [*model][rest[0] % len(model)]
            left, due_s = model.pop(number)
            delays.came_in(number, count := min(left, rest[1]))
            if left > count:
                model[number] = left - count, due_s
        elif name == "over":
            now_s += rest[0]
            due = [number for number, (_, due_s) in model.items() if due_s <= now_s and number not in said]
            found = delays.over(now_s)
            assert sorted(found) == sorted(due)
            said.update(found)
        assert delays.messages == sum(left for left, _ in model.values())
        assert all((number in delays) == (number in model) for number in range(numbers + 2))


def test_what_came_in_before_its_time_is_not_kept_until_then() -> None:
    delays = Delays()
    for number in range(10_000):
        delays.add(number, 1, 86_400.0 + number)
        delays.came_in(number, 1)
    assert delays.messages == 0 and len(delays._due) < 200


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
