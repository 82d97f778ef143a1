"""The queue of a local log: the items that wait to be written, in their order, and the sizes of these items.

Pending       a client's submission: gets its VLSNs when it is sealed
LocalEntries  entries of the log's own (TERM, GROUP …), sealed as one block
ReplicaRun    blocks that a master sealed, stored byte for byte
LocalRecord   a local frame (checkpoint, rollback); its payload is made when it is placed
Roll          a change to the next segment
    Barrier       a position in the queue's order, and no data
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from vlsn.errors import VlsnLogError
from vlsn.format.batch import ENTRY_OVERHEAD_BYTES
from vlsn.format.block_run import BlockRun
from vlsn.format.frame import FRAME_BYTES, FrameKind
from vlsn.format.records import CheckpointEnd, CheckpointStart, RollbackEnd, RollbackStart
from vlsn.format.submission import FRAME_OVERHEAD_BYTES, Submission
from vlsn.ids import Lsn, Vlsn
from vlsn.state.options import Durability

RECORD_ROOM_BYTES = FRAME_BYTES + max(
    record.LAYOUT.size for record in (CheckpointStart, CheckpointEnd, RollbackStart, RollbackEnd)
)


class Pending:
    """A client's submission. A submission is queued, then sealed (now ``first``, ``last`` and ``term`` are set), then
    synced.

    The log calls ``refused`` if the submission will never be sealed. Nothing of a refused submission was logged.
    """

    __slots__ = ("cost", "count", "durability", "first", "last", "submission", "term")

    def __init__(self, submission: Submission, durability: Durability = Durability.SYNC) -> None:
        self.submission: Submission | None = submission
        """The submission's content; None once it is sealed, because the block has the bytes then."""
        self.count = submission.count
        # computed as by ``cost_of``
        self.cost = submission.bytes + submission.count * ENTRY_OVERHEAD_BYTES + FRAME_OVERHEAD_BYTES
        self.durability = durability
        self.first = 0
        """The first VLSN, set once the submission is sealed. With ``NO_SYNC`` it is set from the start, from the
        position in the queue."""
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
    """Blocks of a replica, stored byte for byte. ``at`` is the index of the next block to place. Without ``sync``, the
    blocks are written, and are synced with later items or within the sync interval."""

    run: BlockRun
    done: Callable[[VlsnLogError | None], None]
    sync: bool = True
    at: int = 0


@dataclass(slots=True)
class LocalRecord:
    """A local frame (checkpoint, rollback) whose payload is made when the frame is placed."""

    kind: FrameKind
    payload: Callable[[], bytes]
    done: Callable[[Lsn], None]
    refused: Callable[[VlsnLogError], None] | None = None
    """If set, the record is optional: this function is called with the error if there is no room for the record."""

    @property
    def room(self) -> int:
        """The bytes that must be free for this record. For the start of a rollback, the rollback's end is included,
        because a rollback that has begun cannot be refused any more."""
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
    """The queue of one log, first in, first out. Appends are limited in entries and in bytes. The queue is used under
    the log's latch."""

    __slots__ = ("appends", "bytes", "entries", "items", "lazy", "lazy_since_s", "vlsns")

    def __init__(self) -> None:
        self.items: deque[Item] = deque()
        self.appends = 0
        self.entries = 0
        self.bytes = 0
        self.vlsns = 0
        """The number of VLSNs that the waiting items will get."""
        self.lazy = 0
        """The number of queued appends that wait for no write (``NO_SYNC``)."""
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
        """Queues an append. If a signal interrupts the call, the append is queued entirely or not at all, because no
        function is called before the last step."""
        self.appends += 1
        self.entries += pending.count
        self.bytes += pending.cost
        self.vlsns += pending.count
        self.lazy += pending.durability is Durability.NO_SYNC
        self.items.append(pending)

    def taken(self, pending: Pending) -> None:
        """Notes that ``pending`` was removed from ``items``."""
        self.appends -= 1
        self.entries -= pending.count
        self.bytes -= pending.cost
        self.vlsns -= pending.count
        self.lazy -= pending.durability is Durability.NO_SYNC

    @property
    def only_appends(self) -> bool:
        return self.appends == len(self.items)

    def take_all(self) -> list[Pending]:
        """Removes and returns all items, which must be appends."""
        assert self.only_appends
        taken: list[Pending] = list(self.items)  # type: ignore[arg-type]
        self.items.clear()
        self.appends = self.entries = self.bytes = self.vlsns = self.lazy = 0
        return taken

    def take_back(self) -> list[Pending]:
        """Removes and returns the appends at the end of the queue, after the last item whose VLSNs are already
        fixed."""
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
        """Removes and returns every run of blocks of a replica."""
        taken = [item for item in self.items if isinstance(item, ReplicaRun)]
        self._keep([item for item in self.items if not isinstance(item, ReplicaRun)])
        return taken

    def take_refusable(self) -> list[Callable[[VlsnLogError], None]]:
        """Removes every local record that may be refused. Returns the functions to call with the error."""
        taken = [item for item in self.items if isinstance(item, LocalRecord) and item.refused is not None]
        if taken:
            self._keep([item for item in self.items if item not in taken])
        return [item.refused for item in taken if item.refused is not None]

    def take_appends(self) -> list[Pending]:
        """Removes and returns every append, and removes every entry of the log's own."""
        taken = [item for item in self.items if isinstance(item, Pending)]
        self._keep([item for item in self.items if not isinstance(item, Pending | LocalEntries)])
        self.appends = self.entries = self.bytes = self.vlsns = self.lazy = 0
        return taken

    def _keep(self, items: list[Item]) -> None:
        self.items.clear()
        self.items.extend(items)
