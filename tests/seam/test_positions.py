"""Named positions: every node has the committed one, through every fault, and never another one."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import pytest

from tests.fakes.loop import run, virtual
from tests.seam.nodes import BIG, CLEANS, JSON, Group
from tests.seam.test_lost_group import lose_state
from tests.seam.test_membership import fed
from vlsn.levels import LEVELS
from vlsn.state.holds import Owner

Document = dict[str, Any]
RETRIED = ("no-master", "insufficient-replicas", "not-ready", "queue-full", "outcome-unknown", "unreachable")


async def call(
    group: Group, method: str, name: str, node: str = "", body: Any = None, query: str = ""
) -> tuple[int, Document]:
    response = await group.client.request(
        method,
        f"{group.url(node or group.master)}/v1/consumers/{name}{query}",
        headers=JSON,
        body=msgspec.json.encode(body) if body is not None else b"",
        timeout_s=12.0,
    )
    return response.status, msgspec.json.decode(bytes(response.body))


async def put(group: Group, name: str, next: int, node: str = "", **more: Any) -> tuple[int, Document]:
    return await call(group, "PUT", name, node, {"next": next, **more}, "?timeout=5")


async def committed(group: Group, name: str, next: int, **more: Any) -> Document:
    """Returns the position, once durable; repeats the commit while the node answers that this is safe."""
    while True:
        status, said = await put(group, name, next, **more)
        if status == 200:
            return said
        assert said["type"] in RETRIED, said
        await asyncio.sleep(0.05)


async def get(group: Group, name: str, node: str) -> Document | None:
    status, said = await call(group, "GET", name, node)
    assert status == 200 or said["type"] == "not-found", said
    return said if status == 200 else None


async def status_of(group: Group, node: str) -> Document:
    response = await group.client.request("GET", f"{group.url(node)}/v1/status", timeout_s=5.0)
    said: Document = msgspec.json.decode(bytes(response.body))
    return said


async def everywhere(group: Group, name: str, next: int) -> None:
    for node in group.nodes:
        for _ in range(400):
            said = await get(group, name, node)
            if said is not None and said["next"] == next:
                break
            await asyncio.sleep(0.05)
        else:
            raise AssertionError(f"{node} says {said} of {name}, not {next}")


def held(group: Group, node: str, name: str) -> int | None:
    log = group.nodes[node].opened().log
    return next((int(hold.vlsn) for hold in log.care.holds if (hold.owner, hold.name) == (Owner.CONSUMER, name)), None)


async def made(seed: int, **settings: Any) -> Group:
    group = Group(seed, levels=LEVELS, **settings)
    await group.start()
    await group.serving()
    await fed(group, 2)
    return group


@virtual
async def test_a_position_is_there_on_every_node_and_is_replaced_by_whoever_knows_it() -> None:
    group = await made(1)
    vlsns = [await group.appended(b"entry") for _ in range(5)]
    assert (await call(group, "GET", "billing"))[0] == 404
    first = await committed(group, "billing", vlsns[0], at=0)
    assert (first["name"], first["next"], first["term"]) == ("billing", vlsns[0], 1)
    assert first["lag_vlsns"] == first["at"] - vlsns[0] + 1
    second = await committed(group, "billing", vlsns[3], at=first["at"])
    assert second["at"] > first["at"]
    await everywhere(group, "billing", vlsns[3])
    status, said = await put(group, "billing", vlsns[1], at=first["at"])
    assert (status, said["type"]) == (409, "stale-term")
    status, said = await put(group, "billing", vlsns[1], at=0)
    assert (status, said["type"]) == (409, "stale-term")
    last = group.nodes[group.master].dtvlsn()
    assert group.nodes[group.master].opened().log.view.range.last == last, "nothing was logged for those refused"
    assert (await committed(group, "billing", vlsns[1]))["next"] == vlsns[1], "a reset names no position"
    replica = next(name for name in group.names if name != group.master)
    assert (await call(group, "PUT", "billing", replica, {"next": 1}))[0] == 307
    assert (await call(group, "DELETE", "billing", replica))[0] == 307
    assert (await call(group, "DELETE", "billing", query="?at=1"))[0] == 409
    assert (await call(group, "DELETE", "billing"))[0] == 200
    assert (await call(group, "DELETE", "billing"))[0] == 404
    await group.stop()
    assert not group.fatal


@virtual
async def test_who_is_up_to_date_lags_by_nothing_though_its_commit_has_a_vlsn() -> None:
    group = await made(2)
    vlsn = await group.appended(b"entry")
    said = await committed(group, "billing", vlsn + 1)
    assert (said["lag_vlsns"], said["lag_s"]) == (0, 0.0)
    later = await group.appended(b"later")
    await asyncio.sleep(3.0)
    for node in group.nodes:
        [told] = (await status_of(group, node))["consumers"]
        assert (told["name"], told["next"], told["lag_vlsns"]) == ("billing", vlsn + 1, 1)
        assert told["lag_s"] == pytest.approx(3.0, abs=0.5)
        metrics = await group.client.request("GET", f"{group.url(node)}/metrics", timeout_s=5.0)
        assert b'vlsnlog_consumer_lag_vlsns{consumer="billing"} 1.0' in bytes(metrics.body)
    await committed(group, "billing", later + 1)
    assert (await call(group, "GET", "billing"))[1]["lag_vlsns"] == 0
    await group.stop()


def test_a_commit_costs_the_same_beside_many_others() -> None:
    """Its answer has the consumer's lag, which is computed without reading all other consumers' COMMITs."""

    async def main() -> None:
        group = await made(4)
        vlsn = await group.appended(b"entry")
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        async def cost(names: list[str], times: int) -> float:
            nonlocal calls
            at = {name: (await committed(group, name, vlsn))["at"] for name in names}
            calls = 0
            for _ in range(times):
                for name in names:
                    sys.setprofile(count)
                    try:
                        status, said = await put(group, name, vlsn + 1, at=at[name])
                    finally:
                        sys.setprofile(None)
                    assert (status, said["lag_vlsns"]) == (200, 0)
                    at[name] = said["at"]
            return calls / len(names) / times

        few = await cost(["a", "b"], 20)
        assert await cost([f"c{number}" for number in range(200)], 1) < 1.25 * few
        await group.stop()

    run(main())


@pytest.mark.parametrize("body", [{}, {"next": 0}, {"next": 99}, {"next": "1"}, {"next": 1, "by": "x"}, {"nxt": 1}, []])
@virtual
async def test_what_is_no_position_is_refused_with_nothing_logged(body: Any) -> None:
    group = await made(3)
    last = group.nodes[group.master].opened().log.view.allocated
    status, said = await call(group, "PUT", "billing", body=body)
    assert (status, said["type"]) == (
        400,
        "bad-body" if "next" not in body or body["next"] == "1" else "bad-argument",
    )
    status, said = await call(group, "PUT", "two%20words", body={"next": 1})
    assert (status, said["type"]) == (400, "bad-argument")
    assert group.nodes[group.master].opened().log.view.allocated == last
    await group.stop()


@pytest.mark.parametrize("seed", [1, 2, 3])
@virtual
async def test_a_position_survives_the_masters_death_between_commit_and_answer(seed: int) -> None:
    """If it is sent again to the next master under its name it is one commit, whatever happened to the first."""
    group = await made(10 + seed)
    vlsn = await group.appended(b"entry")
    first = await committed(group, "billing", vlsn, at=0)
    asked = asyncio.create_task(put(group, "billing", vlsn + 1, at=first["at"], by="00000000000000aa"))
    await asyncio.sleep(0.0005 * seed)
    group.kill(group.master)
    await asyncio.gather(asked, return_exceptions=True)
    await group.serving()
    said = await committed(group, "billing", vlsn + 1, at=first["at"], by="00000000000000aa")
    assert said["next"] == vlsn + 1
    again = await committed(group, "billing", vlsn + 1, at=first["at"], by="00000000000000aa")
    assert again["at"] == said["at"], "one commit"
    status, answer = await put(group, "billing", vlsn + 1, at=first["at"], by="00000000000000bb")
    assert (status, answer["type"]) == (409, "stale-term"), "another worker's"
    await group.stop()


@virtual
async def test_two_commits_that_start_from_one_position_are_judged_in_the_queue() -> None:
    """The second arrives before the first has a VLSN: it is refused, and nothing of it is logged."""
    group = await made(20)
    vlsns = [await group.appended(b"entry") for _ in range(3)]
    first = await committed(group, "billing", vlsns[0], at=0)
    answers = await asyncio.gather(
        *(put(group, "billing", vlsn, at=first["at"], by=f"{vlsn:016x}") for vlsn in vlsns[1:] * 3)
    )
    taken = [said["next"] for status, said in answers if status == 200]
    assert len(set(taken)) == 1
    assert {said["type"] for status, said in answers if status != 200} <= {"stale-term", "queue-full"}
    await everywhere(group, "billing", taken[0])
    await group.stop()


@virtual
async def test_a_position_that_was_not_durable_goes_with_its_rollback() -> None:
    group = await made(30)
    vlsn = await group.appended(b"entry")
    first = await committed(group, "billing", vlsn, at=0)
    old = group.master
    others = [name for name in group.names if name != old]
    group.net.split([old], others)
    lost = asyncio.create_task(put(group, "billing", vlsn + 1, old, at=first["at"]))
    await group.until(
        lambda: group.nodes[old].opened().log.view.history.small["consumer/billing"].vlsn > first["at"], "set"
    )
    assert held(group, old, "billing") in (None, vlsn), "what may be rolled back lets go of nothing"
    await group.until(lambda: any(group.nodes[name].member.is_master() for name in others), "another one leads")
    await group.until(lambda: not group.nodes[old].member.is_master(), "it has heard")
    group.net.heal()
    await group.serving()
    status, said = await lost
    assert status != 200, said
    after = await committed(group, "billing", vlsn + 1, at=first["at"])
    await everywhere(group, "billing", vlsn + 1)
    for name in group.nodes:
        assert (await get(group, "billing", name)) is not None
        assert group.nodes[name].opened().log.view.history.small["consumer/billing"].vlsn == after["at"]
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_master_that_was_unseated_refuses_no_position() -> None:
    """It does not have its successor's positions, so it does not report a worker with an older one as replaced."""
    group = await made(31)
    vlsn = await group.appended(b"entry")
    first = await committed(group, "billing", vlsn, at=0)
    old = group.master
    others = [name for name in group.names if name != old]
    group.net.split([old], others)
    successors = first["at"] + 1_000
    _, said = await put(group, "billing", vlsn + 1, old, at=successors)
    assert said["type"] in ("no-master", "outcome-unknown"), said
    group.net.heal()
    await group.stop()


