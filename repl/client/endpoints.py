"""The nodes that a client knows, and which of these nodes is the master.

A client is given some URLs, and learns the other members from any status that a node answers. If a member has answered
at a URL that the client was given, the client uses this URL. The URL that the group lists for the member may not be
reachable from the client.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec

from repl.client.answers import right
from repl.web.types import DURABLE, TLS, TLS_ALONE, Network, Response
from vlsn.errors import BadBody, Misdirected, NotMaster, Unreachable, VlsnLogError, WrongGroup
from vlsn.format.records import JSON_FAULTS
from vlsn.seams import Buffer

STATUS_TIMEOUT_S = 2.0
CALLERS_AT_ONCE_MAX = 16
"""The most clients of one process that may look for one group's master and connect at once. If thousands began
together, all would be too late, because each would wait until the others' answers are read."""
SILENT_S = 0.3
"""The seconds to wait for the other nodes once more than half of the nodes have answered."""
LOOK_EVERY_S = 5.0
"""The seconds for which a list of the group's members stays valid before the nodes are asked again."""
_VLSN = re.compile(r"[0-9]{1,18}\Z")


class _StatusSaid(msgspec.Struct):
    """The fields of a status that the client reads. Nodes of other versions may answer fewer or more fields."""

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
        """The VLSN of the GROUP entry that lists ``members``, if that entry is durable and this node takes part in its
        group; otherwise 0."""
        return int(self.document.get("members_at", 0)) if self.document["state"] in ("MASTER", "REPLICA") else 0

    @property
    def members(self) -> dict[str, str]:
        """The members' URLs, by name."""
        members = self.document.get("members", [])
        return {str(each["name"]): str(each["url"]).rstrip("/") for each in members if {"name", "url"} <= each.keys()}


def _by_https(url: str) -> str:
    return f"https://{url.removeprefix('http://')}"


_turns: WeakValueDictionary[tuple[int, tuple[str, ...]], asyncio.Semaphore] = WeakValueDictionary()


def _turns_of(urls: tuple[str, ...]) -> asyncio.Semaphore:
    """Returns the semaphore that all clients of this event loop with these ``urls`` share."""
    key = id(asyncio.get_running_loop()), urls
    turns = _turns.get(key)
    if turns is None:
        turns = _turns[key] = asyncio.Semaphore(CALLERS_AT_ONCE_MAX)
    return turns


