"""A GROUP entry that was cleaned, and lost with `state`: the node fetches it, and reports the reason while it waits."""

from __future__ import annotations

import msgspec
import pytest

from repl.group.founding import DISCOVERY, Question, read_answer
from tests.fakes.loop import virtual
from tests.seam.nodes import BIG, CLEANS, JSON, SEGMENT, Group
from tests.seam.test_membership import fed, ordered, told
from vlsn.format.feed_messages import FEED_BYTES
from vlsn.format.segment import segment_name


async def cleaned(seed: int) -> Group:
    """Makes three nodes whose logs begin after their GROUP entry."""
    group = Group(seed, **CLEANS, retention_bytes=3 * SEGMENT)
    await group.start()
    await group.serving()
    await fed(group, 2)
    while any(node.opened().log.view.range.first <= 2 for node in group.nodes.values()):
        await group.appended(BIG)

    def gone() -> bool:
        return not any(group.machines[name].disk.exists(f"/{name}/{segment_name(1)}") for name in group.names)

    await group.until(gone, "the segment with that entry is gone everywhere")
    return group


def lose_state(group: Group, name: str) -> None:
    group.kill(name)
    del group.machines[name].stores.contents[f"/{name}/state"]


def lists(group: Group, name: str) -> dict[str, str]:
    found = group.nodes[name].opened().log.view.history.group
    return {member.name: member.incarnation for member in found.members} if found is not None else {}


@pytest.mark.parametrize("seed", [1, 2, 3])
@virtual
async def test_a_lost_group_is_fetched_and_a_restore_hands_none_on(seed: int) -> None:
    group = await cleaned(seed)
    crippled, restored = (name for name in group.names if name != group.master)
    lose_state(group, crippled)
    await group.start(crippled)
    await group.until(lambda: group.state(crippled) == "REPLICA", "it follows")
    node = group.nodes[restored]
    answer = await group.client.request("POST", f"{group.url(restored)}/v1/admin/restore", timeout_s=5.0)
    assert answer.status == 200
    await group.until(lambda: node.restoration.count == 1 and node.state == "REPLICA", "the other one is restored")
    last = max(await told(group, 2))
    await group.until(lambda: all(node.dtvlsn() >= last for node in group.nodes.values()), "all have all")
    for name in (crippled, restored):
        await group.until(lambda name=name: lists(group, name) == lists(group, group.master), f"{name} knows it")  # type: ignore[misc]
        assert group.nodes[name].services.monitoring.readiness() == []
    assert group.nodes[crippled].member.events.counts["group.found"] == 1, "an answer to a hello had it"
    group.kill(group.master)
    await group.until(lambda: any(node.member.is_master() for node in group.nodes.values()), "one of them leads")
    await told(group, 3)
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("seed", [4, 5])
@virtual
async def test_two_that_have_lost_their_group_elect_once_the_third_has_told_it(seed: int) -> None:
    group = await cleaned(seed)
    whole = group.master
    crippled = [name for name in group.names if name != whole]
    for name in crippled:
        lose_state(group, name)
    group.kill(whole)
    await group.start(*crippled)
    for name in crippled:
        node = group.nodes[name]
        await group.until(lambda to=node.member: to.reason.startswith("no-master: no-group"), f"{name} says why")  # type: ignore[misc]
        assert any(reason.startswith("no-group") for reason in node.services.monitoring.readiness())
    await group.start(whole)
    await group.serving()
    group.kill(whole)
    await group.until(lambda: any(node.member.is_master() for node in group.nodes.values()), "one of them leads")
    await told(group, 3)
    await group.stop()
    assert not group.fatal


@virtual
async def test_who_is_behind_tells_of_the_group_as_far_as_its_own_log_goes() -> None:
    """The node has received how far the log is durable. It does not know whether another GROUP entry is on the way
    there."""
    group = Group(6)
    await group.start()
    await group.serving()
    await fed(group, 2)
    behind, lost = (name for name in group.names if name != group.master)
    group.kill(behind)
    for _ in range(2 * FEED_BYTES // len(12 * BIG)):
        await group.appended(12 * BIG)  # more than one message of the feed
    assert (await ordered(group, change="priority", name=behind, priority=3))[0] == 200
    durable = group.nodes[group.master].opened().log.view.history.group_vlsn
    group.net.bytes_per_s[group.master, behind] = 200_000.0
    await group.start(behind)
    node = group.nodes[behind]
    await group.until(lambda: node.state == "REPLICA", "it is fed")
    position = node.following.feed.position if node.following is not None and node.following.feed else None
    assert position is not None and position.dtvlsn >= durable > node.opened().log.view.allocated
    question = Question(
        group="sim",
        sender=lost,
        to=behind,
        incarnation=f"{group.nodes[lost].member.incarnation:016x}",
        process=f"{group.nodes[lost].member.process:016x}",
        purpose=DISCOVERY,
        wants_group=True,
    )
    response = await group.client.request(
        "POST",
        f"{group.url(behind)}/v1/peer/hello",
        headers=JSON,
        body=msgspec.json.encode(question),
        timeout_s=5.0,
    )
    answer = read_answer(bytes(response.body))
    assert answer.known_group is not None
    assert answer.known_group.vlsn <= answer.known_group.upto < durable
    await group.stop()
    assert not group.fatal
