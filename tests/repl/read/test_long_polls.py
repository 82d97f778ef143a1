"""Shared pages against a plain model: each reader gets what it would get alone, whoever else stands where it does."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.api import BlockPage, EntryPage
from repl.read.long_polls import Audience, Form, LongPolls, Page, Wanted, _Awaited
from repl.web.deadlines import TICK_S, Deadlines
from repl.web.limits import PAGES_AT_ONCE_MAX, PIECES_A_TURN_BYTES
from repl.web.slices import Slices
from tests.repl.client.group import until
from tests.repl.web.calls import OCTETS, call
from tests.repl.web.memory_node import MemoryNode
from vlsn.errors import Halted, NotInLog, Trimmed, VlsnLogError
from vlsn.format.key_filter import KeyFilter

_VLSN = re.compile(rb'"vlsn":(\d+)')


def pages_of(node: MemoryNode) -> LongPolls:
    return LongPolls(cast(Any, node), Slices(PIECES_A_TURN_BYTES))


class SlowNode(MemoryNode):
    """Takes some turns of the loop for a page, of what was there when it began."""

    turns = 0
    reads = 0

    async def read(self, from_vlsn: int | None, **wanted: Any) -> EntryPage:
        self.reads += 1
        page = await super().read(from_vlsn, **wanted)
        for _ in range(self.turns):
            await asyncio.sleep(0)
        return page


@dataclass(eq=False)
class Model:
    """A reader, and what it has been given."""

    node: MemoryNode
    pages: LongPolls
    wanted: Wanted
    stays: bool
    takes: bool = True
    vlsns: list[int] = field(default_factory=list)
    error: VlsnLogError | None = None
    audience: Audience | None = None
    tick: int = 0
    asked_at: int = 0
    over: bool = False

    def join(self) -> None:
        self.asked_at = self.node.durable
        self.pages.join(self.wanted, self)

    def take(self, page: Page | VlsnLogError) -> bool:
        assert not self.over
        if not isinstance(page, Page):
            self.error, self.over = page, True
            return False
        assert page.durable >= self.asked_at, "a page is never older than its asking"
        found = [int(vlsn) for vlsn in _VLSN.findall(page.piece.data)]
        assert len(found) <= self.wanted.limit
        assert not found or found[-1] < page.next_vlsn
        self.vlsns += found
        self.wanted = self.wanted._replace(from_vlsn=page.next_vlsn)
        self.over = not self.stays
        return self.stays and self.takes

    def due(self) -> None:
        self.take(self.pages.nothing(self))
        self.pages.leave(self)

    def leave(self) -> None:
        self.over = True
        self.pages.leave(self)


def visible(node: MemoryNode, wanted: Wanted) -> list[int]:
    """Lists what one reader would get alone; VLSN 1 is the log's own."""
    begin = max(wanted.from_vlsn or 1, 1 if wanted.all_kinds else 2)
    return list(range(begin, node.durable + 1))


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("tail"), st.integers(1, 12), st.integers(0, 3)),
        st.tuples(st.just("poll"), st.integers(1, 12), st.integers(0, 3)),
        st.tuples(st.just("stop"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("go on"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 20), st.just(0)),
        st.tuples(st.just("turn"), st.integers(1, 6), st.just(0)),
    ),
    max_size=40,
)


@given(ACTIONS, st.integers(0, 4))
def test_every_reader_gets_its_entries_once_and_in_order(actions: list[tuple[str, int, int]], turns: int) -> None:
    asyncio.run(_read(actions, turns))


async def _read(actions: list[tuple[str, int, int]], turns: int) -> None:
    node = SlowNode()
    node.turns = turns
    pages = pages_of(node)
    tails: list[tuple[Model, Wanted]] = []
    polls: list[tuple[Model, Wanted]] = []
    for action, number, shape in actions:
        form = Form.EVENTS if action == "tail" else Form.LINES
        wanted = Wanted(number, form, limit=2 if shape & 1 else 1_000, all_kinds=bool(shape & 2))
        match action:
            case "append":
                node.append(*(b"v" for _ in range(number)))
            case "tail" | "poll":
                reader = Model(node, pages, wanted, stays=action == "tail")
                (tails if action == "tail" else polls).append((reader, wanted))
                reader.join()
            case "turn":
                for _ in range(number):
                    await asyncio.sleep(0)
            case _ if tails:
                reader = tails[number % len(tails)][0]
                if action == "stop":
                    reader.takes = False
                elif action == "leave":
                    reader.leave()
                elif not reader.over:
                    reader.takes = True
                    if reader.audience is None:
                        reader.join()
    node.append(*(b"last" for _ in range(12)))
    for reader, _ in tails:
        reader.takes = True
        if not reader.over and reader.audience is None:
            reader.join()
    for _ in range(200 + 40 * len(actions)):
        await asyncio.sleep(0)
    for reader, wanted in tails:
        wants = visible(node, wanted)
        if reader.over:
            assert reader.vlsns == wants[: len(reader.vlsns)]
        else:
            assert reader.vlsns == wants
    for reader, wanted in polls:
        wants = visible(node, wanted)
        assert reader.over and reader.audience is None
        assert reader.vlsns and reader.vlsns == wants[: len(reader.vlsns)]
    for reader, _ in tails:
        reader.leave()
    await asyncio.sleep(0)
    assert not pages._audiences
    assert not [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]


