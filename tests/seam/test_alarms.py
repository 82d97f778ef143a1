"""Alarms: every node reports a condition on one node that needs an operator, for as long as it lasts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from repl.cdc_settings import cdc_settings
from repl.cli.status import alarms
from repl.events import level_of
from tests.fakes.loop import virtual
from tests.seam.nodes import Group
from tests.seam.test_cdc import one, started
from tests.seam.test_destinations import client, made, policed
from vlsn.errors import VlsnLogError


async def status(group: Group, node: str) -> dict[str, Any]:
    answer = await group.client.request("GET", f"{group.url(node)}/v1/status", timeout_s=30.0)
    return dict(msgspec.json.decode(bytes(answer.body)))


async def until_all_tell(group: Group, wanted: list[tuple[str, str, str]]) -> list[dict[str, Any]]:
    """Waits until every node reports these alarms, and no others; returns those of the first node."""

    async def told(node: str) -> list[dict[str, Any]]:
        return list((await status(group, node))["alarms"])

    deadline = group.loop.time() + 30.0
    while True:
        found = {node: await told(node) for node in group.nodes}
        if all([(each["node"], each["kind"], each["name"]) for each in said] == wanted for said in found.values()):
            return found[next(iter(group.nodes))]
        assert group.loop.time() < deadline, found
        await _soon()


async def _soon() -> None:
    await asyncio.sleep(0.1)


async def metrics(group: Group, node: str) -> str:
    answer = await group.client.request("GET", f"{group.url(node)}/metrics", timeout_s=30.0)
    return bytes(answer.body).decode()


@virtual
async def test_a_parked_consumer_is_an_alarm_of_every_node_until_it_goes_on() -> None:
    group = await started(41, one(retries_max=0))
    node = next(name for name in group.names if name != group.master)
    sink = group.sinks["orders", node]
    sink.bad = b"bad"
    await group.appended(b"bad")
    reason = (await group.state(node, "parked"))["reason"]
    [alarm] = await until_all_tell(group, [(node, "cdc-parked", "orders")])
    assert alarm["what"] == "consumer orders is parked"
    why = alarm["why"]
    assert alarm["command"] == f"vlsnlog cdc resume orders --url {group.url(node)}"
    assert why.startswith("it failed 1 times") and f"`vlsnlog cdc resume orders --url {group.url(node)}`" in why
    assert why.replace(f" --url {group.url(node)}", "") == reason
    for name in group.names:
        assert f'vlsnlog_alarms{{kind="cdc-parked",node="{node}"}} 1.0' in await metrics(group, name)
    others = [await status(group, name) for name in group.names if name != node]
    silent = {"node": node, "state": "UNREACHABLE"}
    assert alarms([*others, silent]) == [f"{node}: consumer orders is parked: {why}"]
    assert alarms([await status(group, name) for name in group.names]) == alarms([*others, silent])
    sink.bad = None
    assert (await group.cdc(node, "/orders/resume"))[0] == 200
    assert await until_all_tell(group, []) == []
    await group.stop()


@virtual
async def test_a_node_that_is_gone_has_no_alarm_but_its_silence() -> None:
    group = await started(42, one(retries_max=0))
    node = next(name for name in group.names if name != group.master)
    group.sinks["orders", node].bad = b"bad"
    await group.appended(b"bad")
    await until_all_tell(group, [(node, "cdc-parked", "orders")])
    group.kill(node)
    await until_all_tell(group, [])
    await group.stop()


@pytest.mark.parametrize("policy", ["drop", "fail", "block"])
@virtual
async def test_a_full_destination_is_an_alarm_of_every_node_until_there_is_room(policy: str) -> None:
    group = await made(43)
    master = group.master
    async with client(group, 5.0) as log:
        await policed(group, log, policy, max_messages=3)
        await log.append_many([b"a", b"b", b"c"], keys=[b"o1", b"o2", b"o3"])
        assert await until_all_tell(group, []) == [], "at its limit, and nobody has met that"
        assert (await log.destinations.get("orders"))["full"] is None
        with suppress(VlsnLogError):
            await log.append(b"d", key=b"o4")
        said = {"drop": "dropped", "fail": "refused", "block": "wait"}[policy]
        [alarm] = await until_all_tell(group, [(master, "destination-full", "orders")])
        assert alarm["what"].startswith("destination orders is full: ") and said in alarm["what"]
        assert alarm["why"] == "3 messages"
        assert alarm["command"] == f"vlsnlog dest show orders --url {group.url(master)}"
        full = (await log.destinations.get("orders"))["full"]
        assert (full["policy"], full["why"]) == (policy, "3 messages")
        assert 'vlsnlog_destination_full{destination="orders"} 1.0' in await metrics(group, master)
        events = group.nodes[master].member.events.since(1, 1000)["events"]
        [event] = [each for each in events if each["event"] == "destination.full"]
        assert (event["level"], event["policy"], event["why"]) == ("warning", policy, "3 messages")
        await _soon()
        dest = log.destination("orders")
        for message in await dest.take(10, 0.0):
            await message.ack()
        await until_all_tell(group, [])
        assert 'vlsnlog_destination_full{destination="orders"} 0.0' in await metrics(group, master)
    await group.stop()


@virtual
async def test_one_that_is_emptied_message_by_message_is_full_once() -> None:
    group = await made(44)
    async with client(group) as log:
        await policed(group, log, "drop", max_messages=1)
        dest, master = log.destination("orders"), group.nodes[group.master]
        for number in range(20):
            await log.append(b"%d taken" % number, key=b"o")
            await log.append(b"%d dropped" % number, key=b"o")
            [message] = await dest.take(10, 0.0)
            await message.ack()
            assert [each.kind for each in master.member.alarms()] == ["destination-full"]
        assert master.member.events.counts["destination.full"] == 1
        assert (await log.destinations.get("orders"))["refused"]["dropped"] == 20
    await group.stop()


@virtual
async def test_a_node_tells_no_more_alarms_than_its_limit() -> None:
    cdc = cdc_settings(
        [{"name": f"c{number:02}", "consumer": "test:c", "retries_max": 0} for number in range(40)],
        lambda text, place: int(text),
    )
    group = await started(45, cdc, size=1)
    for each in cdc:
        group.sinks[each.name, "n1"].bad = b"bad"
    await group.appended(b"bad")
    for each in cdc:
        await group.state("n1", "parked", each.name)
    found = (await status(group, "n1"))["alarms"]
    assert len(found) == 32 and (found[-1]["kind"], found[-1]["what"]) == ("more", "9 more")
    await group.stop()


def test_it_is_logged_as_a_warning() -> None:
    assert level_of("destination.full", {}) == logging.WARNING
