"""Room that comes and goes, from a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.fakes.seeds import seeds
from tests.vlsn.logs import DIRECTORY, Machine, Opened, Waiting
from tests.vlsn.write.test_segment_rewrite import holds
from tests.vlsn.write.test_write_path_story import DURABILITIES, SIZES, Story
from vlsn.errors import NoSpace
from vlsn.state.options import Durability


@pytest.mark.parametrize("seed", seeds(20))
def test_whoever_waits_for_room_is_answered(seed: int) -> None:
    """Room comes and goes: each append is synced or refused, as soon as there is room again at the latest. Those that
    were told their VLSNs have them."""
    rng = Random(seed)
    machine = Machine(seed)
    opened = Story(machine)
    log = opened.log
    asked: list[Waiting] = []
    told: dict[int, bytes] = {}
    over: list[str] = []
    wanted: list[str] = []

    def ask(name: str, call: Callable[[Callable[..., None]], object]) -> None:
        wanted.append(name)

        def told_of(*_: object) -> None:
            over.append(name)

        call(told_of)

    for number in range(150):
        draw = rng.random()
        if draw < 0.1:
            used = sum(len(machine.disk.content(path)) for path in machine.disk.files(DIRECTORY))
            spare = rng.choice((0, 3 << 20, (16 << 20) + (70 << 10), (16 << 20) + (130 << 10)))
            machine.disk.capacity_bytes = None if rng.random() < 0.3 else used + spare
        elif draw < 0.2:
            ask("roll", lambda done: log.cycle.rotate("request", done))
        elif draw < 0.3:
            ask("drain", log.cycle.drain)
        elif draw < 0.35:
            ask("checkpoint", lambda done: log.care.checkpointer.run(done=done, failed=done))
        elif draw < 0.5:
            machine.clock.advance(rng.choice((0.3, 1.1)))
            log.tick()
        else:
            pending = Waiting([f"{number}:".encode().ljust(rng.choice(SIZES), b".")])
            pending.durability = rng.choice(DURABILITIES)
            try:
                log.append(pending)
            except NoSpace:
                continue  # nothing was logged
            asked.append(pending)
            if pending.durability is Durability.NO_SYNC:
                told[pending.first] = pending.values[0]
        assert opened.failure is None, opened.failure
    if rng.random() < 0.5:
        machine.disk.capacity_bytes = None
    if machine.disk.capacity_bytes is None:
        for _ in range(4):
            log.tick()
        ask("drain", log.cycle.drain)
        assert sorted(over) == sorted(wanted)
        for pending in asked:
            assert pending.synced != isinstance(pending.error, NoSpace)
            assert pending.durability is not Durability.NO_SYNC or pending.synced
        for vlsn, data in told.items():
            assert opened.entries()[vlsn] == data
        assert (log.queue.entries, log.queue.bytes, log.queue.vlsns, log.queue.lazy) == (0, 0, 0, 0)
        assert log.stats.unacked == 0
    closed: list[int] = []
    log.close(lambda: closed.append(1))
    for _ in range(4):
        log.tick()
    assert closed == [1]
    log.node_file.close()
    machine.disk.capacity_bytes = None
    machine.kill()
    held = {pending.first: pending.values[0] for pending in asked if pending.synced}
    assert all(pending.synced or pending.error is not None for pending in asked)
    holds(machine, held)


def test_free_space_is_looked_at_once_a_second_while_nothing_is_written() -> None:
    """The disk is asked also while something is written, or too little is free, so that appends soon go on."""
    machine = Machine()
    opened = Opened(machine)
    looks = 0
    free_bytes = machine.disk.free_bytes

    def look(directory: str) -> int:
        nonlocal looks
        looks += 1
        return free_bytes(directory)

    machine.disk.free_bytes = look  # type: ignore[method-assign]

    def ticks(count: int, value: bytes = b"") -> int:
        """Counts how often that many ticks, a tenth of a second apart, have looked."""
        before = looks
        for _ in range(count):
            machine.clock.advance(0.1)
            if value:
                opened.append(value)
            opened.log.tick()
        return looks - before

    ticks(10)
    assert 9 <= ticks(100) <= 11
    assert ticks(20, b"x") == 20
    assert ticks(100) <= 11
    machine.disk.capacity_bytes = 1 << 20
    ticks(11)
    with pytest.raises(NoSpace):
        opened.append(b"refused")
    assert ticks(20) == 20
    machine.disk.capacity_bytes = None
    ticks(1)
    assert opened.append(b"taken").synced
