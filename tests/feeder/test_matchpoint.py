"""The matchpoint of two logs, against histories in which every VLSN's content is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feeder.matchpoint import matchpoint
from vlsn.format.feed_messages import Syncup, TermRun, check_syncup


def runs_of(terms: list[int]) -> list[TermRun]:
    """Term runs of a log whose VLSN i + 1 bears ``terms[i]``."""
    runs: list[TermRun] = []
    for vlsn, term in enumerate(terms, 1):
        if runs and runs[-1].term == term:
            runs[-1] = TermRun(term, runs[-1].first, vlsn)
        else:
            runs.append(TermRun(term, vlsn, vlsn))
    return runs


def said(terms: list[int], first: int = 1) -> Syncup:
    runs = [TermRun(run.term, max(run.first, first), run.last) for run in runs_of(terms) if run.last >= first]
    last = len(terms)
    return Syncup(first if last else 0, last, last, max(terms, default=0), runs if last else [])


def test_the_example_of_the_module() -> None:
    master = [1] * 40 + [3] * 50
    assert matchpoint(1, 90, runs_of(master), said([1] * 40 + [2] * 15)) == 40


def test_an_empty_replica_matches_before_the_first_vlsn_of_a_log_that_begins_at_1() -> None:
    assert matchpoint(1, 9, runs_of([1] * 9), said([])) == 0
    assert matchpoint(5, 9, [TermRun(1, 5, 9)], said([])) is None


def test_logs_that_do_not_overlap_have_none() -> None:
    assert matchpoint(11, 20, [TermRun(1, 11, 20)], said([1] * 10)) is None
    assert matchpoint(1, 9, runs_of([2] * 9), said([1] * 9)) is None


def test_equal_length_and_other_terms_do_not_match_by_offset() -> None:
    """KIP-101: truncation by offset alone keeps a tail of another term."""
    assert matchpoint(1, 12, runs_of([1] * 10 + [3, 3]), said([1] * 10 + [2, 2])) == 10


# A history as a group makes it: each term's master continues some prefix of the log before.
branches = st.lists(st.tuples(st.integers(0, 8), st.integers(1, 5)), min_size=1, max_size=6)


@given(branches, st.data())
def test_the_matchpoint_is_the_end_of_the_common_history(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    logs: list[list[tuple[int, int]]] = [[]]  # a log is its entries; an entry is (term, which VLSN its master gave)
    for term, (cut, count) in enumerate(steps, 1):
        base = data.draw(st.sampled_from(logs))
        kept = base[: max(0, len(base) - cut)]
        logs.append(kept + [(term, len(kept) + 1 + more) for more in range(count)])
    one, other = data.draw(st.sampled_from(logs[1:])), data.draw(st.sampled_from(logs[1:]))
    common = 0
    while common < min(len(one), len(other)) and one[common] == other[common]:
        common += 1
    terms, theirs = [term for term, _ in one], [term for term, _ in other]
    found = matchpoint(1, len(one), runs_of(terms), said(theirs))
    assert (found or 0) == common
    check_syncup(said(theirs))
