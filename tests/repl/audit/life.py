"""The life of a small group, and what it leaves on three disks: the healthy copies that faults are seeded into.

Real nodes on fakes (``tests/seam/nodes.py``): several segments, an exactly-once producer, transactions, two terms, a
deposed master that rolled back what nobody was told of, checkpoints, an index, a clean stop.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from tests.fakes.loop import run
from tests.repl.audit.histories import exported
from tests.seam.nodes import Group
from tests.seam.test_membership import fed
from tests.seam.test_transactions import commit, staged
from vlsn.levels import LEVELS

PRODUCER = 0xABCD


@dataclass(frozen=True, slots=True)
class Left:
    """The directories; ``deposed`` is the node that rolled back to ``matchpoint``, ``early`` are some as they were
    before that."""

    paths: dict[str, Path]
    early: dict[str, Path]
    deposed: str
    matchpoint: int
    last: int


def left_by(path: Path, seed: int = 11) -> Left:
    """Lives it, and writes the directories under ``path``."""

    async def main() -> Left:
        group = Group(seed, levels=LEVELS)
        await group.start()
        await group.serving()
        await fed(group, 2)
        for number in range(6):
            await _produced(group, number)
            assert (await commit(group, await staged(group, b"debit %d" % number, b"credit %d" % number)))[0] == 200
        for number in range(60):
            await group.appended(b"entry %d " % number + b"." * 3000)
        await asyncio.sleep(12.0)  # checkpoints, and an idle end
        early = {name: machine.image() for name, machine in group.machines.items()}
        deposed, matchpoint = await _deposed(group)
        for number in range(60, 110):
            await group.appended(b"entry %d " % number + b"." * 3000)
        for number in range(6, 9):
            await _produced(group, number)
        last = await group.appended(b"the last one")
        await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "all know it durable")
        await asyncio.sleep(12.0)  # checkpoints, and an idle end
        await group.stop()
        assert not group.fatal
        images = {name: machine.image() for name, machine in group.machines.items()}
        return Left(
            {name: exported(image, name, path / name) for name, image in images.items()},
            {name: exported(image, name, path / "early" / name) for name, image in early.items()},
            deposed,
            matchpoint,
            last,
        )

    return run(main())


async def _produced(group: Group, sequence: int) -> None:
    answer = await group.client.request(
        "POST",
        f"{group.url(group.master)}/v1/entries?producer={PRODUCER:016x}&sequence={sequence}&born=0",
        headers={"Content-Type": "application/octet-stream"},
        body=b"produced %d" % sequence,
        timeout_s=12.0,
    )
    assert answer.status == 200, bytes(answer.body)


async def _deposed(group: Group) -> tuple[str, int]:
    """Cuts the master off with entries that nobody else gets, until another one leads and it has rolled back."""
    old = group.master
    others = [name for name in group.names if name != old]
    before = group.nodes[old].opened().log.view.range.last
    await group.until(lambda: all(node.dtvlsn() >= before for node in group.nodes.values()), "all before is durable")
    group.net.split([old, "client"], others)
    for number in range(4):
        await group.append(b"nobody's %d" % number, to=old, acks="none")
    await group.until(lambda: any(group.nodes[name].member.is_master() for name in others), "another one leads")
    group.net.heal()
    await group.appended(b"after it")
    end = group.nodes[group.master].opened().log.view.range.last
    await group.until(lambda: all(node.dtvlsn() >= end for node in group.nodes.values()), "all follow again")
    return old, before
