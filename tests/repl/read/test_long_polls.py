"""Shared pages against a plain model: each reader gets what it would get alone, whoever else stands where it does."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.api import Acks, BlockPage, EntryPage
from repl.read import reads
from repl.read.long_polls import Audience, Form, LongPolls, Page, Wanted, _Awaited
from repl.web.deadlines import TICK_S, Deadlines
from repl.web.limits import PAGES_AT_ONCE_MAX, PIECES_A_TURN_BYTES
from repl.web.slices import Slices
from tests.fakes.loop import VirtualLoop, run
from tests.repl.client.group import until
from tests.repl.web.calls import OCTETS, call
from tests.repl.web.one_node import FIRST, TERM, OneNode, cleaned, started
from vlsn.errors import Halted, NotInLog, Trimmed, VlsnLogError
from vlsn.format.key_filter import KeyFilter
from vlsn.format.submission import Values

_VLSN = re.compile(rb'"vlsn":(\d+)')


def pages_of(node: OneNode) -> LongPolls:
    return LongPolls(node.member, Slices(PIECES_A_TURN_BYTES))


def append(node: OneNode, *values: bytes) -> None:
    """Appends entries without waiting until they are durable."""
    assert node.lead is not None
    node.lead.admission.submit(Values(list(values)), Acks.MAJORITY, lambda _: None)


async def until_waits(node: OneNode, count: int = 1) -> None:
    """Returns once ``count`` makers of pages wait for entries."""
    waiters = node.opened().reads._pages
    while len(waiters) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


class SlowReads:
    """Has reads of entries take some turns of the loop after they looked at the log."""

    def __init__(self, node: OneNode, turns: int = 0) -> None:
        self.count = 0
        self._turns = turns
        self._page = node.opened().reads.page
        node.opened().reads.page = self.page  # type: ignore[method-assign]

    async def page(self, from_vlsn: int | None, **wanted: Any) -> EntryPage:
        self.count += 1
        page = await self._page(from_vlsn, **wanted)
        for _ in range(self._turns):
            await asyncio.sleep(0)
        return page


@dataclass(eq=False)
class Model:
    """A reader, and what it has been given."""

    node: OneNode
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
        self.asked_at = self.node.dtvlsn()
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


def visible(node: OneNode, wanted: Wanted) -> list[int]:
    """Lists what one reader would get alone; entries before ``FIRST`` are the log's own."""
    begin = max(wanted.from_vlsn or 1, 1 if wanted.all_kinds else FIRST)
    return list(range(begin, node.dtvlsn() + 1))


TURN_S = 0.000_2
"""Virtual seconds of a turn; an append takes some of them."""
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
    run(_read(actions, turns))


async def _read(actions: list[tuple[str, int, int]], turns: int) -> None:
    node = await started()
    SlowReads(node, turns)
    pages = pages_of(node)
    tails: list[tuple[Model, Wanted]] = []
    polls: list[tuple[Model, Wanted]] = []
    for action, number, shape in actions:
        form = Form.EVENTS if action == "tail" else Form.LINES
        wanted = Wanted(number, form, limit=2 if shape & 1 else 1_000, all_kinds=bool(shape & 2))
        match action:
            case "append":
                append(node, *[b"v"] * number)
            case "tail" | "poll":
                reader = Model(node, pages, wanted, stays=action == "tail")
                (tails if action == "tail" else polls).append((reader, wanted))
                reader.join()
            case "turn":
                await asyncio.sleep(number * TURN_S)
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
    await node.append(*[b"last"] * 12)
    for reader, _ in tails:
        reader.takes = True
        if not reader.over and reader.audience is None:
            reader.join()
    await asyncio.sleep(1.0)
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
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    assert not [task for task in loop.tasks.alive if task.get_name() == "page"]


async def test_readers_that_want_different_things_stand_apart() -> None:
    node = await started()
    slow = SlowReads(node)
    pages = pages_of(node)
    wants = [
        Wanted(FIRST, Form.LINES),
        Wanted(FIRST, Form.LINES, limit=1),
        Wanted(FIRST, Form.LINES, all_kinds=True),
        Wanted(FIRST, Form.EVENTS),
        Wanted(FIRST, Form.EVENTS_WITH_TERMS),
        Wanted(FIRST, Form.LINES, keys=KeyFilter(b"")),
        Wanted(FIRST, Form.LINES, after_vlsn=FIRST - 1, after_term=TERM),
        Wanted(FIRST + 1, Form.LINES),
    ]
    waiting = [asyncio.create_task(pages.get(wanted, 60)) for wanted in wants for _ in range(20)]
    await until_waits(node, len(wants))
    await node.append(b"a", b"b")
    found = await asyncio.gather(*waiting)
    assert len({id(page) for page in found}) == len(wants) == slow.count
    assert {page.piece.data.count(b'"vlsn"') for page in found} == {1, 2}


async def test_readers_of_blocks_share_theirs() -> None:
    node = await started()
    pages = pages_of(node)
    wanted = Wanted(FIRST, Form.BLOCKS)
    waiting = [asyncio.create_task(pages.get(wanted, 60)) for _ in range(20)]
    await until_waits(node)
    await call(node, "POST", "/v1/entries", OCTETS, b"a")
    assert {id(page) for page in await asyncio.gather(*waiting)} == {id(await waiting[0])}
    assert (await waiting[0]).piece.data.startswith(node.blocks[-1])


