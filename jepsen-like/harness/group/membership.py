"""Reads and changes the group's members as an operator does: by ``/v1/group`` and ``/v1/admin/group``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from harness.group.members import Listed, Step
from harness.group.nodes import Group
from harness.orders import order
from repl.web import problem
from repl.web.types import Network
from vlsn.errors import NotMaster, Unreachable, VlsnLogError

ASK_S = 3.0
ORDER_S = 15.0
"""Seconds of an order's timeout; a master waits 10 s until a change is durable."""
AGAIN_S = 0.3
HOPS_MAX = 3
CONFIRM_MAX = 3
TRIMMED = 410


class Membership:
    """The membership of one group; it updates the nodes' settings when the list changes."""

    def __init__(self, group: Group, network: Network) -> None:
        self._group = group
        self._network = network

    async def settled(self, until_s: float, holds: Callable[[Listed], bool] = lambda _: True) -> Listed | None:
        """Returns the members, once no change is under way and ``holds`` accepts the list. None if no node reports such
        a list by ``until_s`` of the loop's clock."""
        loop = asyncio.get_running_loop()
        while loop.time() < until_s:
            listed = await self._listed()
            if listed is not None:
                self._group.are_members(listed.members, listed.electable)
                if holds(listed):
                    return listed
            await asyncio.sleep(AGAIN_S)
        return None

    async def _listed(self) -> Listed | None:
        """Returns the durable list of the master with the highest term, if a majority still follows it then."""
        documents = await asyncio.gather(*(self._asked(url) for url in self._group.urls.values()))
        leading = [
            (document["term"], url, document)
            for url, document in zip(self._group.urls.values(), documents, strict=True)
            if document.get("state") == "MASTER" and document["durable"]
        ]
        if not leading:
            return None
        _, url, document = max(leading, key=lambda each: each[:2])
        return Listed.of(document) if await self._confirms(url, document["vlsn"]) else None

    async def _confirms(self, url: str, vlsn: int) -> bool:
        """Says whether a majority still follows that master: it answers a linearizable read from ``vlsn`` on, or from
        its first entry where that one was cleaned away."""
        for _ in range(CONFIRM_MAX):
            confirming = f"{url}/v1/entries?from={vlsn}&limit=1&kinds=all&consistency=linearizable"
            try:
                answer = await self._network.request("GET", confirming, timeout_s=ASK_S)
            except VlsnLogError:
                return False
            if answer.status != TRIMMED:
                return answer.status == 200
            vlsn = int(msgspec.json.decode(bytes(answer.body))["first"])
        return False

    async def _asked(self, url: str) -> dict[str, Any]:
        """Asks one node; empty without an answer."""
        try:
            answer = await self._network.request("GET", f"{url}/v1/group", timeout_s=ASK_S)
        except VlsnLogError:
            return {}
        if answer.status != 200:
            return {}
        return msgspec.json.decode(bytes(answer.body), type=dict[str, Any])

    async def order(self, step: Step, before: Listed, until_s: float) -> Ordered:
        """Repeats an order until it is done, or until ``until_s``.  A master that accepts it has made it durable."""
        loop = asyncio.get_running_loop()
        ordered = Ordered(why="nobody led")
        while not ordered.done and loop.time() < until_s:
            listed = await self.settled(until_s)
            if listed is None:
                break
            if step.done(before, listed):
                ordered.done = True
            else:
                await self._ask_for(step, ordered)
                await asyncio.sleep(AGAIN_S)
        return ordered

    async def _ask_for(self, step: Step, ordered: Ordered) -> None:
        """Asks one member after the other, until a leader accepts the step or refuses it."""
        body = msgspec.json.encode(step.body(self._group.member_urls[step.name]))
        for name in self._group.listed:
            url = self._group.urls[name]
            try:
                for _ in range(HOPS_MAX):
                    answer = await order(self._network, url, "group", body=body, timeout_s=ORDER_S)
                    if answer.status != 307:
                        break
                    url = answer.headers["Location"].removesuffix("/v1/admin/group")
                refusal = None if answer.status == 200 else problem.error_of(bytes(answer.body))
            except VlsnLogError as error:
                refusal = error
            if refusal is None:
                ordered.done = True
                return
            ordered.why = f"{refusal.slug}: {refusal}"
            lost = isinstance(refusal, Unreachable) and not refusal.refused
            ordered.unknown |= lost or not refusal.retry_safe
            if not isinstance(refusal, NotMaster | Unreachable):
                return


@dataclass(slots=True)
class Ordered:
    """The outcome of an order."""

    done: bool = False
    unknown: bool = False
    """True if the order was not done, but may be done later, since not every asked node has refused it."""
    why: str = ""
