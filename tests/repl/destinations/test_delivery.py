"""One delivery: messages that come back, or a move, while it reads; and the order of messages with keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from repl.destinations.delivered import Blocks
from repl.destinations.delivery import Delivery, DeliveryParts
from repl.destinations.handed import Handed, Holder
from repl.destinations.notes import Notes, Submit
from tests.fakes.loop import run, virtual
from tests.repl.destinations.test_window import FIRST, sealed
from vlsn.errors import BadArgument, NoSpace, NotMaster, QueueFull, Trimmed
from vlsn.format.block import Entry
from vlsn.format.vlsn_set import VlsnSet
from vlsn.ids import Vlsn
from vlsn.limits import MIB
from vlsn.pages.source import PagedRun, PagedSizes, PageSource
from vlsn.state.acks import Acked
from vlsn.state.destinations import DestinationSettings

UUID = "0123456789abcdef"
LIMIT = 100
"""Intervals of acknowledged VLSNs."""
SETTINGS = DestinationSettings(UUID, ack_timeout_s=60.0)


@dataclass(frozen=True)
class Page:
    data: list[bytes]
    next_vlsn: int
    durable: int


class Log:
    """Gives a block a read; ``before`` runs where a read begins."""

    def __init__(self, *keys: list[bytes], value_bytes: int = 0) -> None:
        self._blocks, self.entries = sealed(
            [[(key, b"%s in block %d" % (key, at) + bytes(value_bytes)) for key in of] for at, of in enumerate(keys)]
        )
        self._firsts = [FIRST + sum(map(len, keys[:at])) for at in range(len(keys))]
        self.durable = Vlsn(int(self.entries[-1].vlsn))
        self.before: Callable[[int], Awaitable[None]] | None = None

    async def blocks(self, from_vlsn: int | None, *, bytes_max: int) -> Blocks:
        assert from_vlsn is not None
        await asyncio.sleep(0.01)
        if self.before is not None:
            await self.before(from_vlsn)
        at = int(np.searchsorted(self._firsts, from_vlsn, side="right")) - 1
        end = self._firsts[at + 1] if at + 1 < len(self._firsts) else self.durable + 1
        return Page([self._blocks[at]], int(end), self.durable)


def refused(*_: object) -> None:
    raise NoSpace("no room")


class Made:
    """A delivery whose notes are all refused: only a test's own table is folded."""

    def __init__(
        self,
        log: Log,
        *,
        settings: DestinationSettings = SETTINGS,
        pages: PageSource | None = None,
        submit: Submit = refused,
    ) -> None:
        async def confirmed() -> None: ...

        self.acked = Acked(Vlsn(5), VlsnSet.between(1, FIRST - 1))
        parts = DeliveryParts(
            source=log,
            pages=lambda: pages,
            table=lambda uuid: self.acked,
            notes=Notes(submit, lambda: None),
            confirm=confirmed,
            bury=lambda delivery, dead: None,
            freed=lambda: None,
            event=lambda *_, **__: None,
        )
        self.delivery = Delivery(parts, "orders", settings)

    def moved(self, since: int, floor: int) -> None:
        self.acked = Acked(Vlsn(since), VlsnSet.between(1, floor))
        self.delivery.follow(self.delivery.settings)


@virtual
async def test_one_that_comes_back_while_others_are_looked_up_goes_out_before_later_ones_of_its_key() -> None:
    log = Log([b"a", b"b"], [b"a"], [b"c"])
    delivery = Made(log).delivery
    worker = delivery.worker()
    first, _ = await worker.take(2, 0.0, Holder(Handed()))
    assert first.columns.vlsns.tolist() == [FIRST, FIRST + 1]

    async def nacked(from_vlsn: int) -> None:
        if from_vlsn == FIRST + 3:  # the second message of a is found, and nobody has it yet
            log.before = None
            delivery.nack([FIRST], "again")

    log.before = nacked
    found, _ = await worker.take(10, 1.0, Holder(Handed()))
    assert delivery.counts.nacked == 1
    assert found.columns.vlsns.tolist() == [FIRST, FIRST + 2, FIRST + 3]
    assert found.attempts == {FIRST: 2}


def test_what_was_looked_up_before_a_move_does_not_go_out_behind_it() -> None:
    for floor, expected in ((FIRST + 2, [FIRST + 3]), (0, [FIRST, FIRST + 1, FIRST + 2, FIRST + 3])):

        async def main(floor: int = floor, expected: list[int] = expected) -> None:
            log = Log([b"a", b"b"], [b"a"], [b"c"])
            made = Made(log)

            async def move(from_vlsn: int) -> None:
                if from_vlsn == FIRST + 3:
                    log.before = None
                    made.moved(99, max(floor, FIRST - 1))

            log.before = move
            found, _ = await made.delivery.hand_out(10, 1.0, Holder(Handed()))
            assert found.columns.vlsns.tolist() == expected
            assert made.delivery.out == len(expected)

        run(main())


