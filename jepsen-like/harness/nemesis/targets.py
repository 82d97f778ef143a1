"""The targets of a fault: nodes, or directed pairs of nodes.  Pure."""

from __future__ import annotations

from random import Random

Pair = tuple[str, str]


def nodes_hit(way: str, names: list[str], running: list[str], master: str | None, chance: Random) -> list[str]:
    """Chooses nodes. ``one`` is one of ``running``, if any is; ``master`` is, too, while no node leads."""
    few = (len(names) - 1) // 2
    match way:
        case "master" if master is not None:
            return [master]
        case "master" | "one":
            return [chance.choice(running or names)]
        case "minority":
            return chance.sample(names, few)
        case "majority":
            return chance.sample(names, few + 1)
        case "all":
            return list(names)
    raise AssertionError(way)


def pairs_hit(way: str, names: list[str], master: str | None, chance: Random) -> list[Pair]:
    """Lists the directed pairs (from, to) to block.

    ``halves`` separates a majority from the rest; in a ``ring`` each node has a majority, and no two the same one.
    ``one-way`` blocks one direction of one pair; ``deaf`` blocks all bytes to the master, ``mute`` all from it.
    """
    leader = master if master is not None else chance.choice(names)
    match way:
        case "master":
            return apart([leader], names)
        case "one":
            return apart([chance.choice(names)], names)
        case "halves":
            return apart(chance.sample(names, (len(names) - 1) // 2), names)
        case "ring":
            return _ring(chance.sample(names, len(names)))
        case "one-way":
            source, target = chance.sample(names, 2)
            return [(source, target)]
        case "master-deaf":
            return [(name, leader) for name in names if name != leader]
        case "master-mute":
            return [(leader, name) for name in names if name != leader]
    raise AssertionError(way)


def apart(some: list[str], names: list[str]) -> list[Pair]:
    """Lists the pairs in both directions between ``some`` and the others."""
    others = [name for name in names if name not in some]
    return [pair for one in some for other in others for pair in ((one, other), (other, one))]


def _ring(order: list[str]) -> list[Pair]:
    """Cuts a ring: each node reaches as many neighbours on either side as make a majority with itself."""
    size = len(order)
    reach = (size // 2 + 1) // 2  # with 3 nodes, 1 on either side would be all, so one of the three links is cut
    if size == 3:
        return apart([order[0]], [order[0], order[1]])
    return [
        (order[a], order[b])
        for a in range(size)
        for b in range(size)
        if a != b and min((a - b) % size, (b - a) % size) > reach
    ]
