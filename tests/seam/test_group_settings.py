"""Settings of the group: logged by the master, the same on every node, rolled back with the log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fakes.loop import virtual
from tests.seam.nodes import JSON, Group
from tests.seam.test_group_level import all_told, at_level, made
from vlsn.levels import LEVELS
from vlsn.limits import PRODUCERS_AT_LEVEL_1, PRODUCERS_DEFAULT, PRODUCERS_MAX, PRODUCERS_MIN


async def asked(group: Group, body: Any, to: str = "") -> tuple[int, dict[str, Any]]:
    response = await group.client.request(
        "POST",
        f"{group.url(to or group.master)}/v1/admin/group/settings",
        headers=JSON,
        body=msgspec.json.encode(body),
        timeout_s=25.0,
    )
    return response.status, msgspec.json.decode(bytes(response.body))


def limits(group: Group) -> dict[str, int]:
    return {name: node.opened().log.view.history.producers.limit for name, node in group.nodes.items()}


async def shown(group: Group, path: str) -> dict[str, Any]:
    response = await group.client.request("GET", f"{group.url(group.master)}{path}", timeout_s=5.0)
    found: dict[str, Any] = msgspec.json.decode(bytes(response.body))
    return found


@virtual
async def test_a_setting_is_on_every_node_durable_when_it_is_answered_and_outlives_restarts() -> None:
    group = Group(301, levels=LEVELS)
    await group.start()
    await group.serving()
    assert set(limits(group).values()) == {PRODUCERS_DEFAULT}
    told = {"producers": 100, "durability": {"local": "sync", "replica": "sync"}}
    status, answer = await asked(group, {"producers": 100})
    assert (status, answer["settings"], answer["durable"]) == (200, told, True)
    log = group.nodes[group.master].opened().log
    assert log.view.dtvlsn >= answer["vlsn"]
    await group.until(lambda: set(limits(group).values()) == {100}, "all have it")
    replica = next(name for name in group.names if name != group.master)
    moved, _ = await asked(group, {"producers": 101}, to=replica)
    assert moved == 307
    for again in range(2):
        group.kill(*group.names, power=bool(again))
        await group.start()
        await group.serving()
        await group.until(lambda: set(limits(group).values()) == {100}, "all have it still")
    assert (await shown(group, "/v1/status"))["settings"] == told
    assert (await shown(group, "/v1/group"))["settings"] == told
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"colour": 1},
        {"producers": PRODUCERS_MIN - 1},
        {"producers": PRODUCERS_MAX + 1},
        {"producers": None},
        {"producers": "100"},
        {"level": 2, "producers": 100},
    ],
)
@virtual
async def test_what_is_no_setting_is_refused_with_nothing_logged(body: dict[str, Any]) -> None:
    group = Group(302, levels=LEVELS)
    await group.start()
    await group.serving()
    before = group.nodes[group.master].opened().log.view.allocated
    status, answer = await asked(group, body)
    assert (status, answer["type"]) == (400, "bad-body"), answer
    assert group.nodes[group.master].opened().log.view.allocated == before
    await group.stop()


@virtual
async def test_a_group_of_before_has_no_settings_until_its_level_is_raised() -> None:
    group = await made(303)
    assert set(limits(group).values()) == {PRODUCERS_AT_LEVEL_1}
    status, answer = await asked(group, {"producers": 100})
    assert (status, answer["type"]) == (400, "wrong-version"), answer
    assert "vlsnlog group upgrade" in answer["detail"]
    assert set(limits(group).values()) == {PRODUCERS_AT_LEVEL_1}
    await all_told(group)
    status, answer = await asked(group, {"level": 2})
    assert (status, answer["level"]) == (200, 2), answer
    await at_level(group, 2)
    assert set(limits(group).values()) == {PRODUCERS_DEFAULT}
    status, answer = await asked(group, {"producers": 100})
    assert status == 200, answer
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_setting_that_is_rolled_back_counts_no_more() -> None:
    group = Group(304, levels=LEVELS)
    await group.start()
    await group.serving()
    old = group.master
    group.net.split([old, "client"], [name for name in group.names if name != old])
    status, answer = await asked(group, {"producers": 100})
    assert (status, answer["type"]) in ((504, "outcome-unknown"), (503, "no-master")), answer
    log = group.nodes[old].opened().log
    assert log.view.history.producers.limit == 100, "it is in that log, and not durable"
    group.net.heal()
    await group.serving()
    await group.until(lambda: set(limits(group).values()) == {PRODUCERS_DEFAULT}, "it is taken back")
    await group.stop()
    assert not group.fatal
