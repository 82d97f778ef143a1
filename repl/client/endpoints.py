"""The nodes that a client knows, and which of these nodes is the master.

A client starts with some URLs, and learns the other members from the status of any node. If a member has answered at
one of the URLs that the client started with, the client uses that URL. The URL that the group lists for the member
may not be reachable from the client.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import msgspec

from repl.client.answers import refused_by_half, right
from repl.web.types import DURABLE, TLS, TLS_ALONE, Network, Response
from vlsn.errors import BadBody, Forbidden, Misdirected, NotMaster, Unreachable, VlsnLogError, WrongGroup, anew, bare
from vlsn.format.records import JSON_FAULTS
from vlsn.levels import TOKENS
from vlsn.seams import Buffer

STATUS_TIMEOUT_S = 2.0
CALLERS_AT_ONCE_MAX = 16
"""The most clients of one process that may look for one group's master and connect at once. If thousands of clients
began together, each would wait for the others' answers, and all would be late."""
SILENT_S = 0.3
"""Once more than half of the nodes have answered, the client waits this many seconds for the other nodes."""
LOOK_EVERY_S = 5.0
"""The client keeps a list of the group's members for this many seconds before it asks the nodes again."""
LOOK_IDLE_S = 60.0
"""The same for a tail or consumer that waits for new entries. Ten thousand of them may wait at once."""
_APPENDS_AT = "/v1/produce"
"""A path that a node which is not the master redirects, whatever roles the caller has."""
_VLSN = re.compile(r"[0-9]{1,18}\Z")


class _StatusSaid(msgspec.Struct):
    """The fields of a status that the client reads. Nodes of other versions may send fewer or more fields."""

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
        """The name of the master, as far as this node knows; "" if it knows none."""
        return str(self.document.get("master") or "")

    @property
    def term(self) -> int:
        return int(self.document.get("term", 0))

    @property
    def level(self) -> int:
        """The group's durable level, as far as this node knows."""
        return int(self.document.get("level", 1))

    @property
    def durable(self) -> int:
        """The highest VLSN that this node knows to be durable."""
        return int(self.document.get("dtvlsn", 0))

    @property
    def listed_at(self) -> int:
        """The VLSN of the GROUP entry that lists ``members``. Returns 0 if the GROUP entry is not durable, or if this
        node takes no part in its group."""
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


def speaks_otherwise(error: object) -> bool:
    """Says whether a node was reached and cannot be spoken to as it was: it has another certificate than is trusted,
    or speaks TLS where ``http://`` was called, or the other way round."""
    return isinstance(error, Misdirected) or (isinstance(error, Unreachable) and error.tls)


def silence_of(endpoints: Endpoints) -> VlsnLogError:
    """Returns the error of a request that no node has answered in time."""
    if endpoints.refusal is not None:
        return anew(endpoints.refusal)
    return Unreachable(f"no answer in time of {', '.join(endpoints.urls)}")


