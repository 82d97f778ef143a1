"""The status of a node: made once for all who ask at about the same time, and never older than it may be."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections import Counter
from collections.abc import Generator
from typing import Any

import msgspec
import pytest

from repl.node import metrics
from repl.node.gateway import Gateway
from repl.web.limits import DESTINATION_COST, TOLD_S
from repl.web.slices import at_once
from repl.web.types import Response
from tests.fakes.loop import run, virtual
from tests.repl.web.calls import JSON, OCTETS, call, json
from tests.repl.web.one_node import FIRST, OneNode, started
from tests.seam.nodes import Group
from vlsn.levels import LEVELS


def counted(node: OneNode) -> Counter[str]:
    """Counts how often each was made; metrics take three turns of the loop from now on."""
    monitoring, made = node.services.monitoring, Counter[str]()
    metrics_text, long_status = monitoring.metrics_text, monitoring.long_status

    def text() -> Generator[int, None, bytes]:
        made["metrics"] += 1
        found = at_once(metrics_text())
        for _ in range(3):
            yield 1 << 20
        return found

    def long() -> Generator[int, None, dict[str, Any]]:
        made["long"] += 1
        return long_status()

    monitoring.metrics_text, monitoring.long_status = text, long  # type: ignore[method-assign]
    return made


def tells(vlsn: int, response: Response) -> bool:
    return b"vlsnlog_durable_vlsn %d.0\n" % vlsn in response.body


@virtual
async def test_metrics_are_made_once_for_all_who_ask_at_about_the_same_time() -> None:
    node = await started()
    made, gateway = counted(node), Gateway(node.services)
    answers = await asyncio.gather(*(call(gateway, "GET", "/metrics") for _ in range(400)))
    await node.append(b"a")
    answers.append(await call(gateway, "GET", "/metrics"))
    assert made["metrics"] == 1
    assert {bytes(each.body) for each in answers} == {bytes(answers[0].body)}
    await asyncio.sleep(TOLD_S)
    assert tells(FIRST, await call(gateway, "GET", "/metrics"))
    assert made["metrics"] == 2


@virtual
async def test_what_is_long_in_a_status_is_made_once_and_the_rest_is_as_it_is_now() -> None:
    node = await started()
    made, gateway = counted(node), Gateway(node.services)
    for durable in range(FIRST, FIRST + 10):
        await node.append(b"a")
        assert json(await call(gateway, "GET", "/v1/status"))["dtvlsn"] == durable
    assert made["long"] == 1
    await asyncio.sleep(TOLD_S)
    await call(gateway, "GET", "/v1/status")
    assert made["long"] == 2


@virtual
async def test_what_is_long_is_made_in_small_steps_and_shared_with_the_overview() -> None:
    node = await started()
    gateway, names = Gateway(node.services), 40
    for number in range(names):
        put = await call(gateway, "PUT", f"/v1/destinations/d{number}", JSON, b'{"prefix":"%d-"}' % number)
        assert put.status < 300
    monitoring = node.services.monitoring
    make, made = monitoring.long_status, 0
    assert sum(step == DESTINATION_COST for step in make()) == names

    def first() -> Generator[int, None, dict[str, Any]]:
        nonlocal made
        made += 1
        said = yield from make()
        return {**said, "destinations": said["destinations"][:1]}

    monitoring.long_status = first  # type: ignore[method-assign]
    status, shown = [json(await call(gateway, "GET", path)) for path in ("/v1/status", "/v1/overview")]
    assert shown["lists_of"] == status["node"] and shown["destinations"] == status["destinations"]
    assert len(shown["destinations"]) == 1 and made == 1


@virtual
async def test_what_a_call_has_changed_is_told_to_whoever_asks_after_it() -> None:
    node = await started()
    made, gateway = counted(node), Gateway(node.services)
    for number in range(5):
        assert len(json(await call(gateway, "GET", "/v1/status"))["consumers"]) == number
        await call(gateway, "GET", "/metrics")
        await call(gateway, "PUT", f"/v1/consumers/c{number}", JSON, b'{"next":2}')
    assert made == {"long": 5, "metrics": 5}
    for _ in range(5):  # appends are too many for that
        await call(gateway, "POST", "/v1/entries", OCTETS, b"v")
        await call(gateway, "GET", "/metrics")
    assert made["metrics"] == 6


@virtual
async def test_metrics_that_are_being_made_as_something_changes_are_made_again_for_who_asks_then() -> None:
    node = await started()
    made, gateway = counted(node), Gateway(node.services)
    first = asyncio.create_task(call(gateway, "GET", "/metrics"))
    await asyncio.sleep(0)
    assert made["metrics"] == 1 and not first.done()
    gateway._status.changed()
    later = asyncio.create_task(call(gateway, "GET", "/metrics"))
    assert (await first).status == (await later).status == 200
    assert made["metrics"] == 2


@virtual
async def test_who_leaves_while_metrics_are_made_keeps_nobody_from_them() -> None:
    node = await started()
    counted(node)
    gateway = Gateway(node.services)
    tasks = [asyncio.create_task(call(gateway, "GET", "/metrics")) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    await asyncio.wait(tasks, timeout=5.0)
    assert [task.cancelled() for task in tasks] == [True, False, True, False]
    assert tells(FIRST - 1, tasks[3].result())


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


async def test_the_page_runs_its_own_script_alone() -> None:
    answer = await call(Gateway((await started()).services), "GET", "/")
    policy = answer.headers["Content-Security-Policy"]
    assert "unsafe" not in policy and "default-src 'none'" in policy
    for tag in ("script", "style"):
        [inside] = re.findall(rf"<{tag}>(.*?)</{tag}>", bytes(answer.body).decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
