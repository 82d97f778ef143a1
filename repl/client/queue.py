"""The queue of appends that wait to be sent, in the order of their calls.

Appends of one turn of the event loop are collected in the *open* group. The open group is closed when the connection
takes it, when it is full, or when an ``append_many`` follows. Refused groups are moved back to the front. The queue
holds at most about ``QUEUED_BYTES_MAX``; at this limit a call waits before its append is queued.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from repl.api import Acks, Appended
from repl.client.group import GROUP_ENTRIES_MAX, SMALL_BYTES, Group, Identity, Key, Waiter, batch_of, checked_value
from vlsn.durability import GroupDurability
from vlsn.errors import LogClosed, VlsnLogError
from vlsn.format.batch import encode_parts
from vlsn.seams import Buffer

T = TypeVar("T")
QUEUED_BYTES_MAX: Final = 64 << 20
Name = tuple[Identity, int]
"""The name of a submission: its producer and its sequence."""


class AppendQueue:
    """The queue of appends. The event ``work`` is set while an append waits."""

    def __init__(self, timeout_s: float, *, named: bool) -> None:
        self.work = asyncio.Event()
        self._named = named
        """True if each group will be sent under a producer's name."""
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._create_future = self._loop.create_future
        self._open: Group | None = None
        self._groups: deque[Group] = deque()
        self._bytes = 0
        """The bytes of all closed groups."""
        self._room = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, value: bytes, key: Key = None) -> Awaitable[int]:
        """Queues one append. The future returns the append's VLSN. Raises ``TypeError``, ``TooLarge``,
        ``LogClosed``."""
        group = self._open
        if (
            key is not None
            or group is None
            or group.keys is not None
            or type(value) is not bytes
            or len(value) > SMALL_BYTES
        ):
            return self._put_any(value, key)
        waiters = group.waiters
        if len(waiters) >= GROUP_ENTRIES_MAX:
            return self._put_any(value, key)
        group.values.append(value)
        future = self._create_future()
        waiters.append(future)
        return future

    def put_many(
        self,
        values: Sequence[bytes],
        keys: Sequence[Key] | None = None,
        *,
        acks: Acks | None = None,
        durability: GroupDurability | None = None,
        name: Name | None = None,
    ) -> Awaitable[Appended]:
        """Queues many values as one atomic append. ``acks``, ``durability`` and ``name``, if not None, apply to this
        append only."""
        batch = batch_of(values, keys, named=self._named)
        if self.full:
            return self._when_room(self._put_batch, batch, acks, durability, name)
        return self._put_batch(batch, acks, durability, name)

    def put_transaction(
        self,
        values: Sequence[bytes],
        keys: Sequence[Key] | None,
        waiter: Waiter,
        *,
        acks: Acks,
        durability: GroupDurability | None,
        name: Name,
        sets: bytes = b"",
    ) -> None:
        """Queues a whole transaction, whose entries are already checked. ``sets`` are the positions and states that
        it sets (JSON). The caller must have waited for ``room``."""
        batch = encode_parts(values, keys) if values else []
        group = self._begin()
        group.batch, group.acks, group.durability = batch, acks, durability
        group.identity, group.sequence = name
        group.transaction, group.sets = True, sets
        group.waiters.append(waiter)
        group.close()
        self._bytes += group.size

    def _put_batch(
        self, batch: list[Buffer], acks: Acks | None, durability: GroupDurability | None, name: Name | None
    ) -> Awaitable[Appended]:
        group = self._begin()
        group.batch, group.acks, group.durability = batch, acks, durability
        if name is not None:
            group.identity, group.sequence = name
        return self._waiter(group)

    def take(self) -> Group:
        """Takes the group that has waited longest."""
        if self._groups[0] is self._open:
            self._close_open()
        group = self._groups.popleft()
        self._left(group)
        if not self._groups:
            self.work.clear()
        return group

    def put_back(self, groups: Sequence[Group]) -> None:
        """Puts closed groups back to the front of the queue, in their order."""
        for group in reversed(groups):
            self._groups.appendleft(group)
            self._bytes += group.size
        if groups:
            self.work.set()

    def fail_late(self, now: float, fault: VlsnLogError) -> bool:
        """Fails the groups past their deadline with ``fault``. Returns whether any group was past its deadline."""
        late = [group for group in self._groups if group.deadline < now]
        self._fail(late, fault)
        return bool(late)

    def fail(self, error: VlsnLogError) -> None:
        """Fails the groups that wait."""
        self._fail(list(self._groups), error)

    def close(self, error: VlsnLogError) -> None:
        """Fails the groups that wait, and refuses all later appends."""
        self._closed = True
        self.fail(error)
        self._room.set()

    def _put_any(self, value: bytes, key: Key) -> Awaitable[int]:
        value, key = checked_value(value, key)
        group = self._open
        if group is None or group.full:
            if self.full:
                return self._when_room(self.put, value, key)
            self._open = group = self._begin()
        group.add(value, key)
        return self._waiter(group)

    def _begin(self) -> Group:
        if self._closed:
            raise LogClosed("the client is closed; connect again")
        self._close_open()
        group = Group(self._loop.time() + self._timeout_s)
        self._groups.append(group)
        self.work.set()
        return group

    def _waiter(self, group: Group) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = self._create_future()
        group.waiters.append(future)
        if group is not self._open:
            group.close()
            self._bytes += group.size
        return future

    def _close_open(self) -> None:
        """Closes the open group, so that the next append begins another group."""
        if self._open is not None:
            self._open.close()
            self._bytes += self._open.size
            self._open = None

    def _left(self, group: Group) -> None:
        self._bytes -= group.size
        if not self.full:
            self._room.set()

    def _fail(self, groups: Iterable[Group], fault: VlsnLogError) -> None:
        self._close_open()
        for group in groups:
            self._groups.remove(group)
            self._left(group)
            group.fail(fault)
        if not self._groups:
            self.work.clear()

    @property
    def full(self) -> bool:
        return self._bytes > QUEUED_BYTES_MAX

    async def room(self) -> None:
        """Waits while the queue is ``full``."""
        while self.full and not self._closed:
            self._room.clear()
            await self._room.wait()

    async def _when_room(self, put: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        await self.room()
        return await put(*arguments)