async def test_readers_that_want_different_things_stand_apart() -> None:
    node = SlowNode()
    pages = pages_of(node)
    wants = [
        Wanted(2, Form.LINES),
        Wanted(2, Form.LINES, limit=1),
        Wanted(2, Form.LINES, all_kinds=True),
        Wanted(2, Form.EVENTS),
        Wanted(2, Form.EVENTS_WITH_TERMS),
        Wanted(2, Form.LINES, keys=KeyFilter(b"")),
        Wanted(2, Form.LINES, after_vlsn=1, after_term=7),
        Wanted(3, Form.LINES),
    ]
    waiting = [asyncio.create_task(pages.get(wanted, 60)) for wanted in wants for _ in range(20)]
    await node.until_waits(len(wants))
    node.append(b"a", b"b")
    found = await asyncio.gather(*waiting)
    assert len({id(page) for page in found}) == len(wants) == node.reads
    assert {page.piece.data.count(b'"vlsn"') for page in found} == {1, 2}


async def test_readers_of_blocks_share_theirs() -> None:
    node = MemoryNode()
    pages = pages_of(node)
    wanted = Wanted(2, Form.BLOCKS)
    waiting = [asyncio.create_task(pages.get(wanted, 60)) for _ in range(20)]
    await node.until_waits()
    await call(node, "POST", "/v1/entries", OCTETS, b"a")
    assert {id(page) for page in await asyncio.gather(*waiting)} == {id(await waiting[0])}
    assert (await waiting[0]).piece.data.startswith(node.blocks[0])


async def test_one_who_waits_in_vain_is_told_where_to_go_on_and_takes_nothing_from_the_others() -> None:
    node = MemoryNode()
    pages = pages_of(node)
    long = asyncio.create_task(pages.get(Wanted(2, Form.LINES), 60))
    short = await pages.get(Wanted(2, Form.LINES), 2 * TICK_S)
    assert (short.piece.data, short.next_vlsn, short.durable) == (b"", 2, 1)
    node.append(b"a")
    assert (await long).next_vlsn == 3


@pytest.mark.parametrize("error", [Halted("a person is needed"), RuntimeError("a bug")])
async def test_a_page_that_cannot_be_made_is_told_to_all_and_the_next_is_made_anew(error: Exception) -> None:
    class FailingNode(SlowNode):
        async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
            raise error

    node = FailingNode()
    pages = pages_of(node)
    waiting = [asyncio.create_task(pages.get(Wanted(2, Form.BLOCKS), 60)) for _ in range(3)]
    await node.until_waits()
    node.append(b"a")
    for each in waiting:
        with pytest.raises(VlsnLogError):
            await each
    assert (await pages.get(Wanted(2, Form.LINES), 60)).next_vlsn == 3


async def test_a_place_that_is_trimmed_away_or_was_given_up_is_told_to_those_who_stand_there() -> None:
    node = MemoryNode()
    pages = pages_of(node)
    node.append(b"a", b"b")
    node.first = 3
    with pytest.raises(Trimmed):
        await pages.get(Wanted(2, Form.LINES), 60)
    behind = asyncio.create_task(pages.get(Wanted(5, Form.LINES, after_vlsn=4, after_term=8), 60))
    await node.until_waits()
    node.append(b"c", b"d", b"e")
    with pytest.raises(NotInLog):
        await behind


async def test_many_are_given_their_page_in_slices() -> None:
    node = MemoryNode()
    pages = pages_of(node)
    readers = [Model(node, pages, Wanted(2, Form.EVENTS), stays=True) for _ in range(1_000)]
    for reader in readers:
        reader.join()
    await node.until_waits()
    node.append(b"a")
    most = before = 0
    while before < len(readers):
        await asyncio.sleep(0)
        had = sum(bool(reader.vlsns) for reader in readers)
        most, before = max(most, had - before), had
    assert 0 < most <= 64
    for reader in readers:
        reader.leave()


