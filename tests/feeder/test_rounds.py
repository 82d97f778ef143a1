"""Read rounds: the answers that confirm a master, and those that a later master could have overtaken."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feeder.rounds import Rounds
from vlsn.ids import Incarnation

N1, N2, N3, STRANGER = (Incarnation(number) for number in (1, 2, 3, 9))


def test_a_majority_with_the_master_itself_confirms_a_round() -> None:
    rounds = Rounds(N1)
    assert rounds.begin() == 1
    assert not rounds.confirmed([N1, N2, N3])
    rounds.answered(N2, 1)
    assert rounds.confirmed([N1, N2, N3])
    assert not rounds.confirmed([N1, N2, N3, Incarnation(4)])


def test_an_answer_to_an_earlier_round_confirms_no_later_one() -> None:
    """The answer was given before the reads of the later round were asked."""
    rounds = Rounds(N1)
    rounds.begin()
    rounds.answered(N2, 1)
    rounds.begin()
    assert not rounds.confirmed([N1, N2, N3])
    rounds.answered(N3, 1)
    assert not rounds.confirmed([N1, N2, N3])
    rounds.answered(N3, 2)
    assert rounds.confirmed([N1, N2, N3])


def test_only_listed_electable_incarnations_count() -> None:
    rounds = Rounds(N1)
    rounds.begin()
    rounds.answered(STRANGER, 1)
    assert not rounds.confirmed([N1, N2, N3])
    rounds.answered(N2, 1)
    assert not rounds.confirmed([N2, N3])  # a master that the group does not list counts for nothing itself
    assert not rounds.confirmed([])


def test_a_group_of_one_confirms_itself_but_only_a_round_that_began() -> None:
    rounds = Rounds(N1)
    assert not rounds.confirmed([N1])
    rounds.begin()
    assert rounds.confirmed([N1])


def test_an_answer_to_a_round_that_never_began_is_none() -> None:
    rounds = Rounds(N1)
    rounds.begin()
    rounds.answered(N2, 99)
    assert not rounds.confirmed([N1, N2, N3])
    rounds.begin()
    assert not rounds.confirmed([N1, N2, N3])


STEPS = st.lists(st.one_of(st.just("begin"), st.tuples(st.integers(2, 6), st.integers(1, 12))), max_size=40)


@given(STEPS, st.integers(1, 5))
def test_against_a_model_that_keeps_every_answer(steps: list[object], size: int) -> None:
    """Confirmed exactly while more than half have answered, after its begin, a number at or past the newest round."""
    rounds, begun = Rounds(N1), 0
    electable = [Incarnation(number) for number in range(1, size + 1)]
    kept: set[tuple[int, int]] = set()
    for step in steps:
        if step == "begin":
            begun += 1
            assert rounds.begin() == begun
        else:
            assert isinstance(step, tuple)
            member, number = step
            rounds.answered(Incarnation(member), number)
            if number <= begun:
                kept.add(step)
        heard = {1} | {member for member, number in kept if number >= begun}
        count = len(heard & set(range(1, size + 1)))
        assert rounds.confirmed(electable) == (begun > 0 and 2 * count > size)
