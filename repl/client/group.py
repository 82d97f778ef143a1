"""A group of appends that are sent as one batch, with the limits of a group.

A group of single appends has a waiter for each append, which receives the append's VLSN. A whole batch
(``append_many``) is sent alone, and has one waiter, which receives all fields of the node's answer (``Appended``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from repl.api import Acks
from repl.client.codec import BYTES
from repl.produce_messages import Answer, request_header
from vlsn.durability import GroupDurability
from vlsn.errors import BadBody, OutcomeUnknown, TooLarge, VlsnLogError
from vlsn.format.batch import BATCH_BYTES, encode_parts, of_producer
from vlsn.format.producer_columns import PRODUCER_BYTES
from vlsn.ids import NUMBER_MAX
from vlsn.limits import BLOCK_BYTES_MAX, BODY_BYTES_MAX, ENTRY_BYTES_MAX, KEY_BYTES_MAX
from vlsn.seams import Buffer

GROUP_ENTRIES_MAX: Final = 4096
GROUP_BYTES_MAX: Final = BLOCK_BYTES_MAX // 2
SMALL_BYTES: Final = GROUP_BYTES_MAX // GROUP_ENTRIES_MAX
"""Bytes are not counted for appends up to this size: the limit on the entries of a group also bounds their bytes."""
ENTRY_OVERHEAD_BYTES: Final = 8
WAKE_AT_ONCE: Final = 512

Key = bytes | None


class Identity:
    """A producer's name: its id, and ``born``, a VLSN that was durable before its first submission. ``next`` is the
    sequence of its next submission. With ``fixed`` the caller chooses and remembers the sequences."""

    __slots__ = ("born", "broken", "fixed", "next", "producer", "taken")

    def __init__(self, producer: int, born: int, *, fixed: bool = False) -> None:
        self.producer = producer
        self.born = born
        self.fixed = fixed
        self.next = 0
        self.taken = 0
        """A sequence number. All lower sequences are acknowledged, or are in use by groups that may be logged."""
        self.broken = False
        """True once it is not certain that a later submission follows directly on the one before."""


class Waiter(Protocol):
    """Receives an answer: a future, or an object that outlives the caller."""

    def done(self) -> bool:
        """Returns whether the waiter accepts no answer any more."""
        ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: VlsnLogError, /) -> None: ...


@dataclass(slots=True, eq=False)
class Group:
    """Appends that were queued together, each with its waiter; or one ``batch`` with a single waiter."""

    deadline: float
    acks: Acks | None = None
    """The ack policy of this group, or None for the client's policy."""
    durability: GroupDurability | None = None
    """The durability of this group, or None for the client's durability."""
    batch: list[Buffer] | None = None
    values: list[bytes] = field(default_factory=list)
    keys: list[Key] | None = None
    waiters: list[Waiter] = field(default_factory=list)
    large_bytes: int = 0
    size: int = 0
    """The bytes of the whole group; set when the group is closed."""
    id: int = 0
    sent_at: float = 0.0
    identity: Identity | None = None
    """The producer name under which the group was sent, or None before it is sent."""
    sequence: int = 0
    transaction: bool = False
    """True if the batch is a whole transaction; For a whole transaction, ``identity`` is its own."""
    sets: bytes = b""
    """The positions and sink states that the transaction sets, as JSON. If there are any, the batch may be empty."""
    uncertain: bool = False
    """True if the group was sent and not answered, so it may be in the log."""

    @property
    def full(self) -> bool:
        return self.large_bytes >= GROUP_BYTES_MAX or len(self.waiters) >= GROUP_ENTRIES_MAX

    def add(self, value: bytes, key: Key) -> None:
        """Adds one append of any size, and counts its bytes."""
        if key and self.keys is None:
            self.keys = [None] * len(self.values)
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        self.large_bytes += len(value) + len(key or b"")

    def close(self) -> None:
        """Closes the group to further appends, and counts its bytes."""
        if self.batch is not None:
            self.size = sum(map(len, self.batch)) + len(self.sets)
            return
        key_bytes = sum(len(key) for key in self.keys if key) if self.keys is not None else 0
        self.size = sum(map(len, self.values)) + key_bytes + ENTRY_OVERHEAD_BYTES * len(self.values)

    def parts(self) -> list[Buffer]:
        """Returns the encoded batch, in pieces."""
        named = (self.identity.producer, self.sequence) if self.identity is not None else None
        if self.batch is None:
            return encode_parts(self.values, self.keys, producer=named)
        return self.batch if named is None or self.transaction else of_producer(self.batch, named)

    def header(self, acks: Acks, timeout_ms: int, durability: GroupDurability | None = None) -> bytes:
        """Returns the header that precedes the batch in the message. ``acks`` and ``durability`` are the client's."""
        identity, policy, asked = self.identity, self.acks or acks, self.durability or durability
        if identity is None:
            return request_header(self.id, policy, timeout_ms, None, None, asked)
        if not self.transaction:
            return request_header(self.id, policy, timeout_ms, identity.born, None, asked)
        may_be_logged = self.uncertain or identity.broken
        born = identity.born if may_be_logged else NUMBER_MAX
        name = identity.producer, self.sequence
        return request_header(self.id, policy, timeout_ms, born, name, asked, self.sets)

    def acknowledge(self, answer: Answer, acks: Acks, start: int, end: int) -> None:
        """Wakes the waiters from ``start`` to ``end`` (exclusive). ``acks`` is the client's policy."""
        if self.batch is not None:
            [waiter] = self.waiters
            if not waiter.done():
                waiter.set_result(answer.appended(self.acks or acks))
            return
        for vlsn, waiter in enumerate(self.waiters[start:end], answer.first + start):
            try:
                waiter.set_result(vlsn)
            except asyncio.InvalidStateError:  # the caller was cancelled; to ask each waiter first would cost more
                pass

    def fail(self, error: VlsnLogError) -> None:
        if self.uncertain and not isinstance(error, OutcomeUnknown):
            error = OutcomeUnknown(f"sent, but not acknowledged: {error}; it may have been logged")
        if self.identity is not None:
            self.identity.broken = True
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)

    def split(self) -> list[Group]:
        """Returns the same appends, as groups of a single append each."""
        groups = []
        for index, waiter in enumerate(self.waiters):
            alone = Group(self.deadline)
            alone.add(self.values[index], None if self.keys is None else self.keys[index])
            alone.waiters.append(waiter)
            alone.close()
            groups.append(alone)
        return groups