@virtual
async def test_a_master_that_was_unseated_calls_no_position_past_its_end_a_mistake() -> None:
    """Its successor has the entries that were read; only a confirmed master refuses the same position for good."""
    group = await made(32)
    vlsn = await group.appended(b"entry")
    first = await committed(group, "billing", vlsn, at=0)
    status, said = await put(group, "billing", vlsn + 1_000, group.master, at=first["at"])
    assert (status, said["type"]) == (400, "bad-argument")
    old = group.master
    group.net.split([old], [name for name in group.names if name != old])
    _, said = await put(group, "billing", vlsn + 1_000, old, at=first["at"])
    assert said["type"] in ("no-master", "outcome-unknown"), said
    group.net.heal()
    await group.stop()


@virtual
async def test_positions_hold_cleaning_back_on_every_node_up_to_the_cap() -> None:
    group = await made(40, **CLEANS, retention_bytes=3 * (64 << 10), hold_bytes_max=20 * (64 << 10))
    vlsn = await group.appended(b"entry")
    await committed(group, "billing", vlsn, at=0)
    await committed(group, "elsewhere/billing", 5_000_000, at=0)
    for _ in range(120):
        await group.appended(BIG)
    await asyncio.sleep(3.0)
    for name, node in group.nodes.items():
        assert node.opened().log.view.range.first <= vlsn, name
        assert held(group, name, "billing") == vlsn
        assert held(group, name, "elsewhere/billing") is None
        held_first = (await status_of(group, name))["holds"][0]
        assert {"owner": "consumer", "name": "billing", "vlsn": vlsn}.items() <= held_first.items()
    last = await group.appended(b"last")
    await committed(group, "billing", last)
    await group.until(
        lambda: all(node.opened().log.view.range.first > vlsn for node in group.nodes.values()), "cleaned"
    )
    # A forgotten one is dropped past the cap, and reported by name.
    while any(node.opened().log.view.range.first <= last for node in group.nodes.values()):
        await group.appended(BIG)
    for node in group.nodes.values():
        assert node.member.events.counts["hold.dropped"] == 1
    status, said = await put(group, "billing", last)
    assert (status, said["type"]) == (410, "trimmed")
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_position_comes_with_a_restore() -> None:
    group = await made(60, **CLEANS, retention_bytes=3 * (64 << 10))
    said = await committed(group, "elsewhere/billing", 7, at=0, term=3)
    while any(node.opened().log.view.range.first <= said["at"] for node in group.nodes.values()):
        await group.appended(BIG)
    wiped = next(name for name in group.names if name != group.master)
    group.kill(wiped)
    group.machine(wiped)
    await group.start(wiped)
    await group.until(lambda: group.state(wiped) == "REPLICA", "it is restored and follows", limit_s=60.0)
    assert group.nodes[wiped].restoration.history
    await everywhere(group, "elsewhere/billing", 7)
    told = await get(group, "elsewhere/billing", wiped)
    assert told is not None
    assert told["at"] == said["at"]
    await committed(group, "elsewhere/billing", 8, at=said["at"])
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("power", [False, True])
@virtual
async def test_positions_are_there_after_all_nodes_were_killed_and_after_state_was_lost(power: bool) -> None:
    group = await made(50 + power, **CLEANS, retention_bytes=3 * (64 << 10))
    await committed(group, "gone", 1, at=0)
    assert (await call(group, "DELETE", "gone"))[0] == 200
    vlsn = await group.appended(b"entry")
    said = await committed(group, "elsewhere/billing", 7, at=0, term=3)
    while any(node.opened().log.view.range.first <= vlsn + 2 for node in group.nodes.values()):
        await group.appended(BIG)
    group.kill(*group.names, power=power)
    await group.start()
    await group.serving()
    await everywhere(group, "elsewhere/billing", 7)
    assert await get(group, "gone", group.master) is None
    crippled = next(name for name in group.names if name != group.master)
    lose_state(group, crippled)
    await group.start(crippled)
    await group.until(lambda: group.state(crippled) == "REPLICA", "it follows")
    await everywhere(group, "elsewhere/billing", 7)
    told = await get(group, "elsewhere/billing", crippled)
    assert told is not None
    assert (told["at"], told["term"], told["lag_vlsns"]) == (said["at"], 3, None)
    await group.stop()
    assert not group.fatal
