"""A local log's queue: the items that wait, in the order in which they will be placed, and their size.

Pending       a client's submission: gets its VLSNs when it is sealed
LocalEntries  entries of the log's own (TERM, GROUP …), sealed as one block
ReplicaRun    blocks that a master sealed, kept verbatim
LocalRecord   a local frame (checkpoint, rollback), its payload made when it is placed
Roll, Barrier the next segment; nothing but a moment
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from vlsn.errors import VlsnLogError
from vlsn.format.block import BLOCK_BYTES
from vlsn.format.block_run import BlockRun
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackEnd, RollbackStart
from vlsn.format.submission import Submission
from vlsn.ids import Lsn, Vlsn
from vlsn.state.options import Durability

FRAME_OVERHEAD_BYTES = FRAME_BYTES + BLOCK_BYTES + 64
"""Bytes that a block of its own costs beside its entries: frame, header, padding of its columns."""
ENTRY_OVERHEAD_BYTES = 8
RECORD_ROOM_BYTES = FRAME_BYTES + max(
    record.LAYOUT.size for record in (CheckpointStart, CheckpointEnd, RollbackStart, RollbackEnd)
)


def cost_of(entries: int, size: int) -> int:
    """Returns the bytes that so many entries of ``size`` bytes take of the queue and, at most, of a segment."""
    return size + entries * ENTRY_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES


class Pending:
    """A submission on its way: queued, then sealed (``first``, ``last`` and ``term`` known), then synced.

    The log calls ``refused`` when it will never be sealed; nothing of it was logged then."""

    __slots__ = ("cost", "count", "durability", "first", "last", "submission", "term")

    def __init__(self, submission: Submission, durability: Durability = Durability.SYNC) -> None:
        self.submission: Submission | None = submission
        """None once it is sealed: its bytes are the block's then."""
        self.count = submission.count
        self.cost = submission.bytes + submission.count * ENTRY_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES  # ``cost_of``
        self.durability = durability
        self.first = 0
        """Known once it is sealed, and from the start with ``NO_SYNC``: its place in the queue is its VLSN."""
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
    """A replica's blocks, kept verbatim; ``at`` is the next one to place. Without ``sync`` they are written, and
    synced with later items or within the sync interval."""

    run: BlockRun
    done: Callable[[VlsnLogError | None], None]
    sync: bool = True
    at: int = 0


@dataclass(slots=True)
class LocalRecord:
    """A local frame whose payload is made when it is placed."""

    kind: FrameKind
    payload: Callable[[], bytes]
    done: Callable[[Lsn], None]
    refused: Callable[[VlsnLogError], None] | None = None
    """A call for an optional record: it gets the error when there is no room for it."""

    @property
    def room(self) -> int:
        """Bytes that must be there for it; the end of a rollback that has begun cannot be refused any more."""
        return RECORD_ROOM_BYTES * (2 if self.kind is FrameKind.ROLLBACK_START else 1)


@dataclass(slots=True)
class Roll:
    reason: str
    done: Callable[[int], None]


@dataclass(slots=True)
class Barrier:
    done: Callable[[], None]


Item = Pending | LocalEntries | ReplicaRun | LocalRecord | Roll | Barrier


class Queue:
    """First in, first out.  Appends are counted in entries and bytes; under the log latch."""

    __slots__ = ("appends", "bytes", "entries", "items", "lazy", "lazy_since_s", "vlsns")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.appends = 0
        self.entries = 0
        self.bytes = 0
        self.vlsns = 0
        """VLSNs that the waiting items will get."""
        self.lazy = 0
        """Appends that wait for no write (``NO_SYNC``)."""
        self.lazy_since_s = 0.0

    def __bool__(self) -> bool:
        return bool(self.items)

    @property
    def only_lazy(self) -> bool:
        return self.lazy == len(self.items)

    def push(self, item: Item) -> None:
        if isinstance(item, LocalEntries):
            self.vlsns += len(item.values)
        self.items.append(item)

    def push_append(self, pending: Pending) -> None:
        """Queues an append, all or nothing when a signal interrupts it: nothing is called before the last step."""
        self.appends += 1
        self.entries += pending.count
        self.bytes += pending.cost
        self.vlsns += pending.count
        self.lazy += pending.durability is Durability.NO_SYNC
        self.items.append(pending)

    def taken(self, pending: Pending) -> None:
        """Notes that ``pending`` is no longer in ``items``."""
        self.appends -= 1
        self.entries -= pending.count
        self.bytes -= pending.cost
        self.vlsns -= pending.count
        self.lazy -= pending.durability is Durability.NO_SYNC

    @property
    def only_appends(self) -> bool:
        return self.appends == len(self.items)

    def take_all(self) -> list[Pending]:
        """Takes everything, which is appends only."""
        assert self.only_appends
        taken: list[Pending] = list(self.items)  # type: ignore[arg-type]
        self.items.clear()
        self.appends = self.entries = self.bytes = self.vlsns = self.lazy = 0
        return taken

    def take_back(self) -> list[Pending]:
        """Returns the appends behind the last item whose VLSNs are not free to be given to others."""
        refused: list[Pending] = []
        others: list[Item] = []
        items = self.items
        while items:
            item = items[-1]
            if isinstance(item, Pending) and item.durability is not Durability.NO_SYNC:
                self.taken(item)
                refused.append(item)
            elif isinstance(item, LocalRecord | Roll | Barrier):
                others.append(item)
            else:
                break
            items.pop()
        items.extend(reversed(others))
        return refused[::-1]

    def take_runs(self) -> list[ReplicaRun]:
        """Takes every replica's run out."""
        taken = [item for item in self.items if isinstance(item, ReplicaRun)]
        self._keep([item for item in self.items if not isinstance(item, ReplicaRun)])
        return taken

    def take_refusable(self) -> list[Callable[[VlsnLogError], None]]:
        """Takes every local record that may be refused out, and returns whom to tell."""
        taken = [item for item in self.items if isinstance(item, LocalRecord) and item.refused is not None]
        if taken:
            self._keep([item for item in self.items if item not in taken])
        return [item.refused for item in taken if item.refused is not None]

    def take_appends(self) -> list[Pending]:
        """Takes out every append, and every entry of the log's own."""
        taken = [item for item in self.items if isinstance(item, Pending)]
        self._keep([item for item in self.items if not isinstance(item, Pending | LocalEntries)])
        self.appends = self.entries = self.bytes = self.vlsns = self.lazy = 0
        return taken

    def _keep(self, items: list[Item]) -> None:
        self.items.clear()
        self.items.extend(items)
