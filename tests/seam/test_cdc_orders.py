"""An operator's orders to CDC consumers: pause, resume, skip, reset, resend."""

from __future__ import annotations

import asyncio
import errno
from functools import partial
from typing import Any

import pytest

from repl.cdc.consumer import CdcContext, CdcPosition
from repl.cdc.position_stores import At, LocalPositions
from tests.fakes.loop import virtual
from tests.seam.test_cdc import KIB, Captured, _has_begun, _leads_another, one, started


@virtual
async def test_a_pause_lasts_past_restarts_until_a_person_resumes_it() -> None:
    group = await started(21, one(), size=1)
    await group.appended(b"one")
    await group.everything()
    sink, children = group.sinks["orders", "n1"], group.children["n1"]
    paused = (await group.cdc("n1", "/orders/pause"))[1]
    assert paused["paused_us"] > 0
    for turn in range(3):
        await (group.stop() if turn == 1 else asyncio.sleep(0))
        group.kill("n1", power=turn == 2)
        await group.start()
        await group.serving()
        await group.appended(b"more")
        await asyncio.sleep(5)
        told = await group.state("n1", "paused")
        assert told["paused_us"] == paused["paused_us"] and told["reason"].startswith("paused since 20"), told
        assert (await group.cdc("n1", "/orders/pause"))[1]["paused_us"] == paused["paused_us"]
    assert len(sink.lives) == 1 and children.starts == 1
    resumed = (await group.cdc("n1", "/orders/resume"))[1]
    assert resumed["paused_us"] is None
    await group.everything()
    group.kill("n1")
    await group.start()
    await group.state("n1", "running")
    await group.stop()


