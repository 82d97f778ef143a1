"""The first violation, kept for the runner of the simulation."""

from __future__ import annotations

from collections.abc import Callable


class Violation(AssertionError):
    """Something that must hold does not."""


class Verdict:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.violation: Violation | None = None
        self._say = say

    def hold(self, holds: bool, said: str) -> None:
        """Keeps the violation, and ends what was about to be done."""
        if holds:
            return
        raise self.violated(said)

    def violated(self, said: str) -> Violation:
        """Makes a violation to be raised; at every block, where words would cost more than the look."""
        violation = Violation(said)
        if self.violation is None:
            self.violation = violation
            self._say(f"VIOLATION: {said}")
        return violation
