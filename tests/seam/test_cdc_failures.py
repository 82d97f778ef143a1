"""Single failures around a consumer's position: disks, children, masters, cleaned events."""

from __future__ import annotations

import asyncio
import errno
from functools import partial

import msgspec
import pytest

from repl.cdc import child_feed
from repl.cdc.consumer import CdcConsumer, CdcContext
from repl.cdc.position_file import SLOT_BYTES, PositionFile
from repl.lead.level_raising import raise_level
from tests.fakes.loop import run, virtual
from tests.seam.nodes import Group
from tests.seam.test_cdc import KIB, Captured, _has_begun, _leads_another, one, started
from tests.seam.test_group_level import lead
from vlsn.format.checksum import crc
from vlsn.levels import LEVEL_1, LEVELS
from vlsn.seams import Disk
from vlsn.state.holds import Owner
from vlsnlog.testing.fakes.disk import Call

POSITION = "/n1/cdc/orders.position"


def holds(group: Group, node: str) -> dict[str, int]:
    """Lists the holds of consumers on a node's log."""
    log = group.nodes[node].opened().log
    return {hold.name: int(hold.vlsn) for hold in log.care.holds if hold.owner is Owner.CONSUMER}


def is_of_positions(call: Call) -> bool:
    return "/cdc/" in call.path


@virtual
async def test_a_store_under_way_is_waited_for_before_the_next_child_begins() -> None:
    group = await started(1, one(), size=1)
    disk, sink = group.machines["n1"].disk, group.sinks["orders", "n1"]
    await group.appended(b"one")
    await group.everything()
    disk.latency = lambda call: 1.0 if is_of_positions(call) and call.name == "sync" else 0.0
    await group.appended(b"two")
    await group.everything()
    committed = sink.committed
    assert (await group.told("n1"))["next"] < committed, "its store is under way"
    group.children["n1"].alive["orders"].kill()
    await group.until(partial(_has_begun, sink, 2), "another one begins")
    assert sink.lives[1][0] == committed, "it begins behind what was being stored"
    disk.latency = None
    await group.appended(b"three")
    await group.everything()
    assert len(sink.lives[1][1]) == 1, "nothing was given twice"
    await group.stop()


@virtual
async def test_one_whose_process_ends_at_each_start_is_parked_some_day() -> None:
    group = Captured(2, one(retries_max=4), size=1)
    sink = group.sinks["orders", "n1"]

    class Ends(CdcConsumer):
        def start(self, context: CdcContext) -> None:
            sink.lives.append((context.next, []))
            asyncio.get_running_loop().call_soon(group.children["n1"].alive["orders"].exit, 3)

    group.children["n1"].classes["test:orders"] = Ends
    await group.start()
    await group.serving()
    told = await group.state("n1", "parked")
    assert told["failures"] == len(sink.lives) == 5 and "ended with status 3" in told["reason"]
    await group.stop()


@pytest.mark.parametrize("name", ["write", "sync"])
@virtual
async def test_a_disk_that_takes_no_position_is_tried_again(name: str) -> None:
    group = await started(3, one(), size=1)
    disk, sink = group.machines["n1"].disk, group.sinks["orders", "n1"]
    await group.appended(b"one")
    await group.everything()
    disk.fail_at(lambda call: call.name == name and is_of_positions(call))
    await group.appended(b"two")
    await group.until(partial(_has_begun, sink, 2), "another one begins")
    await group.appended(b"three")
    await group.everything()
    await group.until(lambda: group.nodes["n1"].cdc.records["orders"].next == sink.committed, "it is stored")
    group.kill("n1", power=True)
    await group.start()
    await group.until(partial(_has_begun, sink, 3), "it goes on")
    assert sink.lives[2][0] == sink.committed
    await group.stop()


@pytest.mark.parametrize("away", [False, True])
@virtual
async def test_one_that_fails_shows_its_last_reason_whatever_it_does(away: bool) -> None:
    group = await started(17, one(retries_max=1000), size=1)
    await group.appended(b"one")
    await group.everything()
    sink, children, why = group.sinks["orders", "n1"], group.children["n1"], "is away" if away else "is bad"
    sink.bad, sink.is_away = b"two", away
    await group.appended(b"two")
    await group.state("n1", "backoff")
    children.delay_s = children.start_s = 1.0
    seen = set[str]()
    for _ in range(300):
        told = await group.told("n1")
        assert why in told["reason"], told
        seen.add(told["state"])
        await asyncio.sleep(0.05)
    assert seen == {"starting", "running", "backoff"}
    sink.bad, sink.is_away = None, False
    await group.everything()
    await group.until(lambda: group.nodes["n1"].cdc.records["orders"].next == sink.committed, "it is stored")
    assert (await group.told("n1"))["reason"] == ""
    await group.stop()


