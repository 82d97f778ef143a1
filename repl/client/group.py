"""Appends that are sent as one batch, and what bounds them.

A group of single appends has one waiter for each, which receives its VLSN. A batch goes out alone and has one waiter,
which receives the node's whole answer (``Appended``).
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
"""Appends up to this many bytes are not counted one by one: the number of entries bounds the group."""
ENTRY_OVERHEAD_BYTES: Final = 8
WAKE_AT_ONCE: Final = 512

Key = bytes | None


class Identity:
    """A producer's id; ``born``, a VLSN that was durable before its first submission; the sequence that comes next.
    ``fixed``: its owner gives the sequences, and keeps them."""

    __slots__ = ("born", "broken", "fixed", "next", "producer", "taken")

    def __init__(self, producer: int, born: int, *, fixed: bool = False) -> None:
        self.producer = producer
        self.born = born
        self.fixed = fixed
        self.next = 0
        self.taken = 0
        """The sequence before which all are acknowledged, or belong to groups up to the last that may be logged."""
        self.broken = False
        """True once a later submission may not follow on the one before it."""


class Waiter(Protocol):
    """The receiver of an answer: a future, or an object that outlives its caller."""

    def done(self) -> bool:
        """Says whether it takes no answer any more."""
        ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: VlsnLogError, /) -> None: ...


@dataclass(slots=True, eq=False)
class Group:
    """Appends that gathered while others were sent, each with its waiter; or one ``batch``, with one waiter."""

    deadline: float
    acks: Acks | None = None
    """Its own policy; None: the client's."""
    durability: GroupDurability | None = None
    """Its own; None: the client's."""
    batch: list[Buffer] | None = None
    values: list[bytes] = field(default_factory=list)
    keys: list[Key] | None = None
    waiters: list[Waiter] = field(default_factory=list)
    large_bytes: int = 0
    size: int = 0
    """Bytes of all of it, known once it is closed."""
    id: int = 0
    sent_at: float = 0.0
    identity: Identity | None = None
    """The identity whose submission it is, once it was sent; None while any would do."""
    sequence: int = 0
    transaction: bool = False
    """The batch is a whole transaction; its ``identity`` is its own."""
    sets: bytes = b""
    """The state that it sets, as JSON; then the batch may be empty."""
    uncertain: bool = False
    """Sent, and not answered: it may be in the log."""

    @property
    def full(self) -> bool:
        return self.large_bytes >= GROUP_BYTES_MAX or len(self.waiters) >= GROUP_ENTRIES_MAX

    def add(self, value: bytes, key: Key) -> None:
        """Adds one append of any size, counted."""
        if key and self.keys is None:
            self.keys = [None] * len(self.values)
        self.values.append(value)
        if self.keys is not None:
            self.keys.append(key)
        self.large_bytes += len(value) + len(key or b"")

    def close(self) -> None:
        """Closes the group to appends, and counts its bytes."""
        if self.batch is not None:
            self.size = sum(map(len, self.batch)) + len(self.sets)
            return
        key_bytes = sum(len(key) for key in self.keys if key) if self.keys is not None else 0
        self.size = sum(map(len, self.values)) + key_bytes + ENTRY_OVERHEAD_BYTES * len(self.values)

    def parts(self) -> list[Buffer]:
        """Returns the batch, in pieces."""
        named = (self.identity.producer, self.sequence) if self.identity is not None else None
        if self.batch is None:
            return encode_parts(self.values, self.keys, producer=named)
        return self.batch if named is None or self.transaction else of_producer(self.batch, named)

    def header(self, acks: Acks, timeout_ms: int, durability: GroupDurability | None = None) -> bytes:
        """Returns what goes before the batch; ``acks`` and ``durability``: the client's."""
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
        """Wakes the waiters from ``start`` to ``end`` (exclusive); ``acks``: the client's policy."""
        if self.batch is not None:
            [waiter] = self.waiters
            if not waiter.done():
                waiter.set_result(answer.appended(self.acks or acks))
            return
        for vlsn, waiter in enumerate(self.waiters[start:end], answer.first + start):
            try:
                waiter.set_result(vlsn)
            except asyncio.InvalidStateError:  # its caller was cancelled; asking each first costs more
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
        """Splits the group: the same appends, each in a group of its own."""
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
    """Packs one atomic append as its batch, with room for a producer where it will be ``named``. Raises ``TooLarge``,
    ``BadBody``."""
    if not values:
        raise BadBody("append_many of no values; give at least one")
    parts = encode_parts(values, keys)
    check_longest(values, keys)
    room = BODY_BYTES_MAX - PRODUCER_BYTES if named else BODY_BYTES_MAX
    if (size := sum(map(len, parts)) - BATCH_BYTES) > room:
        raise TooLarge(f"a batch of {size} bytes; the limit is {room}")
    return parts


def check_longest(values: Sequence[bytes], keys: Sequence[Key] | None) -> None:
    """Checks each of these entries against the limits. Raises ``TooLarge``."""
    longest = max(map(len, values))
    if longest > ENTRY_BYTES_MAX:
        raise TooLarge(f"an entry of {longest} bytes; the limit is {ENTRY_BYTES_MAX}")
    if keys is not None and (longest_key := max(map(len, filter(None, keys)), default=0)) > KEY_BYTES_MAX:
        raise TooLarge(f"a key of {longest_key} bytes; the limit is {KEY_BYTES_MAX}")


class Waking:
    """Waiters whose groups are acknowledged, woken a slice a turn of the loop where groups are large. The first ones'
    next appends are on their way to the node while the last ones wake, so that neither side waits for all of the
    other's work."""

    def __init__(self, acks: Acks) -> None:
        self._acks = acks
        self._asleep: deque[tuple[Group, Answer, int]] = deque()
        """Each group, its answer, and how many of its waiters are awake."""

    def put(self, group: Group, answer: Answer) -> None:
        self._asleep.append((group, answer, 0))

    def wake_some(self) -> bool:
        """Wakes the next ``WAKE_AT_ONCE``; True when that was all."""
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
