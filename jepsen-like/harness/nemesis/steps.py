"""The next change of the members, from a way of the plan and the present members. Pure. Pure.

    3 founders, 2 spares      add n5 ─► secondary n4 ─► promote n4 ─► remove n2 ─► readmit n3, wiped ─► add n2 …

The group never has fewer votes than founders, so that a minority of the founders is one of the group, too.  Those whose
disks other faults strike stay members: it is of them that one is wiped and admitted again.
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
"""The ways that are taken where a way cannot be gone."""
FRESH: Final = 0.5
"""The share of members that come back without their log."""


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
    """Draws the next step, None where nothing can be done. ``names``: members and spares; ``stay``: members always;
    ``keep``: nodes that have, or may have, a log that the group counts on: not to be wiped before they are added."""
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