@virtual
async def test_a_disk_that_takes_no_position_for_good_parks_it_and_a_resume_tries_again() -> None:
    group = await started(4, one(retries_max=2), size=1)
    disk, sink = group.machines["n1"].disk, group.sinks["orders", "n1"]
    await group.appended(b"one")
    await group.everything()
    disk.fail_at(lambda call: call.name == "sync" and is_of_positions(call), times=1 << 30)
    await group.appended(b"two")
    told = await group.state("n1", "parked")
    assert "position" in told["reason"]
    starts = group.children["n1"].starts
    await asyncio.sleep(1)
    assert group.nodes["n1"].member.events.counts["cdc.parked"] == 1, "it waits for a person"
    await asyncio.sleep(60)
    assert (await group.told("n1"))["state"] == "parked" and group.children["n1"].starts == starts
    disk.mend()
    assert (await group.cdc("n1", "/orders/resume"))[0] == 200
    await group.appended(b"three")
    await group.everything()
    await group.until(lambda: group.nodes["n1"].cdc.records["orders"].next == sink.committed, "it is stored")
    await group.stop()


@virtual
async def test_a_position_file_of_a_later_version_parks_its_consumer_and_no_other() -> None:
    group = await started(5, one("orders") + one("others"), size=1)
    await group.appended(b"one")
    await group.everything()
    await group.stop()
    group.kill("n1")
    disk = group.machines["n1"].disk
    later = bytearray(disk.content(POSITION))
    for at in range(0, len(later), SLOT_BYTES):
        later[at + 8] = 3
        page = bytes(later[at : at + SLOT_BYTES - 4])
        later[at : at + SLOT_BYTES] = page + crc(page).to_bytes(4, "little")
    disk.write_content(POSITION, bytes(later))
    await group.start()
    told = await group.state("n1", "parked")
    assert "version 3" in told["reason"]
    await group.appended(b"two")
    await group.everything(name="others")
    assert disk.content(POSITION) == bytes(later), "it is left as it is"
    await group.stop()


def test_what_it_was_sent_and_had_not_committed_is_named_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_feed, "WINDOW_BYTES", 4 * KIB)

    async def main() -> None:
        group = await started(
            6, one(events_timeout_s=600.0), size=1, retention_bytes=100 * KIB, hold_bytes_max=300 * KIB,
            cleaning_period_s=0.5, ring_bytes_max=8 * KIB,
        )  # fmt: skip
        sink, children = group.sinks["orders", "n1"], group.children["n1"]
        await group.appended(b"first")
        await group.everything()
        committed = sink.committed
        sink.commits = False
        for _ in range(3):
            await group.appended(bytes(3 * KIB))
        await group.everything()
        assert max(sink.given) >= committed, "it has had more than it has committed"
        children.delay_s = 60.0
        log = group.nodes["n1"].opened().log
        while log.view.range.first <= max(sink.given) + 1:
            await group.appended(bytes(10 * KIB))
        told = await group.state("n1", "parked")
        assert told["lost"]["first"] == committed and f"--to {told['lost']['last'] + 1}" in told["reason"]
        await group.stop()

    run(main())


@virtual
async def test_one_of_the_master_that_is_parked_is_moved_where_the_master_is() -> None:
    group = await started(7, one(run_on="master", retries_max=1, options={"moved": True}))
    sink = group.sinks["orders", "n1"]  # one for all
    sink.bad = b"bad"
    good = await group.appended(b"good")
    first = group.master
    await group.until(lambda: group.nodes[first].cdc.records["orders"].next > good, "it is stored")
    at = await group.appended(b"bad")
    await group.state(first, "parked")
    for _ in range(2):  # to another one, and back
        master = group.master
        response = await group.client.request(
            "POST",
            f"{group.url(master)}/v1/admin/transfer",
            headers={"Content-Type": "application/json"},
            timeout_s=15.0,
        )
        assert response.status == 200, bytes(response.body)
        await group.until(partial(_leads_another, group, master), "another one leads")
        await group.serving()
        await group.state(group.master, "parked")
    status, said = await group.cdc(group.master, "/orders/skip", to=at + 1)
    assert status == 200 and good < said["skipped"]["first"] <= said["skipped"]["last"] == at, said
    behind = await group.appended(b"behind")
    await group.until(lambda: behind in sink.given, "it goes on behind what failed")
    assert at not in sink.given
    await group.stop()


