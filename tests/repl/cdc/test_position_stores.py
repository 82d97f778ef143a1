"""The position of one node, and the group's knowledge that it has begun: no stop loses a consumer or begins it anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Literal

import pytest

from repl.cdc.position_file import SLOT_BYTES, PositionFile, StoredPosition
from repl.cdc.position_stores import At, LocalPositions, PositionLost
from tests.fakes.loop import virtual
from vlsn.errors import BadArgument, Damaged, LogFailed, NotMaster
from vlsnlog.testing.fakes.disk import FakeDisk, StopHere

PATH = "/d/cdc/orders.position"


class Group:
    """A plain model of the master's log: a number for a name. Some questions do not reach it, or their answers are
    lost."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.asked = 0
        self.unheard = 0
        self.unanswered = 0

    async def begin(self, consumer: str, file: int, *, replace: bool) -> int:
        self.asked += 1
        if self.unheard:
            self.unheard -= 1
            raise NotMaster("no master")
        if replace or consumer not in self.numbers:
            self.numbers[consumer] = file
        if self.unanswered:
            self.unanswered -= 1
            raise NotMaster("no answer")
        return self.numbers[consumer]


class Node:
    """One node's disk, and the positions of consumer ``orders`` on it."""

    def __init__(self, group: Group, seed: int = 0) -> None:
        self.group = group
        self.rng = Random(seed)
        self.disk = FakeDisk(rng=Random(seed))
        self.disk.make_directory("/d")
        self.disk.sync_directory("/")

    def positions(self) -> LocalPositions:
        names = {"group": "g", "name": "orders"}
        number = lambda: self.rng.getrandbits(64)  # noqa: E731
        return LocalPositions(self.disk, "/d", **names, offload=_done, begun=self.group, number=number)

    async def life(self, begins: int) -> At:
        """Loads the position as a worker does, or begins at ``begins``."""
        positions = self.positions()
        at = await positions.load()
        if at is None:
            at = At(begins, 1)
            await positions.begin(at)
        await positions.confirm()
        return at


def _done(job: Callable[[], Any]) -> asyncio.Future[Any]:
    done = asyncio.get_running_loop().create_future()
    try:
        done.set_result(job())
    except Exception as error:
        done.set_exception(error)
    return done


@virtual
async def test_the_group_is_asked_once_and_the_next_life_asks_nobody() -> None:
    group = Group()
    node = Node(group)
    assert await node.life(7) == At(7, 1)
    assert group.asked == 1
    group.unheard = 99
    assert await node.life(9) == At(7, 1)
    assert group.asked == 1


@virtual
async def test_an_unheard_question_and_a_lost_answer_change_nothing() -> None:
    for unheard, unanswered in ((1, 0), (0, 1), (2, 2)):
        group = Group()
        node = Node(group)
        group.unheard, group.unanswered = unheard, unanswered
        for turn in range(unheard + unanswered):
            with pytest.raises(NotMaster):
                await node.life(7 + turn)
        assert await node.life(50) == At(7, 1), "where it began first"
        assert await node.life(51) == At(7, 1)


@pytest.mark.parametrize("moment", ["before", "during"])
@pytest.mark.parametrize("stop", range(1, 16))
@virtual
async def test_a_node_cut_while_it_begins_begins_where_it_did(stop: int, moment: Literal["before", "during"]) -> None:
    group = Group()
    node = Node(group, stop)
    node.disk.stop_at(len(node.disk.calls) + stop, moment=moment)
    try:
        await node.life(7)
    except StopHere:
        pass
    given = group.asked > 0  # only then is anything given
    node.disk.power_cut(Random(stop), tear=True)
    found = await node.life(9)
    assert found == At(7, 1) if given else found in (At(7, 1), At(9, 1))
    assert await node.life(11) == found, "and stays there"


@virtual
async def test_another_disk_parks_it_whenever_the_first_one_was_lost() -> None:
    for unanswered in (0, 1):
        group = Group()
        group.unanswered = unanswered
        first = Node(group)
        try:
            await first.life(7)
        except NotMaster:
            assert unanswered
        again = Node(group, 1)
        for _ in range(3):
            with pytest.raises(PositionLost):
                await again.life(1)


@pytest.mark.parametrize("stop", range(1, 22))
@virtual
async def test_a_persons_word_is_what_counts_then_or_it_stays_parked(stop: int) -> None:
    group = Group()
    await Node(group).life(7)
    node = Node(group, stop)
    with pytest.raises(PositionLost):
        await node.life(1)
    positions = node.positions()
    await positions.load()
    node.disk.stop_at(len(node.disk.calls) + stop)
    placed = False
    try:
        await positions.place(At(40, 2))
        await positions.confirm()
        placed = True
    except StopHere:
        pass
    node.disk.power_cut(Random(stop))
    try:
        assert await node.life(1) == At(40, 2)
    except PositionLost:
        assert not placed
        await (positions := node.positions()).load()
        await positions.place(At(41, 2))
        assert await node.life(1) == At(41, 2)


@virtual
async def test_a_persons_word_waits_for_a_master_and_outlives_a_restart() -> None:
    group = Group()
    await Node(group).life(7)
    node = Node(group, 1)
    group.unheard = 3
    with pytest.raises(NotMaster):
        await node.life(1)
    positions = node.positions()
    await positions.load()
    await positions.place(At(40, 2))
    for _ in range(2):
        with pytest.raises(NotMaster):
            await node.life(1)
    assert await node.life(1) == At(40, 2)


@virtual
async def test_a_file_of_before_numbers_is_given_one() -> None:
    group = Group()
    node = Node(group)
    PositionFile.create(node.disk, "/d", StoredPosition(group="g", name="orders", next=33)).close()
    assert await node.life(1) == At(33, 0)
    assert group.numbers["orders"]
    node.disk.remove(PATH)
    with pytest.raises(PositionLost):
        await node.life(1)


@virtual
async def test_a_persons_orders_outlive_a_restart() -> None:
    node = Node(Group())
    await node.life(7)
    positions = node.positions()
    await positions.load()
    await positions.pause(500)
    await positions.place(At(40, 2, moved_us=600))
    for _ in range(2):
        node.disk.power_cut(Random(1))
        again = node.positions()
        assert await again.load() == At(40, 2, moved_us=600)
        assert again.paused_us() == 500
    await again.store(At(41, 2))
    await again.pause(0)
    last = node.positions()
    assert await last.load() == At(41, 2)
    assert last.paused_us() == 0


@virtual
async def test_one_whose_position_cannot_be_read_is_not_paused_and_stays_paused_where_it_was() -> None:
    node = Node(Group())
    await node.life(7)
    positions = node.positions()
    await positions.load()
    await positions.pause(500)
    for slot in (0, 1):
        node.disk.flip_bit(PATH, SLOT_BYTES * slot + 20, 3)
    with pytest.raises(Damaged):
        await positions.load()
    await positions.place(At(40, 2, moved_us=600))
    again = node.positions()
    assert await again.load() == At(40, 2, moved_us=600)
    assert again.paused_us() == 500
    for slot in (0, 1):
        node.disk.flip_bit(PATH, SLOT_BYTES * slot + 20, 3)
    unread = node.positions()
    with pytest.raises(Damaged):
        await unread.load()
    for since_us in (700, 0):
        with pytest.raises(BadArgument, match="cannot be read"):
            await unread.pause(since_us)


@virtual
async def test_nothing_is_stored_in_a_position_that_is_not_open() -> None:
    with pytest.raises(LogFailed):
        await Node(Group()).positions().store(At(5, 1))
