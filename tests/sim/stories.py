"""The main stories of a group, from its nodes' own events: ``python -m tests.sim.stories > docs/stories.md``.

Each is a run of real nodes in virtual time, with the invariants of the simulation checked at every step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.fakes.loop import run
from tests.sim.group import SimGroup

HEAD = """# Stories

These are the events that three nodes of a group report, by seconds of virtual time.
`python -m tests.sim.stories > docs/stories.md` writes the page; only lines that begin with `---` are written by hand.
The simulation's invariants ([testing](testing.md#simulation)) held at every step.
"""
SEGMENT_BYTES = 64 << 10


class Story:
    """One run, and its events."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.said: list[str] = []
        self.group = SimGroup(seed, 3, self.tell, **settings)

    def tell(self, text: str) -> None:
        self.said.append(f"{asyncio.get_running_loop().time() - 1000.0:8.3f}  {text}")

    async def begin(self) -> None:
        self.tell("--- three empty nodes start")
        await self.group.start()
        await self.group.serving()

    async def append(self, count: int, size: int = 20) -> int:
        """Makes so many appends, each acknowledged, and returns the last VLSN."""
        last = 0
        for number in range(count):
            status, answer = await self.group.append(f"{len(self.said)}.{number}:".encode().ljust(size, b"x"))
            assert status == 200, answer
            last = answer["last"]
        self.tell(f"--- a client has {count} appends acknowledged, the last at VLSN {last}")
        return last

    async def equal(self, last: int) -> None:
        nodes = self.group.nodes
        await self.group.until(lambda: all(node.dtvlsn() >= last for node in nodes.values()), "all have all", 60.0)

    async def end(self) -> list[str]:
        assert self.group.watch.violation is None
        said = list(self.said)
        await self.group.stop()
        return said


async def election() -> list[str]:
    """The master's process is killed. A node with its whole log is elected, and acknowledged entries are kept."""
    story = Story(1)
    group = story.group
    await story.begin()
    await story.append(10)
    story.tell("--- n1 is killed")
    group.kill("n1")
    await group.until(lambda: group.master != "n1", "another one leads")
    await group.serving()
    await story.append(5)
    story.tell("--- n1 is started again")
    await group.start("n1")
    await group.until(lambda: group.state("n1") == "REPLICA", "n1 follows")
    await story.equal(await story.append(1))
    return await story.end()


async def rollback() -> list[str]:
    """A master that is cut off logs entries that no majority has; under the next master it rolls them back."""
    story = Story(2)
    group = story.group
    await story.begin()
    await story.append(3)
    story.tell("--- n1 and the client are cut off from n2 and n3")
    group.net.split(["n1", "client"], ["n2", "n3"])
    status, answer = await group.append(b"who knows")
    story.tell(f"--- the client's next append ends as {answer['type']} ({status})")
    await group.until(lambda: group.master != "n1", "another one leads")
    story.tell("--- the network is whole again")
    group.net.heal()
    await group.serving()
    await group.until(lambda: group.state("n1") == "REPLICA", "n1 follows")
    await story.equal(await story.append(2))
    return await story.end()


async def restore() -> list[str]:
    """A replica misses entries that the others have cleaned, and fetches a peer's log."""
    story = Story(
        3,
        segment_bytes=SEGMENT_BYTES,
        retention_bytes=3 * SEGMENT_BYTES,
        hold_bytes_max=SEGMENT_BYTES,
        cleaning_period_s=0.5,
        checkpoint_period_s=1.0,
    )
    group = story.group
    await story.begin()
    await story.append(5, 2000)
    story.tell("--- n3 is killed")
    group.kill("n3")
    last = await story.append(200, 5000)
    await group.until(lambda: group.nodes[group.master].opened().log.view.range.first > 10, "the others have cleaned")
    story.tell("--- n3 is started again")
    await group.start("n3")
    await story.equal(last)
    await group.until(lambda: group.state("n3") == "REPLICA", "n3 follows")
    return await story.end()


STORIES: dict[str, Callable[[], Awaitable[list[str]]]] = {
    "An election": election,
    "Syncup with a rollback": rollback,
    "A network restore": restore,
}


def told() -> str:
    """Returns the page."""
    parts = [HEAD]
    for title, story in STORIES.items():
        said = "\n".join(run(played(title)))
        parts.append(f"## {title}\n\n{story.__doc__}\n\n```\n{said}\n```\n")
    return "\n".join(parts)


async def played(title: str) -> list[str]:
    """Returns the lines of one story."""
    return await STORIES[title]()


if __name__ == "__main__":
    print(told(), end="")
