"""The nodes that a client knows, and which of them is the master.

A client is given some URLs and learns the other members from any status it gets.  An answer reached
through a given URL is preferred to the URL that the group lists for that member, which need not be
reachable from here.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from repl.client.answers import right
from repl.web.types import DURABLE, Network, Response
from vlsn.errors import BadBody, NotMaster, Unreachable, VlsnLogError, WrongGroup
from vlsn.format.records import JSON_FAULTS
from vlsn.seams import Buffer

STATUS_TIMEOUT_S = 2.0
CALLERS_AT_ONCE_MAX = 16
"""Clients of one process that may look for one group's master and connect at once. Thousands that begin together would
all be too late, since each would wait for the others' answers to be read."""
SILENT_S = 0.3
"""Seconds that the others are waited for once more than half of the nodes have answered."""
LOOK_EVERY_S = 5.0
"""Seconds for which it counts whom the group was heard to list."""
_VLSN = re.compile(r"[0-9]{1,18}\Z")


class _StatusSaid(msgspec.Struct):
    """The part of a status that is looked at; nodes of other versions may say less or more."""

    node: str
    state: str
    master: str | None = None
    term: int = 0
    level: int = 1
    dtvlsn: int = 0
    members_at: int = 0
    range: dict[str, int] = {}
    members: list[dict[str, Any]] = []
    feeders: list[dict[str, Any]] = []
    replica: dict[str, Any] | None = None
    log: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Status:
    """One node's answer to ``GET /v1/status``, whose fields have been checked (``_StatusSaid``)."""

    url: str
    document: dict[str, Any]

    @property
    def node(self) -> str:
        return str(self.document["node"])

    @property
    def master(self) -> str:
        """The name of the master, as this node knows it; empty when it knows none."""
        return str(self.document.get("master") or "")

    @property
    def term(self) -> int:
        return int(self.document.get("term", 0))

    @property
    def level(self) -> int:
        """The group's level, as this node knows it durable."""
        return int(self.document.get("level", 1))

    @property
    def durable(self) -> int:
        """The highest VLSN that this node knows to be durable."""
        return int(self.document.get("dtvlsn", 0))

    @property
    def listed_at(self) -> int:
        """The VLSN of the GROUP entry that ``members`` are of, where that is durable and this node takes part in its
        group; else 0."""
        return int(self.document.get("members_at", 0)) if self.document["state"] in ("MASTER", "REPLICA") else 0

    @property
    def members(self) -> dict[str, str]:
        """URLs by name."""
        members = self.document.get("members", [])
        return {str(each["name"]): str(each["url"]).rstrip("/") for each in members if {"name", "url"} <= each.keys()}


_turns: WeakValueDictionary[tuple[int, tuple[str, ...]], asyncio.Semaphore] = WeakValueDictionary()


def _turns_of(urls: tuple[str, ...]) -> asyncio.Semaphore:
    """Returns the turns that all clients of this loop with these ``urls`` share."""
    key = id(asyncio.get_running_loop()), urls
    turns = _turns.get(key)
    if turns is None:
        turns = _turns[key] = asyncio.Semaphore(CALLERS_AT_ONCE_MAX)
    return turns


