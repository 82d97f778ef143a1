"""Consumers of destinations in a simulation, over plain HTTP, and the rules for each message that they receive.

    make ─► request messages ─► acknowledge all or some, in some order · refuse · forget ─► … ─► drained at the end

A message is durable and the log's own.  It was neither dead nor durably acknowledged before the request.  No message is
delivered while an earlier one of its key is open: unacknowledged and still to be delivered.  A message that has had its
last attempt is given up: later ones of its key may be delivered before its death is durable.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from tests.fakes.machine import Machine
from tests.sim.destinations import Folded
from tests.sim.logs import block_of
from tests.sim.orders import Orders
from vlsn.errors import VlsnLogError
from vlsnlog.testing.fakes.disk import Call

if TYPE_CHECKING:
    from tests.sim.clients import Clients

JSON = {"Content-Type": "application/json"}
TIMEOUT_S = 3.0
WAIT_S = 1.0
PAUSE_S, LONG_S = 0.5, 8.0
PAGE_MAX, DRAIN_MAX = 12, 200
FORGETS, REFUSES, PARTS, AT_ONCE, AGAIN = 0.15, 0.15, 0.3, 0.2, 0.6
"""Probabilities: that a page is forgotten, that one message of a page is refused, that a page is acknowledged in parts,
that it is acknowledged at once, and that an acknowledgement without an answer is sent again."""
RETRIES = 0.02
"""The share of turns in which a consumer first retries dead messages."""
SINGLES = 0.3
"""The share of turns, while there are dead messages, in which it retries or deletes a single one."""
DELAYED, BOUNDED, PUT_OFF = 0.5, 0.3, 0.3
"""The shares of destinations with a redelivery delay and with a limit of messages out, and of refusals with a delay."""
DELAY_S_MAX = 4.0
AGAIN_S = 5.0
"""The longest time from a durable retry of a dead message to its answer."""
DRAINED_S, UNPAGED_S = 120.0, 60.0
SENT_MAX = 40
SPOILT_S = (0.5, 4.0)
LOSES, LOST_S, LOST_MAX = 0.5, (0.5, 4.0), 4
"""The share of seeds in which a node comes back with a page file cut short, or without it; when, and how often. It is
only one node of the seed, and the other disks keep synced bytes, so that some node has the missing messages."""
SPOILT = ("read", "open", "create", "write", "sync")
"""Calls on pages that fail."""


@dataclass(frozen=True, slots=True)
class Made:
    """One destination of a seed."""

    name: str
    consumers: int
    settings: dict[str, Any]


def drawn(seed: int) -> list[Made]:
    """Draws the destinations of a seed: one of all keys, one of a single key, one without a consumer until the end."""
    rng = Random(f"consumers/{seed}")
    timeout_s = rng.choice((1.0, 4.0, 15.0))
    common = {"ack_timeout_s": timeout_s, "from": 1}
    made = [
        Made("all", rng.randint(1, 3), {**common, "attempts_max": rng.choice((3, 1000)), "dead_letter": "dead-all"}),
        Made("one", 2, {**common, "prefix": "k1", "attempts_max": 1000, "dead_letter": "dead-one"}),
    ]
    if rng.random() < 0.7:
        made.append(Made("idle", 0, {**common, "attempts_max": 1000, "dead_letter": "dead-idle"}))
    policy = rng.choice(("page", "drop", "block", "fail", ""))
    if policy:
        limits = {"prefix": "k2", "full_policy": policy, "max_messages": rng.choice((5, 40))}
        made.append(Made("full", 1, {**common, **limits, "attempts_max": 1000, "dead_letter": "dead-full"}))
    apart = Random(f"delays/{seed}")  # so that everything else runs as before
    for each in made:
        if apart.random() < DELAYED:
            each.settings.update(
                redelivery_delay_s=apart.choice((0.2, 1.0)), redelivery_factor=2.0, redelivery_delay_s_max=DELAY_S_MAX
            )
        if apart.random() < BOUNDED:
            each.settings["max_out"] = apart.choice((3, 20))
    return made


class Consumers:
    """All consumers of one simulation."""

    def __init__(self, clients: Clients) -> None:
        self.clients, self.group, self.report = clients, clients.group, clients.report
        self.books = clients.group.watch.destinations
        self.made = drawn(clients.report.seed)
        self.sent: dict[str, dict[int, float]] = {each.name: {} for each in self.made}
        """The time when an acknowledgement was last sent, by VLSN."""
        self.books.sent = self.sent
        self.books.drops = {each.name for each in self.made if each.settings.get("full_policy") == "drop"}
        self.settled: dict[str, dict[tuple[int, int], float]] = {each.name: {} for each in self.made}
        """The time when a durable acknowledgement was answered, by ``since`` and VLSN."""
        self.orders = Orders(self)
        self.lost = set[int]()
        """VLSNs in pages whose file was lost, or cut short."""
        self.die: Callable[[str], None] = lambda name: None
        """Ends a node's process, which restarts a while later."""
        self.last: dict[str, dict[int, int]] = {each.name: {} for each in self.made}
        """The VLSNs that were delivered for the last time, and the number of their retries before that."""

    def jobs(self) -> list[Any]:
        """Returns the tasks that run until the end."""
        consumers = [Consumer(self, made, number) for made in self.made for number in range(made.consumers)]
        sweep = self.books.sweep(lambda: self.clients.over)
        disks = self._spoils(), self._loses()
        return [self._makes(), *(each.run() for each in consumers), sweep, *disks, self.orders.run()]

    async def _spoils(self) -> None:
        """Fails calls on pages, now and then: drawn separately, so that everything else runs as before."""
        rng = Random(f"pages/{self.report.seed}")
        while not self.clients.over:
            await asyncio.sleep(rng.uniform(*SPOILT_S))
            self._spoil(self.group.machines[rng.choice(self.group.names)], rng.choice(SPOILT), rng.randint(1, 3))

    def _spoil(self, machine: Machine, kind: str, times: int) -> None:
        def strikes(call: Call) -> bool:
            if call.name != kind or not call.path.endswith(".page") or self.clients.over:
                return False
            self.report.met[f"a {kind} of a page that failed"] += 1
            return True

        machine.disk.fail_at(strikes, code=errno.EMFILE if kind == "open" else errno.EIO, times=times)

    async def _loses(self) -> None:
        """Removes page files, or their ends, from a node that is down: drawn separately, as ``_spoils``."""
        rng = Random(f"lost pages/{self.report.seed}")
        if rng.random() >= LOSES or not self.clients.keeps_what_was_synced:
            return
        name, left = rng.choice(self.group.names), LOST_MAX
        while left and not self.clients.over:
            await asyncio.sleep(rng.uniform(*LOST_S))
            if self.clients.over or name not in self.group.nodes or not self._pages_of(name):
                continue
            self.die(name)
            disk, paths = self.group.machines[name].disk, self._pages_of(name)
            if name in self.group.nodes or not paths:
                continue
            path = rng.choice(paths)
            self.lost |= self._held_in(name, path)
            self.books.strikes(name, path)
            if rng.random() < 0.5:
                disk.lose_file(path)
            else:
                whole = disk.content(path)
                disk.write_content(path, whole[: rng.randrange(len(whole) + 1)])
            self.report.met["a page file lost, or cut short"] += 1
            left -= 1

    def _held_in(self, name: str, path: str) -> set[int]:
        """Returns the VLSNs in the pages of that destination on a node."""
        found = self.books.pages_of(name, path.split("/")[-2])
        blocks = [block_of(data) for data in found.blocks]
        return {*found.values, *(vlsn for block in blocks for vlsn in range(block.first, block.last + 1))}

    def _is_gone(self, folded: Folded, vlsn: int) -> bool:
        """Says whether a message was in a lost file and each node reports it missing, because the others were restored
        before the node could fetch it. Then no later message is delivered until an operator moves the destination."""
        if vlsn not in self.lost:
            return False
        each = [self.books.pages_of(name, folded.uuid).missing for name in self.group.names]
        return all(any(first <= vlsn <= last for first, last in missing) for missing in each)

    def _pages_of(self, name: str) -> list[str]:
        """Returns the paths of a node's page files."""
        disk, uuids = self.group.machines[name].disk, sorted(folded.uuid for folded in self.books.of.values())
        return [path for uuid in uuids for path in disk.files(f"/{name}/pages/{uuid}") if path.endswith(".page")]

    async def _makes(self) -> None:
        caller = Caller(self, "maker")
        for made in self.made:
            while not self.clients.over:
                status, _ = await caller.call("PUT", made.name, msgspec.json.encode(made.settings))
                if status in (200, 201):
                    self.orders.made.add(made.name)
                    break
                await asyncio.sleep(0.5)

    async def drain(self) -> None:
        """Takes all remaining messages: open ones are delivered, and their pages removed."""
        await self.orders.end()
        watch, loop = self.group.watch, self.group.loop
        until_s = loop.time() + DRAINED_S
        takers = [Consumer(self, made, 100) for made in self.made]
        while left := {name: found[:5] for name, folded in self._folded() if (found := self._left(folded))}:
            watch.hold(loop.time() < until_s, f"not delivered in {DRAINED_S:.0f} s, or not to be acknowledged: {left}")
            for taker in takers:
                if taker.made.name in left:
                    await taker.once(DRAIN_MAX, healthy=True)
            for name in list(self.group.names):
                self.books.look_at(name)
        met = self.report.met
        met["destinations drained in the end"] += 1
        met["messages that lay in pages alone"] += self.books.paged_most
        met["messages that a node lacked, and fetched"] += self.books.lacking_most
        until_s = loop.time() + UNPAGED_S
        while still := [name for name in self.group.names if not self.books.left_page_mode(name)]:
            watch.hold(loop.time() < until_s, f"pages of which all is acknowledged are left on {still}")
            await asyncio.sleep(0.5)
        self.books.check()

    def _folded(self) -> list[tuple[str, Folded]]:
        return [(folded.name, folded) for folded in self.books.of.values() if folded.name in self.sent]

    def _left(self, folded: Folded) -> list[int]:
        """Returns the messages that are still to be delivered, including the dead ones."""
        left = self.books.open_of(folded)
        if any(self._is_gone(folded, vlsn) for vlsn in left):
            return []
        return left if any(vlsn not in folded.dead for vlsn in left) else []