async def test_one_who_waits_in_vain_is_told_where_to_go_on_and_takes_nothing_from_the_others() -> None:
    node = await started()
    pages = pages_of(node)
    long = asyncio.create_task(pages.get(Wanted(FIRST, Form.LINES), 60))
    short = await pages.get(Wanted(FIRST, Form.LINES), 2 * TICK_S)
    assert (short.piece.data, short.next_vlsn, short.durable) == (b"", FIRST, FIRST - 1)
    await node.append(b"a")
    assert (await long).next_vlsn == FIRST + 1


@pytest.mark.parametrize("error", [Halted("a person is needed"), RuntimeError("a bug")])
async def test_a_page_that_cannot_be_made_is_told_to_all_and_the_next_is_made_anew(error: Exception) -> None:
    async def fail(from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
        raise error

    node = await started()
    node.opened().reads.blocks = fail  # type: ignore[method-assign]
    pages = pages_of(node)
    waiting = [asyncio.create_task(pages.get(Wanted(FIRST, Form.BLOCKS), 60)) for _ in range(3)]
    await until_waits(node)
    await node.append(b"a")
    for each in waiting:
        with pytest.raises(VlsnLogError):
            await each
    assert (await pages.get(Wanted(FIRST, Form.LINES), 60)).next_vlsn == FIRST + 1


async def test_a_place_that_is_trimmed_away_or_was_given_up_is_told_to_those_who_stand_there() -> None:
    node = await cleaned()
    pages = pages_of(node)
    with pytest.raises(Trimmed):
        await pages.get(Wanted(FIRST, Form.LINES), 60)
    end = node.dtvlsn() + 1
    behind = asyncio.create_task(pages.get(Wanted(end + 2, Form.LINES, after_vlsn=end + 1, after_term=8), 60))
    await until_waits(node)
    await node.append(b"c", b"d", b"e")
    with pytest.raises(NotInLog):
        await behind


async def test_many_are_given_their_page_in_slices() -> None:
    node = await started()
    pages = pages_of(node)
    readers = [Model(node, pages, Wanted(FIRST, Form.EVENTS), stays=True) for _ in range(1_000)]
    for reader in readers:
        reader.join()
    await until_waits(node)
    await node.append(b"a")
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
    node = await started()
    pages = pages_of(node)
    waiting = _Awaited(pages)
    pages.join(Wanted(FIRST, Form.LINES), waiting)
    await node.append(b"one")
    while not waiting.page.done():  # noqa: ASYNC110
        await asyncio.sleep(0)
    waiting.due()
    assert waiting.page.result().piece.data


async def test_a_filter_that_meets_nothing_in_one_look_is_told_how_far_it_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reads, "LOOK_BYTES_AT_ONCE", 1_000)
    monkeypatch.setattr(reads, "LOOK_BYTES_MAX", 1_000)
    node = await started()
    for _ in range(9):
        await node.append(bytes(400))
    page = await pages_of(node).get(Wanted(FIRST, Form.LINES, keys=KeyFilter(b"none")), 60)
    assert (page.piece.data, page.term) == (b"", TERM)
    assert FIRST < page.next_vlsn < node.dtvlsn()


async def test_a_durable_vlsn_in_the_middle_of_a_block_is_waited_past() -> None:
    """Blocks are given whole, so there is nothing to give until the block's last entry is durable."""
    node = await started()
    await node.append(b"first")
    blocks = node.opened().reads.blocks

    async def whole(from_vlsn: int | None, *, bytes_max: int) -> BlockPage:
        if node.dtvlsn() > FIRST:
            return await blocks(from_vlsn, bytes_max=bytes_max)
        return BlockPage([], from_vlsn or 1, node.dtvlsn())

    node.opened().reads.blocks = whole  # type: ignore[method-assign]
    waiting = asyncio.create_task(pages_of(node).get(Wanted(FIRST, Form.BLOCKS), 60))
    await until_waits(node)
    await node.append(b"second")
    assert (await waiting).next_vlsn == FIRST + 2


async def test_who_reads_what_is_old_keeps_nobody_from_what_has_just_come() -> None:
    node = await started()
    await node.append(*[b"v"] * 20)
    reading, disk, read = 0, asyncio.Event(), node.opened().reads.page

    async def slow(from_vlsn: int | None, **wanted: Any) -> EntryPage:
        nonlocal reading
        if (from_vlsn or 1) < FIRST + 8:
            reading += 1
            await disk.wait()
        return await read(from_vlsn, **wanted)

    node.opened().reads.page = slow  # type: ignore[method-assign]
    pages = pages_of(node)
    old = [asyncio.create_task(pages.get(Wanted(vlsn, Form.EVENTS), 60)) for vlsn in range(FIRST, FIRST + 8)]
    live = asyncio.create_task(pages.get(Wanted(FIRST + 20, Form.EVENTS), 60))
    await until_waits(node)
    assert reading == PAGES_AT_ONCE_MAX
    await node.append(b"new")
    assert (await live).next_vlsn == FIRST + 21
    assert not any(task.done() for task in old)
    disk.set()
    await asyncio.gather(*old)
    assert reading == len(old)
