"""A majority of a group's members, as elections, read rounds and acknowledgements count it."""


def majority(electable: int) -> int:
    """Returns how many of ``electable`` nodes are more than half."""
    return electable // 2 + 1
