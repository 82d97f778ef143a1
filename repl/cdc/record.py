"""A node's record of one CDC consumer: its state, and its history since the node started."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from repl.cdc.child_feed import CaptureCounts
from repl.cdc.children import Child
from repl.cdc_settings import CdcSettings


class CdcState(StrEnum):
    WAITING = "waiting"
    """The log is not open, or another node runs the consumer."""
    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "backoff"
    PAUSED = "paused"
    PARKED = "parked"
    NOT_CONFIGURED = "not-configured"
    """The group has a position of the consumer, but the settings of the master do not name it."""


@dataclass(slots=True)
class CdcRecord:
    """The record of one consumer from the node's start to its stop, also while the log is closed and opened again."""

    settings: CdcSettings
    state: CdcState = CdcState.WAITING
    reason: str = "the log is not open yet"
    paused_us: int = 0
    """The time when a person paused the consumer, in µs since the epoch; 0 if it is not paused."""
    parked: str = ""
    """The reason why the consumer is parked (stopped until a person acts); "" if it is not."""
    parked_at: int = 0
    """The stored position when the consumer was parked. 0 stands for the position that is loaded next."""
    failures: int = 0
    """The number of failures in a row, without a commit in between."""
    failed_at: int = 0
    failed: str = ""
    """The last failure or wait; "" after a commit."""
    waits: int = 0
    """The number of times in a row that the consumer's target was not available, without a commit in between."""
    slow: int = 0
    """The number of starts in a row that took too long, ``SLOW_MAX`` at most. Each slow start doubles the time limit of
    the next start."""
    moved: bool = False
    """True if a person has moved the consumer, and it has committed nothing since."""
    moved_us: int = 0
    """The time of the person's order to move."""
    begins: bool = False
    """True if the consumer has never committed."""
    keeps: bool = False
    """True if the consumer's last process has reported that the consumer keeps its own position."""
    next: int = 0
    """The stored position; 0 while it is not known."""
    lost: tuple[int, int] = (0, 0)
    """The first and the last VLSN that were cleaned away before the consumer had taken them; (0, 0) for none."""
    child: Child | None = None
    """The consumer's last process, until that process has ended."""
    counts: CaptureCounts = field(default_factory=CaptureCounts)

    @property
    def why(self) -> str:
        """The reason for the state. If the consumer fails repeatedly, the text includes its last failure."""
        if not self.failed or self.failed in self.reason or self.state is CdcState.WAITING:
            return self.reason
        return "; ".join(part for part in (self.reason, f"its last failure: {self.failed}") if part)

    def works(self) -> None:
        """Resets the failures, because the consumer has made progress or a person has started it again."""
        self.failures = self.waits = self.failed_at = 0
        self.failed = ""


def not_below(name: str, at: int, to: int) -> str:
    """Returns the text why a consumer at VLSN ``at`` cannot skip to VLSN ``to``: skipping only goes forward."""
    return f"{name} is at VLSN {at}, not below {to}; `vlsnlog cdc move {name} --to {to}` moves it back"
