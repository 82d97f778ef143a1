"""CDC consumers on real nodes in one process: they receive everything durable, in order, without a gap."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import msgspec
import pytest

from repl.cdc import child_feed
from repl.cdc.child.events import Events
from repl.cdc.consumer import CdcConsumer, CdcContext, CdcEvent, CdcPosition, CdcUnavailable
from repl.cdc_settings import CdcSettings, cdc_settings
from tests.fakes.loop import run, virtual
from tests.fakes.seeds import seeds
from tests.seam.nodes import Group
from vlsn.errors import BadArgument, VlsnLogError
from vlsn.ids import Vlsn, lsn_file
from vlsn.levels import LEVELS

KIB = 1024


class Sink:
    """The events that one consumer of one node received, over all its lives."""

    def __init__(self) -> None:
        self.given: dict[int, bytes] = {}
        self.lives: list[tuple[int, list[int]]] = []
        """The position at which each life had to begin, and the VLSNs that it received."""
        self.committed = 0
        """The VLSN after the last event for which it returned True, and after entries that are no events."""
        self.stops = 0
        self.commits = True
        self.takes = 1 << 30
        self.bad: bytes | None = None
        self.refuses = False
        self.is_away = False
        self.away_s = 0.0
        """Seconds before which it accepts nothing."""
        self.contexts: list[CdcContext] = []
        self.own: CdcPosition | None = None
        self.moved: list[bool] = []
        self.jumps: list[tuple[int, int]] = []
        """Lives that began past the committed position, with only the log's own entries between."""


