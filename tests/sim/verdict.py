"""The first violation, kept for the runner of the simulation."""

from __future__ import annotations

from collections.abc import Callable


class Violation(AssertionError):
    """A violated invariant."""


class Verdict:
    def __init__(self, say: Callable[[str], None]) -> None:
        self.violation: Violation | None = None
        self._say = say

    def hold(self, holds: bool, said: str) -> None:
        """Keeps the violation, and stops the current step."""
        if holds:
            return
        raise self.violated(said)

    def violated(self, said: str) -> Violation:
        """Makes the violation to raise; for checks at every block, where formatting the text would cost too much."""
        violation = Violation(said)
        if self.violation is None:
            self.violation = violation
            self._say(f"VIOLATION: {said}")
        return violation
