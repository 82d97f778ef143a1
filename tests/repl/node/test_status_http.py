"""The status of a node: made once for all who ask at about the same time, and never older than it may be."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from repl.node import metrics
from repl.node.gateway import Gateway
from repl.web.limits import TOLD_S
from repl.web.slices import at_once
from tests.fakes.loop import run, virtual
from tests.repl.web.calls import JSON, OCTETS, call, json
from tests.repl.web.memory_node import MemoryNode
from tests.seam.nodes import Group
from vlsn.levels import LEVELS


@virtual
async def test_metrics_are_made_once_for_all_who_ask_at_about_the_same_time() -> None:
    node = MemoryNode()
    gateway = Gateway(node.services)
    answers = await asyncio.gather(*(call(gateway, "GET", "/metrics") for _ in range(400)))
    node.append(b"a")
    answers.append(await call(gateway, "GET", "/metrics"))
    assert node.metrics_texts == 1
    assert {bytes(each.body) for each in answers} == {bytes(answers[0].body)}
    await asyncio.sleep(TOLD_S)
    assert b"vlsnlog_last_vlsn 2\n" in (await call(gateway, "GET", "/metrics")).body
    assert node.metrics_texts == 2


@virtual
async def test_what_is_long_in_a_status_is_made_once_and_the_rest_is_as_it_is_now() -> None:
    node = MemoryNode()
    gateway = Gateway(node.services)
    for durable in range(2, 50):
        node.append(b"a")
        assert json(await call(gateway, "GET", "/v1/status"))["dtvlsn"] == durable
    node.leads = False
    assert json(await call(gateway, "GET", "/v1/status"))["state"] == "REPLICA"
    assert node.long_statuses == 1
    await asyncio.sleep(TOLD_S)
    await call(gateway, "GET", "/v1/status")
    assert node.long_statuses == 2


@virtual
async def test_what_a_call_has_changed_is_told_to_whoever_asks_after_it() -> None:
    node = MemoryNode()
    gateway = Gateway(node.services)
    for number in range(5):
        assert len(json(await call(gateway, "GET", "/v1/status"))["consumers"]) == number
        await call(gateway, "GET", "/metrics")
        await call(gateway, "PUT", f"/v1/consumers/c{number}", JSON, b'{"next":2}')
    assert (node.long_statuses, node.metrics_texts) == (5, 5)
    for _ in range(5):  # appends are too many for that
        await call(gateway, "POST", "/v1/entries", OCTETS, b"v")
        await call(gateway, "GET", "/metrics")
    assert node.metrics_texts == 6


@virtual
async def test_metrics_that_are_being_made_as_something_changes_are_made_again_for_who_asks_then() -> None:
    node = MemoryNode()
    gateway = Gateway(node.services)
    first = asyncio.create_task(call(gateway, "GET", "/metrics"))
    await asyncio.sleep(0)
    assert node.metrics_texts == 1 and not first.done()
    node.append(b"a")
    await call(gateway, "PUT", "/v1/consumers/c", JSON, b'{"next":2}')
    later = await call(gateway, "GET", "/metrics")
    assert b"vlsnlog_last_vlsn 2\n" in later.body
    assert (await first).status == 200


@virtual
async def test_who_leaves_while_metrics_are_made_keeps_nobody_from_them() -> None:
    gateway = Gateway(MemoryNode().services)
    tasks = [asyncio.create_task(call(gateway, "GET", "/metrics")) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.wait(tasks, timeout=5.0)
    assert [task.cancelled() for task in tasks] == [True, False, True, False]
    assert b"vlsnlog_last_vlsn 1\n" in tasks[3].result().body


def test_a_node_tells_its_metrics_once_in_a_while_and_where_it_is_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def told(group: Group, name: str, path: str) -> bytes:
        return bytes((await group.client.request("GET", f"{group.url(name)}{path}", timeout_s=5.0)).body)

    async def main() -> None:
        group = Group(1, 1, levels=LEVELS)
        await group.start()
        await group.serving()
        before = await told(group, "n1", "/metrics")
        await group.append(b"a")
        assert await told(group, "n1", "/metrics") == before
        status: dict[str, Any] = msgspec.json.decode(await told(group, "n1", "/v1/status"))
        assert status["range"]["last"] == status["dtvlsn"] > 0
        await asyncio.sleep(TOLD_S)
        after = await told(group, "n1", "/metrics")
        assert f"vlsnlog_durable_vlsn {status['dtvlsn']}.0\n".encode() in after
        monitoring = group.nodes["n1"].services.monitoring
        assert sorted(status) == sorted(monitoring.status())
        monkeypatch.setattr(metrics, "SAMPLES_A_STEP", 1)
        assert sum(1 for _ in monitoring.metrics_text()) > 60
        assert [line for line in at_once(monitoring.metrics_text()).splitlines() if line.startswith(b"# ")] == [
            line for line in after.splitlines() if line.startswith(b"# ")
        ]
        await group.stop()

    run(main())
