"""Numbers with names: every limit of the gateway, and the counters that hold them.

These limits bound the memory that clients can make a node use. Requests past one are refused with ``queue-full`` (429,
Retry-After), or stay in the socket until there is room.
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
"""Seconds in which a body must have come whole, or its places go to others."""
CONFIRM_S = 5.0
"""Seconds that a linearizable read without ``timeout`` waits for a majority, and for this node to get there."""
LAG_S_MAX = 86_400.0
"""The largest lag in seconds that a read may allow."""
READ_LIMIT = 1_000
READ_LIMIT_MAX = 10_000
READ_BYTES_MAX = 4 * MIB
ENCODED_TIMES_MAX = 2
"""A page of lines ends where it is so many times as long as the bytes of its entries may be: each may take six."""
WAITED_BYTES_MAX = 256 * 1024
"""Bytes that a read which had to wait returns at most: few new entries wake it, and many may wait."""
READS_MAX = 1_024
READS_AT_ONCE_MAX = 8
PAGES_IN_FLIGHT_BYTES_MAX = 64 * MIB
"""Answers to readers that their sockets have not taken yet."""
READERS_MAX = 4_096
"""Readers that wait at once, tails and long-polls, where the setting ``readers_max`` says nothing else."""
UNTAKEN_BYTES_MAX = 64 * MIB
"""Bytes written for readers that their sockets have not taken; past it the longest stalled is given up."""
HANDED_BYTES_MAX = 64 * MIB
"""Messages of destinations that are handed out, and that no socket has taken yet."""
WORKER_BYTES_MAX = 4 * MIB
"""Those of one worker; past it, it is handed no more."""
WORKER_AHEAD_BYTES = 64 * 1024
"""Those of one worker that lie before its socket, not counted any more."""
ANSWERS_MAX = 8
"""Answers of one worker that are handed out, and not sent yet."""
STALLED_S = 1.0
"""Seconds for which a worker's socket may stall while other workers wait for room."""
MESSAGE_BYTES = 32
"""Memory that a message takes on its way, beside its key and value."""
LOOKS_AT_ONCE_MAX = 2
"""Looks at messages that take none (``?peek=true``), of 4 MiB each, that are made at once."""
PAGES_AT_ONCE_MAX = 2
"""Pages of older entries that are made at once for tails and long-polls, some milliseconds each."""
DELIVERIES_A_TURN = 16
"""Readers that get their page in one turn of the event loop, about 0.2 ms."""
DELIVERY_BYTES = 32 * 1024
"""A page that is larger counts as so many more deliveries."""
PIECE_BYTES = 64 * KIB
"""Bytes of pages and bodies that are encoded or decoded without a stop: 1 or 2 ms of the worst of them."""
ENTRY_COST = 256
"""The bytes that an entry counts there, beside its own …"""
PIECE_COST = KIB
"""… and each piece."""
PIECES_A_TURN_BYTES = 4 * PIECE_BYTES
"""All that is encoded and decoded so in one turn of the event loop, metrics among it."""
TOLD_S = 0.25
"""Seconds for which metrics, and a status's long fields, are sent again as they were made."""
TAIL_COMMENT_S = 15.0
TAIL_PAGE_ENTRIES_MAX = 1_000
FEEDS_MAX = 64
PRODUCERS_WAITING_BYTES_MAX = 64 * MIB
"""Messages of producers that wait for room, one of each at most."""
PRODUCER_BYTES_IN_FLIGHT_MAX = 16 * MIB
"""Batches of one connection that have no answer yet; past it the server stops reading."""
TRANSACTIONS_MAX = 1_024
"""Open transactions of one master."""
STAGED_BYTES_MAX = 256 * MIB
"""Entries of all open transactions, in the master's memory until they are committed or aborted."""
STAGED_PART_BYTES = 512
"""Memory that one call's entries take beside their own bytes …"""
STAGED_ENTRY_BYTES = 64
"""… and each entry of a call that does not come as a batch."""
STAGED_S = 60.0
"""Seconds after its last call when an open transaction ends, nothing logged."""
COMMITTED_NAMES_MAX = 4_096
"""Transactions whose producers' names a master remembers after their commits, for commits that are asked again without
them."""
SPANS_MAX = 256
"""Spans that one answer cuts the log into."""
SEGMENT_STREAMS_MAX = 32
SEGMENT_PIECE_BYTES = MIB
RESTORE_RANGES_MAX = 4
"""Ranges of segments on their way to restoring peers."""
STATE_RECORDS_MAX = 1
"""State records, 32 MiB at most, that are sent at once to members that have lost theirs."""
PEER_BODY_BYTES_MAX = 64 * 1024
EVENTS_MAX = 1_000
RETRY_AFTER_S = 1


class Budget:
    """A number of bytes or places that is never passed."""

    __slots__ = ("_what", "given", "limit", "used")

    def __init__(self, what: str, limit: int) -> None:
        self._what = what
        self.limit = limit
        self.used = 0
        self.given: Callable[[], None] | None = None
        """A call for when something is given back."""

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
    """Limits of appends: bytes, and the seconds that one waits which names no time of its own."""

    entry_bytes_max: int = ENTRY_BYTES_MAX
    key_bytes_max: int = KEY_BYTES_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    bodies_in_flight_bytes_max: int = BODIES_IN_FLIGHT_BYTES_MAX
    timeout_s: float = TIMEOUT_S

    def budget(self) -> Budget:
        """Makes the budget of the append bodies of a whole node, HTTP and sockets together."""
        return Budget("bytes of append bodies in flight", self.bodies_in_flight_bytes_max)
