"""Full destinations: the result of an append while one of its destinations has reached its limit.

    PAGE    no effect: messages wait in the log, and in pages once the log is cleaned
    DROP    the append is logged, and the master acknowledges its messages at once
    BLOCK   the append waits until some messages are acknowledged, or until it times out
    FAIL    the append is refused, ``destination-full``

A page is a file of messages whose part of the log was cleaned away. The pages of a destination have a limit and a
policy (DROP or FAIL) of their own, beside any of the policies above. The policy of the pages also applies while the
node's disk is nearly full, and while all pages of the node together are at their limit.

The master checks an append only at its admission, against the unacknowledged messages in the log and in the queue. A
new master counts the existing messages in the background; until the count is complete, no destination is full. An
append that alone exceeds the limit is accepted if the destination has no other messages.

If no destination has a limit, an append only checks that ``active`` is empty.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from repl.destinations.delivered import Source
from repl.destinations.delivery import Delivery
from repl.destinations.depth import Depth
from vlsn.errors import DestinationFull, NotMaster, QueueFull, Trimmed, VlsnLogError
from vlsn.format.submission import Submission
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import NULL_VLSN, Vlsn
from vlsn.limits import ACK_INTERVALS_MAX, MIB
from vlsn.pages.source import PageSource
from vlsn.seams import Buffer
from vlsn.state.destinations import FULL_POLICIES, DestinationSettings
from vlsn.write.local_log import LocalLog
from vlsn.write.queue import Pending

A = TypeVar("A", bound="Held")
HELD_MAX: Final = 16_384
"""The most appends that may wait for full destinations. The bytes of waiting appends are limited where requests are
read."""
FULL_S: Final = 2.0
"""A destination counts as full for this many seconds after an append found it full, even if it has room again."""
COUNT_AGAIN_S: Final = 1.0
"""If a count of existing messages fails to read the log, it continues after this many seconds."""
RECOUNT_S: Final = 0.05
"""A count that reaches an entry which has left the ring (recent blocks in memory) and is not durable yet continues
after this many seconds."""


class Held(Protocol):
    """An append that can be held until destinations have room (``repl.lead.append_book``)."""

    @property
    def submission(self) -> Submission | None: ...

    @property
    def settled(self) -> bool: ...

    def hold(self, why: str, error: type[VlsnLogError], doubt: asyncio.Future[None] | None) -> None:
        """Notes why the append waits, and the error that it gets if it times out. ``why`` is "" once the append no
        longer waits."""
        ...

    def refuse(self, error: VlsnLogError) -> None: ...


class Queued(NamedTuple):
    """The messages of one unsealed append for one destination."""

    messages: int
    bytes: int
    first_row: int
    last_row: int
    drop: bool


@dataclass(slots=True)
class Fullness:
    """Describes an append that found its destination full. Another append of the same size would find it full, too."""

    policy: str
    """The policy that was applied to the append: ``drop``, ``block`` or ``fail``."""
    why: str
    messages: int
    bytes: int
    """The bytes of the append's messages for this destination."""
    since_us: int
    met_s: float


@dataclass(eq=False, slots=True)
class Policy:
    """The limits and counts of one destination that can be full."""

    delivery: Delivery
    settings: DestinationSettings
    depth: Depth
    since: Vlsn = NULL_VLSN
    """``Acknowledged.since`` when the messages were counted. A later value means that the destination was moved, and
    may want earlier messages again."""
    counted: bool = False
    """True once the messages that existed at the start of the term are counted. False for a destination whose
    messages are not counted."""
    queued: dict[object, Queued] = field(default_factory=dict)
    """The destination's messages in appends that are not sealed yet, by append."""
    first_weighed: object = None
    """The first append whose messages this object counted, until that append is sealed. Messages of earlier appends
    are counted from the log."""
    next_vlsn: int = 0
    """The VLSN after the last sealed message; 0 until the append ``first_weighed`` is sealed."""
    fullness: Fullness | None = None
    """The destination's fullness at the last check. ``FullPolicies.fullness`` checks again."""
    dropped: int = 0
    blocked: int = 0
    failed: int = 0

    @property
    def bounded(self) -> bool:
        """True if the destination's messages are counted; if False, only the destination's pages can be full."""
        return self.settings.full_policy != FULL_POLICIES[0]

    @property
    def can_drop(self) -> bool:
        """Returns whether the messages of one more append can be dropped. Each drop adds at most one interval of
        acknowledged VLSNs, and intervals are limited."""
        return self.delivery.acks.intervals_left > sum(each.drop for each in self.queued.values())

    def has_room(self, messages: int, size: int) -> bool:
        limits = self.settings
        taken = [each for each in self.queued.values() if not each.drop]
        there = sum(each.messages for each in taken) + self.depth.messages
        held = sum(each.bytes for each in taken) + self.depth.bytes
        if not there:
            return True
        over = limits.max_messages and there + messages > limits.max_messages
        return not over and not (limits.max_bytes and held + size > limits.max_bytes)


