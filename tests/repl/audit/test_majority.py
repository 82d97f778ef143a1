"""Copies that had to have durable entries: a lagging copy is distinguished from one that lost some, through changes of
members."""

from __future__ import annotations

import pytest

from repl.audit.majority import End, check_ends
from repl.audit.members import GroupAt

THREE = GroupAt(2, ("n1", "n2", "n3"))


def ends(**lasts: int) -> list[End]:
    """Copies that end there; n1 says that VLSN 90 is durable."""
    return [
        End(source=node, node=node, file="f", last=last, said=90 if node == "n1" else 0, live=False, damaged=False)
        for node, last in lasts.items()
    ]


@pytest.mark.parametrize(
    ("lasts", "groups", "named"),
    [
        ({"n1": 95, "n2": 90, "n3": 40}, [THREE], []),  # n3 lags
        ({"n1": 95, "n2": 60, "n3": 40}, [THREE], [("n2", 61)]),
        ({"n1": 95, "n3": 40}, [THREE], []),  # n2 may have it
        ({"n1": 95, "n2": 60, "n3": 40}, [], []),  # nobody knows who the members are
        ({"n1": 95, "n2": 60, "n3": 40}, [THREE, GroupAt(91, ("n1",))], []),  # durable by those that stayed
        ({"n1": 95, "n2": 60, "n3": 40}, [GroupAt(1, ("n1",)), THREE], [("n2", 61)]),
        (
            {"n1": 95, "n2": 60, "n3": 40, "n4": 20},
            [GroupAt(2, ("n1", "n2", "n4")), GroupAt(92, ("n1", "n3"))],
            [("n2", 61)],
        ),
        ({"n1": 80, "n2": 95, "n3": 95}, [THREE], [("n1", 81)]),  # by its own word
    ],
)
def test_a_copy_that_lost_is_named_and_one_that_lags_is_not(
    lasts: dict[str, int], groups: list[GroupAt], named: list[tuple[str, int]]
) -> None:
    assert [(finding.source, finding.vlsn) for finding in check_ends(ends(**lasts), groups)] == named