class Caller:
    """Sends requests, mostly to the reported master."""

    def __init__(self, consumers: Consumers, name: str) -> None:
        self.all = consumers
        self.name = name
        self.rng = Random(f"{name}/{consumers.report.seed}")

    async def call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Returns status and body; the status is 0 without an answer."""
        self.all.report.operations += 1
        group = self.all.group
        target = f"/v1/destinations/{path}"
        url = group.url(self.all.clients.target(self.rng)) + target
        for _ in range(2):
            try:
                response = await group.client.request(method, url, headers=JSON, body=body, timeout_s=TIMEOUT_S)
            except (VlsnLogError, OSError):
                return 0, b""
            if response.status != 307:
                return response.status, bytes(response.body)
            url = response.headers["Location"]
        return 307, b""


class Consumer(Caller):
    def __init__(self, consumers: Consumers, made: Made, number: int) -> None:
        super().__init__(consumers, f"{made.name}-{number}")
        self.made = made
        self._watch, self._loop = consumers.group.watch, consumers.group.loop
        self._slow = number == 1
        self._apart = Random(f"delays/{self.name}/{consumers.report.seed}")

    async def run(self) -> None:
        while not self.all.clients.over:
            await asyncio.sleep(self.rng.uniform(0.0, LONG_S if self._slow else PAUSE_S))
            if self.rng.random() < RETRIES:
                status, _ = await self.call("POST", f"{self.made.name}/retry-dead", b"{}")
                self.all.report.met["dead ones tried again"] += status == 200
            await self._over_a_dead_one()
            await self.once(self.rng.randint(1, PAGE_MAX), healthy=False)

    async def _over_a_dead_one(self) -> None:
        folded = self.all.books.of.get(self.all.books.named.get(self.made.name, ""))
        if folded is None or not folded.dead or self._apart.random() >= SINGLES:
            return
        order, vlsn = self._apart.choice(("retry-dead", "delete-dead")), self._apart.choice(sorted(folded.dead))
        status, _ = await self.call("POST", f"{self.made.name}/{order}", b'{"vlsns":[%d]}' % vlsn)
        self.all.report.met[f"a single dead one: {order}"] += status == 200

    async def once(self, most: int, *, healthy: bool) -> None:
        """Requests a page, and answers for it; with ``healthy`` all of it is acknowledged."""
        asked_s, then, paused = self._loop.time(), self._since(), self.made.name in self.all.orders.paused
        status, body = await self.call("GET", f"{self.made.name}/messages?max={most}&wait={WAIT_S if healthy else 0.5}")
        if status != 200:
            await asyncio.sleep(0.2)
            return
        rows = [msgspec.json.decode(line) for line in body.splitlines()]
        still = paused and self.made.name in self.all.orders.paused
        self._watch.hold(not (rows and still), f"{self.name} is given {len(rows)} messages, paused")
        self._given(rows, asked_s, then)
        vlsns = [row["vlsn"] for row in rows]
        if not vlsns or (not healthy and self.rng.random() < FORGETS):
            return
        if not healthy and self.rng.random() < REFUSES:
            refused = vlsns.pop(self.rng.randrange(len(vlsns)))
            delay_s = self._apart.uniform(0.0, DELAY_S_MAX) if self._apart.random() < PUT_OFF else None
            await self._say("nack", [refused], delay_s=delay_s)
        if not healthy and self.rng.random() < PARTS:
            self.rng.shuffle(vlsns)
            await self._say("ack", vlsns[: len(vlsns) // 2])
            vlsns = vlsns[len(vlsns) // 2 :]
        await self._say("ack", vlsns, at_once=not healthy and self.rng.random() < AT_ONCE)

    async def _say(self, word: str, vlsns: list[int], *, at_once: bool = False, delay_s: float | None = None) -> None:
        sent, settled = self.all.sent[self.made.name], self.all.settled[self.made.name]
        path = f"{self.made.name}/{word}" + ("?wait=0" if at_once else "")
        said: dict[str, Any] = {"vlsns": vlsns} if delay_s is None else {"vlsns": vlsns, "delay_s": delay_s}
        for _ in range(SENT_MAX if vlsns else 0):
            since = self._since()
            if word == "ack":
                sent.update(dict.fromkeys(vlsns, self._loop.time()))
            status, body = await self.call("POST", path, msgspec.json.encode(said))
            gone = status == 404 and self.made.name in self.all.orders.dropped
            self._watch.hold(
                gone or status not in (400, 404, 500), f"{self.name} hears {status} of {word}: {body[:300]!r}"
            )
            if status == 200:
                if word == "ack" and not at_once and since == self._since():  # otherwise it may be from before a move
                    settled.update(((since, vlsn), self._loop.time()) for vlsn in vlsns if (since, vlsn) not in settled)
                return
            if gone:
                return
            if self.rng.random() >= AGAIN:
                return
            await asyncio.sleep(self.rng.uniform(0.0, 0.5))

    # Received messages.

    def _since(self) -> int:
        """Returns the VLSN of the COMMIT that has set the present beginning of its destination; 0 for none."""
        folded = self.all.books.of.get(self.all.books.named.get(self.made.name, ""))
        return 0 if folded is None else folded.since

    def _given(self, rows: list[dict[str, Any]], asked_s: float, since: int) -> None:
        """Checks the received messages; ``since`` is from the time of the request. Messages requested before the answer
        to a move arrived may still be from before the move."""
        books, watch, name = self.all.books, self._watch, self.made.name
        folded = books.of.get(books.named.get(name, ""))
        if not rows:
            return
        if folded is None and name in self.all.orders.dropped:
            return  # dropped while it was under way
        watch.hold(folded is not None, f"{self.name} is given messages of a destination that is not durable")
        assert folded is not None
        is_sure = name not in self.all.orders.ordered or (folded.since == since and 0.0 < folded.told_s < asked_s)
        settled, here = self.all.settled[name], set[int]()
        for row in rows:
            vlsn, said = row["vlsn"], f"{self.name} is given VLSN {row['vlsn']} (attempt {row['attempt']})"
            watch.shown(self.name, vlsn, row["value"].encode())
            is_one = folded.takes(books.keys[vlsn]) and (vlsn >= folded.begin or not is_sure)
            watch.hold(is_one, f"{said}, no message of {name}, which begins at {folded.begin}")
            told_s = settled.get((folded.since, vlsn), asked_s)
            watch.hold(not (is_sure and told_s < asked_s), f"{said}, which was acknowledged durably before")
            watch.hold(1 <= row["attempt"] <= self.made.settings["attempts_max"], said)
            before = self._open_before(folded, vlsn, here, asked_s) if is_sure else None
            watch.hold(before is None, f"{said}, while VLSN {before} of its key is open")
            here.add(vlsn)
            if row["attempt"] == self.made.settings["attempts_max"]:
                self.all.last[name][vlsn] = books.again[(folded.dead_letter, vlsn)]
        self.all.report.met["messages delivered"] += len(rows)
        self.all.report.met["a message delivered again"] += any(row["attempt"] > 1 for row in rows)

    def _open_before(self, folded: Folded, vlsn: int, here: set[int], asked_s: float) -> int | None:
        """Finds an earlier unacknowledged message of that key that is not before it in the page. A retried dead message
        is not one before the master has it again."""
        books, sent = self.all.books, self.all.sent[self.made.name]
        key = books.keys[vlsn]
        if not key:
            return None
        for earlier in range(folded.floor + 1, vlsn):
            if books.again_s.get((folded.dead_letter, earlier), -AGAIN_S) > asked_s - AGAIN_S:
                continue
            mine = books.keys.get(earlier) == key and earlier not in here
            if mine and earlier not in sent and not folded.is_done(earlier) and not self._is_given_up(folded, earlier):
                return earlier
        return None

    def _is_given_up(self, folded: Folded, vlsn: int) -> bool:
        """Says whether a message has had its last attempt, by the deliveries or by the durable log."""
        if folded.tries.get(vlsn, 0) >= self.made.settings["attempts_max"]:
            return True
        return self.all.last[self.made.name].get(vlsn) == self.all.books.again[(folded.dead_letter, vlsn)]