class Endpoints:
    """The URLs of a group's nodes: the URLs that were given, then those that were learned."""

    def __init__(self, network: Network, urls: Sequence[str]) -> None:
        self.given = tuple(urls)
        self.turns = _turns_of(self.given)
        """A semaphore to hold while the client looks for the master and connects."""
        self.durable = 0
        """The highest VLSN that any answer called durable. Every read of this client reaches at least this VLSN."""
        self.level = 1
        """The highest level of the group that a node has reported."""
        self._network = network
        self._members: dict[str, str] = {}
        self._reached: dict[str, str] = {}
        self.term = 0
        """The highest term in which a node said that it leads."""
        self._nodes: dict[str, str] = {}
        """The name of the node that has answered at each URL."""
        self._listed_at, self._listed = 0, dict[str, str]()
        """The VLSN of the newest durable list of members, and that list."""
        self._places: dict[str, str] = {}
        """Each member's URL, as any node said it."""
        self._asking: set[asyncio.Task[bool]] = set()
        self._silent: set[str] = set()
        """The URLs that did not answer in time with the group's list. ``look`` does not wait for them."""
        self._moved: set[str] = set()
        """The URLs whose ports have refused plain HTTP."""
        self._look: asyncio.Task[None] | None = None
        self._looked_s = 0.0

    @property
    def urls(self) -> list[str]:
        """Every known URL, one for each node."""
        listed = [self._reached.get(name, url) for name, url in self._members.items()]
        return list(dict.fromkeys((*self.given, *listed)))

    @property
    def readable(self) -> list[str]:
        """The known URLs, without those of nodes that the group no longer lists. If none is left, the URLs of the
        members. Nodes are recognised by their names, because a client may reach a node at another URL than the members
        do."""
        if not self._listed:
            return self.urls
        left = [url for url in self.urls if self._nodes.get(url) in (None, *self._listed)]
        return left or [self._reached.get(name, url) for name, url in self._listed.items()]

    async def look(self, most_s: float) -> None:
        """Asks all nodes that the group lists which members the group has, unless a list was received less than
        ``LOOK_EVERY_S`` ago. A node that was removed from the group may not know it, and would go on answering with its
        old data. Waits at most ``most_s`` seconds. Once one node has answered, the others get ``SILENT_S`` more; nodes
        that were silent before are not waited for."""
        loop = asyncio.get_running_loop()
        if self._look is None or (self._look.done() and loop.time() >= self._looked_s + LOOK_EVERY_S):
            self._looked_s = loop.time()
            self._look = asyncio.create_task(self._look_around(), name="vlsnlog-look")
        if not self._look.done():
            await asyncio.wait((self._look,), timeout=most_s if most_s < inf else None)

    def close(self) -> None:
        """Cancels the requests under way."""
        for task in (self._look, *self._asking):
            if task is not None:
                task.cancel()

    async def _look_around(self) -> None:
        found = await self._hear(self.urls, heard=False)
        reached = {*self.urls, *(self._places.get(name) for name in self._nodes.values())}
        await self._hear([url for url in self._places.values() if url not in reached], heard=found)

    async def _hear(self, urls: Sequence[str], *, heard: bool) -> bool:
        """Asks the nodes at ``urls``. Says whether one of them has answered, now or before (``heard``)."""
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
        """Notes which node answers at this URL, and which members the node lists."""
        self._nodes[status.url] = status.node
        self._places.update(status.members)
        if status.listed_at > self._listed_at:
            self._listed_at, self._listed = status.listed_at, status.members

    async def request(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: Buffer = b"", timeout_s: float
    ) -> Response:
        """Sends a request as ``Network.request`` does, and notes the durable end that the answer names. If the port
        refuses plain HTTP, the group has moved to TLS; the request is sent again by https, to the same address."""
        response = await self._network.request(method, url, headers=headers, body=body, timeout_s=timeout_s)
        if response.headers.get(TLS) == TLS_ALONE and url.startswith("http://"):
            self._moved.add(f"http://{urlsplit(url).netloc}")
            self.given = tuple(map(self._now, self.given))
            return await self.request(method, _by_https(url), headers=headers, body=body, timeout_s=timeout_s)
        durable = response.headers.get(DURABLE, "")
        if _VLSN.match(durable):
            self.called_durable(int(durable))
        return response

    def _now(self, url: str) -> str:
        """Returns the URL by which the node at ``url`` is asked now."""
        return _by_https(url) if url in self._moved else url

    def called_durable(self, vlsn: int) -> None:
        """Notes that a node called ``vlsn`` durable."""
        if vlsn > self.durable:
            self.durable = vlsn

    async def status(self, url: str) -> Status:
        """Returns the status of the node at ``url``. Raises ``Unreachable``, ``BadBody``, or the error that the node
        answered."""
        response = await self.request("GET", f"{url}/v1/status", timeout_s=STATUS_TIMEOUT_S)
        try:
            document = msgspec.json.decode(right(response).body, type=dict[str, Any])
            msgspec.convert(document, _StatusSaid)
        except JSON_FAULTS as fault:
            raise BadBody(f"{url} answered no status ({fault}); is it a vlsnlog node?") from None
        return Status(self._now(url), document)

    async def statuses(self, urls: Sequence[str]) -> list[Status | VlsnLogError]:
        """Asks every node at once. The result has an error in place of each answer that is missing."""
        return list(await asyncio.gather(*(self._status_or_error(url) for url in urls)))

    async def master(self, *, but: str = "") -> str:
        """Finds the master's URL: asks every known node, and returns the first node that leads, in a term not below one
        seen before. If other nodes name a master that could not be asked, they are believed once that master has had
        ``SILENT_S`` to answer itself. ``but`` is a URL that is known to be silent, and is not asked. Raises
        ``NotMaster`` if no answer names a master, ``Unreachable`` if no node answers, ``WrongGroup``."""
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
        """Returns the URL of the master that the answers name, unless that URL was asked: a node that was asked is
        silent, or no longer leads."""
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
            if isinstance(error, Misdirected):  # it may have moved to https, where its members list it
                self._reached = {name: place for name, place in self._reached.items() if place != url}
            return error

    def _learn(self, statuses: Sequence[Status]) -> None:
        for status in statuses:
            self._note(status)
            self._members.update(status.members)
            self._reached[status.node] = status.url
            self.called_durable(status.durable)
            self.level = max(self.level, status.level)