@virtual
async def test_a_resume_is_refused_while_it_is_not_known_whether_it_is_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the resume were answered, the consumer would still be paused once its position can be read."""
    group = await started(23, one(), size=1)
    await group.appended(b"one")
    await group.everything()
    await group.cdc("n1", "/orders/pause")
    group.kill("n1")

    async def load(self: LocalPositions) -> At | None:
        raise OSError(errno.EIO, "the disk does not answer")

    with monkeypatch.context() as patched:
        patched.setattr(LocalPositions, "load", load)
        await group.start()
        await group.serving()
        status, said = await group.cdc("n1", "/orders/resume")
        assert (status, said["type"]) == (400, "bad-argument"), said
    await group.state("n1", "paused")
    assert (await group.cdc("n1", "/orders/resume"))[0] == 200
    await group.state("n1", "running")
    await group.stop()


@virtual
async def test_a_pause_of_one_on_the_master_goes_where_the_master_goes() -> None:
    group = await started(22, one(run_on="master"))
    sink = group.sinks["orders", "n1"]  # one for all
    await group.appended(b"one")
    await group.everything()
    paused = (await group.cdc(group.master, "/orders/pause"))[1]
    lives = len(sink.lives)
    for resumed in (False, False, True):
        master = group.master
        if resumed:
            assert (await group.cdc(master, "/orders/resume"))[1]["paused_us"] is None
            await group.state(master, "running")
        group.kill(master)
        await group.until(partial(_leads_another, group, master), "another one leads")
        await group.serving()
        await group.start(master)
        await group.appended(b"more")
        await asyncio.sleep(3)
        told = await group.state(group.master, "running" if resumed else "paused")
        assert told["paused_us"] == (None if resumed else paused["paused_us"])
        assert resumed or len(sink.lives) == lives
    await group.everything()
    await group.cdc(group.master, "/orders/pause")
    await group.stop()
    group.kill(*group.names)
    await group.start()
    await group.serving()
    await group.state(group.master, "paused")
    lives = len(sink.lives)
    await group.client.request("DELETE", f"{group.url(group.master)}/v1/consumers/cdc.orders", timeout_s=10.0)
    group.kill(group.master)
    await group.serving()
    await group.until(partial(_has_begun, sink, lives + 1), "whose position was deleted begins, and is not paused")
    await group.stop()


@pytest.mark.parametrize("call", ["write", "sync"])
@virtual
async def test_a_pause_that_fails_is_refused_and_what_lies_in_the_file_counts(call: str) -> None:
    group = await started(23, one(), size=1)
    await group.appended(b"one")
    await group.everything()
    disk = group.machines["n1"].disk
    disk.fail_at(lambda made: made.name == call and "/cdc/" in made.path)
    status, said = await group.cdc("n1", "/orders/pause")
    assert status >= 500 and "position" in said["detail"], said
    told = await group.state("n1", "running" if call == "write" else "paused")
    assert bool(told["paused_us"]) == (call == "sync"), "its bytes were there, and are synced by who reads them"
    group.kill("n1", power=True)
    await group.start()
    await group.serving()
    await group.state("n1", told["state"])
    assert (await group.cdc("n1", "/orders/resume"))[0] == 200
    await group.appended(b"two")
    await group.everything()
    assert (await group.cdc("n1", "/orders/pause"))[1]["paused_us"] > 0
    await group.stop()


@virtual
async def test_an_order_of_a_person_is_told_after_restarts_until_something_is_committed() -> None:
    group = await started(24, one(options={"moved": True}), size=1)
    await group.appended(b"one")
    await group.appended(b"two")
    await group.everything()
    sink = group.sinks["orders", "n1"]
    sink.commits = False
    await group.cdc("n1", "/orders/pause")
    assert (await group.cdc("n1", "/orders/reset", to="start"))[1]["state"] == "paused"
    group.kill("n1")
    await group.start()
    await group.serving()
    await group.cdc("n1", "/orders/resume")
    await group.until(partial(_has_begun, sink, 2), "it begins anew")
    orders = [sink.contexts[-1].moved_us]
    group.kill("n1")
    await group.start()
    await group.serving()
    await group.until(partial(_has_begun, sink, 3), "and again")
    orders.append(sink.contexts[-1].moved_us)
    assert orders[0] == orders[1] > 0 and sink.moved == [False, True, True]
    sink.commits = True
    group.children["n1"].alive["orders"].exit(1)
    await group.everything()
    await group.state("n1", "running")
    await group.cdc("n1", "/orders/pause")
    group.kill("n1")
    await group.start()
    await group.serving()
    await group.cdc("n1", "/orders/resume")
    await group.state("n1", "running")
    assert not sink.contexts[-1].moved
    await group.stop()


@virtual
async def test_a_pause_past_the_cap_loses_what_it_names_and_a_skip_goes_on_behind_it() -> None:
    group = await started(
        5, one(options={"moved": True}), size=1, retention_bytes=100 * KIB, hold_bytes_max=600 * KIB,
        cleaning_period_s=0.5,
    )  # fmt: skip
    await group.appended(b"first")
    await group.everything()
    assert (await group.cdc("n1", "/orders/pause"))[1]["state"] == "paused"
    position = (await group.told("n1"))["next"]
    group.kill("n1")
    await group.start("n1")  # it holds from its position on, as it is read again
    for _ in range(20):
        await group.appended(bytes(10 * KIB))
    await asyncio.sleep(12)
    log = group.nodes["n1"].opened().log
    assert log.view.range.first <= position, "a paused consumer holds the log, up to the cap"
    while log.view.range.first <= position:
        await group.appended(bytes(10 * KIB))
    first = int(log.view.range.first)
    await group.cdc("n1", "/orders/resume")
    told = await group.state("n1", "parked")
    assert told["lost"] == {"first": position, "last": first - 1}
    assert f"vlsnlog cdc skip orders --to {first}" in told["reason"]
    status, said = await group.cdc("n1", "/orders/skip", to=position)
    assert (status, said["type"]) == (400, "bad-argument")
    status, said = await group.cdc("n1", "/orders/reset", to=position)
    assert (status, said["type"]) == (410, "trimmed")
    status, said = await group.cdc("n1", "/orders/skip", to=first)
    assert status == 200 and said["skipped"] == {"first": position, "last": first - 1}
    await group.appended(b"last")
    sink = group.sinks["orders", "n1"]
    await group.until(lambda: b"last" in sink.given.values(), "it goes on")
    assert min(vlsn for vlsn in sink.given if vlsn > position) >= first
    await group.stop()


@virtual
async def test_no_cleaning_overtakes_a_reset_and_one_that_is_refused_moves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    group = await started(
        51, one(), size=1, retention_bytes=100 * KIB, hold_bytes_max=6000 * KIB, cleaning_period_s=0.5
    )
    for _ in range(20):
        await group.appended(bytes(10 * KIB))
    await group.everything()
    log, begun = group.nodes["n1"].opened().log, int(group.nodes["n1"].opened().log.view.range.first)
    overtaken: list[int] = []

    async def place(self: LocalPositions, at: At) -> None:
        """Cleans the log as far as allowed, before the new position is stored."""
        for _ in range(40):
            await group.appended(bytes(10 * KIB))
        await asyncio.sleep(15.0)
        overtaken.append(int(log.view.range.first))
        await places(self, at)

    places = LocalPositions.place
    monkeypatch.setattr(LocalPositions, "place", place)
    status, said = await group.cdc("n1", "/orders/reset", to=begun)
    assert (status, said["next"], overtaken) == (200, begun, [begun])
    monkeypatch.undo()
    await group.everything()
    await group.until(lambda: log.view.range.first > begun, "the log is cleaned again")
    next_vlsn = (await group.told("n1"))["next"]
    status, said = await group.cdc("n1", "/orders/reset", to=begun)
    assert (status, said["type"]) == (410, "trimmed")
    told = await group.told("n1")
    assert (told["state"], told["next"]) == ("running", next_vlsn), "refused means unchanged"
    await group.stop()


@virtual
async def test_no_cleaning_overtakes_the_beginning_of_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def begin(self: LocalPositions, at: At) -> None:
        """Cleans the log as far as allowed, before the first position is stored."""
        await asyncio.sleep(20.0)
        await begins(self, at)

    begins = LocalPositions.begin
    monkeypatch.setattr(LocalPositions, "begin", begin)
    group = await started(
        57, one(), size=1, retention_bytes=100 * KIB, hold_bytes_max=6000 * KIB, cleaning_period_s=0.5
    )
    first = await group.appended(b"first")
    for _ in range(40):
        await group.appended(bytes(10 * KIB))
    await asyncio.sleep(15.0)
    await group.everything()
    assert first in group.sinks["orders", "n1"].given
    await group.stop()


@pytest.mark.parametrize("order", ["pause", "reset"])
@virtual
async def test_an_order_whose_caller_leaves_is_carried_out(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group = await started(52, one(), size=1)
    for number in range(3):
        await group.appended(b"%d" % number)
    await group.everything()
    cdc, stored = group.nodes["n1"].cdc, asyncio.Event()
    left = asyncio.create_task(cdc.pause("orders") if order == "pause" else cdc.reset("orders", "start"))

    async def store(self: LocalPositions, what: Any) -> None:
        left.cancel()
        await asyncio.sleep(1.0)  # its caller is gone by now
        await stores(self, what)
        stored.set()

    name = "pause" if order == "pause" else "place"
    stores: Any = getattr(LocalPositions, name)
    monkeypatch.setattr(LocalPositions, name, store)
    await asyncio.wait([left])
    assert left.cancelled() and not stored.is_set()
    events = group.nodes["n1"].member.events.counts
    event = "cdc.paused" if order == "pause" else "cdc.moved"
    await group.until(lambda: events[event] == 1, "it is carried out")
    await group.state("n1", "paused" if order == "pause" else "running")
    await group.stop()


@virtual
async def test_a_range_is_given_once_more_and_a_reset_moves_it() -> None:
    group = await started(8, one(options={"moved": True}), size=1)
    vlsns = [await group.appended(b"%d" % number) for number in range(10)]
    await group.everything()
    sink = group.sinks["orders", "n1"]
    before = (await group.told("n1"))["next"]
    status, said = await group.cdc("n1", "/orders/resend", **{"from": vlsns[2], "to": vlsns[4]})
    assert (status, said["resending"]) == (200, {"first": vlsns[2], "last": vlsns[4]})
    await group.until(lambda: len(sink.lives) == 3, "it has given them, and goes on")
    assert sink.lives[1] == (vlsns[2], vlsns[2:5]) and sink.lives[2][0] == before
    await group.appended(b"next")
    await group.everything()
    for to, begins in ((vlsns[5], vlsns[5]), ("start", 1), ("end", group.nodes["n1"].dtvlsn() + 1)):
        lives = len(sink.lives)
        moved = (await group.cdc("n1", "/orders/reset", to=to))[1]
        assert (moved["next"], moved["state"]) == (begins, "starting"), "stopped for the order, and not paused"
        await group.until(partial(_has_begun, sink, lives + 1), "it begins there")
        assert sink.lives[-1][0] == begins
    end = group.nodes["n1"].dtvlsn()
    for path, body, answer in (
        ("/orders/resend", {"from": 3, "to": end + 1}, 400),
        ("/orders/resend", {"from": 3}, 400),
        ("/orders/reset", {"to": end + 2}, 400),
        ("/orders/reset", {"to": 0}, 400),
        ("/orders/reset", {"to": "middle"}, 400),
        ("/orders/skip", {"to": "end"}, 400),
        ("/orders/leap", {}, 404),
        ("/none/pause", {}, 404),
    ):
        assert (await group.cdc("n1", path, **body))[0] == answer, path
    await group.stop()


@virtual
async def test_one_that_keeps_its_own_position_is_given_nothing_once_more_and_says_so() -> None:
    group = Captured(8, one(), size=1)
    sink = group.sinks["orders", "n1"]
    sink.own = CdcPosition(1, 0)
    await group.start()
    await group.serving()
    vlsns = [await group.appended(b"%d" % number) for number in range(10)]
    await group.everything()
    status, said = await group.cdc("n1", "/orders/resend", **{"from": vlsns[2], "to": vlsns[4]})
    assert (status, said["type"]) == (400, "bad-argument") and "its own position" in said["detail"], said
    assert (await group.told("n1"))["starts"] == len(sink.lives) == 1, "it was not even stopped"

    await group.cdc("n1", "/orders/pause")
    group.kill("n1")
    await group.start()
    await group.serving()
    sink.own = CdcPosition(sink.committed, 0)
    assert (await group.cdc("n1", "/orders/resend", **{"from": vlsns[2], "to": vlsns[4]}))[0] == 200, "not known yet"
    await group.cdc("n1", "/orders/resume")
    await group.appended(b"last")
    await group.everything()
    told = [event for event in group.nodes["n1"].member.events.since(1, 1000)["events"] if "resent" in event["event"]]
    assert [(each["event"], each["why"]) for each in told] == [("cdc.not_resent", "it keeps its own position")]
    assert [each for _, given in sink.lives for each in given] == sorted(sink.given), "each event came once"
    await group.stop()


@virtual
async def test_a_consumer_is_told_once_that_a_person_has_moved_it() -> None:
    group = await started(14, one(options={"moved": True}), size=1)
    await group.appended(b"one")
    await group.everything()
    sink = group.sinks["orders", "n1"]
    await group.cdc("n1", "/orders/reset", to="start")
    await group.until(partial(_has_begun, sink, 2), "it begins anew")
    await group.appended(b"two")
    await group.everything()
    group.children["n1"].alive["orders"].exit(1)
    await group.until(partial(_has_begun, sink, 3), "it goes on")
    assert sink.moved == [False, True, False]
    await group.stop()


@virtual
async def test_one_that_asks_for_a_pause_is_left_alone_until_a_person_resumes_it() -> None:
    group = await started(17, one(), size=1)
    sink = group.sinks["orders", "n1"]
    sink.is_away, sink.away_s = True, 500.0
    await group.appended(b"one")
    await group.until(partial(_has_begun, sink, 1), "it begins")
    await group.state("n1", "backoff")
    starts = group.children["n1"].starts
    await asyncio.sleep(450.0)
    assert group.children["n1"].starts == starts
    await asyncio.sleep(100.0)
    await group.state("n1", "backoff")
    assert group.children["n1"].starts == starts + 1
    sink.is_away = False
    await group.cdc("n1", "/orders/resume")
    await group.everything(limit_s=10.0)
    await group.stop()


@virtual
async def test_one_of_the_group_is_told_of_its_begin_and_of_each_order_until_it_commits() -> None:
    group = await started(18, one(run_on="master", options={"moved": True}))
    sink = group.sinks["orders", group.master]
    sink.commits = False

    async def again() -> CdcContext:
        """Ends the consumer's process, and returns the context of the next one."""
        lives = len(sink.lives)
        if (child := group.children[group.master].alive.get("orders")) is not None:
            child.exit(1)
        await group.until(partial(_has_begun, sink, lives + 1), "it begins again")
        return sink.contexts[-1]

    await group.appended(b"one")
    await group.until(partial(_has_begun, sink, 1), "it begins")
    assert (await again()).begins, "it has committed nothing"
    sink.commits = True
    assert (await again()).begins
    await group.everything(group.master)
    assert not (await again()).begins
    sink.commits = False
    await group.cdc(group.master, "/orders/reset", to="start")
    told = await again()
    assert told.moved and not told.begins and told.moved_us > 0
    group.kill(group.master)
    await group.serving()
    await group.until(lambda: sink.contexts[-1].node == group.master, "the next master runs it")
    assert (sink.contexts[-1].moved, sink.contexts[-1].moved_us) == (True, told.moved_us), "it is one order"
    sink.commits = True
    told = await again()
    await group.everything(group.master)
    told = await again()
    assert (told.moved, told.moved_us, told.begins) == (False, 0, False)
    await group.stop()
