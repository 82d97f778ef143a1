"""A stranger that sends hellos, votes, requests and feeds in any node's name.

Its messages are made up, or recorded from nodes; it sends, and answers nothing.  A group accepts terms, leadership and
names from members only (``repl.group.claims``): no stored term comes near a stranger's, no node becomes another
incarnation because of it, and the group heals as in other seeds.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from repl.api import FeedHello
from repl.group.feed_hello import encode_hello
from vlsn.errors import VlsnLogError
from vlsn.format.feed_messages import STORED_TERM_MAX
from vlsn.ids import Incarnation, NodeName, Term

if TYPE_CHECKING:
    from tests.sim.nemesis import Nemesis

RATE = 0.3
"""The share of the seeds with a stranger."""
PAUSE_S = (0.05, 1.5)
TIMEOUT_S = 5.0
FAR = 1 << 40
"""A term that no simulated group reaches by itself."""
RECORDED_MAX = 64


class Strangers:
    """The stranger has random numbers of its own: a seed with it runs as far as possible as without it."""

    def __init__(self, nemesis: Nemesis) -> None:
        self.nemesis, self.group = nemesis, nemesis.group
        self.rng = Random(f"stranger/{nemesis.report.seed}")
        self.is_there = self.rng.random() < RATE
        self._recorded: list[tuple[str, int, int]] = []
        """Names, incarnations and processes, as nodes reported them at some time."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        if not self.is_there:
            return
        host = self.group.net.host("stranger")
        kinds = {"vote": self._vote, "stand": self._stand, "hello": self._hello, "feed": self._feed}
        while True:
            await asyncio.sleep(self.rng.uniform(*PAUSE_S))
            self._look()
            to = self.rng.choice(self.group.names)
            kind = self.rng.choice(sorted(kinds))
            self.nemesis.report.faults["stranger"] += 1
            task = asyncio.ensure_future(kinds[kind](host, to))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _look(self) -> None:
        for name, node in self.group.nodes.items():
            if node.log is not None:
                self.group.watch.hold(node.log.node_file.record.term < FAR, f"{name} has stored a stranger's term")
                told = name, node.member.incarnation, node.member.process
                if told not in self._recorded:
                    self._recorded = [*self._recorded, told][-RECORDED_MAX:]

    # Its messages.

    def _named(self) -> tuple[str, int, int]:
        if self._recorded and self.rng.random() < 0.8:
            return self.rng.choice(self._recorded)
        return self.rng.choice([*self.group.names, "nobody"]), self.rng.getrandbits(64), self.rng.getrandbits(64)

    def _term(self, to: str) -> int:
        node = self.group.nodes.get(to)
        stored = node.log.node_file.record.term if node is not None and node.log is not None else 0
        return self.rng.choice((stored, stored + 1, stored + 17, FAR, STORED_TERM_MAX))

    def _number(self) -> int:
        return self.rng.choice((0, 1, self.rng.randrange(1000), 1 << 62))

    async def _vote(self, host: Any, to: str) -> None:
        sender, incarnation, _ = self._named()
        body = {
            "sender": sender,
            "incarnation": f"{incarnation:016x}",
            "term": self._term(to),
            "pre": self.rng.random() < 0.3,
            "last_term": 1 << 62,
            "last_vlsn": self._number(),
            "transfer": self.rng.random() < 0.7,
            "highest_of_all": self.rng.random() < 0.5,
            "sequence": self._number(),
        }
        await self._post(host, to, "vote", body)

    async def _stand(self, host: Any, to: str) -> None:
        await self._post(host, to, "stand", {"sender": self._named()[0], "term": self._term(to)})

    async def _hello(self, host: Any, to: str) -> None:
        sender, incarnation, process = self._named()
        body = {
            "sender": sender,
            "incarnation": f"{incarnation:016x}",
            "process": f"{process:016x}",
            "purpose": "discovery",
            "term": self._term(to),
            "sequence": self._number(),
            "told": self._number(),
        }
        await self._post(host, to, "hello", body)

    async def _feed(self, host: Any, to: str) -> None:
        sender, incarnation, process = self._named()
        hello = FeedHello(
            group="sim",
            node=NodeName(sender),
            incarnation=Incarnation(incarnation),
            to=NodeName(to),
            to_incarnation=None,
            term=Term(self._term(to)),
            process=process,
        )
        try:
            channel = await host.connect(
                f"{self.group.url(to)}/v1/feed",
                headers=encode_hello(hello),
                message_bytes_max=1 << 20,
                timeout_s=TIMEOUT_S,
            )
            await channel.close()
        except (VlsnLogError, OSError, TimeoutError):
            pass  # as it should be

    async def _post(self, host: Any, to: str, what: str, body: dict[str, Any]) -> None:
        try:
            await host.request(
                "POST",
                f"{self.group.url(to)}/v1/peer/{what}",
                headers={"Content-Type": "application/json"},
                body=msgspec.json.encode({"group": "sim", "to": to, **body}),
                timeout_s=TIMEOUT_S,
            )
        except (VlsnLogError, OSError, TimeoutError):
            pass
