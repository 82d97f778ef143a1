"""Nodes that restore their log from a peer: after cleaning, from a dying provider, restarted half way, by an order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec
import pytest

from tests.fakes.loop import run, virtual
from tests.fakes.machine import Machine
from tests.fakes.seeds import seeds
from tests.seam.nodes import BIG, CLEANS, JSON, SEGMENT, Group
from tests.sim.logs import places
from vlsn.format.own_entries import FOUNDING_FIELD
from vlsn.ids import NodeName, Vlsn
from vlsn.levels import LEVELS
from vlsn.limits import KIB
from vlsn.repair.restore_messages import read_offer
from vlsn.state.producers import Producers, ProducersRecord
from vlsnlog.testing.fakes.disk import Call

SETTINGS: dict[str, Any] = {**CLEANS, "retention_bytes": 8 * SEGMENT, "hold_bytes_max": 4 * SEGMENT}


async def append(group: Group, count: int, told: dict[int, bytes]) -> None:
    for number in range(count):
        value = b"%d/%d" % (len(told), number) + BIG
        told[await group.appended(value)] = value


async def trimmed(seed: int, told: dict[int, bytes], **settings: Any) -> Group:
    """Returns a group whose n3 was away until the others had cleaned all of its entries."""
    group = Group(seed, **{**SETTINGS, **settings})
    await group.start()
    await group.serving()
    await append(group, 20, told)
    await group.until(lambda: group.nodes["n3"].dtvlsn() >= max(told), "n3 has something")
    group.kill("n3")
    had = max(told)
    await append(group, 200, told)
    for name in ("n1", "n2"):
        log = group.nodes[name].opened().log
        await group.until(lambda log=log: log.view.range.first > had + 1, f"{name} has cleaned")  # type: ignore[misc]
    return group


async def caught_up(group: Group, name: str, told: dict[int, bytes]) -> None:
    def there() -> bool:
        node = group.nodes[name]
        return node.state in ("REPLICA", "MASTER") and node.dtvlsn() >= max(told)

    await group.until(there, f"{name} follows again, or leads", limit_s=60)
    begins = group.nodes[name].opened().log.view.range.first
    found = await group.read(name, begins)
    begins = group.nodes[name].opened().log.view.range.first
    assert {vlsn: value for vlsn, value in told.items() if vlsn >= begins} == {
        vlsn: value for vlsn, value in found.items() if vlsn >= begins
    }


@virtual
async def test_a_trimmed_replica_is_restored_and_follows() -> None:
    told: dict[int, bytes] = {}
    group = await trimmed(31, told)
    await group.start("n3")
    await group.until(lambda: group.state("n3") == "RESTORING", "n3 restores")
    await caught_up(group, "n3", told)
    restored = group.nodes["n3"].services.monitoring.status()["restore"]
    assert restored["running"] is None
    assert len(restored["history"]) == 1 and restored["history"][0]["bytes"] > 2 * SEGMENT
    await append(group, 5, told)
    await caught_up(group, "n3", told)
    group.kill("n3")
    await group.start("n3")
    await caught_up(group, "n3", told)
    assert not group.nodes["n3"].restoration.history
    await group.stop()
    assert not group.fatal


@virtual
async def test_the_name_of_a_log_outlives_its_first_entry() -> None:
    told: dict[int, bytes] = {}
    group = await trimmed(31, told)
    begun = group.nodes["n1"].opened().log.node_file.record
    name = f"{begun.incarnation:016x}-1"
    assert foundings(group) == {"n1": name, "n2": name}
    await group.start("n3")
    await caught_up(group, "n3", told)
    assert len(group.nodes["n3"].restoration.history) == 1
    lost = next(each for each in group.names if each != group.master)
    group.kill(*group.names)
    del group.machines[lost].stores.contents[f"/{lost}/state"]
    await group.start()
    await group.serving()
    await group.until(lambda: foundings(group) == dict.fromkeys(group.names, name), "all say it again")
    url = group.url("n1")
    for asked, status in ((name, 200), (f"{begun.incarnation:016x}-2", 409)):
        for path in ("/v1/status", "/v1/entries", "/v1/spans"):
            answer = await group.client.request("GET", url + path, headers={FOUNDING_FIELD: asked}, timeout_s=5.0)
            assert answer.status == status, path
    said = msgspec.json.decode(answer.body)
    assert said["type"] == "wrong-group"
    assert f"group 'sim' that was founded as {name}" in said["detail"], said
    await group.stop()
    assert not group.fatal
    other = Group(32)
    assert foundings(other) == {}
    await other.start("n1", "n2")
    assert foundings(other) == {"n1": "", "n2": ""}, "nothing is founded yet"
    await other.start("n3")
    await other.serving()
    await other.until(lambda: len(set(foundings(other).values())) == 1, "all say it")
    assert name not in foundings(other).values()
    await other.stop()


def foundings(group: Group) -> dict[str, str]:
    """Returns the name of each node's log."""
    return {name: node.services.monitoring.status()["founding"] for name, node in group.nodes.items()}


