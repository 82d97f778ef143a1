"""Appends that request less than a sync: their answers, their fate, and everything that must not change."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from tests.fakes.loop import run, virtual
from tests.seam.nodes import JSON, Group
from tests.seam.test_group_level import made
from tests.seam.test_group_settings import asked, shown
from vlsn.levels import LEVELS
from vlsn.limits import NODE_SYNC_INTERVAL_S
from vlsn.write.local_log import LocalLog

SOON_S = NODE_SYNC_INTERVAL_S + 0.3
"""The longest time until an entry answered early is durable here: an interval, a tick, a round trip."""
NEVER_S = 60.0
LEVELS_DOWN = ("sync", "write_no_sync", "no_sync")


def told(text: str) -> dict[str, str]:
    local, _, replica = text.partition(",")
    return {"local": local, "replica": replica or local}


async def append(
    group: Group, value: bytes, durability: str | None = None, *, acks: str = "majority", to: str = ""
) -> tuple[int, dict[str, Any]]:
    terms = {"acks": acks} | ({} if durability is None else {"durability": durability})
    response = await group.client.request(
        "POST",
        f"{group.url(to or group.master)}/v1/entries?{urlencode(terms)}",
        headers={"Content-Type": "application/octet-stream"},
        body=value,
        timeout_s=12.0,
    )
    return response.status, msgspec.json.decode(bytes(response.body))


def log_of(group: Group, name: str = "") -> LocalLog:
    return group.nodes[name or group.master].opened().log


def syncs(group: Group) -> int:
    return sum(call.name == "sync" for name in group.names for call in group.machines[name].disk.calls)


def in_a_group(test: Callable[[Group], Awaitable[None]], seed: int = 410, size: int = 3, **settings: Any) -> None:
    async def main() -> None:
        group = Group(seed, size, levels=LEVELS, **settings)
        await group.start()
        await group.serving()
        await test(group)
        await group.stop()
        assert not group.fatal

    run(main())


@pytest.mark.parametrize("replica", LEVELS_DOWN)
@pytest.mark.parametrize("local", LEVELS_DOWN)
def test_an_answer_says_what_held_and_what_it_says_holds(local: str, replica: str) -> None:
    async def test(group: Group) -> None:
        before = syncs(group)
        status, answer = await append(group, b"v", f"{local},{replica}")
        assert (status, answer["durability"]) == (200, {"local": local, "replica": replica}), answer
        master, vlsn = log_of(group), answer["last"]
        replicas = [log_of(group, name) for name in group.names if name != group.master]
        assert master.view.range.last_sync >= vlsn or local != "sync" or answer["durable"]
        assert master.view.range.last >= vlsn or local == "no_sync"
        assert any(log.view.range.last_sync >= vlsn for log in replicas) or replica != "sync" or answer["durable"]
        assert any(log.view.range.last >= vlsn for log in replicas) or replica == "no_sync"
        assert any(log.view.allocated >= vlsn for log in replicas)
        assert answer["durable"] is (local == replica == "sync")
        assert syncs(group) > before or (local != "sync" and replica != "sync")
        await asyncio.sleep(SOON_S)
        assert log_of(group).view.dtvlsn >= vlsn, "it is durable soon, whoever appends next"
        assert all(log.view.range.last_sync >= vlsn for log in [master, *replicas])

    in_a_group(test)


def test_no_acks_wait_for_the_master_alone() -> None:
    async def test(group: Group) -> None:
        master = group.master
        group.net.split([master, "client"], [name for name in group.names if name != master])
        for level in LEVELS_DOWN:
            status, answer = await append(group, b"v", level, acks="none")
            assert (status, answer["durable"], answer["durability"]) == (200, False, told(level))
            assert answer["synced"] == (level == "sync")
            assert log_of(group, master).view.range.last_sync < answer["last"] or level == "sync"

    in_a_group(test)


@pytest.mark.parametrize("replica", LEVELS_DOWN)
def test_all_acks_wait_for_every_replica(replica: str) -> None:
    async def test(group: Group) -> None:
        status, answer = await append(group, b"v", f"write_no_sync,{replica}", acks="all")
        assert (status, answer["acks"]) == (200, "all")
        for name in group.names:
            log = log_of(group, name)
            assert log.view.allocated >= answer["last"]
            assert log.view.range.last >= answer["last"] or replica == "no_sync"
            assert log.view.range.last_sync >= answer["last"] or replica != "sync" or name == group.master

    in_a_group(test)


def test_readers_and_the_durable_end_know_nothing_of_an_early_answer() -> None:
    async def test(group: Group) -> None:
        before = log_of(group).view.dtvlsn
        status, answer = await append(group, b"early", "write_no_sync")
        assert (status, answer["durable"], answer["synced"]) == (200, False, 0)
        for name in group.names:
            assert log_of(group, name).view.dtvlsn <= before
            assert answer["first"] not in await group.read(name)
        await asyncio.sleep(SOON_S)
        for name in group.names:
            assert (await group.read(name))[answer["first"]] == b"early"

    in_a_group(test)


@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
def test_what_was_written_outlives_the_processes_and_what_was_synced_the_power(power: bool) -> None:
    lost = 0

    async def one(seed: int) -> None:
        nonlocal lost
        group = Group(seed, levels=LEVELS, sync_interval_s=NEVER_S)
        await group.start()
        await group.serving()
        kept: dict[int, bytes] = {}
        early: dict[int, bytes] = {}
        for number in range(12):
            value = b"%d" % number
            synced = group.rng.random() < 0.25 and number < 11
            status, answer = await append(group, value, None if synced else "write_no_sync")
            assert (status, answer["durable"]) == (200, synced), answer
            (kept if synced else early)[answer["first"]] = value
        end = max(kept, default=0)
        group.kill(*group.names, power=power)
        await group.start()
        await group.serving()
        await group.append(b"after")
        found = await group.read(group.master)
        assert found.items() >= kept.items()
        assert found.items() >= {vlsn: value for vlsn, value in early.items() if vlsn < end}.items(), "a sync is of all"
        lost += not found.items() >= early.items()
        for name in group.names:
            await group.until(lambda name=name: log_of(group, name).view.dtvlsn >= max(found), f"{name} has all")  # type: ignore[misc]
            assert await group.read(name) == found
        await group.stop()
        assert not group.fatal

    for seed in range(420, 432):
        run(one(seed))
    assert bool(lost) is power, "the power cuts took something, the kills nothing"


@pytest.mark.parametrize("pause_s", [0.0, 0.000_2, 0.002])
def test_one_that_asks_for_a_sync_gets_it_beside_those_that_do_not(pause_s: float) -> None:
    """No sync by time helps it, since these nodes have none."""

    async def test(group: Group) -> None:
        asked_for = ["write_no_sync", None, "no_sync", "write_no_sync,sync", None, "no_sync,write_no_sync"] * 6

        async def one(number: int, durability: str | None) -> tuple[int, dict[str, Any]]:
            await asyncio.sleep(number * pause_s)
            return await append(group, b"%d" % number, durability)

        answers = await asyncio.gather(*(one(number, durability) for number, durability in enumerate(asked_for)))
        assert [status for status, _ in answers] == [200] * len(asked_for)
        synced = [answer for (_, answer), durability in zip(answers, asked_for, strict=True) if durability is None]
        assert all(answer["durable"] for answer in synced)
        end = max(answer["last"] for answer in synced)
        found = await group.read(group.master)
        for number, (_, answer) in enumerate(answers):
            assert found.get(answer["first"]) == b"%d" % number or answer["first"] > end

    in_a_group(test, sync_interval_s=NEVER_S)


def test_a_group_that_asks_for_less_is_synced_by_time() -> None:
    async def test(group: Group) -> None:
        async def many() -> int:
            before = syncs(group)
            for number in range(50):
                status, answer = await append(group, b"%d" % number)
                assert (status, answer["durability"]) == (200, told(held)), answer
            return syncs(group) - before

        held = "sync"
        each = await many()
        held = "write_no_sync"
        status, answer = await asked(group, {"durability": told(held)})
        assert (status, answer["settings"]["durability"], answer["durable"]) == (200, told(held), True)
        seldom = await many()
        assert each >= 100 and seldom <= 12, (each, seldom)
        status, answer = await append(group, b"v", "sync")
        assert (status, answer["type"]) == (409, "stronger-durability"), answer
        status, answer = await append(group, b"v", "write_no_sync,no_sync")
        assert (status, answer["durability"]) == (200, told("write_no_sync,no_sync"))
        for path in ("/v1/status", "/v1/group"):
            assert (await shown(group, path))["settings"]["durability"] == told(held)
        held = "sync"
        status, answer = await asked(group, {"durability": told(held)})
        assert status == 200
        assert await many() >= 100
        _, answer = await append(group, b"v")
        assert answer["durable"] is True

    in_a_group(test)


def test_what_sets_something_is_durable_when_it_is_answered_unless_it_asks_for_less() -> None:
    async def test(group: Group) -> None:
        async def call(method: str, path: str, body: Any = None) -> dict[str, Any]:
            response = await group.client.request(
                method,
                f"{group.url(group.master)}{path}",
                headers=JSON,
                body=msgspec.json.encode(body) if body is not None else b"",
                timeout_s=5.0,
            )
            answer: dict[str, Any] = msgspec.json.decode(bytes(response.body))
            assert response.status == 200, answer
            return answer

        async def committed(at: int, more: str = "") -> dict[str, Any]:
            handle = (await call("POST", "/v1/transactions"))["transaction"]
            body = {"positions": {"billing": {"next": 2, "at": at}}}
            return await call("POST", f"/v1/transactions/{handle}/commit?{more}", body)

        await asked(group, {"durability": told("write_no_sync")})
        placed = await call("PUT", "/v1/consumers/billing", {"next": 2})
        assert log_of(group).view.dtvlsn >= placed["at"]
        answer = await committed(placed["at"])
        assert (answer["durable"], answer["durability"]) == (True, told("sync"))
        answer = await committed(answer["last"], "durability=no_sync")
        assert (answer["durable"], answer["durability"]) == (False, told("no_sync"))
        handle = (await call("POST", "/v1/transactions"))["transaction"]
        answer = await call("POST", f"/v1/transactions/{handle}/commit")
        assert (answer["durable"], answer["durability"]) == (False, told("write_no_sync"))
        again = await call("POST", f"/v1/transactions/{handle}/commit")
        assert (again["last"], again["durable"], again["duplicate"]) == (answer["last"], True, True)

    in_a_group(test)


def test_a_setting_goes_with_the_log_to_the_next_master_and_beside_another_one() -> None:
    async def test(group: Group) -> None:
        assert (await asked(group, {"durability": told("sync,no_sync")}))[0] == 200
        assert (await asked(group, {"producers": 100}))[0] == 200
        old = group.master
        group.kill(old)
        await group.until(lambda: group.master != old, "another leads")
        await group.serving()
        assert (await shown(group, "/v1/status"))["settings"] == {"producers": 100, "durability": told("sync,no_sync")}
        status, answer = await append(group, b"v")
        assert (status, answer["durability"]) == (200, told("sync,no_sync"))
        await group.start(old)
        await group.serving()

    in_a_group(test)


@virtual
async def test_less_than_a_sync_waits_for_the_groups_level() -> None:
    group = await made(403)
    before = log_of(group).view.allocated
    status, answer = await append(group, b"v", "write_no_sync")
    assert (status, answer["type"]) == (400, "wrong-version"), answer
    assert "vlsnlog group upgrade" in answer["detail"]
    status, answer = await asked(group, {"durability": told("no_sync")})
    assert (status, answer["type"]) == (400, "wrong-version"), answer
    assert log_of(group).view.allocated == before
    status, answer = await append(group, b"v", "sync")
    assert (status, answer["durable"]) == (200, True)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("text", ["", "fast", "SYNC", "sync,", "sync,sync,sync", "sync;no_sync"])
def test_what_is_no_durability_is_refused_with_nothing_logged(text: str) -> None:
    async def test(group: Group) -> None:
        before = log_of(group).view.allocated
        status, answer = await append(group, b"v", text)
        assert (status, answer["type"]) == (400, "bad-argument"), answer
        for body in ({"durability": text}, {"durability": {"local": "sync"}}, {"durability": told("sync") | {"x": 1}}):
            status, answer = await asked(group, body)
            assert (status, answer["type"]) == (400, "bad-body"), answer
        assert log_of(group).view.allocated == before

    in_a_group(test)


def test_an_early_answer_outlives_its_master() -> None:
    """The next master is elected by synced blocks, and a vote syncs its node's log."""

    async def test(group: Group) -> None:
        answers = [(await append(group, b"%d" % number, "write_no_sync"))[1] for number in range(5)]
        old = group.master
        group.kill(old)
        await group.until(lambda: group.master != old, "another leads")
        await group.serving()
        found = await group.read(group.master)
        assert [found[answer["first"]] for answer in answers] == [b"%d" % number for number in range(5)]

    in_a_group(test, sync_interval_s=NEVER_S)


@pytest.mark.parametrize("durability", ["no_sync", "write_no_sync", "sync,no_sync"])
def test_a_master_that_is_cut_off_answers_nothing_that_its_replicas_do_not_have(durability: str) -> None:
    async def test(group: Group) -> None:
        master = group.master
        group.net.split([master, "client"], [name for name in group.names if name != master])
        status, answer = await append(group, b"v", durability, to=master)
        assert (status, answer["type"]) in (
            (504, "outcome-unknown"),
            (503, "no-master"),
            (503, "insufficient-replicas"),
        )
        group.net.heal()
        await group.serving()

    in_a_group(test)