def checked_value(value: object, key: object) -> tuple[bytes, Key]:
    """Checks one append against the limits. Raises ``TooLarge``, ``TypeError``."""
    data = value if type(value) is bytes else BYTES.value(value)
    name = key if key is None or type(key) is bytes else BYTES.key(key)
    if len(data) > ENTRY_BYTES_MAX:
        raise TooLarge(f"an entry of {len(data)} bytes; the limit is {ENTRY_BYTES_MAX}")
    if name and len(name) > KEY_BYTES_MAX:
        raise TooLarge(f"a key of {len(name)} bytes; the limit is {KEY_BYTES_MAX}")
    return data, name


def batch_of(values: Sequence[bytes], keys: Sequence[Key] | None, *, named: bool) -> list[Buffer]:
    """Packs one atomic append as its batch. If the batch will be ``named``, leaves space for the producer. Raises
    ``TooLarge``, ``BadBody``."""
    if not values:
        raise BadBody("append_many of no values; give at least one")
    parts = encode_parts(values, keys)
    check_longest(values, keys)
    room = BODY_BYTES_MAX - PRODUCER_BYTES if named else BODY_BYTES_MAX
    if (size := sum(map(len, parts)) - BATCH_BYTES) > room:
        raise TooLarge(f"a batch of {size} bytes; the limit is {room}")
    return parts


def check_longest(values: Sequence[bytes], keys: Sequence[Key] | None) -> None:
    """Checks each entry's size against the limits. Raises ``TooLarge``."""
    longest = max(map(len, values))
    if longest > ENTRY_BYTES_MAX:
        raise TooLarge(f"an entry of {longest} bytes; the limit is {ENTRY_BYTES_MAX}")
    if keys is not None and (longest_key := max(map(len, filter(None, keys)), default=0)) > KEY_BYTES_MAX:
        raise TooLarge(f"a key of {longest_key} bytes; the limit is {KEY_BYTES_MAX}")


class Waking:
    """Wakes the waiters of acknowledged groups, in slices: one slice of a large group in each turn of the event
    loop. While the last waiters wake, the first ones have already sent their next appends. So client and node work
    at the same time."""

    def __init__(self, acks: Acks) -> None:
        self._acks = acks
        self._asleep: deque[tuple[Group, Answer, int]] = deque()
        """For each group that is being woken: the group, its answer, and the number of its waiters that are awake."""

    def put(self, group: Group, answer: Answer) -> None:
        self._asleep.append((group, answer, 0))

    def wake_some(self) -> bool:
        """Wakes the next ``WAKE_AT_ONCE`` waiters. Returns True if no waiter is left."""
        left = WAKE_AT_ONCE
        while self._asleep and left > 0:
            group, answer, start = self._asleep.popleft()
            end = start + left
            group.acknowledge(answer, self._acks, start, end)
            if end < len(group.waiters):
                self._asleep.appendleft((group, answer, end))
            left -= len(group.waiters) - start
        return not self._asleep

    def wake_all(self) -> None:
        while not self.wake_some():
            pass