class Recorder(CdcConsumer):
    """Notes every call in a ``Sink``."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink

    def start(self, context: CdcContext) -> CdcPosition | None:
        self.sink.moved.append(context.moved)
        self.sink.contexts.append(context)
        if self.sink.refuses:
            raise BadArgument("colour: 'blue' is none")
        if self.sink.lives and not context.options.get("moved"):
            self.sink.jumps.append((max(self.sink.committed, self.sink.lives[0][0]), context.next))
        self.sink.lives.append((context.next, []))
        return self.sink.own

    def on_events(self, events: Iterator[CdcEvent]) -> bool:
        sink = self.sink
        begins, vlsns = sink.lives[-1]
        if sink.is_away:
            raise CdcUnavailable("the database is away", sink.away_s)
        for _ in range(sink.takes):
            event = next(events, None)
            if event is None:
                break
            if event.value == sink.bad:
                raise ValueError(f"{event.value!r} is bad")
            assert event.vlsn >= begins and (not vlsns or event.vlsn > vlsns[-1])
            assert sink.given.setdefault(event.vlsn, event.value) == event.value
            vlsns.append(event.vlsn)
        if sink.commits:
            assert isinstance(events, Events)
            sink.committed = events.next_vlsn  # behind what is no event, too
        return sink.commits

    def stop(self) -> None:
        self.sink.stops += 1


def one(name: str = "orders", **more: Any) -> tuple[CdcSettings, ...]:
    return cdc_settings([{"name": name, "consumer": f"test:{name}", **more}], lambda text, place: int(text))


class Captured(Group):
    """A group whose nodes have the consumers ``cdc``, each with a sink of its own."""

    def __init__(self, seed: int, cdc: tuple[CdcSettings, ...], size: int = 3, **settings: Any) -> None:
        super().__init__(seed, size, levels=LEVELS, cdc=cdc, **settings)
        of_group = {each.name: Sink() for each in cdc if each.run_on == "master"}
        self.sinks = {(each.name, node): of_group.get(each.name) or Sink() for each in cdc for node in self.names}
        for node, children in self.children.items():
            for each in cdc:
                children.classes[each.consumer] = partial(Recorder, self.sinks[each.name, node])

    async def cdc(self, node: str, path: str = "/orders", **body: Any) -> tuple[int, dict[str, Any]]:
        method = "POST" if path.count("/") > 1 else "GET"
        response = await self.client.request(
            method,
            f"{self.url(node)}/v1/cdc{path}",
            headers={"Content-Type": "application/json"} if method == "POST" else {},
            body=msgspec.json.encode(body) if method == "POST" else b"",
            timeout_s=30.0,
        )
        return response.status, msgspec.json.decode(bytes(response.body))

    async def told(self, node: str, name: str = "orders") -> dict[str, Any]:
        status, answer = await self.cdc(node, f"/{name}")
        assert status == 200, answer
        return answer

    async def state(self_, node: str, state: str, name: str = "orders") -> dict[str, Any]:  # type: ignore[override]  # noqa: N805
        for _ in range(6000):
            told = await self_.told(node, name)
            if told["state"] == state:
                return told
            await asyncio.sleep(0.01)
        raise AssertionError(f"{node} {name} is not {state}: {told}")

    async def until_told(self, name: str, **wanted: Any) -> dict[str, Any]:
        """Waits until ``n1`` reports these fields of a consumer; returns the whole report."""
        for _ in range(6000):
            told = await self.told("n1", name)
            if all(told[key] == value for key, value in wanted.items()):
                return told
            await asyncio.sleep(0.01)
        raise AssertionError(f"{name} has no {wanted}: {told}")

    async def everything(self, *nodes: str, name: str = "orders", limit_s: float = 60.0) -> dict[int, bytes]:
        """Waits until the sinks of these nodes have the whole log, and returns that."""
        wanted = await self.read(self.master)
        for node in nodes or self.names:
            sink = self.sinks[name, node]
            await self.until(partial(_has, sink.given, wanted), f"{node} has it all", limit_s)
            assert sink.given == {vlsn: value for vlsn, value in sink.given.items() if vlsn in wanted} | wanted
            skipped = [vlsn for first, end in sink.jumps for vlsn in range(first, end) if vlsn in wanted]
            assert not skipped, "something was skipped"
        return wanted


def _has(given: dict[int, bytes], wanted: dict[int, bytes]) -> bool:
    return given.keys() >= wanted.keys()


def _leads_another(group: Group, master: str) -> bool:
    return group.master != master


def _has_begun(sink: Sink, lives: int) -> bool:
    return len(sink.lives) >= lives


async def started(seed: int, cdc: tuple[CdcSettings, ...], size: int = 3, **settings: Any) -> Captured:
    group = Captured(seed, cdc, size, **settings)
    await group.start()
    await group.serving()
    return group


@virtual
async def test_each_node_gives_its_consumer_everything_once_and_goes_on_where_it_was() -> None:
    group = await started(1, one())
    for number in range(50):
        await group.appended(b"%d" % number)
    await group.everything()
    for node in group.names:
        told = await group.state(node, "running")
        assert (told["mode"], told["lag_vlsns"], told["switches"]) == (
            "BUFFER",
            0,
            {"to_buffer": 1, "to_archive": 0},
        )
    await group.stop()
    before = {node: dict(group.sinks["orders", node].given) for node in group.names}
    group.kill(*group.names)
    await group.start()
    await group.serving()
    await group.appended(b"after")
    await group.everything()
    for node in group.names:
        sink = group.sinks["orders", node]
        assert sink.stops == 1 and len(sink.lives) == 2
        assert before[node].keys().isdisjoint(sink.lives[1][1]), "what was committed is not given again"
    await group.stop()


@pytest.mark.long
def test_it_changes_to_segments_and_back_a_thousand_times_and_nobody_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_feed, "WINDOW_BYTES", 4 * KIB)  # so that a slow one falls behind the ring

    async def main() -> None:
        rng = Random(7)
        group = await started(2, one(), size=1, ring_bytes_max=8 * KIB)
        children, sink = group.children["n1"], group.sinks["orders", "n1"]
        counts = group.nodes["n1"].cdc.records["orders"].counts
        number = 0
        while counts.to_buffer + counts.to_archive < 1000:
            children.delay_s = rng.choice([0.0001, 0.01, 0.3])  # slower than the ring's blocks come and go, or not
            for _ in range(rng.randrange(1, 30)):
                number += 1
                await group.appended(b"%d %s" % (number, bytes(rng.randrange(2 * KIB))))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.random())
        children.delay_s = 0.0001
        wanted = await group.everything()
        assert sink.lives[0][1] == sorted(wanted) and len(sink.lives) == 1
        assert min(counts.to_buffer, counts.to_archive) > 400
        await group.stop()

    run(main())


@pytest.mark.parametrize("seed", seeds(6))
@virtual
async def test_nothing_is_skipped_whatever_ends(seed: int) -> None:
    """Children, nodes and machines end at any moment; consumers commit now and then, and accept any number of
    events."""
    rng = Random(seed)
    group = await started(seed, one(retries_max=1000), ring_bytes_max=16 * KIB)
    over = False

    async def append() -> None:
        number = 0
        while not over:
            number += 1
            with suppress(VlsnLogError):  # whatever becomes of it, the log says what there is
                await group.append(b"%d %s" % (number, bytes(rng.randrange(KIB))))
            await asyncio.sleep(rng.random() * 0.02)

    appending = asyncio.create_task(append())
    for _ in range(25):
        await asyncio.sleep(rng.random() * 0.6)
        node = rng.choice(group.names)
        sink = group.sinks["orders", node]
        sink.commits, sink.takes = rng.random() < 0.7, rng.choice([1, 7, 1 << 30])
        child = group.children[node].alive.get("orders")
        group.children[node].delay_s = rng.choice([0.0001, 0.02])
        what = rng.choice(["child", "exit", "terminate", "node", "power"])
        if what in ("node", "power"):
            if node in group.nodes:
                group.kill(node, power=what == "power")
                await asyncio.sleep(rng.random() * 0.5)
                await group.start(node)
        elif child is not None:
            if what == "exit":
                child.exit(3)
            else:
                child.kill() if what == "child" else child.terminate()
    for sink in group.sinks.values():
        sink.commits = True
    over = True
    await appending
    await group.serving()
    await group.everything()
    for sink in group.sinks.values():
        assert len(sink.lives) > 1
        for begins, vlsns in sink.lives:
            assert all(vlsn >= begins for vlsn in vlsns)
    await group.stop()


@virtual
async def test_one_that_fails_is_parked_alone_and_goes_on_when_told() -> None:
    cdc = one("orders", retries_max=3) + one("others")
    group = await started(3, cdc)
    node = group.master
    sink = group.sinks["orders", node]
    sink.bad = b"bad"
    await group.appended(b"good")
    await group.everything(node)
    at = await group.appended(b"bad")
    told = await group.state(node, "parked")
    assert told["failures"] == 4 and str(at) in told["reason"] and "is bad" in told["reason"]
    await group.appended(b"behind")
    await group.everything(node, name="others")
    sink.bad = None
    status, _ = await group.cdc(node, "/orders/resume")
    assert status == 200
    await group.everything(node)
    assert (await group.told(node))["state"] == "running"
    await group.stop()


@pytest.mark.parametrize("commits", [True, False])
@virtual
async def test_the_skip_that_a_parked_one_names_goes_on_behind_what_failed(commits: bool) -> None:
    group = await started(46, one(retries_max=0), size=1)
    sink = group.sinks["orders", "n1"]
    sink.bad, sink.commits = b"bad", commits
    await group.appended(b"good")
    await group.everything()
    at = await group.appended(b"bad")
    reason = (await group.state("n1", "parked"))["reason"]
    typed = re.search(r"`vlsnlog cdc skip orders --to (\d+)`", reason)
    assert typed is not None and int(typed[1]) == at + 1, reason
    status, answer = await group.cdc("n1", "/orders/skip", to=1)
    assert status == 400 and "`vlsnlog cdc move orders --to 1` moves it back" in answer["detail"]
    status, answer = await group.cdc("n1", "/orders/skip", to=int(typed[1]))
    assert (status, answer["skipped"]["last"]) == (200, at)
    behind = await group.appended(b"behind")
    await group.until(lambda: behind in sink.given, "it goes on")
    assert at not in sink.given
    await group.stop()


@virtual
async def test_one_that_takes_nothing_for_too_long_is_replaced() -> None:
    group = await started(4, one(events_timeout_s=5.0, retries_max=5), size=1)
    await group.appended(b"one")
    await group.everything()
    child = group.children["n1"].alive["orders"]
    child.hangs = True
    await group.appended(b"two")
    demoted = []
    for _ in range(2):
        await asyncio.sleep(1.5)
        demoted.append(child.demoted)
    assert demoted == [False, True], "before it is replaced it has what nobody else wants"
    await group.everything(limit_s=10.0)
    assert group.children["n1"].starts == 2
    await group.stop()


@virtual
async def test_an_order_that_comes_while_its_process_starts_is_obeyed() -> None:
    group = await started(17, one(), size=1)
    await group.state("n1", "running")
    children = group.children["n1"]
    for start_s, delay_s in ((0.5, 0.0001), (0.001, 0.5)):  # before there is a process, and before it has started
        children.alive["orders"].kill()
        children.start_s, children.delay_s = start_s, delay_s
        await group.state("n1", "starting")
        began = group.loop.time()
        assert (await group.cdc("n1", "/orders/pause"))[1]["state"] == "paused"
        assert group.loop.time() - began < 5
        children.start_s, children.delay_s = 0.001, 0.0001
        await group.cdc("n1", "/orders/resume")
        await group.state("n1", "running")
    await group.stop()


@virtual
async def test_a_process_that_is_slow_to_start_is_given_more_time_and_is_no_failure() -> None:
    group = await started(18, one(retries_max=0, start_timeout_s=10.0), size=1)
    await group.state("n1", "running")
    children = group.children["n1"]
    children.delay_s = 35.0  # it fails at 10 s and at 20 s
    await group.cdc("n1", "/orders/pause")
    await group.cdc("n1", "/orders/resume")
    told = await group.state("n1", "backoff")
    assert told["failures"] == 0 and "the start of its process took longer than 10 s" in told["reason"]
    await asyncio.sleep(80)
    assert (await group.told("n1"))["state"] == "running"
    await group.stop()


@virtual
async def test_one_that_runs_on_the_master_goes_where_the_master_goes() -> None:
    group = await started(6, one(run_on="master"))
    sink = group.sinks["orders", "n1"]  # one for all
    for turn in range(4):
        for number in range(20):
            await group.appended(b"%d.%d" % (turn, number))
        master = group.master
        wanted = await group.read(master)
        await group.until(partial(_has, sink.given, wanted), "it was all given somewhere")
        others = [node for node in group.names if node != master]
        for node in others:
            assert (await group.told(node))["state"] == "waiting"
            assert (await group.cdc(node, "/orders/pause"))[0] == 503
        group.kill(master)
        await group.until(partial(_leads_another, group, master), "another one leads")
        await group.serving()
        await group.start(master)
        await group.serving()
    assert len(sink.lives) >= 4 and sum(children.starts > 0 for children in group.children.values()) >= 2
    await group.stop()


@virtual
async def test_without_a_master_none_begins_and_one_that_has_begun_goes_on() -> None:
    group = await started(14, one())
    await group.appended(b"one")
    await group.everything()
    await group.stop()
    group.kill(*group.names)
    group.settings["cdc"] = one() + one("others")
    for node in group.names:
        group.children[node].classes["test:others"] = partial(Recorder, Sink())
    await group.start("n1")
    await group.state("n1", "running")
    told = await group.state("n1", "backoff", name="others")
    assert "no master is known" in told["reason"]
    await group.start("n2")
    await group.state("n1", "running", name="others")
    await group.stop()


@virtual
async def test_a_masters_settings_without_a_consumer_that_the_group_has_say_so() -> None:
    cdc = one(run_on="master")
    group = await started(15, cdc)
    await group.appended(b"one")
    sink = group.sinks["orders", "n1"]
    await group.until(lambda: bool(sink.committed), "it has a position")
    await group.stop()
    group.kill(*group.names)
    group.settings["cdc"] = ()
    await group.start()
    await group.serving()
    master = group.master
    told = await group.state(master, "not-configured")
    assert told["next"] == sink.committed and "vlsnlog consumer delete cdc.orders" in told["reason"]
    metrics = await group.client.request("GET", f"{group.url(master)}/metrics", timeout_s=10.0)
    assert b'vlsnlog_cdc_state{consumer="orders",state="not-configured"} 1.0' in bytes(metrics.body)
    assert (await group.cdc(master, "/orders/pause"))[0] == 404
    for node in group.names:
        holds = group.nodes[node].services.monitoring.status()["holds"]
        held = [each["vlsn"] for each in holds if (each["owner"], each["name"]) == ("consumer", "cdc.orders")]
        assert len(held) == 1 and held[0] <= sink.committed, "it is held for on every node"
        if node != master:
            assert group.nodes[node].cdc.told() == []
    await group.until(
        lambda: bool(group.nodes[master].member.events.recent("cdc", "cdc.not_configured")), "an event says so"
    )
    group.kill(*group.names)
    group.settings["cdc"] = cdc
    await group.start()
    await group.serving()
    await group.state(group.master, "running")
    assert len(sink.lives) == 2 and sink.lives[1][0] == sink.committed
    await group.stop()


@virtual
async def test_what_is_not_durable_is_given_to_nobody() -> None:
    group = await started(11, one())
    first = await group.appended(b"durable")
    await group.everything()
    master = group.master
    group.kill(*[node for node in group.names if node != master])
    status, said = await group.append(b"not durable", acks="none")
    assert (status, said["durable"]) == (200, False)
    for call in ("/orders/pause", "/orders/resume"):  # a consumer that begins anew looks at once for events
        assert (await group.cdc(master, call))[0] == 200
    await asyncio.sleep(0.5)
    assert max(group.sinks["orders", master].given) == first
    await group.start(*[node for node in group.names if node not in group.nodes])
    await group.serving()
    await group.everything()
    await group.stop()


@virtual
async def test_once_a_segment_is_stored_at_its_end_and_at_a_stop() -> None:
    group = await started(12, one(commit="segment"), size=1)
    await group.appended(b"one")
    await group.everything()
    begun = (await group.told("n1"))["next"]
    for _ in range(5):
        await group.appended(b"more")
    await group.everything()
    assert (await group.told("n1"))["next"] == begun
    for _ in range(12):
        await group.appended(bytes(10 * KIB))  # past the end of a segment
    await group.everything()
    await asyncio.sleep(2 * child_feed.STORE_PERIOD_S)
    await group.appended(b"in the same segment")
    await group.everything()
    await asyncio.sleep(2 * child_feed.STORE_PERIOD_S)
    behind = group.sinks["orders", "n1"].committed
    now = (await group.told("n1"))["next"]
    assert begun < now < behind
    assert (await group.cdc("n1", "/orders/pause"))[1]["next"] == behind
    await group.stop()


@virtual
async def test_metrics_count_the_segments_and_events_that_were_captured_and_name_the_last_one() -> None:
    group = await started(20, one("orders") + one("others"), size=1)
    group.sinks["others", "n1"].commits = False
    for name in ("orders", "others"):
        await group.cdc("n1", f"/{name}/pause")
    for _ in range(40):
        await group.appended(bytes(10 * KIB))
    log = group.nodes["n1"].opened().log
    for name in ("orders", "others"):
        assert (await group.cdc("n1", f"/{name}/reset", to="start"))[0] == 200
        assert (await group.cdc("n1", f"/{name}/resume"))[0] == 200
        await group.everything(name=name)
    wanted = await group.everything()
    first, last = log.view.index.at_or_before(Vlsn(1)), log.view.index.at_or_before(Vlsn(max(wanted)))
    assert first is not None and last is not None
    segments = lsn_file(last[1]) - lsn_file(first[1]) + 1
    assert segments >= 6 and max(wanted) > len(wanted), "and entries of the log's own are among them"
    for again in (0, 1):
        if again:  # entries that it had of the last segment are no segment more
            group.children["n1"].alive["orders"].exit(1)
            wanted[await group.appended(b"last")] = b"last"
            await group.everything()
        for name in ("orders", "others"):
            told = await group.until_told(name, last_captured=max(wanted))
            assert (told["segments"], told["entries"]) == (segments, len(wanted)), name
    metrics = await group.client.request("GET", f"{group.url('n1')}/metrics", timeout_s=10.0)
    for line in (
        f'vlsnlog_cdc_segments_total{{consumer="others"}} {segments}.0',
        f'vlsnlog_cdc_entries_total{{consumer="others"}} {len(wanted)}.0',
        f'vlsnlog_cdc_last_captured_vlsn{{consumer="others"}} {max(wanted)}.0',
    ):
        assert line in bytes(metrics.body).decode().splitlines()
    await group.stop()


@virtual
async def test_settings_that_a_consumer_refuses_park_it_at_once() -> None:
    group = Captured(11, one(), size=1)
    group.sinks["orders", "n1"].refuses = True
    await group.start()
    await group.serving()
    told = await group.state("n1", "parked")
    assert "colour: 'blue' is none" in told["reason"] and group.children["n1"].starts == 1
    await group.stop()


@virtual
async def test_what_a_consumer_writes_to_may_be_away_for_as_long_as_it_takes() -> None:
    group = await started(12, one(retries_max=1), size=1)
    sink = group.sinks["orders", "n1"]
    await group.appended(b"one")
    await group.everything()
    sink.is_away = True
    await group.appended(b"two")
    told = await group.state("n1", "backoff")
    for _ in range(30):
        await asyncio.sleep(10)
        told = await group.told("n1")
        assert told["state"] != "parked" and told["failures"] == 0
    assert "the database is away" in (await group.state("n1", "backoff"))["reason"]
    assert 10 < group.children["n1"].starts < 30, "each pause is longer than the one before, up to half a minute"
    sink.is_away = False
    await group.everything(limit_s=60.0)
    assert len([life for life in sink.lives if life[1]]) == 2, "nothing was given twice"
    await group.stop()