async def test_slices_are_given_in_the_order_in_which_they_were_asked_for() -> None:
    slices = Slices(4)
    done: list[int] = []

    async def work(number: int, cost: int) -> None:
        await slices.turn(cost)
        done.append(number)

    tasks = [asyncio.create_task(work(number, 9 if number == 1 else 2)) for number in range(8)]
    seen = []
    while len(done) < 8:
        await asyncio.sleep(0)
        seen.append(len(done))
    await asyncio.gather(*tasks)
    assert done == list(range(8))
    assert all(later - earlier <= 2 for earlier, later in pairwise(seen))


class Timed:
    def __init__(self, deadlines: Deadlines, said: list[float]) -> None:
        self.tick = 0
        self._deadlines, self._said = deadlines, said

    def due(self) -> None:
        self._said.append(self._deadlines.now())


async def test_a_deadline_is_met_late_by_a_tick_at_most_and_not_at_all_once_it_is_cleared() -> None:
    deadlines = Deadlines()
    said: list[float] = []
    begin = deadlines.now()
    those = [Timed(deadlines, said) for _ in range(300)]
    for number, one in enumerate(those):
        deadlines.set(one, begin + 10)
        deadlines.set(one, begin + 0.001 * number)
    for one in those[::3]:
        deadlines.clear(one)
        deadlines.clear(one)
    await until(lambda: len(said) == 200)
    assert len(said) == 200
    assert said == sorted(said)
    assert all(at >= begin + 0.001 * number for at, number in zip(said, [n for n in range(300) if n % 3], strict=True))
    assert not deadlines._ticks.get(int((begin + 10) / TICK_S) + 1)


async def test_one_whose_deadline_fails_keeps_no_other_from_his() -> None:
    class Failing(Timed):
        def due(self) -> None:
            raise RuntimeError("not now")

    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: faults.append(context))
    deadlines = Deadlines()
    said: list[float] = []
    for one in (Timed(deadlines, said), Failing(deadlines, said), Timed(deadlines, said)):
        deadlines.set(one, deadlines.now())
    await until(lambda: len(said) == 2)
    assert [str(fault["exception"]) for fault in faults] == ["not now"]


async def test_one_whose_time_is_over_as_its_page_comes_has_its_page() -> None:
    """Its deadline comes between the page and the turn of the task that awaits it."""
    node = MemoryNode()
    pages = pages_of(node)
    waiting = _Awaited(pages)
    pages.join(Wanted(1, Form.LINES), waiting)
    node.append(b"one")
    while not waiting.page.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    waiting.due()
    assert waiting.page.result().piece.data


async def test_a_filter_that_meets_nothing_in_one_look_is_told_how_far_it_came() -> None:
    class LongLog(MemoryNode):
        async def read(self, from_vlsn: int | None, **wanted: Any) -> EntryPage:
            return EntryPage([], (from_vlsn or 1) + 2, self.durable, 7)

    node = LongLog()
    node.append(*[b"v"] * 9)
    page = await pages_of(node).get(Wanted(2, Form.LINES, keys=KeyFilter(b"none")), 60)
    assert (page.piece.data, page.next_vlsn, page.term) == (b"", 4, 7)


async def test_a_durable_vlsn_in_the_middle_of_a_block_is_waited_past() -> None:
    """Blocks are given whole, so there is nothing to give until the block's last entry is durable."""

    class HalfBlock(MemoryNode):
        async def read_blocks(self, from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
            at = from_vlsn or 1
            return BlockPage([b"a block!"], 4, 3) if self.durable >= 3 else BlockPage([], at, self.durable)

    node = HalfBlock()
    node.append(b"first")
    waiting = asyncio.create_task(pages_of(node).get(Wanted(2, Form.BLOCKS), 60))
    await node.until_waits()
    node.append(b"second")
    assert (await waiting).next_vlsn == 4


async def test_who_reads_what_is_old_keeps_nobody_from_what_has_just_come() -> None:
    class SlowDisk(MemoryNode):
        def __post_init__(self) -> None:
            super().__post_init__()
            self.reading = 0
            self.disk = asyncio.Event()

        async def read(self, from_vlsn: int | None, **wanted: Any) -> EntryPage:
            if (from_vlsn or 1) < 10:
                self.reading += 1
                await self.disk.wait()
            return await super().read(from_vlsn, **wanted)

    node = SlowDisk()
    pages = pages_of(node)
    node.append(*[b"v"] * 20)
    old = [asyncio.create_task(pages.get(Wanted(vlsn, Form.EVENTS), 60)) for vlsn in range(2, 10)]
    live = asyncio.create_task(pages.get(Wanted(22, Form.EVENTS), 60))
    await node.until_waits()
    assert node.reading == PAGES_AT_ONCE_MAX
    node.append(b"new")
    assert (await live).next_vlsn == 23
    assert not any(task.done() for task in old)
    node.disk.set()
    await asyncio.gather(*old)
    assert node.reading == len(old)