@virtual
async def test_a_shorter_time_to_acknowledge_holds_for_what_is_out_and_what_comes_behind_it() -> None:
    made = Made(Log([b"a", b"b"], [b"a"], [b"c"]))
    delivery, loop = made.delivery, asyncio.get_running_loop()
    await delivery.hand_out(1, 0.0, Holder(Handed()))
    delivery.follow(replace(SETTINGS, ack_timeout_s=5.0))
    await asyncio.sleep(3.0)
    second, _ = await delivery.hand_out(1, 0.0, Holder(Handed()))
    assert second.columns.vlsns.tolist() == [FIRST + 1]
    await asyncio.sleep(3.0)
    delivery.tick(loop.time())
    assert delivery.counts.expired == 1, "6 s ago, and 5 of them may pass"
    await asyncio.sleep(3.0)
    delivery.tick(loop.time())
    assert delivery.counts.expired == 2
    delivery.follow(SETTINGS)
    again, _ = await delivery.hand_out(10, 0.0, Holder(Handed()))
    assert len(again.columns) == 4
    await asyncio.sleep(30.0)
    delivery.tick(loop.time())
    assert delivery.counts.expired == 2, "a longer one holds from then on"


class Pages:
    """Pages of ``entries``, the log beginning at ``first``; ``before`` runs where a read begins."""

    pressed = False

    def __init__(self, first: int) -> None:
        self.first = first
        self.entries: list[Entry] = []
        self.run: PagedRun | None = None
        self.before: Callable[[], Awaitable[None]] | None = None

    def why_full(self, uuid: str, limit_bytes: int, limit_messages: int) -> str:
        return ""

    async def sizes(self, uuid: str, from_vlsn: int) -> PagedSizes:
        return PagedSizes(np.zeros(0, np.int64), np.zeros(0, np.int64), Vlsn(from_vlsn))

    async def messages(self, uuid: str, from_vlsn: int, *, since: int, limit: int, bytes_max: int) -> PagedRun:
        if self.before is not None:
            await self.before()
        last = int(self.entries[-1].vlsn) if self.entries else 0
        return self.run or PagedRun(self.entries, Vlsn(max(from_vlsn, last + 1)))


def test_acknowledgements_past_the_limit_of_intervals_are_refused_and_none_of_them_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("repl.destinations.acknowledged.ACK_INTERVALS_MAX", LIMIT)

    async def main() -> None:
        log = Log([b"a", b"b"], [b"a"], [b"c"])
        made = Made(log)
        log.durable = Vlsn(4 * LIMIT)
        apart = np.arange(FIRST + 1, FIRST + 2 * LIMIT, 2)
        with pytest.raises(QueueFull, match="101 intervals"):
            made.delivery.ack(VlsnSet.of(apart), wait=False)
        assert not made.delivery.acks.has(apart).any()
        made.acked = Acked(made.acked.since, made.acked.done.union(VlsnSet.of(apart[:-1])))
        with pytest.raises(QueueFull):
            made.delivery.ack(VlsnSet.of(apart[-1:]), wait=False)
        found, _ = await made.delivery.hand_out(10, 1.0, Holder(Handed()))
        assert found.columns.vlsns.tolist() == [FIRST]
        made.delivery.ack(VlsnSet.of(np.append(FIRST, apart[-1:])), wait=False)  # one gap is closed
        assert made.delivery.acks.has(apart).all()

    run(main())


@virtual
async def test_pages_that_were_read_before_a_move_are_not_looked_at_behind_it() -> None:
    log = Log([b"a", b"b"], [b"a"], [b"c"])
    pages = Pages(FIRST + 2)
    made = Made(log, pages=pages)
    pages.entries = log.entries[-1:]  # what lies before it was acknowledged when they were written

    async def trimmed(from_vlsn: int) -> None:
        if from_vlsn < FIRST + 2:
            raise Trimmed("cleaned", first=Vlsn(FIRST + 2))

    async def moved() -> None:
        made.moved(99, FIRST + 1)

    log.before, pages.before = trimmed, moved
    found, _ = await made.delivery.hand_out(10, 1.0, Holder(Handed()))
    assert found.columns.vlsns.tolist() == [FIRST + 2, FIRST + 3]


@virtual
async def test_what_ends_a_delivery_keeps_nobody_who_waited_for_it() -> None:
    delivery = Made(Log([b"a"])).delivery
    await delivery.hand_out(1, 0.0, Holder(Handed()))
    waiting = [asyncio.create_task(delivery.hand_out(1, 60.0, Holder(Handed()))) for _ in range(2)]
    await asyncio.sleep(1.0)
    over = NotMaster("over")
    delivery.close(over)
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert [str(error) for error in errors] == ["over", "over"]
    assert over.__traceback__ is None, "its frames would keep the workers for as long as it is kept"