class Endpoints:
    """The URLs of a group's nodes: first the URLs that the client started with, then those that it has learned."""

    def __init__(self, network: Network, urls: Sequence[str]) -> None:
        self.given = tuple(urls)
        self.turns = _turns_of(self.given)
        """A semaphore. A client holds the semaphore while it looks for the master and connects."""
        self.durable = 0
        """The highest VLSN that any answer reported as durable. Every read of this client reaches at least this
        VLSN."""
        self.level = 1
        """The highest level of the group that a node has reported."""
        self._network = network
        self._members: dict[str, str] = {}
        self._reached: dict[str, str] = {}
        self.term = 0
        """The highest term for which a node has reported that it is the master."""
        self._nodes: dict[str, str] = {}
        """The name of the node that has answered at each URL."""
        self._listed_at, self._listed = 0, dict[str, str]()
        """The VLSN of the newest durable list of members, and that list."""
        self._places: dict[str, str] = {}
        """Each member's URL, as reported by any node."""
        self._asking: set[asyncio.Task[bool]] = set()
        self._silent: set[str] = set()
        """The URLs that did not answer in time with the group's list. ``look`` does not wait for them."""
        self.refusal: VlsnLogError | None = None
        """Why a node could not be spoken to, unless a node has answered since."""
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
        """The known URLs, except those of nodes that the group no longer lists. If none is left, the URLs that the
        group lists. Nodes are compared by name, because a client may reach a node at another URL than the members
        do."""
        if not self._listed:
            return self.urls
        left = [url for url in self.urls if self._nodes.get(url) in (None, *self._listed)]
        return left or [self._reached.get(name, url) for name, url in self._listed.items()]

    async def look(self, most_s: float, *, every_s: float = LOOK_EVERY_S) -> None:
        """Asks all listed nodes for the group's members, unless they were asked less than ``every_s`` seconds ago. A
        removed node may not know of its removal, and would continue to answer with its old data. Waits at most
        ``most_s`` seconds. Once one node has answered, the other nodes have ``SILENT_S`` more seconds. Nodes that were
        silent before are not waited for."""
        loop = asyncio.get_running_loop()
        if self._look is None or (self._look.done() and loop.time() >= self._looked_s + every_s):
            self._looked_s = loop.time()
            self._look = asyncio.create_task(self._look_around(), name="vlsnlog-look")
        if not self._look.done():
            await asyncio.wait((self._look,), timeout=most_s if most_s < inf else None)

    def close(self) -> None:
        """Cancels the requests that are not answered yet."""
        for task in (self._look, *self._asking):
            if task is not None:
                task.cancel()

    async def _look_around(self) -> None:
        found = await self._hear(self.urls, heard=False)
        # a member at another URL than its group lists is not asked twice
        reached = {*self.urls, *(self._places.get(self._nodes.get(url, "")) for url in self.urls)}
        await self._hear([url for url in self._places.values() if url not in reached], heard=found)

    async def _hear(self, urls: Sequence[str], *, heard: bool) -> bool:
        """Asks the nodes at ``urls``. Returns whether one of the nodes has answered, now or before (``heard``)."""
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
        """Notes which node answers at the status's URL, and which members that node lists."""
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
        """Notes that a node reported ``vlsn`` as durable."""
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
        """Asks every node at once. In place of a missing answer the result has an error."""
        return list(await asyncio.gather(*(self._status_or_error(url) for url in urls)))

    async def master(self, *, but: str = "") -> str:
        """Finds the master's URL: asks every known node, and returns the first node that leads in a term not below
        any term seen before. If other nodes name a master that could not be asked, the client believes them after
        the master had ``SILENT_S`` seconds to answer itself. ``but`` is the URL of a silent node, which is not
        asked. Raises ``NotMaster`` if no answer names a master, ``Unreachable`` if no node answers, ``WrongGroup``, and
        ``Unauthorized`` if the nodes refuse the client's token."""
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
        answers = {asked[task]: task.result() for task in asked if task not in waiting}
        refusing = [url for url, answer in answers.items() if isinstance(answer, Forbidden)]
        if refusing and not any(isinstance(answer, Status) for answer in answers.values()):
            return await self._redirected(refusing)
        return self._named(list(answers.values()), set(asked.values()))

    async def _redirected(self, urls: Sequence[str]) -> str:
        """Finds the master with a token that may not ask the nodes at ``urls`` for their status. A node that is not the
        master redirects whoever would append. Redirects are followed to known URLs only. Raises ``NotMaster``."""
        self.level = max(self.level, TOKENS)
        leads = dict(zip(urls, await asyncio.gather(*map(self._leads, urls)), strict=True))
        named = Counter(url for url in leads.values() if url)
        known = [url for url in named if leads.get(url) == url] or [url for url in named if url in self.urls]
        if not known and named:
            raise NotMaster(
                f"the master is at {', '.join(named)}, which is not among the given URLs: give the URLs of all "
                "members, or a token with the role metrics, which may ask for the members"
            )
        if not known:
            raise NotMaster(f"no master is known yet at {', '.join(urls)}")
        return max(known, key=named.__getitem__)

    async def _leads(self, url: str) -> str:
        """Returns the URL of the master, as the node at ``url`` redirects there; "" if the node does not say so."""
        try:
            answer = await self.request("GET", url + _APPENDS_AT, timeout_s=STATUS_TIMEOUT_S)
        except VlsnLogError:
            return ""
        if answer.status == 307:
            return answer.headers.get("Location", "").removesuffix(_APPENDS_AT)
        return url if answer.status in (400, 403) else ""

    def _named(self, answers: Sequence[Status | VlsnLogError], asked: set[str]) -> str:
        """Returns the URL of the master that the answers name. Returns "" if that URL was asked itself, because that
        node is silent or no longer leads."""
        statuses = [answer for answer in answers if isinstance(answer, Status)]
        if not statuses:
            faults = [answer for answer in answers if isinstance(answer, VlsnLogError)]
            if other := next((fault for fault in faults if isinstance(fault, WrongGroup)), None):
                raise other
            if refusal := refused_by_half(faults, len(asked)):
                raise refusal
            shown = next(filter(speaks_otherwise, faults), faults[0] if faults else "silence")
            tls = bool(faults) and all(map(speaks_otherwise, faults))
            raise Unreachable(f"no node answers at {', '.join(self.urls)}: {shown}", tls=tls)
        for status in sorted(statuses, key=lambda each: -each.term):
            url = self._reached.get(status.master) or self._members.get(status.master)
            if url is not None and url not in asked:
                return url
        raise NotMaster(f"no master is known yet at {', '.join(each.url for each in statuses)}")

    async def _status_or_error(self, url: str) -> Status | VlsnLogError:
        try:
            status = await self.status(url)
            self.refusal = None
            return status
        except VlsnLogError as error:
            if speaks_otherwise(error):
                self.refusal = bare(error)
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
