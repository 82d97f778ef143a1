"""The replay table against a model: each number of each session is taken at most once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.auth.sessions import CLI, CLI_PROCESSES_MAX, PROCESSES_MAX, SENDERS_MAX, WINDOW, Sessions
from repl.auth.signatures import NO_SESSION
from tests.fakes.random import SeededRandom
from vlsn.errors import StaleSession, Unauthorized


def offered(sessions: Sessions, sender: str = "n2", process: str = "a", session: str = NO_SESSION) -> str:
    with pytest.raises(StaleSession) as stale:
        sessions.take(sender, process, session, 1)
    return stale.value.session


def test_a_call_of_an_unknown_session_gets_one_that_is_then_taken() -> None:
    sessions = Sessions(SeededRandom(1))
    given_ = offered(sessions)
    assert len(given_) == 32 and given_ != NO_SESSION
    sessions.take("n2", "a", given_, 1)
    with pytest.raises(Unauthorized):
        sessions.take("n2", "a", given_, 1)
    sessions.take("n2", "a", given_, 2)


def test_an_offered_session_stays_until_it_is_used_and_is_given_once() -> None:
    sessions = Sessions(SeededRandom(1))
    first = offered(sessions)
    assert offered(sessions) == first
    sessions.take("n2", "a", first, 5)
    second = offered(sessions)
    assert second != first  # else a call of the first session would be taken again
    sessions.take("n2", "a", first, 6)  # an unused offer ends nothing
    sessions.take("n2", "a", second, 5)
    for n in (5, 6, 7):
        with pytest.raises(StaleSession):
            sessions.take("n2", "a", first, n)


def test_a_session_is_of_one_sender_and_process() -> None:
    sessions = Sessions(SeededRandom(1))
    own = offered(sessions)
    for sender, process in (("n3", "a"), ("n2", "b")):
        assert offered(sessions, sender, process, own) != own
    sessions.take("n2", "a", own, 1)


def test_another_process_of_the_receiver_knows_no_session() -> None:
    before, after = Sessions(SeededRandom(1)), Sessions(SeededRandom(2))
    session = offered(before)
    before.take("n2", "a", session, 1)
    assert offered(after, session=session) != session


@pytest.mark.parametrize(("sender", "most"), [("n2", PROCESSES_MAX), (CLI, CLI_PROCESSES_MAX)])
def test_of_too_many_processes_the_longest_unused_goes(sender: str, most: int) -> None:
    sessions = Sessions(SeededRandom(1))
    given_ = {}
    for number in range(most):
        given_[number] = offered(sessions, sender, str(number))
        sessions.take(sender, str(number), given_[number], 1)
    sessions.take(sender, "0", given_[0], 2)
    sessions.take(sender, "new", offered(sessions, sender, "new"), 1)
    sessions.take(sender, "0", given_[0], 3)
    assert offered(sessions, sender, "1", given_[1]) != given_[1]


def test_replayed_calls_of_old_processes_end_no_live_session() -> None:
    sessions = Sessions(SeededRandom(1))
    live = offered(sessions)
    sessions.take("n2", "a", live, 1)
    for number in range(5 * PROCESSES_MAX):
        offered(sessions, "n2", f"old{number}", "f" * 32)
    sessions.take("n2", "a", live, 2)


def test_senders_are_few() -> None:
    sessions = Sessions(SeededRandom(1))
    for number in range(3 * SENDERS_MAX):
        offered(sessions, f"n{number}")
    assert len(sessions._senders) == SENDERS_MAX


@given(st.lists(st.integers(1, 3 * WINDOW) | st.integers(1, 20), max_size=200))
def test_each_number_is_taken_once_and_those_in_the_window_are_taken(numbers: list[int]) -> None:
    sessions = Sessions(SeededRandom(1))
    session = offered(sessions)
    taken: set[int] = set()
    for n in numbers:
        highest = max(taken, default=0)
        try:
            sessions.take("n2", "a", session, n)
        except Unauthorized:
            assert n in taken or n <= highest - WINDOW
        else:
            assert n not in taken and n > highest - WINDOW
            taken.add(n)
