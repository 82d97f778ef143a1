"""CDC consumers in a simulation: their children, their faults, and operators' orders.

    node ─► worker ─► child (``SimChild``) ─► consumer (``SimConsumer``) ─► record (``captures``)
                        killed, hangs, is slow    False, a few, nothing, an exception, its process's end

Some keep their position themselves, like a database: they must receive each event exactly once.  At the end operators
resume all of them, consumers behave well, and everything durable must be promised everywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from repl.cdc import child_feed, messages
from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvents, CdcPosition
from repl.cdc.messages import Committed, Start
from repl.cdc_settings import CdcSettings
from tests.fakes.children import DiesHere, FakeChild, FakeChildren
from tests.seam.nodes import JSON
from tests.sim import captures, transactions
from tests.sim.captures import Captures, Life, Place
from vlsn.errors import VlsnLogError
from vlsn.limits import KIB
from vlsn.seams import Buffer
from vlsnlog.testing.fakes.disk import Call

if TYPE_CHECKING:
    from tests.sim.group import SimGroup
    from tests.sim.world import Simulation

RATE = 1 / 3
"""The share of the seeds whose nodes have consumers."""
WINDOW_BYTES = 8 * KIB
"""Bytes that a child receives ahead, instead of 4 MiB: less than the smallest ring, so that a slow child lags."""
SLOW_S = (0.02, 0.3, 2.0)
STRIKE_S, PERSON_S, MOOD_S = (0.2, 2.0), (0.5, 3.0), (1.0, 8.0)
PAUSED_S = (0.1, 12.0)
RESENT_MAX = 40
HEALS_S = 60.0


def are_there(seed: int) -> bool:
    """Says whether that seed has consumers. This is drawn separately, so that other seeds run as before."""
    return Random(f"cdc/{seed}").random() < RATE


def settings_of(seed: int) -> tuple[CdcSettings, ...]:
    rng = Random(f"cdc/settings/{seed}")
    names = ["each"] if rng.random() < 0.8 else []
    names += ["own"] if rng.random() < 0.4 or not names else []
    names += ["late"] if rng.random() < 0.3 else []
    names += ["leads"] if rng.random() < 0.7 and transactions.are_there(seed) else []
    return tuple(
        CdcSettings(
            name=name,
            consumer=f"sim:{name}",
            run_on="master" if name == "leads" else "node",
            from_=rng.choice(("end", 5, 60)) if name == "late" else "start",
            commit=rng.choice(("batch", "batch", "segment")),
            retries_max=rng.choice((2, 10, 1000)),
            events_timeout_s=rng.choice((1.0, 3.0)),
        )
        for name in names
    )


@contextmanager
def sent_little_ahead(seed: int) -> Iterator[None]:
    kept = messages.WINDOW_BYTES
    vars(child_feed)["WINDOW_BYTES"] = WINDOW_BYTES if are_there(seed) else kept
    try:
        yield
    finally:
        vars(child_feed)["WINDOW_BYTES"] = kept


# Consumers, and their children.


class OnPurpose(Exception):
    """Raised by a consumer."""


@dataclass(frozen=True, slots=True)
class Mood:
    """The behaviour of a consumer for a while: the probabilities of what a call does."""

    says_false: float = 0.0
    takes_nothing: float = 0.0
    takes_few: float = 0.0
    raises: float = 0.0
    dies: float = 0.0


WELL = Mood()
MOODS = (
    WELL,
    WELL,
    Mood(says_false=0.7, takes_few=0.5),
    Mood(takes_few=1.0),
    Mood(takes_nothing=0.4, says_false=0.2),
    Mood(raises=0.2, takes_few=0.3),
    Mood(raises=1.0),
    Mood(dies=0.2, says_false=0.2),
    Mood(dies=0.3, raises=0.2, takes_few=0.5, says_false=0.3),
)


class SimConsumer(CdcConsumer):
    def __init__(self, life: Life, cdc: Cdc) -> None:
        self._life, self._cdc = life, cdc
        self._rng = cdc.behaving

    def start(self, context: CdcContext) -> CdcPosition | None:
        return self._cdc.books.begins_at_own(self._life, moved=context.moved)

    def on_events(self, events: CdcEvents) -> bool:
        life, rng, mood = self._life, self._rng, self._cdc.mood_of(self._life.place)
        if rng.random() < mood.takes_nothing:
            return rng.random() < 0.5
        few = rng.randint(1, 4) if rng.random() < mood.takes_few else 1 << 30
        ends = rng.randrange(8) if rng.random() < mood.raises + mood.dies else -1
        for count, event in enumerate(events, 1):
            if ends >= 0 and (count > ends or getattr(events, "over", False)):
                if rng.random() * (mood.raises + mood.dies) < mood.raises:
                    raise OnPurpose(f"at VLSN {event.vlsn}")
                self._cdc.met["a child that ended inside a call"] += 1
                raise DiesHere
            self._cdc.books.given(life, event)
            if count == few:
                break
        if life.place.settings.name == "own" and life.last is None:
            self._cdc.books.keeps(life, CdcPosition(events.next_vlsn, events.term))
        wanted = rng.random() >= mood.says_false
        if wanted:
            self._cdc.books.promises(life)
        return wanted


class SimChild(FakeChild):
    """A child whose life is recorded."""

    def __init__(self, owner: SimChildren, pid: int, cdc: Cdc) -> None:
        super().__init__(owner, pid, self._made)
        self._node, self._cdc = owner.node, cdc
        self.life: Life | None = None

    async def send(self, message: Buffer) -> None:
        if not messages.is_blocks(bytes(message[:1])):
            order = messages.of_node(bytes(message))
            if isinstance(order, Start):
                self.life = self._cdc.books.starts(self._node, order)
            elif isinstance(order, Committed) and self.life is not None:
                self._cdc.books.committed(self.life, order.number)
        await super().send(message)

    def _made(self, name: str) -> CdcConsumer:
        assert self.life is not None
        return SimConsumer(self.life, self._cdc)


class SimChildren(FakeChildren):
    def __init__(self, node: str, group: SimGroup) -> None:
        super().__init__()
        self.node, self._group = node, group

    async def start(self, name: str) -> SimChild:
        await asyncio.sleep(0.001)
        assert self._group.cdc is not None
        self.starts += 1
        child = SimChild(self, 1000 + self.starts, self._group.cdc)
        self.alive[name] = child
        return child


# Their faults, and orders of operators.


class Cdc:
    """All consumers of a seed."""

    def __init__(self, simulation: Simulation, settings: tuple[CdcSettings, ...]) -> None:
        seed = simulation.seed
        self.simulation, self.group = simulation, simulation.group
        self.report, self.met = simulation.report, simulation.report.met
        self.settings = settings
        self.books = Captures(self.group, settings)
        self.behaving = Random(f"cdc/consumers/{seed}")
        self._rng = Random(f"cdc/faults/{seed}")
        self._person = Random(f"cdc/person/{seed}")
        self._moods: dict[str, tuple[Mood, float]] = {}
        self.over = False
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._tasks = [asyncio.create_task(self._strikes()), asyncio.create_task(self._asks())]

    def mood_of(self, place: Place) -> Mood:
        """Draws a new mood for the consumer now and then, on all nodes."""
        now = self.group.loop.time()
        mood, until_s = self._moods.get(place.settings.name, (WELL, 0.0))
        if self.over:
            return WELL
        if now >= until_s:
            mood = self.behaving.choice(MOODS)
            self._moods[place.settings.name] = mood, now + self.behaving.uniform(*MOOD_S)
        return mood

    def happened(self, node: Any, event: str, fields: dict[str, Any]) -> None:
        if event == "cdc.parked":
            name = str(fields["consumer"])
            self.books.parked(node, name, str(fields["why"]))
            lost = node.cdc.records[name].lost[1]
            self.met["a consumer that is parked, and has lost some" if lost else "a consumer that is parked"] += 1
        elif event == "cdc.mode":
            self.met[f"a consumer that changed to {fields['mode']}"] += 1
        elif event == "cdc.resent":
            self.met["events given once more"] += 1

    # Faults.

    async def _strikes(self) -> None:
        rng = self._rng
        while not self.over:
            await asyncio.sleep(rng.uniform(*STRIKE_S))
            node = rng.choice(self.group.names)
            alive = self.group.children[node].alive
            if not alive or self.over:
                continue
            child = alive[rng.choice(sorted(alive))]
            strikes: dict[str, Callable[[], object]] = {
                "killed": child.kill,
                "ends": lambda child=child: child.exit(rng.choice((0, 1, 3))),  # type: ignore[misc]
                "terminated": child.terminate,
                "hangs": lambda child=child: setattr(child, "hangs", True),  # type: ignore[misc]
                "slow": lambda child=child: setattr(child, "delay_s", rng.choice(SLOW_S)),  # type: ignore[misc]
            }
            what = rng.choice((*strikes, "slow", "slow", "position"))
            if what == "position":
                rng.choice((self._damage, self._fail, self._stop, self._stop))(node)
            else:
                strikes[what]()
                self.met[f"a child struck: {what}"] += 1

    def _fail(self, node: str) -> None:
        """Makes the node's next write or sync of a position fail with EIO."""
        self.group.machines[node].disk.fail_at(lambda call: call.name in ("write", "sync") and "/cdc/" in call.path)
        self.met["a position whose write or sync failed"] += 1

    def _stop(self, node: str) -> None:
        """Ends the process, or cuts its power, at one of the next disk calls for a position."""
        left = self._rng.randrange(1, 5)

        def strikes(call: Call) -> bool:
            nonlocal left
            left -= "/cdc/" in call.path
            if left or not self.simulation.nemesis.active:
                return False
            left = -1
            self.met["a process that ended at a call of a position"] += 1
            return True

        if node in self.group.nodes:
            self.group.machines[node].disk.stop_at(strikes, moment=self._rng.choice(("before", "during", "after")))

    def _damage(self, node: str) -> None:
        """Flips bits of a position file of a process that ends."""
        rng, disk = self._rng, self.group.machines[node].disk
        places = [self.books.place(node, each.name) for each in self.settings if each.run_on == "node"]
        files = {place: f"/{node}/cdc/{place.settings.name}.position" for place in places}
        there = [place for place in places if disk.on_medium(files[place]) is not None]
        if not there or node not in self.group.nodes or not self.simulation.nemesis.active or rng.random() < 0.5:
            return
        place = rng.choice(there)
        self.simulation.nemesis.die(node, power=rng.random() < 0.3)
        slots = rng.choice(((0,), (1,), (0, 1)))
        for slot in slots:
            disk.flip_bit(
                files[place], slot * captures.SLOT_BYTES + rng.randrange(captures.SLOT_BYTES), rng.randrange(8)
            )
        self.books.damaged(place)
        self.simulation.say(f"*** position file damaged, slots {slots}: {place}")
        self.met["a position file damaged" if len(slots) == 1 else "a position file lost to rot"] += 1

    # Operators.

    async def _asks(self) -> None:
        rng = self._person
        while not self.over:
            await asyncio.sleep(rng.uniform(*PERSON_S))
            settings = rng.choice(self.settings)
            node = (
                self.group.master
                if settings.run_on == "master" and rng.random() < 0.8
                else rng.choice(self.group.names)
            )
            if node not in self.group.nodes or self.over:
                continue
            if self.group.nodes[node].cdc.records[settings.name].parked:
                await self._let_go_on(node, settings.name)
                continue
            asks: list[Callable[[str, str], Any]] = [self._pause]
            if settings.name != "own":
                asks += [self._resend, self._reset, self._skip]
            await rng.choice(asks)(node, settings.name)

    async def _pause(self, node: str, name: str) -> None:
        answer = await self._post(node, name, "pause")
        if answer and "name" in answer and node in self.group.nodes:
            self.met["a consumer paused"] += 1
            place, found = self.books.place(node, name), self.group.nodes[node]
            if not place.node or found.log is not None:
                self.books.paused(place, found.log.view.history.last_term if found.log is not None else 1)
        await asyncio.sleep(self._person.uniform(*PAUSED_S))
        await self._post(node, name, "resume")

    async def _resend(self, node: str, name: str) -> None:
        found = self.group.nodes[node]
        if found.log is not None and found.dtvlsn():
            first = self._person.randint(max(1, found.log.view.range.first), found.dtvlsn())
            last = min(found.dtvlsn(), first + self._person.randrange(RESENT_MAX))
            await self._post(node, name, "resend", {"from": first, "to": last})

    async def _reset(self, node: str, name: str) -> None:
        found = self.group.nodes[node]
        if found.log is not None and found.dtvlsn():
            to = self._person.randint(max(1, found.log.view.range.first), found.dtvlsn() + 1)
            await self._move(node, name, "reset", to)

    async def _skip(self, node: str, name: str) -> None:
        found = self.group.nodes[node]
        at = found.cdc.records[name].next
        if at and found.log is not None and found.dtvlsn() > at:
            await self._move(node, name, "skip", self._person.randint(at, min(found.dtvlsn() + 1, at + RESENT_MAX)))

    async def _let_go_on(self, node: str, name: str) -> None:
        """Resumes a parked consumer, as an operator would."""
        found, place = self.group.nodes[node], self.books.place(node, name)
        record = found.cdc.records[name]
        if record.lost[1]:
            to = max(record.lost[1] + 1, found.log.view.range.first if found.log is not None else 0)
            await self._move(node, name, "skip", to)
        elif "neither slot" in record.parked or record.parked.startswith("its position"):
            if found.log is not None and found.dtvlsn():
                to = min(found.dtvlsn() + 1, max(place.promised + 1, found.log.view.range.first, 1))
                await self._move(node, name, "reset", to)
        else:
            await self._post(node, name, "resume")

    async def _move(self, node: str, name: str, how: str, to: int) -> None:
        place = self.books.place(node, name)
        self.books.asked(place, to)
        answer = await self._post(node, name, how, {"to": to})
        if answer and "name" in answer:
            self.met[f"a consumer moved by {how}"] += 1
            skipped = answer.get("skipped")
            self.simulation.say(f"--- {how} of {place} to {to}: {skipped or ''}")
        elif answer and answer.get("type") in ("bad-argument", "trimmed", "not-found"):
            self.books.refused(place, to)

    async def _post(self, node: str, name: str, what: str, body: Any = None) -> dict[str, Any] | None:
        """Returns the answer; None without one."""
        if what == "resume":
            self.books.resumes(self.books.place(node, name))
        url = f"{self.group.url(node)}/v1/cdc/{name}/{what}"
        try:
            response = await self.group.client.request(
                "POST", url, headers=JSON, body=msgspec.json.encode(body) if body is not None else b"", timeout_s=15.0
            )
        except (VlsnLogError, OSError):
            return None
        found: dict[str, Any] = msgspec.json.decode(bytes(response.body))
        return found

    # The end.

    async def end(self) -> None:
        """Resumes all of them, until each has received everything."""
        self.over = True
        await asyncio.wait(self._tasks)
        for task in self._tasks:
            task.result()
        group = self.group
        for children in group.children.values():
            for child in children.alive.values():
                child.delay_s, child.hangs = None, False
        await self.simulation.last_word()  # new events for consumers that returned False for the last ones
        end_s = group.loop.time() + HEALS_S
        while lacks := self.books.lacks():
            self.books.look()
            group.watch.hold(group.loop.time() < end_s, f"not given everything in {HEALS_S:.0f} s: {lacks}")
            for node in list(group.nodes):
                for name, record in group.nodes[node].cdc.records.items():
                    if record.parked:
                        await self._let_go_on(node, name)
                    elif record.paused_us:
                        await self._post(node, name, "resume")
            await asyncio.sleep(0.5)
        for place in self.books.places.values():
            self.met["a consumer of the master that went on elsewhere"] += (
                not place.node and len({life.node for life in place.lives}) > 1
            )
