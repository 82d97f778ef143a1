"""The limits of one token's use of a node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.web.usage import STREAMS_A_TOKEN, Usage
from vlsn.errors import QueueFull


def limited(*, bytes_per_s: int = 0, appends_per_s: int = 0) -> Usage:
    usage = Usage("k3f9a1c8")
    usage.bytes.per_s, usage.appends.per_s = bytes_per_s, appends_per_s
    return usage


def test_a_token_without_rates_has_no_limit() -> None:
    usage = limited()
    for _ in range(10_000):
        usage.append(1 << 24, 5.0)


def test_a_rate_allows_the_appends_of_a_second() -> None:
    usage = limited(appends_per_s=3)
    for _ in range(3):
        usage.append(1, 10.0)
    with pytest.raises(QueueFull, match=r"token k3f9a1c8 has used up its rate; try again in 0\.\d\d s"):
        usage.append(1, 10.0)
    usage.append(1, 10.5)
    with pytest.raises(QueueFull):
        usage.append(1, 10.5)


def test_a_body_over_the_rate_is_accepted_and_paid_off() -> None:
    usage = limited(bytes_per_s=100)
    usage.append(1_000, 0.0)
    with pytest.raises(QueueFull, match=r"in 9\.01 s"):
        usage.append(1, 0.0)
    with pytest.raises(QueueFull):
        usage.append(1, 8.9)
    usage.append(1, 9.1)


def test_what_is_refused_does_not_count() -> None:
    usage = limited(appends_per_s=1, bytes_per_s=1_000)
    usage.append(10, 0.0)
    for _ in range(100):
        with pytest.raises(QueueFull):
            usage.append(1_000_000, 0.5)
    usage.append(10, 1.5)


@given(
    st.integers(1, 1_000),
    st.lists(st.tuples(st.floats(0, 3, allow_nan=False), st.integers(1, 500)), min_size=1, max_size=60),
)
def test_no_more_is_accepted_than_the_rate_and_one_body(rate: int, calls: list[tuple[float, int]]) -> None:
    """Over any time from the first call on: at most the rate, a second's burst, and the last body."""
    usage, now, accepted, largest = limited(bytes_per_s=rate), 0.0, 0, 0
    for gap, size in calls:
        now += gap
        try:
            usage.append(size, now)
        except QueueFull:
            continue
        accepted, largest = accepted + size, max(largest, size)
        assert accepted <= rate * (now + 1) + largest + 1e-3


def test_streams_are_counted_until_their_first_end() -> None:
    usage = limited()
    closes = [usage.open_stream() for _ in range(STREAMS_A_TOKEN)]
    with pytest.raises(QueueFull, match="which is its limit"):
        usage.check_stream()
    closes[0]()
    closes[0]()
    assert usage.streams == STREAMS_A_TOKEN - 1
    usage.check_stream()
