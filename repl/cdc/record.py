"""A node's knowledge of one of its CDC consumers: its state, and what has become of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from repl.cdc.child_feed import CaptureCounts
from repl.cdc.children import Child
from repl.cdc_settings import CdcSettings


class CdcState(StrEnum):
    WAITING = "waiting"
    """The log is not open, or another node is to run it."""
    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "backoff"
    PAUSED = "paused"
    PARKED = "parked"
    NOT_CONFIGURED = "not-configured"
    """The group has a position of it, and the settings of the master do not name it."""


@dataclass(slots=True)
class CdcRecord:
    """The knowledge that a node has of one of its consumers, from its start to its stop, whatever log is open."""

    settings: CdcSettings
    state: CdcState = CdcState.WAITING
    reason: str = "the log is not open yet"
    paused_us: int = 0
    """Since when a person has it paused, µs since the epoch, as that is stored; 0: it is not."""
    parked: str = ""
    """Why it is parked."""
    parked_at: int = 0
    """The stored position then; 0: the position that is loaded next."""
    failures: int = 0
    """Failures one after another, with nothing committed in between."""
    failed_at: int = 0
    failed: str = ""
    """The last failure, or the last wait, since its last commit."""
    waits: int = 0
    """Times in a row that its target was away, without a commit in between."""
    slow: int = 0
    """Starts one after another that took too long, ``SLOW_MAX`` at most: the next one has twice the time each."""
    moved: bool = False
    """A person has moved it, and it has committed nothing since."""
    moved_us: int = 0
    """The time of that order."""
    begins: bool = False
    """It has committed nothing ever."""
    keeps: bool = False
    """It keeps its own position, as its last process has said."""
    next: int = 0
    """The stored position; 0 while it is not known."""
    lost: tuple[int, int] = (0, 0)
    """The first and the last VLSN that went before it had taken them; 0, 0 for none."""
    child: Child | None = None
    """The last process that it had, until that has ended."""
    counts: CaptureCounts = field(default_factory=CaptureCounts)

    @property
    def why(self) -> str:
        """Why it is in its state; of one that fails again and again how it failed last, whatever it does by now."""
        if not self.failed or self.failed in self.reason or self.state is CdcState.WAITING:
            return self.reason
        return "; ".join(part for part in (self.reason, f"its last failure: {self.failed}") if part)

    def works(self) -> None:
        """Notes that it has got further, or that a person has it begin again."""
        self.failures = self.waits = self.failed_at = 0
        self.failed = ""


def not_below(name: str, at: int, to: int) -> str:
    """Says why a consumer is not skipped to ``to``."""
    return f"{name} is at VLSN {at}, not below {to}; `vlsnlog cdc reset {name} --to {to}` moves it back"
