"""The size of a majority, for elections, read rounds and acknowledgements."""


def majority(electable: int) -> int:
    """Returns the smallest number that is more than half of ``electable`` nodes."""
    return electable // 2 + 1
