"""The metrics of a node: readers that it has cut off, refused calls, and what it knows of its group."""

from __future__ import annotations

import asyncio

import msgspec

from repl.web.slices import at_once
from tests.fakes.loop import virtual
from tests.fakes.net import FakeListener
from tests.seam.nodes import JSON, Group
from vlsn.levels import LEVELS


@virtual
async def test_who_was_given_up_is_counted() -> None:
    group = Group(1, 1)
    await group.start()
    await group.serving()
    node = group.nodes["n1"]
    assert isinstance(node.listener, FakeListener)
    assert "vlsnlog_readers_given_up_total 0.0" in at_once(node.services.monitoring.metrics_text()).decode()
    node.listener.given_up, node.listener.untaken_bytes = 3, 70
    said = at_once(node.services.monitoring.metrics_text()).decode()
    assert "vlsnlog_readers_given_up_total 3.0" in said
    assert "vlsnlog_untaken_bytes 70.0" in said
    assert "vlsnlog_handed_bytes 0.0" in said and "vlsnlog_workers_given_up_total 0.0" in said
    assert node.handed is not None
    node.handed.bytes, node.handed.given_up = 80, 4
    said = at_once(node.services.monitoring.metrics_text()).decode()
    assert "vlsnlog_handed_bytes 80.0" in said and "vlsnlog_workers_given_up_total 4.0" in said
    await group.stop()


def value(group: Group, node: str, sample: str) -> float:
    """Returns the value of a sample in the node's metrics."""
    said = at_once(group.nodes[node].services.monitoring.metrics_text()).decode()
    [line] = [line for line in said.splitlines() if line.rpartition(" ")[0] == sample]
    return float(line.rpartition(" ")[2])


@virtual
async def test_refused_calls_are_counted_by_their_type() -> None:
    group = Group(1, 1)
    await group.start()
    await group.serving()
    url = group.url("n1")
    headers = {"Content-Type": "application/octet-stream"}
    calls = [
        ("GET", "/v1/entries/9999", b"", "not-yet"),
        ("POST", "/v1/entries?acks=all", b"x" * (2 << 20), "too-large"),
        ("POST", "/v1/entries?acks=nobody", b"x", "bad-argument"),
        ("GET", "/v1/nothing", b"", "not-found"),
    ]
    for method, path, body, type in calls:
        sample = f'vlsnlog_refused_calls_total{{type="{type}"}}'
        assert value(group, "n1", sample) == 0
        answer = await group.client.request(method, url + path, headers=headers, body=body, timeout_s=30.0)
        assert answer.status >= 400
        assert value(group, "n1", sample) == 1
    answer = await group.client.request("POST", f"{url}/v1/peer/hello", headers=JSON, body=b"{", timeout_s=30.0)
    type = msgspec.json.decode(bytes(answer.body))["type"]
    assert type == "bad-body"
    assert value(group, "n1", f'vlsnlog_refused_calls_total{{type="{type}"}}') == 0, "a call between members"
    await group.stop()


@virtual
async def test_a_members_silence_and_a_missing_master_show() -> None:
    group = Group(1, 3, levels=LEVELS)
    await group.start()
    await group.serving()
    master = group.master
    assert [value(group, name, "vlsnlog_knows_master") for name in group.names] == [1, 1, 1]
    assert [value(group, name, "vlsnlog_level_max") for name in group.names] == [5, 5, 5]
    assert [value(group, name, "vlsnlog_keys_accepted") for name in group.names] == [1, 1, 1]
    other, left = [name for name in group.names if name != master]
    assert value(group, other, f'vlsnlog_member_silent{{member="{left}"}}') == 0
    group.kill(master, left)
    await asyncio.sleep(30.0)
    assert value(group, other, f'vlsnlog_member_silent{{member="{left}"}}') == 1
    assert value(group, other, "vlsnlog_knows_master") == 0
    await group.stop()