async def until_under_way(group: Group, bytes_done: int = 100 * KIB) -> str:
    """Waits until n3 has fetched this number of bytes; returns its provider."""

    def there() -> bool:
        progress = group.nodes["n3"].restoration.progress
        return progress is not None and progress.bytes_done >= bytes_done

    await group.until(there, "n3 restores")
    assert group.state("n3") == "RESTORING"
    progress = group.nodes["n3"].restoration.progress
    assert progress is not None
    return progress.provider


def test_an_offer_is_made_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its producers may be 32 MiB, and heartbeats do not wait for them."""
    group: Group
    made: list[bool] = []
    inside: set[str] = set()
    snapshot = Producers.snapshot

    def noted(table: Producers, vlsn: Vlsn) -> Callable[[], ProducersRecord]:
        put_together = snapshot(table, vlsn)

        def call() -> ProducersRecord:
            made.append("reads" in inside)
            return put_together()

        return call

    async def main() -> None:
        nonlocal group
        group = Group(49, **{**SETTINGS, "checkpoint_period_s": 600.0})
        await group.start()
        await group.serving()
        worker = group.nodes[group.master].member.workers["reads"]
        submit = worker.submit

        def reads(job: Callable[[], Any], done: Callable[[Any], None], failed: Callable[[BaseException], None]) -> None:
            def run() -> Any:
                inside.add("reads")
                try:
                    return job()
                finally:
                    inside.clear()

            submit(run, done, failed)

        monkeypatch.setattr(worker, "submit", reads)
        monkeypatch.setattr(Producers, "snapshot", noted)
        other = next(name for name in group.names if name != group.master)
        ask = {"group": "sim", "sender": other, "to": group.master, "incarnation": "0" * 16, "purpose": "open"}
        answer = await group.client.request(
            "POST",
            f"{group.url(group.master)}/v1/peer/restore",
            headers=JSON,
            body=msgspec.json.encode(ask),
            timeout_s=5.0,
        )
        offer = read_offer(bytes(answer.body))
        assert offer.session and offer.record is not None and offer.record.vlsn == offer.dtvlsn > 0
        assert made and all(made)  # two tables: producers, and the handles of transactions
        await group.stop()
        assert not group.fatal

    run(main())


@virtual
async def test_no_cancel_is_left_counted_in_the_tasks_that_follow_and_restore() -> None:
    """Python 3.11.2 takes each timeout in such a task for a cancel. A restore would end silently with the first missing
    answer."""
    group = Group(48, **SETTINGS)
    await group.start()
    await group.serving()
    other = next(name for name in group.names if name != group.master)
    node = group.nodes[other]
    await group.until(lambda: node.state == "REPLICA", "it follows")
    task, following = node.opened().opened.stage._task, node.following
    assert task is not None and following is not None and following.feeds == 1
    group.net.cut(group.master, other)
    await group.until(lambda: following.feeds == 2, "it is fed again")
    assert node.opened().opened.stage._task is task and not task.cancelling()
    await group.until(lambda: node.state == "REPLICA", "it follows")
    node.restoration.want("a test")
    await group.until(lambda: node.state == "RESTORING", "it restores")
    assert not node._tasks[0].cancelling()
    await group.until(lambda: node.state == "REPLICA", "it follows again")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_provider_that_dies_half_way_is_replaced_by_another() -> None:
    told: dict[int, bytes] = {}
    group = await trimmed(32, told)
    group.net.default_delay_s = (0.02, 0.03)
    terms: defaultdict[str, set[int]] = defaultdict(set)

    async def look() -> None:
        """Notes the stored terms in each state of the status, also while no log is open."""
        while True:
            said = group.nodes["n3"].services.monitoring.status()
            terms[said["state"]].add(said["term"])
            await asyncio.sleep(0.001)

    await group.start("n3")
    looking = asyncio.create_task(look())
    provider = await until_under_way(group)
    looking.cancel()
    assert provider == "n2"  # the master has a feeder to serve
    ready = group.nodes["n3"].services.monitoring.readiness()
    assert any("RESTORING" in each or "not open" in each for each in ready), ready
    running = group.nodes["n3"].services.monitoring.status()["restore"]["running"]
    assert running["from"] == "n2" and 0 < running["bytes_done"] < running["bytes_total"]
    assert terms["RESTORING"] and terms["RESTORING"] == {group.nodes["n1"].opened().log.node_file.record.term}
    group.kill("n2", power=True)

    def restored() -> bool:
        return bool(group.nodes["n3"].restoration.history)

    await group.until(restored, "n3 is restored from the other", limit_s=60)
    assert group.nodes["n3"].restoration.history[-1]["from"] == "n1"
    await group.start("n2")
    await group.serving()
    await caught_up(group, "n3", told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_whom_a_log_could_not_be_held_against_is_asked_once_it_is_given_up() -> None:
    """Before the marker a silent member may know of an entry that only this copy has. After it nothing is left to lose,
    and the member may be the only provider."""
    told: dict[int, bytes] = {}
    group = await trimmed(32, told)
    group.net.default_delay_s = (0.02, 0.03)
    await group.start("n3")
    await caught_up(group, "n3", told)
    node = group.nodes["n3"]
    restored = node.restoration.count
    assert node.restoration.want("a test asks", silent=[NodeName("n1")])
    assert not node.restoration.want("another one")  # it is wanted already
    assert await until_under_way(group) == "n2"
    group.kill("n2")
    await group.until(lambda: node.restoration.count > restored, "n3 is restored from the other", limit_s=60)
    assert node.restoration.history[-1]["from"] == "n1"
    await group.start("n2")
    await group.serving()
    await caught_up(group, "n3", told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_provider_that_falls_silent_half_way_is_replaced_by_another() -> None:
    """The log that was open before has ended in a task group, whose task could end no timeout."""
    told: dict[int, bytes] = {}
    group = await trimmed(37, told)
    group.net.default_delay_s = (0.02, 0.03)
    await group.start("n3")
    silent = await until_under_way(group)
    group.net.split([silent], ["n3"])
    await caught_up(group, "n3", told)
    (done,) = group.nodes["n3"].restoration.history
    assert done["from"] != silent
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_provider_whose_oldest_blocks_nobody_can_mend_is_left_for_another() -> None:
    """The provider serves no feed and begins earlier than the master, so it is asked first. The master has cleaned the
    blocks that are rotten there."""
    told: dict[int, bytes] = {}
    group = await trimmed(34, told)
    master = group.master
    other = next(name for name in ("n1", "n2") if name != master)
    group.settings["retention_bytes"] = 3 * SEGMENT
    group.kill(master)
    await group.start(master)
    await group.serving()
    if group.master != master:
        await group.client.request("POST", f"{group.url(group.master)}/v1/admin/transfer?to={master}", timeout_s=5.0)
    await group.until(lambda: group.master == master, "it leads again")
    begins = [group.nodes[name].opened().log for name in (other, master)]
    await group.until(lambda: begins[0].view.range.first + 20 < begins[1].view.range.first, "it has cleaned more")
    copy = places(group.machines[other].disk, f"/{other}")
    path, start, end = copy[min(block for block in copy if block.first >= begins[0].view.range.first)]
    group.machines[other].disk.flip_bit(path, (start + end) // 2)
    await group.start("n3")

    def restored() -> bool:
        return bool(group.nodes["n3"].restoration.history)

    await group.until(restored, "n3 is restored", limit_s=20)
    assert group.nodes["n3"].restoration.history[-1]["from"] == master
    assert group.nodes["n3"].member.events.counts["restore.again"] == 1
    await caught_up(group, "n3", told)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_restore_does_not_wait_for_a_member_that_is_gone_without_a_word() -> None:
    told: dict[int, bytes] = {}
    group = await trimmed(35, told)
    group.kill(next(name for name in ("n1", "n2") if name != group.master), power=True)
    await group.start("n3")

    def restored() -> bool:
        return bool(group.nodes["n3"].restoration.history)

    # A start asks everybody for their reports of it, and waits so long for one that is silent.
    await group.until(lambda: group.nodes["n3"].member.recognised, "n3 has asked", limit_s=5.5)
    await group.until(restored, "n3 is restored", limit_s=4.0)
    await group.stop()
    assert not group.fatal


def after_marker(number: int, *, begun: bool) -> Callable[[Call], bool]:
    """Matches the disk call with this number after the marker's write, or after the process's start."""
    left = number if begun else 0

    def when(call: Call) -> bool:
        nonlocal left
        if left:
            left -= 1
            return not left
        if call.path.endswith("restore.marker.new"):
            left = number
        return False

    return when


@pytest.mark.parametrize("seed", seeds(3))
@virtual
async def test_a_restore_survives_the_end_of_its_process_at_any_moment(seed: int) -> None:
    """n3 is killed, or loses its power, some twenty times while it restores, at any disk call."""
    told: dict[int, bytes] = {}
    group = await trimmed(seed, told)
    rng = Random(seed)
    group.net.default_delay_s = (0.001, 0.01)
    lives = {"old": 0, "marker": 0}
    for _ in range(20):
        disk = group.machines["n3"].disk
        lives["marker" if disk.exists("/n3/restore.marker") else "old"] += 1
        disk.stop_at(after_marker(rng.randrange(1, 130), begun=disk.exists("/n3/restore.marker")))
        await group.start("n3")
        machine = group.machines["n3"]

        def over(machine: Machine = machine) -> bool:
            return machine.process is None or group.state("n3") == "REPLICA"

        await group.until(over, "n3 stops")
        if machine.process is not None:
            break
        group.kill("n3", power=rng.random() < 0.5)
    if "n3" in group.nodes:
        group.kill("n3")  # and with it the stop that it did not come to
    await group.start("n3")
    await caught_up(group, "n3", told)
    assert lives["marker"] >= 1, lives
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_person_may_ask_for_a_restore_and_a_master_refuses() -> None:
    told: dict[int, bytes] = {}
    group = Group(35, **SETTINGS)
    await group.start()
    await group.serving()
    await append(group, 30, told)
    answer = await group.client.request("POST", f"{group.url('n1')}/v1/admin/restore", timeout_s=5.0)
    assert answer.status == 405
    answer = await group.client.request("POST", f"{group.url('n2')}/v1/admin/restore", timeout_s=5.0)
    assert answer.status == 200
    await group.until(lambda: bool(group.nodes["n2"].restoration.history), "n2 is restored")
    await caught_up(group, "n2", told)
    assert group.nodes["n2"].opened().log.view.range.first == 1
    record = group.nodes["n2"].opened().log.node_file.record
    assert record.floor_vlsn == max(told)  # what it had, it says that it had
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize(
    "path",
    [
        "/v1/peer/block?group=sim&sender=n1&to=n2&term=0&first=1",
        "/v1/peer/copy?group=sim&sender=n1&to=n2&vlsn=1",
        "/v1/entries?from=1&limit=1000",
        "/v1/entries/5",
        "/v1/segments",
        "/v1/status",
        "/metrics",
    ],
)
@pytest.mark.long
@virtual
async def test_what_is_asked_of_a_node_whose_log_is_being_closed_is_answered_or_refused(path: str) -> None:
    """A restore closes the log between two requests, and while one is answered."""
    told: dict[int, bytes] = {}
    group = Group(47, **SETTINGS)
    await group.start()
    await group.serving()
    await append(group, 40, told)
    other = next(name for name in group.names if name != group.master)
    path_there = path.replace("to=n2", f"to={other}").replace("sender=n1", f"sender={group.master}")
    answers: set[str] = set()

    async def ask() -> None:
        while True:
            response = await group.client.request("GET", group.url(other) + path_there, timeout_s=5.0)
            answers.add("" if response.status == 200 else msgspec.json.decode(bytes(response.body))["type"])

    asking = [asyncio.create_task(ask()) for _ in range(4)]
    await asyncio.sleep(0.2)
    for number in range(1, 11):
        group.nodes[other].restoration.want("a test")
        await group.until(lambda n=number: group.nodes[other].restoration.count == n, "it is restored")  # type: ignore[misc]
        await caught_up(group, other, told)
    for task in asking:
        task.cancel()
    await asyncio.wait(asking)
    assert all(task.cancelled() for task in asking), asking
    assert answers <= {"", "no-master", "not-ready", "wrong-name"} and "" in answers, answers
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_is_stopped_as_it_closes_its_log_for_a_restore_ends_quietly() -> None:
    group = Group(1, levels=LEVELS)
    await group.start()
    await group.serving("n1")
    await group.until(lambda: group.nodes["n2"].dtvlsn() > 0, "n2 follows")
    url = f"{group.url('n2')}/v1/admin/restore"
    answer = await group.client.request("POST", url, headers=JSON, body=b"{}", timeout_s=5.0)
    assert answer.status == 200, bytes(answer.body)
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_wiped_member_of_a_group_that_has_cleaned_is_restored_and_counts_again() -> None:
    """Its disk is new: it is another incarnation, and VLSN 1, from which it would be fed, was cleaned."""
    told: dict[int, bytes] = {}
    group = await trimmed(39, told)
    group.machines["n3"] = Machine("n3", group.loop, group.net, group.rng)
    await group.start("n3")
    await caught_up(group, "n3", told)
    node = group.nodes["n3"]
    assert node.restoration.count == 1
    assert node.opened().log.view.range.first > 1

    def admitted() -> bool:
        listed = node.opened().log.view.history.group
        return listed is not None and any(
            (each.name, each.incarnation) == ("n3", f"{node.member.incarnation:016x}") for each in listed.members
        )

    await group.until(admitted, "the group lists its new incarnation")
    group.kill("n2")
    await append(group, 5, told)  # with n1 it is a majority
    await caught_up(group, "n3", told)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("apart_s", [0.0, 0.3, 2.0])
@virtual
async def test_both_replicas_are_restored_at_once(apart_s: float) -> None:
    """Both are restored at once, or the second during the first. The master has no majority meanwhile, and provides to
    both. An operator's second restore is refused: ``test_spared_copies``."""
    told: dict[int, bytes] = {}
    group = Group(91, segment_bytes=SEGMENT)
    await group.start()
    await group.serving()
    await append(group, 60, told)
    await group.until(lambda: all(node.dtvlsn() >= max(told) for node in group.nodes.values()), "all have all")
    master = group.master
    others = [name for name in group.names if name != master]
    for name in others:
        assert group.nodes[name].restoration.want("a test")
        await asyncio.sleep(apart_s)

    def restored() -> bool:
        return all(len(group.nodes[name].restoration.history) == 1 for name in others)

    await group.until(restored, "both have restored")
    await group.serving()
    await group.until(lambda: all(node.dtvlsn() >= max(told) for node in group.nodes.values()), "all have all")
    for name in group.names:
        assert await group.read(name) == told
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_node_that_finds_nobody_to_be_restored_from_is_there_for_the_others_again() -> None:
    """n3 is gone for good, and n2 must be restored, just as the master n1 ends. After its restart n1 has a lower
    durable end than n2, and waits for a member that knows its promises; n2 waits for a provider with a durable end as
    high as its own."""
    told: dict[int, bytes] = {}
    group = Group(1, **SETTINGS)
    await group.start()
    await group.serving("n1")
    await append(group, 5, told)
    group.kill("n3")
    await append(group, 5, told)
    await group.until(lambda: group.nodes["n2"].dtvlsn() >= max(told), "n2 knows it durable")
    assert group.nodes["n2"].restoration.want("a test")
    group.kill("n1")
    await group.start("n1")
    await group.until(lambda: group.state("n2") == "RESTORING", "n2 looks for a provider")
    await group.until(lambda: "MASTER" in (group.state("n1"), group.state("n2")), "one of them leads", limit_s=40)
    for name in ("n1", "n2"):
        await caught_up(group, name, told)
    await group.stop()
    assert not group.fatal