@virtual
async def test_a_range_that_was_cleaned_away_before_it_could_be_given_once_more_parks_nobody() -> None:
    group = await started(8, one(options={"moved": True}), size=1, retention_bytes=100 * KIB, cleaning_period_s=0.5)
    sink = group.sinks["orders", "n1"]
    vlsns = [await group.appended(bytes(10 * KIB)) for _ in range(9)]
    await group.everything()
    assert (await group.cdc("n1", "/orders/pause"))[0] == 200
    status, said = await group.cdc("n1", "/orders/resend", **{"from": vlsns[0], "to": vlsns[2]})
    assert status == 200, said
    position = (await group.told("n1"))["next"]
    log = group.nodes["n1"].opened().log
    while log.view.range.first <= vlsns[2]:
        await group.appended(bytes(10 * KIB))
    await group.cdc("n1", "/orders/resume")
    last = await group.appended(b"last")
    await group.until(lambda: last in sink.given, "it goes on where it was")
    told = await group.state("n1", "running")
    assert told["lost"] is None and sink.lives[-1][0] == position
    await group.stop()


@virtual
async def test_a_parked_one_holds_a_log_that_was_opened_anew() -> None:
    group = await started(9, one(retries_max=1))
    await group.appended(b"one")
    await group.everything()
    node = next(each for each in group.names if each != group.master)
    sink = group.sinks["orders", node]
    sink.bad = b"bad"
    at = await group.appended(b"bad")
    await group.state(node, "parked")
    before = holds(group, node)["cdc/orders"]
    log = group.nodes[node].opened().log
    response = await group.client.request(
        "POST", f"{group.url(node)}/v1/admin/restore", headers={"Content-Type": "application/json"}, timeout_s=10.0
    )
    assert response.status == 200
    await group.until(lambda: _is_open_anew(group, node, log), "its log is another")
    await group.state(node, "parked")
    assert holds(group, node) == {"cdc/orders": before} and before <= at
    await group.stop()


def _is_open_anew(group: Group, node: str, log: object) -> bool:
    found = group.nodes[node].log
    return found is not None and found is not log and group.nodes[node].state == "REPLICA"


@virtual
async def test_what_keeps_its_process_from_starting_is_tried_at_longer_and_longer_pauses() -> None:
    group = await started(12, one(retries_max=1), size=1)
    await group.appended(b"one")
    await group.everything()
    children = group.children["n1"]
    children.fails = OSError(errno.ENOMEM, "Cannot allocate memory")
    children.alive["orders"].exit(1)
    await asyncio.sleep(120)
    told = await group.state("n1", "backoff")
    assert "Cannot allocate memory" in told["reason"] and told["failures"] == 1
    assert 5 <= children.starts <= 16
    children.fails = None
    await group.appended(b"two")
    await group.everything(limit_s=40.0)
    await group.stop()


def test_a_fault_of_ours_parks_it_alone_and_spins_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    opens = 0

    def opened(disk: Disk, directory: str, name: str) -> PositionFile | None:
        nonlocal opens
        opens += 1
        raise TypeError("a fault of ours")

    async def main() -> None:
        group = await started(14, one("orders") + one("others"), size=1)
        await group.everything()
        group.kill("n1")
        open_file = PositionFile.open
        monkeypatch.setattr(
            PositionFile, "open", lambda *given: (opened if given[2] == "orders" else open_file)(*given)
        )
        await group.start()
        await group.serving()
        await group.appended(b"one")
        await group.everything(name="others")
        assert "internal: TypeError" in (await group.state("n1", "parked"))["reason"]
        await asyncio.sleep(60)
        assert opens == 1
        monkeypatch.setattr(PositionFile, "open", open_file)
        assert (await group.cdc("n1", "/orders/pause"))[0] == 200, "which is no word to go on"
        await asyncio.sleep(60)
        assert (await group.told("n1"))["state"] == "parked" and group.children["n1"].starts == 1, "others alone run"
        await group.cdc("n1", "/orders/resume")
        await group.everything()
        await group.stop()

    run(main())


