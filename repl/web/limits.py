"""The gateway's limits, each a number with a name, and the counters that enforce them.

These limits bound the memory that clients can make a node use. Requests over a limit are refused with ``queue-full``
(429, Retry-After), or stay in the socket until they are within the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vlsn.errors import QueueFull
from vlsn.limits import BODIES_IN_FLIGHT_BYTES_MAX, BODY_BYTES_MAX, ENTRY_BYTES_MAX, KEY_BYTES_MAX, KIB, MIB

TIMEOUT_S = 10.0
TIMEOUT_S_MAX = 600.0
WAIT_S_MAX = 60.0
BODY_S = 60.0
"""The seconds in which a whole body must arrive; after that its places are freed."""
CONFIRM_S = 5.0
"""The seconds that a linearizable read without ``timeout`` waits until a majority confirms it and this node has caught
up."""
LAG_S_MAX = 86_400.0
"""The largest lag in seconds that a read may allow."""
READ_LIMIT = 1_000
READ_LIMIT_MAX = 10_000
READ_BYTES_MAX = 4 * MIB
ENCODED_TIMES_MAX = 2
"""A page of lines may have this many times the bytes allowed for its entries, because a byte may take up to six in
JSON."""
WAITED_BYTES_MAX = 256 * 1024
"""The most bytes that a read returns if it had to wait. A few new entries wake such a read, and many reads may wait."""
READS_MAX = 1_024
READS_AT_ONCE_MAX = 8
PAGES_IN_FLIGHT_BYTES_MAX = 64 * MIB
"""The most bytes of answers to readers that the readers' sockets have not taken yet."""
READERS_MAX = 4_096
"""The most readers (tails and long-polls) that wait at once, unless the setting ``readers_max`` says otherwise."""
UNTAKEN_BYTES_MAX = 64 * MIB
"""The most bytes written for readers that their sockets have not taken. Beyond this the longest stalled connection is
reset."""
HANDED_BYTES_MAX = 64 * MIB
"""The most bytes of destinations' messages that are handed out and that no socket has taken yet."""
WORKER_BYTES_MAX = 4 * MIB
"""The most such bytes of one worker. Beyond this the worker is handed no more messages."""
WORKER_AHEAD_BYTES = 64 * 1024
"""The most bytes that wait before one worker's socket and are not counted any more."""
ANSWERS_MAX = 8
"""The most answers of one worker that are handed out and not sent yet."""
STALLED_S = 1.0
"""The seconds for which a worker's socket may stall while other workers wait for free bytes."""
MESSAGE_BYTES = 32
"""The memory of a message on its way, in addition to its key and value."""
LOOKS_AT_ONCE_MAX = 2
"""The most peeks at messages (``?peek=true``), of 4 MiB each, that are made at once."""
PAGES_AT_ONCE_MAX = 2
"""The most pages of older entries that are made at once for tails and long-polls. Each takes some milliseconds."""
DELIVERIES_A_TURN = 16
"""The most readers that get their page in one turn of the event loop, which takes about 0.2 ms."""
DELIVERY_BYTES = 32 * 1024
"""A larger page counts as one delivery for each ``DELIVERY_BYTES``."""
PIECE_BYTES = 64 * KIB
"""The most bytes of pages and bodies that are encoded or decoded without a pause. In the worst case this takes 1 or 2
ms."""
ENTRY_COST = 256
"""In these limits an entry counts this many bytes in addition to its own."""
PIECE_COST = KIB
"""In these limits a piece counts this many bytes in addition to its own."""
NAMES_COST = 2 * PIECE_BYTES
"""In these limits all holds, all consumers, or the settings of all destinations count this many bytes: at the most
names, each takes 1 to 3 ms."""
DESTINATION_COST = 2 * KIB
"""In these limits the document of a destination counts this many bytes: it takes some 10 µs."""
PIECES_A_TURN_BYTES = 4 * PIECE_BYTES
"""The most bytes of pages, bodies and metrics that are encoded and decoded in one turn of the event loop."""
TOLD_S = 0.25
"""The seconds for which metrics, and the long fields of a status, are sent again without being made anew."""
TAIL_COMMENT_S = 15.0
TAIL_PAGE_ENTRIES_MAX = 1_000
FEEDS_MAX = 64
PRODUCERS_WAITING_BYTES_MAX = 64 * MIB
"""The most bytes of messages of producers that wait for free bytes; at most one message of each producer waits."""
PRODUCER_BYTES_IN_FLIGHT_MAX = 16 * MIB
"""The most bytes of one connection's batches that have no answer yet. Beyond this the server stops reading."""
TRANSACTIONS_MAX = 1_024
"""The most open transactions of one master."""
STAGED_BYTES_MAX = 256 * MIB
"""The most bytes of the entries of all open transactions, which are in the master's memory until commit or abort."""
STAGED_PART_BYTES = 512
"""The memory that one call's entries take in addition to their own bytes."""
STAGED_ENTRY_BYTES = 64
"""The memory that each entry takes in addition, if its call does not bring a batch."""
STAGED_S = 60.0
"""An open transaction ends, with nothing logged, this many seconds after its last call."""
COMMITTED_NAMES_MAX = 4_096
"""How many committed transactions' names of producers a master remembers, for commits that are sent again without these
names."""
SPANS_MAX = 256
"""The most spans in one answer."""
SEGMENT_STREAMS_MAX = 32
SEGMENT_PIECE_BYTES = MIB
RESTORE_RANGES_MAX = 4
"""The most ranges of segments that are being sent to restoring peers at once."""
STATE_RECORDS_MAX = 1
"""The most state records, of up to 32 MiB each, that are sent at once to members that have lost their state."""
PEER_BODY_BYTES_MAX = 64 * 1024
EVENTS_MAX = 1_000
RETRY_AFTER_S = 1


class Budget:
    """A limited number of bytes or places."""

    __slots__ = ("_what", "given", "limit", "used")

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self.limit = limit
        self.used = 0
        self.given: Callable[[], None] | None = None
        """Is called whenever something is returned to the budget."""

    def check(self, count: int) -> None:
        """Raises ``QueueFull`` when less than ``count`` is left."""
        if self.used + count > self.limit:
            raise QueueFull(f"{self._what} are at their limit ({self.limit}); wait and send again")

    def take(self, count: int) -> None:
        """Takes ``count``, after ``check``, until ``give`` returns it."""
        self.check(count)
        self.used += count

    def give(self, count: int) -> None:
        assert 0 <= count <= self.used, (self._what, count, self.used)
        self.used -= count
        if self.given is not None:
            self.given()

    @contextmanager
    def hold(self, count: int = 1) -> Iterator[None]:
        self.take(count)
        try:
            yield
        finally:
            self.give(count)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLimits:
    """The limits of appends: their bytes, and how many seconds an append waits if it names no time."""

    entry_bytes_max: int = ENTRY_BYTES_MAX
    key_bytes_max: int = KEY_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    bodies_in_flight_bytes_max: int = BODIES_IN_FLIGHT_BYTES_MAX
    timeout_s: float = TIMEOUT_S

    def budget(self) -> Budget:
        """Makes the budget for the append bodies of the whole node, over HTTP and WebSockets."""
        return Budget("bytes of append bodies in flight", self.bodies_in_flight_bytes_max)
