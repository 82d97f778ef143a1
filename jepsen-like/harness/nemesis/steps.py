"""Draws the next change of the members from a way of the plan and the present members. Pure.

    3 founders, 2 spares      add n5 ─► secondary n4 ─► promote n4 ─► remove n2 ─► readmit n3, wiped ─► add n2 …

The group never has fewer votes than founders, so that a minority of the founders is a minority of the group.  Nodes
whose disks other faults may hit stay members; one of these is wiped and admitted again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Final

from harness.group.members import Listed, Step

INSTEAD: Final[Mapping[str, Sequence[str]]] = {
    "add": ("add", "remove"),
    "secondary": ("secondary", "promote", "remove"),
    "promote": ("promote", "secondary", "remove"),
    "remove": ("remove", "add"),
    "readmit": ("readmit",),
}
"""Other ways to try if a way is impossible."""
FRESH: Final = 0.5
"""The share of members that return without their log."""


def draw(
    way: str,
    listed: Listed,
    names: Sequence[str],
    *,
    votes_min: int,
    stay: Collection[str],
    keep: Collection[str],
    chance: Random,
) -> Step | None:
    """Draws the next step, or None if no step is possible. ``names`` are members and spares; ``stay`` are members
    always; ``keep`` are nodes that may have a log that the group needs, so they are not wiped before they are added."""
    spares = [name for name in names if name not in listed.members]
    secondaries = [name for name in listed.members if name not in listed.electable | listed.joining]
    may_go = [
        name
        for name in listed.members
        if name not in stay and (name not in listed.electable or len(listed.electable) > votes_min)
    ]
    wiped = [name for name in stay if name in listed.electable]
    for each in INSTEAD[way]:
        choices = {"add": spares, "secondary": spares, "promote": secondaries, "remove": may_go, "readmit": wiped}[each]
        if choices:
            name = chance.choice(sorted(choices))
            fresh = each == "readmit" or (name in spares and name not in keep and chance.random() < FRESH)
            return Step("add" if each == "secondary" else each, name, each == "secondary", fresh)
    return None
