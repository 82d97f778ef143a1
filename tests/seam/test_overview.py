"""The overview: any node shows all members, asks each at most twice a second, and waits for none long."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from repl.group.claims import Claim
from repl.node import overview
from repl.node.gateway import Gateway
from repl.web.types import BytesBody, Headers, Network, Request, Response
from tests.fakes.loop import virtual
from tests.repl.web import one_node
from tests.seam.nodes import Group
from tests.seam.test_auth import started
from tests.seam.test_destinations import client
from tests.seam.test_membership import changed
from vlsn.ids import Incarnation, NodeName, Term


async def of(group: Group, name: str) -> dict[str, Any]:
    answer = await group.client.request("GET", f"{group.url(name)}/v1/overview", timeout_s=30.0)
    assert answer.status == 200, bytes(answer.body)
    return dict(msgspec.json.decode(bytes(answer.body)))


def rows(told: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in told["members"]}


def counting(group: Group) -> list[str]:
    """Returns a list that grows by the URL of each call for a status between members."""
    calls: list[str] = []
    for node in group.nodes.values():
        network: Network = node.member.calls._network

        async def counted(method: str, url: str, *, request: Any = network.request, **settings: Any) -> Response:
            if overview.PEER_PATH in url:
                calls.append(url)
            answer: Response = await request(method, url, **settings)
            return answer

        network.request = counted  # type: ignore[method-assign]
    return calls


@virtual
async def test_each_node_shows_all_members_and_the_masters_lists() -> None:
    group = await started(601)
    await group.appended(b"one")
    async with client(group) as log:
        await log.destinations.put("orders", prefix="o", from_="start")
        for name in group.names:
            told = await of(group, name)
            assert (told["asked"], told["leader"], told["lists_of"]) == (name, group.master, group.master)
            assert [each["name"] for each in told["members"]] == group.names
            assert told["stood_still"] is None, "the group was founded, and has lost no master"
            for each in told["members"]:
                assert each["error"] is None and each["age_ms"] >= 0
                status = each["status"]
                assert (status["node"], status["url"]) == (each["name"], each["url"])
                assert status["state"] == ("MASTER" if each["name"] == group.master else "REPLICA")
                assert status["cdc"] == [] and "destinations" not in status and "consumers" not in status
                assert {"node", "number", "level", "event"} - {"node"} <= status["events"][0].keys()
            [destination] = told["destinations"]
            assert destination["name"] == "orders" and "out" in destination, "the master alone has this field"
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_silent_member_keeps_its_entry_and_delays_nobody_long() -> None:
    group = await started(602)
    other = next(name for name in group.names if name != group.master)
    group.net.split([other], [name for name in group.names if name != other])
    began = group.loop.time()
    told = await of(group, group.master)
    assert group.loop.time() - began <= overview.MEMBER_S + 0.5
    row = rows(told)[other]
    assert row["status"] is None and row["age_ms"] is None and row["url"] == group.url(other)
    assert row["error"]["type"] == "unreachable"
    assert sum(each["status"] is not None for each in told["members"]) == 2
    alone = await of(group, other)
    assert rows(alone)[other]["status"]["node"] == other
    assert [each["status"] for each in alone["members"] if each["name"] != other] == [None, None]
    assert alone["leader"] is None and alone["lists_of"] == other
    group.net.heal()
    await group.stop()


@virtual
async def test_many_pages_share_one_gathering_and_a_page_that_leaves_ends_nobodys() -> None:
    group = await started(603)
    calls = counting(group)
    asking = [asyncio.create_task(of(group, "n2")) for _ in range(50)]
    await asyncio.sleep(0.002)
    asking[0].cancel()
    told = await asyncio.gather(*asking, return_exceptions=True)
    assert isinstance(told[0], asyncio.CancelledError)
    assert all(isinstance(each, dict) for each in told[1:])
    assert len(calls) == 2, calls
    await asyncio.sleep(overview.OVERVIEW_S + 0.1)
    await of(group, "n2")
    assert len(calls) == 4
    await asyncio.sleep(5.0)
    assert len(calls) == 4, "nobody asks"
    await group.stop()


@virtual
async def test_a_node_makes_its_answer_once_for_all_that_gather() -> None:
    group = await started(608)
    made = group.nodes[group.master].services.overview
    make, count = made._made, 0

    def counted(long: Mapping[str, Any]) -> bytes:
        nonlocal count
        count += 1
        return make(long)

    made._made = counted  # type: ignore[method-assign]
    await asyncio.gather(*(of(group, name) for name in group.names))
    assert count == 1
    await group.appended(b"later")
    await asyncio.sleep(overview.OVERVIEW_S)
    told = rows(await of(group, "n2"))[group.master]["status"]
    assert count == 2 and told["dtvlsn"] == group.nodes[group.master].dtvlsn()
    await group.stop()


def _garbage(body: bytes) -> bytes:
    return b'{"status":[1]}'


def _huge(body: bytes) -> bytes:
    return body + b" " * overview.STATUS_BYTES_MAX


def _another(body: bytes) -> bytes:
    return body.replace(b'"node":"n3"', b'"node":"n9"')


@pytest.mark.parametrize(("change", "type"), [(_garbage, "bad-body"), (_huge, "too-large"), (_another, "wrong-name")])
@virtual
async def test_an_answer_that_is_no_status_of_the_member_is_an_error(change: Any, type: str) -> None:
    group = await started(604)
    node = group.nodes["n3"]
    own = node.services.overview._own

    async def changed_own() -> bytes:
        return bytes(change(await own()))

    node.services.overview._own = changed_own  # type: ignore[method-assign]
    row = rows(await of(group, "n1"))["n3"]
    assert row["status"] is None and row["error"]["type"] == type, row["error"]
    await group.stop()


@virtual
async def test_an_older_member_says_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    group = await started(605)
    monkeypatch.setattr(overview, "PEER_PATH", "/v1/peer/of-a-later-version")
    told = await of(group, "n1")
    assert [each["error"] and each["error"]["type"] for each in told["members"]] == [None, "not-found", "not-found"]
    await group.stop()


@virtual
async def test_a_new_master_says_how_long_appends_stood_still() -> None:
    group = await started(606)
    former = group.master
    await group.appended(b"before")
    lost = group.loop.time()
    group.kill(former)
    await group.until(lambda: group.master != former and group.nodes[group.master].member.is_master(), "another leads")
    await group.serving()
    served = group.loop.time()
    still = (await of(group, next(name for name in group.nodes if name != group.master)))["stood_still"]
    term = group.nodes[group.master].opened().log.node_file.record.term
    assert (still["term"], still["former"]) == (term, former)
    heartbeat = group.nodes[group.master].member.config.heartbeat_s
    assert still["seconds"] == pytest.approx(served - lost, abs=heartbeat + 0.3)
    await group.appended(b"later")
    await asyncio.sleep(2 * overview.OVERVIEW_S)
    assert (await of(group, group.master))["stood_still"] == still, "the pause ended with the first entry"
    answer = await group.client.request("GET", f"{group.url(group.master)}/metrics", timeout_s=5.0)
    assert b"vlsnlog_stood_still_seconds" in bytes(answer.body)
    await group.stop()


@virtual
async def test_a_master_that_leads_again_was_the_former_one_itself() -> None:
    group = Group(609, 1)
    await group.start()
    await group.serving()
    node = group.nodes["n1"]
    lead = node.leading
    assert lead is not None
    lead.electing.saw(Claim(NodeName("n1"), Incarnation(node.member.incarnation), Term(lead.term + 1)))
    await group.until(lambda: node.leading is not lead and node.member.is_master(), "it leads again")
    await group.serving()
    still = (await of(group, "n1"))["stood_still"]
    assert still["former"] == "n1" and still["term"] > lead.term and 0.0 < still["seconds"] < 30.0
    await group.stop()


@virtual
async def test_a_node_answers_members_that_ask_it_by_its_name() -> None:
    group = Group(610)
    await group.start()
    await group.serving()
    right = {"group": "sim", "sender": "n2", "to": "n1"}
    for change, status in (({}, 200), ({"group": "x"}, 409), ({"sender": "n9"}, 409), ({"to": "n2"}, 409)):
        target = f"{group.url('n1')}{overview.PEER_PATH}?{urlencode(right | change)}"
        assert (await group.client.request("GET", target, timeout_s=5.0)).status == status, change
    await group.stop()


async def test_under_tls_a_member_asks_in_its_own_name() -> None:
    gateway = Gateway((await one_node.started()).services)
    target = f"{overview.PEER_PATH}?group=sim&sender=n2&to=n1"
    for members, forbidden in ((None, False), (frozenset({"n2"}), False), (frozenset({"n3"}), True)):
        request = Request("GET", target, Headers(), BytesBody(b""), "n9", members=members)
        answer = await gateway.handle(request)
        assert isinstance(answer, Response) and (answer.status == 403) is forbidden, members


@virtual
async def test_a_removed_node_still_shows_itself() -> None:
    group = await started(607)
    other = next(name for name in group.names if name != group.master)
    await changed(group, change="remove", name=other)
    await group.until(lambda: NodeName(other) not in group.nodes[group.master].member.members.listed, "it is removed")
    await asyncio.sleep(1.0)
    assert rows(await of(group, other))[other]["status"]["node"] == other
    assert other not in rows(await of(group, group.master))
    await group.stop()