class Endpoints:
    """URLs in the order given, then those learned."""

    def __init__(self, network: Network, urls: Sequence[str]) -> None:
        self.given = tuple(urls)
        self.turns = _turns_of(self.given)
        """Turns to be held while the master is looked for and connected to."""
        self.durable = 0
        """The highest VLSN that any answer called durable: every read of this client reaches at least that."""
        self.level = 1
        """The group's level, as a node said it; it never falls."""
        self._network = network
        self._members: dict[str, str] = {}
        self._reached: dict[str, str] = {}
        self.term = 0
        """The highest that a master said it leads."""
        self._nodes: dict[str, str] = {}
        """The name of the node that has answered at each URL."""
        self._listed_at, self._listed = 0, dict[str, str]()
        """The newest list of members that is known durable, and its VLSN."""
        self._places: dict[str, str] = {}
        """Where any node said that a member is."""
        self._asking: set[asyncio.Task[bool]] = set()
        self._silent: set[str] = set()
        """URLs that have not answered in time with the group's list; they are not waited for."""
        self._look: asyncio.Task[None] | None = None
        self._looked_s = 0.0

    @property
    def urls(self) -> list[str]:
        """Every URL known, one a node."""
        listed = [self._reached.get(name, url) for name, url in self._members.items()]
        return list(dict.fromkeys((*self.given, *listed)))

    @property
    def readable(self) -> list[str]:
        """The URLs known, but for those of nodes that the group lists no more; its members' where none is left. Nodes
        are known by their names: a client may reach them elsewhere than their members do."""
        if not self._listed:
            return self.urls
        left = [url for url in self.urls if self._nodes.get(url) in (None, *self._listed)]
        return left or [self._reached.get(name, url) for name, url in self._listed.items()]

    async def look(self, most_s: float) -> None:
        """Asks all nodes whom the group lists, unless that was heard not long ago: one that was removed may not know
        it, and show what it has for ever. Waits ``most_s`` at most. Once one has answered the others have ``SILENT_S``;
        one that was silent before is not waited for."""
        loop = asyncio.get_running_loop()
        if self._look is None or (self._look.done() and loop.time() >= self._looked_s + LOOK_EVERY_S):
            self._looked_s = loop.time()
            self._look = asyncio.create_task(self._look_around(), name="vlsnlog-look")
        if not self._look.done():
            await asyncio.wait((self._look,), timeout=most_s if most_s < inf else None)

    def close(self) -> None:
        """Ends what is asked."""
        for task in (self._look, *self._asking):
            if task is not None:
                task.cancel()

    async def _look_around(self) -> None:
        found = await self._hear(self.urls, heard=False)
        reached = {*self.urls, *(self._places.get(name) for name in self._nodes.values())}
        await self._hear([url for url in self._places.values() if url not in reached], heard=found)

    async def _hear(self, urls: Sequence[str], *, heard: bool) -> bool:
        """Asks these nodes, and says whether one has answered, now or before (``heard``)."""
        loop = asyncio.get_running_loop()
        asked = {asyncio.create_task(self._hears(url), name="vlsnlog-hear"): url for url in urls}
        self._asking.update(asked)
        for task in asked:
            task.add_done_callback(self._asking.discard)
        waiting = {task for task, url in asked.items() if url not in self._silent}
        deadline = loop.time() + (SILENT_S if heard else STATUS_TIMEOUT_S)
        while waiting and (left := deadline - loop.time()) > 0:
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if not heard and any(task.result() for task in done):
                heard, deadline = True, loop.time() + SILENT_S
        self._silent.difference_update(url for task, url in asked.items() if task.done() and task.result())
        self._silent.update(url for task, url in asked.items() if not task.done() or not task.result())
        return heard

    async def _hears(self, url: str) -> bool:
        status = await self._status_or_error(url)
        if isinstance(status, Status):
            self._note(status)
            return True
        return False

    def _note(self, status: Status) -> None:
        """Notes the node that answers there, and the members that it lists."""
        self._nodes[status.url] = status.node
        self._places.update(status.members)
        if status.listed_at > self._listed_at:
            self._listed_at, self._listed = status.listed_at, status.members

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: Buffer = b"", timeout_s: float
    ) -> Response:
        """Asks as ``Network.request``, and notes the durable end that the answer names."""
        response = await self._network.request(method, url, headers=headers, body=body, timeout_s=timeout_s)
        durable = response.headers.get(DURABLE, "")
        if _VLSN.match(durable):
            self.called_durable(int(durable))
        return response

    def called_durable(self, vlsn: int) -> None:
        """Notes that a node called ``vlsn`` durable."""
        if vlsn > self.durable:
            self.durable = vlsn

    async def status(self, url: str) -> Status:
        """Returns one node's status. Raises ``Unreachable``, ``BadBody``, or what the node answered."""
        response = await self.request("GET", f"{url}/v1/status", timeout_s=STATUS_TIMEOUT_S)
        try:
            document = msgspec.json.decode(right(response).body, type=dict[str, Any])
            msgspec.convert(document, _StatusSaid)
        except JSON_FAULTS as fault:
            raise BadBody(f"{url} answered no status ({fault}); is it a vlsnlog node?") from None
        return Status(url, document)

    async def statuses(self, urls: Sequence[str]) -> list[Status | VlsnLogError]:
        """Asks every node at once; errors stand where the answer is missing."""
        return list(await asyncio.gather(*(self._status_or_error(url) for url in urls)))

    async def master(self, *, but: str = "") -> str:
        """Finds the master's URL: every node known is asked, and the first that leads is it. Its term must not be below
        one seen before. Others that name it are believed once it has had ``SILENT_S`` to answer for itself, if it
        cannot be asked. ``but``: a URL that is known to be silent, and not asked.

        Raises ``NotMaster`` when those that answer know none, ``Unreachable`` when none answers, ``WrongGroup``.
        """
        asked = {asyncio.create_task(self._status_or_error(url)): url for url in self.urls if url != but}
        deadline: float | None = None
        loop = asyncio.get_running_loop()
        waiting = set(asked)
        try:
            while waiting and (deadline is None or loop.time() < deadline):
                left = None if deadline is None else deadline - loop.time()
                done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    answer = task.result()
                    if not isinstance(answer, Status):
                        continue
                    self._learn([answer])
                    if answer.node == answer.master and answer.term >= self.term:
                        self.term = answer.term
                        return answer.url
                if 2 * (len(asked) - len(waiting)) > len(asked) and deadline is None:
                    deadline = loop.time() + SILENT_S
        finally:
            for task in waiting:
                task.cancel()
        return self._named([task.result() for task in asked if task not in waiting], set(asked.values()))

    def _named(self, answers: Sequence[Status | VlsnLogError], asked: set[str]) -> str:
        """Returns whom they name, if that one was not asked itself: else it is silent, or leads no more."""
        statuses = [answer for answer in answers if isinstance(answer, Status)]
        if not statuses:
            faults = [answer for answer in answers if isinstance(answer, VlsnLogError)]
            if other := next((fault for fault in faults if isinstance(fault, WrongGroup)), None):
                raise other
            raise Unreachable(f"no node answers at {', '.join(self.urls)}: {faults[0] if faults else 'silence'}")
        for status in sorted(statuses, key=lambda each: -each.term):
            url = self._reached.get(status.master) or self._members.get(status.master)
            if url is not None and url not in asked:
                return url
        raise NotMaster(f"no master is known yet at {', '.join(each.url for each in statuses)}")

    async def _status_or_error(self, url: str) -> Status | VlsnLogError:
        try:
            return await self.status(url)
        except VlsnLogError as error:
            return error

    def _learn(self, statuses: Sequence[Status]) -> None:
        for status in statuses:
            self._note(status)
            self._members.update(status.members)
            self._reached[status.node] = status.url
            self.called_durable(status.durable)
            self.level = max(self.level, status.level)