@pytest.mark.parametrize(("value_bytes", "count"), [(MIB // 2, 7), (3 * MIB // 2, 2), (5 * MIB, 1)])
@virtual
async def test_a_look_at_messages_shows_no_more_bytes_than_an_answer_has(value_bytes: int, count: int) -> None:
    delivery = Made(Log(*[[b"a", b"b", b"c"]] * 4, value_bytes=value_bytes)).delivery
    shown = await delivery.peek(10_000)
    assert shown.columns.vlsns.tolist() == list(range(FIRST, FIRST + count)), "from the first on, none passed over"
    few = await delivery.peek(2)
    assert len(few.columns) == min(2, count)


@dataclass(frozen=True)
class Taken:
    """A worker takes messages: their places in the log, and the attempts from the second on."""

    places: list[int]
    worker: int = 0
    attempts: dict[int, int] = field(default_factory=dict)


ORDER: list[tuple[str, DestinationSettings, list[bytes], list[Any]]] = [
    (
        "later messages of a key wait while an earlier one is out with another worker",
        SETTINGS,
        [b"a", b"a", b"b", b"a", b"b"],
        [
            (Taken([0]), 1),
            (Taken([2, 4], 1), 10),
            (Taken([], 1), 10),
            ("ack", 0),
            (Taken([1, 3], 1), 10),
            ("ack", 3),
            ("nack", 1),
            (Taken([1], 0, {1: 2}), 10),
        ],
    ),
    (
        "a message that comes back recalls later ones of its key",
        SETTINGS,
        [b"a", b"b", b"a"],
        [(Taken([0, 1, 2]), 10), ("nack", 0), (Taken([0, 2], 1, {0: 2}), 10)],
    ),
    (
        "a message that is recalled because of another one uses no attempt",
        replace(SETTINGS, attempts_max=2, ack_timeout_s=3.0),
        [b"a", b"a"],
        [
            (Taken([0, 1]), 10),
            ("wait", 4),
            (Taken([0, 1], 0, {0: 2, 1: 2}), 10),
            ("nack", 0),
            (Taken([1], 0, {1: 2}), 10),
        ],
    ),
    (
        "a message waits for its delay, and later ones of its key with it",
        SETTINGS,
        [b"a", b"a", b"b"],
        [
            (Taken([0, 1, 2]), 10),
            ("nack", 0, 5.0),
            (Taken([]), 10),
            ("nack", 0, 0.0),
            ("wait", 4),
            (Taken([]), 10),
            ("wait", 2),
            (Taken([0, 1], 0, {0: 2}), 10),
            ("nack", 1, 60.0),
            ("nack", 0),
            (Taken([0], 0, {0: 3}), 10),
            ("ack", 1),
            ("ack", 0),
        ],
    ),
    (
        "no more messages are out than max_out says, and a delayed one is not out",
        replace(SETTINGS, ack_timeout_s=5.0, max_out=3),
        [b"%d" % number for number in range(8)],
        [
            (Taken([0, 1, 2]), 10),
            (Taken([], 1), 10),
            ("ack", 0),
            (Taken([3], 1), 10),
            ("nack", 1, 60.0),
            (Taken([4], 1), 10),
            ("wait", 6),
            (Taken([2, 3, 4], 1, {2: 2, 3: 2, 4: 2}), 10),
        ],
    ),
]


@pytest.mark.parametrize(("settings", "keys", "steps"), [case[1:] for case in ORDER], ids=[case[0] for case in ORDER])
@virtual
async def test_messages_go_out_in_the_order_of_their_keys_and_after_their_delays(
    settings: DestinationSettings, keys: list[bytes], steps: list[Any]
) -> None:
    delivery = Made(Log(keys), settings=settings, submit=lambda *_: None).delivery
    workers = delivery.worker(), delivery.worker()
    for step, *rest in steps:
        if isinstance(step, Taken):
            found, _ = await workers[step.worker].take(rest[0], 0.1, Holder(Handed()))
            assert [vlsn - FIRST for vlsn in found.columns.vlsns.tolist()] == step.places, (step, delivery.blocked_by)
            assert {vlsn - FIRST: attempt for vlsn, attempt in found.attempts.items()} == step.attempts
        elif step == "ack":
            delivery.ack(VlsnSet.of([FIRST + rest[0]]), wait=False)
        elif step == "nack":
            delivery.nack([FIRST + rest[0]], "not now", *rest[1:])
        else:
            await asyncio.sleep(rest[0])
            delivery.tick(asyncio.get_running_loop().time())
    for nonsense in (-1.0, 86_401.0, float("nan"), float("inf")):
        with pytest.raises(BadArgument, match="delay_s"):
            delivery.nack([FIRST], "not now", nonsense)
