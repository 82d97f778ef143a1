"""What waits in a local log's queue, in the order in which it will be placed.

Pending       a client's submission: gets its VLSNs when it is sealed
LocalEntries  entries of the log's own (TERM, GROUP …), sealed as one block
ReplicaRun    blocks that a master sealed, kept verbatim
LocalRecord   a local frame (checkpoint, rollback), its payload made when it is placed
Roll, Barrier the next segment; nothing but a moment
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vlsn.block import BLOCK_BYTES
from vlsn.errors import VlsnLogError
from vlsn.frame import FRAME_BYTES, FrameKind
from vlsn.ids import Lsn, Vlsn
from vlsn.seal import Submission
from vlsn.stream import BlockRun

FRAME_OVERHEAD_BYTES = FRAME_BYTES + BLOCK_BYTES + 64
"""What a block of its own costs beside its entries: frame, header, padding of its columns."""
ENTRY_OVERHEAD_BYTES = 8


class Pending:
    """A submission on its way: queued, then sealed (``first``, ``last`` and ``term`` known), then synced.

    The log calls ``refused`` when it will never be sealed; nothing of it was logged then."""

    __slots__ = ("cost", "count", "first", "last", "submission", "term")

    def __init__(self, submission: Submission) -> None:
        self.submission: Submission | None = submission
        """None once it is sealed: its bytes are the block's then."""
        self.count = submission.count
        self.cost = submission.bytes + submission.count * ENTRY_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES
        self.first = 0
        self.last = 0
        self.term = 0

    def refused(self, error: VlsnLogError) -> None:
        raise NotImplementedError


@dataclass(slots=True)
class LocalEntries:
    """Entries of the log's own (TERM, GROUP …), sealed as one block."""

    kinds: list[int]
    values: list[bytes]
    done: Callable[[Vlsn], None]


@dataclass(slots=True)
class ReplicaRun:
    """A replica's blocks, kept verbatim; ``at`` is the next one to place."""

    run: BlockRun
    done: Callable[[VlsnLogError | None], None]
    at: int = 0


@dataclass(slots=True)
class LocalRecord:
    """A local frame whose payload is made when it is placed."""

    kind: FrameKind
    payload: Callable[[], bytes]
    done: Callable[[Lsn], None]


@dataclass(slots=True)
class Roll:
    reason: str
    done: Callable[[int], None]


@dataclass(slots=True)
class Barrier:
    done: Callable[[], None]


Item = Pending | LocalEntries | ReplicaRun | LocalRecord | Roll | Barrier