@pytest.mark.parametrize("order", ["resume", "skip"])
@virtual
async def test_one_parked_for_a_fault_of_ours_waits_for_a_person(order: str) -> None:
    group = await started(16, one(), size=1)
    await group.appended(b"one")
    await group.everything()
    children, position = group.children["n1"], (await group.told("n1"))["next"]
    children.fails = TypeError("a fault of ours")
    children.alive["orders"].exit(1)
    assert "internal: TypeError: a fault of ours" in (await group.state("n1", "parked"))["reason"]
    children.fails, starts = None, children.starts
    skipped = await group.appended(b"two")
    await asyncio.sleep(60)
    told = await group.told("n1")
    assert (told["state"], told["next"], children.starts) == ("parked", position, starts), "nobody has run it again"
    assert holds(group, "n1") == {"cdc/orders": position}
    status, _ = await group.cdc("n1", f"/orders/{order}", **({"to": skipped + 1} if order == "skip" else {}))
    assert status == 200
    last = await group.appended(b"three")
    given = group.sinks["orders", "n1"].given
    await group.until(lambda: last in given, "it goes on")
    assert (skipped in given) == (order == "resume")
    await group.stop()


@virtual
async def test_no_process_begins_beside_one_that_was_killed_and_has_not_ended() -> None:
    group = await started(13, one(events_timeout_s=5.0), size=1)
    await group.appended(b"one")
    await group.everything()
    children = group.children["n1"]
    child = children.alive["orders"]
    child.hangs = child.lingers = True
    await group.appended(b"two")
    await asyncio.sleep(60)
    told = await group.state("n1", "backoff")
    assert f"process {child.pid} was killed, and has not ended" in told["reason"] and children.starts == 1
    began = group.loop.time()
    assert (await group.cdc("n1", "/orders/pause"))[1]["state"] == "paused"
    await group.cdc("n1", "/orders/resume")
    assert group.loop.time() - began < 1, "orders do not wait for it"
    await asyncio.sleep(10)
    assert children.starts == 1
    child.lets_go()
    await group.everything(limit_s=10.0)
    assert children.starts == 2
    await group.stop()


@pytest.mark.parametrize("run_on", ["node", "master"])
@virtual
async def test_it_waits_for_the_groups_level(run_on: str) -> None:
    group = Captured(10, one(run_on=run_on), size=1)
    for machine in group.machines.values():
        machine.levels = LEVEL_1
    await group.start()
    await group.serving()
    record = group.nodes["n1"].cdc.records["orders"]
    await group.until(lambda: "transactions need level 2" in record.reason, "it says what it waits for")
    assert (await group.told("n1"))["state"] == "backoff"
    await group.stop()
    group.kill("n1")
    group.machines["n1"].levels = LEVELS
    await group.start()
    await group.serving()
    await group.appended(b"before")
    await raise_level(lead(group), 2)
    await group.everything(limit_s=60.0)
    await group.stop()


@virtual
async def test_a_worker_that_does_not_know_the_groups_position_is_refused() -> None:
    """The worker of an old master does not have the position that the next master's worker has set."""
    group = await started(11, one(run_on="master", options={"moved": True}))
    sink = group.sinks["orders", "n1"]  # one for all
    vlsns = [await group.appended(b"%d" % number) for number in range(5)]
    await group.until(lambda: sink.committed > vlsns[-1], "it has had all of them")
    await group.until(lambda: group.nodes[group.master].cdc.records["orders"].next > vlsns[-1], "it is stored")
    response = await group.client.request(
        "PUT",
        f"{group.url(group.master)}/v1/consumers/cdc.orders",
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode({"next": vlsns[1]}),
        timeout_s=15.0,
    )
    assert response.status == 200, bytes(response.body)
    lives = len(sink.lives)
    await group.appended(b"after")
    await group.until(partial(_has_begun, sink, lives + 1), "it was refused, and begins anew")
    assert sink.lives[-1][0] == vlsns[1], "at the position that the group has"
    await group.stop()


@virtual
async def test_a_skip_never_moves_it_back_though_it_commits_while_it_is_stopped() -> None:
    group = await started(21, one(options={"moved": True}), size=1)
    disk, sink = group.machines["n1"].disk, group.sinks["orders", "n1"]
    await group.appended(b"one")
    await group.everything()
    disk.latency = lambda call: 1.0 if is_of_positions(call) and call.name == "sync" else 0.0
    for number in range(5):
        await group.appended(b"%d" % number)
    await group.everything()
    before, committed = (await group.told("n1"))["next"], sink.committed
    assert before + 1 < committed, "its store is under way"
    status, said = await group.cdc("n1", "/orders/skip", to=before + 1)
    assert (status, said.get("type")) == (400, "bad-argument")
    disk.latency = None
    assert (await group.told("n1"))["next"] == committed
    await group.stop()
