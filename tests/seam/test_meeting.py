"""Members whose lists differ, and that are a majority only together: the newer list is used."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from repl.group.claims import TERMS_AHEAD_MAX
from repl.web.types import Request, Response
from tests.fakes.loop import virtual
from tests.seam.nodes import JSON, Group
from tests.seam.test_membership import changed, electable, fed, has_all, told
from vlsn.format.feed_messages import STORED_TERM_MAX
from vlsn.state.node_file import NodeRecord


async def grown(group: Group) -> tuple[str, str, str, dict[int, bytes]]:
    """Three nodes; n4 came and another one went while one was away. Names: the absent, the removed, the master."""
    await group.start()
    await group.serving()
    await fed(group, 2)
    entries = await told(group, 3)
    master = group.master
    away, gone = [name for name in group.names if name != master]
    group.kill(away)
    group.machine("n4")
    await group.start("n4")
    await changed(group, change="add", name="n4", url=group.url("n4"))
    await electable(group, "n4")
    await changed(group, change="remove", name=gone)
    entries |= await told(group, 3, "later ")
    await has_all(group, entries, master, "n4")
    return away, gone, master, entries


@pytest.mark.parametrize("gone_is_up", [False, True], ids=["gone", "still up"])
@pytest.mark.parametrize("ahead", [0, 100])
@virtual
async def test_two_who_are_a_majority_of_the_newest_list_elect_a_master(gone_is_up: bool, ahead: int) -> None:
    """The group of n1, n2 and n3 changes: n2 is away, n4 joins, n3 leaves, n1 dies. Two of {n1, n2, n4} are a majority:
    n2 and n4, and n2 does not know n4."""
    group = Group(431)
    away, gone, master, entries = await grown(group)
    if not gone_is_up:
        group.kill(gone)
    if ahead:
        record = group.nodes["n4"].opened().log.node_file
        record.replace(raised(record.record, ahead))
    group.kill(master, "n4")
    await group.start("n4", away)
    names = {away, "n4"}
    await group.until(lambda: sorted(group.state(name) for name in names) == ["MASTER", "REPLICA"], "both meet", 90)
    entries |= await told(group, 2, "last ")
    await has_all(group, entries, *names)
    await group.stop()
    assert not group.fatal


def raised(record: NodeRecord, ahead: int) -> NodeRecord:
    return replace(record, term=record.term + ahead, voted_for="", vote_term=0)


@virtual
async def test_who_is_listed_in_no_newer_list_is_not_heard() -> None:
    """A newer list is one past the end of this log; anywhere else it was rolled back."""
    group = Group(432)
    await group.start()
    await group.serving()
    await fed(group, 2)
    last = group.nodes["n2"].opened().log.view.range.last
    asked = {
        "group": "sim",
        "sender": "n9",
        "to": "n2",
        "incarnation": "0" * 15 + "9",
        "process": "0" * 15 + "9",
        "purpose": "discovery",
        "url": "http://n9:7701",
    }
    for at, status in (
        ({}, 403),
        ({"group_term": 1, "group_vlsn": last}, 403),
        ({"group_term": 9, "group_vlsn": 99}, 200),
    ):
        response = await group.client.request(
            "POST",
            f"{group.url('n2')}/v1/peer/hello",
            headers=JSON,
            body=msgspec.json.encode({**asked, **at}),
            timeout_s=5.0,
        )
        assert response.status == status, at
    assert "n9" not in group.nodes["n2"].member.members.urls  # nobody is asked there while a majority of its own is
    await group.stop()
    assert not group.fatal


@virtual
async def test_who_has_only_its_own_word_raises_terms_by_a_few_and_is_no_old_members_master() -> None:
    """A lone node asks any node that claims to be in a newer list, and such a claim may be false."""
    group = Group(433)
    await group.start()
    await group.serving()
    await fed(group, 2)
    group.kill("n1", "n3")
    node = group.nodes["n2"]
    await group.until(node.member.members.are_too_few, "nobody else is there", 60)
    before = node.opened().log.node_file.record.term
    stranger = {"sender": "n9", "incarnation": "0" * 15 + "9", "process": "0" * 15 + "9"}
    said = {
        "group": "sim",
        "name": "n9",
        "incarnation": stranger["incarnation"],
        "process": stranger["process"],
        "term": STORED_TERM_MAX,
        "empty": False,
        "last_term": 1 << 62,
        "last": 1 << 62,
        "state": "MASTER",
        "members": {"n8": "http://n8:7701"},
        "master": "n8",
        "master_url": "http://n8:7701",
    }

    async def answers(request: Request) -> Response:
        return Response(200, JSON, msgspec.json.encode(said))

    host = group.net.host("n9")
    await host.serve("n9", 7701, answers)
    hello = {"purpose": "discovery", "url": "http://n9:7701", "group_term": 1 << 62, "group_vlsn": 1 << 62}
    vote = {"term": STORED_TERM_MAX, "pre": False, "last_term": 1 << 62, "last_vlsn": 1 << 62, "transfer": True}
    for path, body in (("hello", hello), ("vote", vote)):
        response = await host.request(
            "POST",
            f"{group.url('n2')}/v1/peer/{path}",
            headers=JSON,
            body=msgspec.json.encode({"group": "sim", "to": "n2", **stranger, **body}),
            timeout_s=5.0,
        )
        assert response.status == 200 and not msgspec.json.decode(bytes(response.body)).get("granted")
    await asyncio.sleep(10.0)  # virtual: it looks for a master all the while
    assert node.opened().log.node_file.record.term == before + TERMS_AHEAD_MAX  # of the one vote that it asked for
    assert "n8" not in node.member.members.urls
    await group.start("n1", "n3")
    await group.until(lambda: sorted(group.state(name) for name in group.names)[0] == "MASTER", "they meet", 60)
    assert (await group.appended(b"again")) > 0
    await group.stop()
    assert not group.fatal