class FullPolicies(Generic[A]):
    """The full destinations of one master's term. ``put`` queues an append that was held. ``close`` is called when
    the term ends."""

    def __init__(
        self,
        log: LocalLog,
        source: Source,
        put: Callable[[A, int | None], None],
        event: Callable[..., None],
        pages: Callable[[], PageSource | None] = lambda: None,
    ) -> None:
        self._pages = pages
        self._log = log
        self._source = source
        self._event = event
        self._put = put
        self.active: dict[str, Policy] = {}
        """The policies of destinations that can be full, by the uuid of the destination."""
        self._held: deque[tuple[A, int | None, asyncio.Future[None]]] = deque()
        self._counting: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def held(self) -> int:
        return len(self._held)

    def policy(self, uuid: str) -> Policy | None:
        """Returns the policy of a destination with its current depth, or None for a destination that is never full."""
        policy = self.active.get(uuid)
        if policy is not None and policy.counted:
            self._catch_up(policy)
            policy.depth.let_go(policy.delivery.acks.has)
        return policy

    def concerns(self, settings: DestinationSettings) -> bool:
        """Returns whether a destination with these settings can be full now."""
        limited = settings.page_limit_bytes > 0 or settings.page_limit_messages > 0
        return settings.full_policy != FULL_POLICIES[0] or limited or bool(self._why_paged(settings))

    def _why_paged(self, settings: DestinationSettings) -> str:
        pages = self._pages()
        if pages is None:
            return ""
        return pages.why_full(settings.uuid, settings.page_limit_bytes, settings.page_limit_messages)

    def follow(self, delivery: Delivery) -> None:
        """Applies the settings of a destination."""
        settings, policy = delivery.settings, self.active.get(delivery.uuid)
        bounded = settings.full_policy != FULL_POLICIES[0]
        if not self.concerns(settings):
            if policy is not None:
                del self.active[delivery.uuid]
                self.release()
        elif policy is None:
            self.active[delivery.uuid] = policy = Policy(delivery, settings, _depth_of(delivery))
            self._count_anew(policy)
        elif (
            policy.bounded != bounded
            or policy.since != delivery.acks.since
            or policy.settings.dead_letter != settings.dead_letter
        ):
            policy.settings = settings
            self._count_anew(policy)
        else:
            policy.depth.pass_to(delivery.acks.floor)
            if policy.settings is not settings:
                policy.settings = settings
                self.release()

    def _count_anew(self, policy: Policy) -> None:
        """Counts the destination's messages again, from the floor (the end of the acknowledged messages) on. Queued
        messages stay noted, including those to be dropped."""
        policy.depth, policy.since, policy.counted = _depth_of(policy.delivery), policy.delivery.acks.since, False
        # the destination now selects other entries, because the key of its dead letters changed
        policy.first_weighed, policy.next_vlsn = None, 0
        if policy.bounded:
            self._begin_count()
        else:
            self.release()

    def forget(self, uuid: str) -> None:
        if self.active.pop(uuid, None) is not None:
            self.release()

    def close(self) -> None:
        self._closed = True
        if self._counting is not None:
            self._counting.cancel()
        held, self._held = self._held, deque()
        for append, _, doubt in held:
            _decided(doubt)
            append.refuse(NotMaster("this node is no longer the master; the append was not logged"))

    # Admission of appends.

    def admit(self, append: A, born: int | None) -> bool:
        """Returns True if an append may be logged now; otherwise holds the append and returns False. Raises
        ``DestinationFull``, ``QueueFull`` before the append is logged."""
        assert append.submission is not None
        if self._waits_behind(append):
            self._hold(append, born, "appends before this one wait for a full destination")
            return False
        full = self._weigh(append)
        if full is None:
            return True
        policy, why, verdict = full
        if verdict == "fail":
            policy.failed += int(policy.depth.matched(append.submission)[0].sum())
            raise DestinationFull(why)
        policy.blocked += 1
        self._hold(append, born, why)
        asyncio.get_running_loop().call_soon(self.release)  # a destination may have room again by now
        return False

    def _weigh(self, append: A) -> tuple[Policy, str, str] | None:
        """Counts the append's messages if all its destinations have room for them. If a destination has no room,
        returns the first such destination, the reason and the policy."""
        assert append.submission is not None
        weighed: list[tuple[Policy, Queued]] = []
        for policy in self.active.values():
            mask, size = policy.depth.matched(append.submission)
            count = int(mask.sum())
            if not count:
                continue
            verdict, why = self._verdict(policy, count, size)
            if verdict in ("block", "fail"):
                self._met(policy, verdict, why, count, size)
                return policy, f"destination {policy.delivery.name} is full: {why}", verdict
            rows = np.flatnonzero(mask)
            weighed.append((policy, Queued(count, size, int(rows[0]), int(rows[-1]), verdict == "drop")))
            if verdict == "drop":
                self._met(policy, verdict, why, count, size)
        for policy in self.active.values():
            if not policy.next_vlsn and getattr(policy.first_weighed, "settled", True):
                policy.first_weighed = append
        for policy, queued in weighed:
            policy.queued[append] = queued
        return None

    def _verdict(self, policy: Policy, count: int, size: int) -> tuple[str, str]:
        """Returns the policy to apply to ``count`` more messages, and the reason. The policy is "" if there is room."""
        verdict, why = "", self._why_paged(policy.settings)
        if why:
            verdict = policy.settings.page_full_policy
        elif policy.counted:
            self._catch_up(policy)
            if not policy.has_room(count, size):
                policy.depth.let_go(policy.delivery.acks.has)
                self._purge(policy)
            if not policy.has_room(count, size):
                verdict, why = policy.settings.full_policy, f"{policy.depth.messages} messages"
        if verdict == "drop" and not policy.can_drop:
            return "fail", f"{why}, and no more can be dropped: {ACK_INTERVALS_MAX} intervals of VLSNs are acknowledged"
        return verdict, why

    def sealed(self, pendings: Sequence[Pending]) -> None:
        """Notes the VLSNs of sealed appends, and acknowledges their messages that are to be dropped. Each
        acknowledgement reaches back to the message before, so that consecutive drops form one interval."""
        for policy in self.active.values():
            if not policy.queued and policy.first_weighed is None:
                continue
            for pending in pendings:
                if pending is policy.first_weighed:
                    policy.first_weighed, policy.next_vlsn = None, int(pending.first)
                queued = policy.queued.pop(pending, None)
                if queued is None:
                    continue
                first, last = int(pending.first) + queued.first_row, int(pending.first) + queued.last_row
                if queued.drop:
                    policy.dropped += queued.messages
                    policy.delivery.drop(VlsnSet.between(policy.next_vlsn or first, last), queued.messages)
                policy.next_vlsn = last + 1 if policy.next_vlsn else 0

    def left(self, append: A) -> None:
        """Notes that an append was refused elsewhere, after its messages were counted here."""
        for policy in self.active.values():
            policy.queued.pop(append, None)
            if policy.first_weighed is append:
                policy.first_weighed = None

    def _purge(self, policy: Policy) -> None:
        """Removes the counts of appends that were never sealed."""
        for append in [append for append in policy.queued if getattr(append, "settled", False)]:
            del policy.queued[append]

    def _catch_up(self, policy: Policy) -> None:
        """Counts the entries that were added to the log since the last count."""
        ring, depth = self._log.view.ring, policy.depth
        if ring.last_vlsn <= depth.counted_to:
            return
        position = ring.position_of(Vlsn(depth.counted_to + 1))
        if position is None:
            policy.counted = False
            self._begin_count()
            return
        blocks: list[Buffer] = ring.take(position, end=ring.end, bytes_max=1 << 40)
        depth.add(blocks)

    def _met(self, policy: Policy, verdict: str, why: str, messages: int, size: int) -> None:
        """Notes that an append found a destination full."""
        before, clock = self.fullness(policy.delivery.uuid), self._log.seams.clock
        since_us = before.since_us if before is not None else clock.wall_us()
        policy.fullness = Fullness(verdict, why, messages, size, since_us, clock.monotonic_s())
        if before is None:
            event = self._event
            event("destination.full", destination=policy.delivery.name, policy=verdict, why=why)

    def full_ones(self) -> Iterator[tuple[str, Fullness]]:
        """Yields the full destinations, each with its name."""
        for uuid, policy in self.active.items():
            if (full := self.fullness(uuid)) is not None:
                yield policy.delivery.name, full

    def fullness(self, uuid: str) -> Fullness | None:
        """Returns how full a destination is, or None if it is not full. A destination becomes full when an append has
        no room. It stays full until an append of that size would have room, and for at least ``FULL_S``. So a
        destination that is emptied one message at a time stays full, and does not flicker."""
        policy = self.active.get(uuid)
        full = policy.fullness if policy is not None else None
        if policy is None or full is None or self._log.seams.clock.monotonic_s() < full.met_s + FULL_S:
            return full
        if policy.counted or not policy.bounded:
            full.policy, full.why = self._verdict(policy, full.messages, full.bytes)
            if not full.policy:
                policy.fullness = None
        return policy.fullness

    # Held appends.

    def _waits_behind(self, append: A) -> bool:
        """Returns whether messages of this append would overtake messages of an append that is held."""
        if not self._held:
            return False
        assert append.submission is not None
        return any(
            policy.settings.full_policy == "block" and policy.depth.matched(append.submission)[0].any()
            for policy in self.active.values()
        )

    def _hold(self, append: A, born: int | None, why: str) -> None:
        if len(self._held) >= HELD_MAX:
            raise QueueFull(f"{HELD_MAX} appends already wait for full destinations")
        doubt: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        append.hold(why, DestinationFull, doubt)
        self._held.append((append, born, doubt))

    def release(self) -> None:
        """Queues the held appends that have room now, in the order of arrival."""
        while self._held and not self._closed:
            append, born, doubt = self._held[0]
            if not append.settled and self._weigh(append) is not None:
                return
            self._held.popleft()
            _decided(doubt)
            if append.settled:
                continue  # the append has timed out
            append.hold("", NotMaster, None)
            try:
                self._put(append, born)
            except VlsnLogError as error:
                self.left(append)
                append.refuse(error)

    # Counting earlier messages.

    def _begin_count(self) -> None:
        if self._counting is None and not self._closed:
            self._counting = asyncio.create_task(self._count(), name="depths")

    async def _count(self) -> None:
        try:
            while todo := [policy for policy in self.active.values() if policy.bounded and not policy.counted]:
                for policy in todo:
                    await self._count_one(policy)
        finally:
            self._counting = None

    async def _count_one(self, policy: Policy) -> None:
        depth = policy.depth
        while self.active.get(policy.delivery.uuid) is policy and policy.depth is depth:
            try:
                page = await self._source.blocks(depth.counted_to + 1, bytes_max=MIB)
            except Trimmed as trimmed:
                try:
                    await self._count_paged(policy, int(trimmed.first))
                except (VlsnLogError, OSError):
                    await asyncio.sleep(COUNT_AGAIN_S)
                continue
            except (VlsnLogError, OSError):
                await asyncio.sleep(COUNT_AGAIN_S)
                continue
            if policy.depth is not depth:
                return  # the destination was moved meanwhile, so another count of its messages has begun
            if not page.data:
                policy.counted = True
                self._catch_up(policy)
                depth.let_go(policy.delivery.acks.has)
                if policy.counted:
                    return
                # an entry that left memory can be read from the disk once it is durable
                await asyncio.sleep(RECOUNT_S)
                continue
            depth.add(page.data)
            depth.let_go(policy.delivery.acks.has)
            await asyncio.sleep(0)

    async def _count_paged(self, policy: Policy, first: int) -> None:
        """Counts the messages that only pages have: those before ``first``, the first VLSN of the log."""
        depth, pages = policy.depth, self._pages()
        while depth.counted_to + 1 < first and self.active.get(policy.delivery.uuid) is policy:
            if pages is None:
                depth.counted_to = first - 1
                return
            at = depth.counted_to + 1
            found = await pages.sizes(policy.delivery.uuid, at)
            if found.next_vlsn <= at:
                depth.counted_to = first - 1  # no page of the destination has further messages
                return
            depth.add_sizes(found.vlsns, found.sizes, min(int(found.next_vlsn), first) - 1)
            depth.let_go(policy.delivery.acks.has)


def _depth_of(delivery: Delivery) -> Depth:
    return Depth(delivery.wanted, delivery.acks.floor)


def _decided(doubt: asyncio.Future[None]) -> None:
    if not doubt.done():
        doubt.set_result(None)
