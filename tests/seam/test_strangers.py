"""Messages from a stranger in the name of members, or of unknown nodes, change no term, leader, feed or name."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from repl.api import FeedHello
from repl.auth.sessions import CLI
from repl.auth.signatures import HEADER, NO_SESSION, Signer, digest, sign_call
from repl.group.feed_hello import encode_hello
from tests.fakes.loop import virtual
from tests.seam.nodes import JSON, Group
from tests.seam.test_membership import fed, incarnation
from vlsn.errors import DuplicateFeed, StaleTerm
from vlsn.format.feed_messages import STORED_TERM_MAX
from vlsn.ids import Incarnation, NodeName, Term
from vlsn.levels import LEVELS

FAR = STORED_TERM_MAX
MADE_UP = "00000000deadbeef"


async def started(seed: int, **settings: Any) -> Group:
    group = Group(seed, **settings)
    await group.start()
    await group.serving()
    await fed(group, 2)
    assert (await group.append(b"everywhere", acks="all"))[0] == 200
    return group


async def asked(group: Group, to: str, path: str, /, **body: Any) -> tuple[int, dict[str, Any]]:
    response = await group.client.request(
        "POST",
        f"{group.url(to)}{path}",
        headers={"Content-Type": "application/json"},
        body=msgspec.json.encode({"group": "sim", "to": to, **body}),
        timeout_s=10.0,
    )
    return response.status, msgspec.json.decode(bytes(response.body))


def terms(group: Group) -> dict[str, int]:
    return {name: node.opened().log.node_file.record.term for name, node in group.nodes.items()}


async def goes_on(group: Group, before: dict[str, int], master: str) -> None:
    """Checks that nothing has changed: the same master leads in the same term, on all nodes."""
    status, answer = await group.append(b"still there", acks="all", to=master)
    assert (status, answer.get("term")) == (200, max(before.values())), answer
    assert terms(group) == before
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("sender", ["n1", "n2", "n3", "n9"])
@pytest.mark.parametrize("copied", [False, True], ids=["made-up", "copied"])
@virtual
async def test_a_forged_vote_raises_no_term(sender: str, copied: bool) -> None:
    """The vote request has a term next to the highest, as in a transfer, for a log beyond every other. If it were
    granted, no node could lead again."""
    group = await started(401)
    before, master = terms(group), group.master
    named = incarnation(group, sender) if copied and sender in group.nodes else MADE_UP
    forged = {"sender": sender, "incarnation": named, "last_term": 1 << 62, "last_vlsn": 1, "sequence": 1 << 62}
    for to in group.names:
        for term in (FAR, before[to] + 1, before[to] + 16, before[to] + 17):
            for pre in (False, True):
                given = {"term": term, "pre": pre, "transfer": True, "highest_of_all": True}
                _, answer = await asked(group, to, "/v1/peer/vote", **forged, **given)
                assert not answer.get("granted"), answer
    await goes_on(group, before, master)


@virtual
async def test_a_forged_vote_raises_no_term_where_no_master_is_heard() -> None:
    """A node without a master adopts the terms in which members stand, not any sender's."""
    group = await started(402)
    one, *others = group.names
    group.net.split([one, "client"], others)
    node = group.nodes[one]
    await group.until(lambda: node.state == "UNKNOWN", f"{one} hears nobody")
    before = terms(group)[one]
    for sender in others:
        for named in (MADE_UP, incarnation(group, sender)):
            forged = {"sender": sender, "incarnation": named, "last_term": 1 << 62, "last_vlsn": 1}
            _, answer = await asked(group, one, "/v1/peer/vote", **forged, term=FAR, pre=False, transfer=True)
            assert not answer.get("granted"), answer
            assert terms(group)[one] == before
    group.net.heal()
    await group.serving()
    await fed(group, 2)
    assert (await group.append(b"again", acks="all"))[0] == 200
    await group.stop()
    assert not group.fatal


@virtual
async def test_no_node_votes_in_term_0_nor_ends_because_it_was_asked_to() -> None:
    """An empty node has stored term 0, and so has the member in whose name it is asked."""
    group = Group(404)
    await group.start("n2", "n3")  # without n1 nothing is founded
    await group.until(lambda: all(node.log is not None for node in group.nodes.values()), "both are open")
    forged = {"sender": "n3", "incarnation": incarnation(group, "n3"), "last_term": 1, "last_vlsn": 1}
    for pre in (True, False):
        status, answer = await asked(group, "n2", "/v1/peer/vote", **forged, term=0, pre=pre)
        assert (status, answer["type"]) == (400, "bad-body"), answer
    await group.start("n1")
    await group.serving()
    await group.stop()
    assert not group.fatal


@virtual
async def test_nobody_stands_because_a_stranger_asks_in_the_masters_name() -> None:
    group = await started(403)
    before, master = terms(group), group.master
    for to in group.names:
        if to != master:
            status, answer = await asked(group, to, "/v1/peer/stand", sender=master, term=before[to])
            assert (status, answer["type"]) == (409, "stale-term"), answer
    await goes_on(group, before, master)


def hello_of(group: Group, name: str, to: str, **fields: Any) -> FeedHello:
    node = group.nodes[name]
    hello = FeedHello(
        group="sim",
        node=NodeName(name),
        incarnation=Incarnation(node.member.incarnation),
        to=NodeName(to),
        to_incarnation=Incarnation(group.nodes[to].member.incarnation),
        term=Term(node.opened().log.node_file.record.term),
        process=node.member.process,
    )
    return replace(hello, **fields)


async def connected(group: Group, hello: FeedHello) -> None:
    channel = await group.client.connect(
        f"{group.url(hello.to)}/v1/feed", headers=encode_hello(hello), message_bytes_max=1 << 20, timeout_s=5.0
    )
    await channel.close()


@pytest.mark.parametrize("ahead", [1, 17, FAR])
@pytest.mark.parametrize("copied", [False, True], ids=["made-up", "copied"])
@virtual
async def test_a_forged_feed_ends_no_lead_and_no_feed(ahead: int, copied: bool) -> None:
    group = await started(404)
    before, master = terms(group), group.master
    replica = next(name for name in group.names if name != master)
    fields = {} if copied else {"incarnation": Incarnation(int(MADE_UP, 16))}
    known = group.nodes[replica].following
    assert known is not None
    feeds = known.feeds
    if ahead > 16 or not copied:  # up to 16 terms a listed incarnation is taken at its word, as ``claims`` says
        with pytest.raises(StaleTerm):
            await connected(
                group, hello_of(group, replica, master, term=Term(min(FAR, before[master] + ahead)), **fields)
            )
    with pytest.raises(DuplicateFeed):
        await connected(group, hello_of(group, replica, master, **fields))
    assert known.feeds == feeds and known.feed is not None and known.feed.streaming
    await goes_on(group, before, master)


@virtual
async def test_a_forged_feed_keeps_no_member_from_its_own() -> None:
    """The forged feed was opened while the member was away, and is still open."""
    group = await started(405)
    master = group.master
    replica = next(name for name in group.names if name != master)
    hello = hello_of(group, replica, master, incarnation=Incarnation(int(MADE_UP, 16)))
    group.kill(replica)
    await group.until(lambda: replica not in group.nodes[master].leading.feeders, "its feed ends")  # type: ignore[union-attr]
    channel = await group.client.connect(
        f"{group.url(master)}/v1/feed", headers=encode_hello(hello), message_bytes_max=1 << 20, timeout_s=5.0
    )
    await group.until(lambda: replica in group.nodes[master].leading.feeders, "the forged one is there")  # type: ignore[union-attr]
    await group.start(replica)
    await group.until(lambda: group.state(replica) == "REPLICA", f"{replica} is fed", 5.0)
    await channel.close()
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_forged_hello_makes_no_node_another_incarnation() -> None:
    """A starting node receives the reports recorded in its name: they must come from its own messages only."""
    group = await started(406)
    before = {name: incarnation(group, name) for name in group.names}
    for to in group.names:
        for sender in group.names:
            if sender == to:
                continue
            named = before[sender]
            told = {"sender": sender, "incarnation": named, "term": FAR, "sequence": 1 << 62}
            hello = {"process": MADE_UP, "purpose": "discovery", "told": 1 << 62}
            assert (await asked(group, to, "/v1/peer/hello", **told, **hello))[0] == 200
            vote = {"last_term": 1 << 62, "last_vlsn": 1 << 62}
            await asked(group, to, "/v1/peer/vote", **told, **vote, pre=False)
            await asked(group, to, "/v1/peer/vote", **told, **vote, pre=True)
    for name in group.names:
        group.kill(name)
        await group.start(name)
        await group.until(lambda name=name: group.nodes[name].member.recognised, f"{name} has asked")  # type: ignore[misc]
        await group.serving()
    assert {name: incarnation(group, name) for name in group.names} == before
    assert all(node.member.counts.old_images == 0 for node in group.nodes.values())
    assert (await group.append(b"again", acks="all"))[0] == 200
    await group.stop()
    assert not group.fatal


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("leads", [False, True])
@virtual
async def test_a_member_a_million_terms_ahead_heals_the_group(size: int, leads: bool) -> None:
    """The member states the term at its own URL: the others adopt it, and the group works on."""
    group = Group(407, size)
    await group.start()
    await group.serving()
    await fed(group, size - 1)
    assert (await group.append(b"everywhere", acks="all"))[0] == 200
    far = next(name for name in group.names if (name == group.master) is leads)
    node_file = group.nodes[far].opened().log.node_file
    ahead = node_file.record.term + 1_000_000
    node_file.replace(replace(node_file.record, term=ahead, voted_for="", vote_term=0))
    group.kill(far)
    await group.start(far)

    def all_are_back() -> bool:
        states = sorted(group.state(name) for name in group.names)
        if not all(node.log for node in group.nodes.values()):
            return False
        return min(terms(group).values()) >= ahead and states == ["MASTER", *["REPLICA"] * (size - 1)]

    await group.until(all_are_back, "all have risen")
    assert (await group.append(b"again", acks="all"))[0] == 200
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_hand_over_takes_one_more_question_and_not_an_election() -> None:
    """Voters ask the master whether it transfers; no node waits for a timeout."""
    group = await started(408)
    master = group.master
    to = next(name for name in group.names if name != master)
    began = asyncio.get_running_loop().time()
    status, answer = await asked_admin(group, master, f"/v1/admin/transfer?to={to}")
    assert (status, answer.get("to")) == (200, to), answer
    await group.serving(to)
    assert asyncio.get_running_loop().time() - began < 0.2
    assert (await group.append(b"again", acks="all"))[0] == 200
    await group.stop()
    assert not group.fatal


async def asked_admin(group: Group, to: str, path: str) -> tuple[int, dict[str, Any]]:
    response = await group.client.request(
        "POST", f"{group.url(to)}{path}", headers={"Content-Type": "application/json"}, body=b"", timeout_s=10.0
    )
    return response.status, msgspec.json.decode(bytes(response.body))


@virtual
async def test_a_vote_as_of_a_hand_over_that_was_not_announced_is_an_ordinary_one() -> None:
    group = await started(409, levels=LEVELS, keyed=False)
    before, master = terms(group), group.master
    one, other = [name for name in group.names if name != master]
    node = group.nodes[one]
    node_file = group.nodes[other].opened().log.node_file
    end = node.opened().log.view.range.last
    term = before[one] + 1
    forged = {"sender": other, "incarnation": f"{node_file.record.incarnation:016x}", "last_vlsn": end}
    _, answer = await asked(
        group, one, "/v1/peer/vote", **forged, last_term=before[one], term=term, pre=False, transfer=True
    )
    assert (answer["granted"], answer["reason"]) == (False, "hears-master"), answer
    await goes_on(group, before, master)


@virtual
async def test_the_begin_of_a_consumer_is_taken_from_members_alone() -> None:
    group = await started(409, levels=LEVELS, keyed=False)
    master, other = group.master, next(name for name in group.names if name != group.master)
    begin = {"sender": other, "consumer": "orders", "file": "00000000000000aa"}
    for change, slug in (
        ({"sender": "n9"}, "wrong-name"),
        ({"to": other}, "wrong-name"),
        ({"group": "another"}, "wrong-group"),
    ):
        _, answer = await asked(group, master, "/v1/peer/cdc", **begin | change)
        assert answer["type"] == slug, answer
        assert not [key for key in group.nodes[master].opened().log.view.history.small if "orders" in key]
    assert await asked(group, master, "/v1/peer/cdc", **begin) == (200, {"sender": master, "file": begin["file"]})
    later = begin | {"file": "00000000000000bb"}
    assert (await asked(group, master, "/v1/peer/cdc", **later))[1]["file"] == begin["file"], "it has begun already"
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_master_that_was_unseated_does_not_say_which_consumer_has_begun() -> None:
    """Its successor may have logged a later one."""
    group = await started(410, levels=LEVELS, keyed=False)
    old, other = group.master, next(name for name in group.names if name != group.master)
    begin = {"sender": other, "consumer": "orders", "file": "00000000000000aa"}
    status, answer = await asked(group, old, "/v1/peer/cdc", **begin)
    assert status == 200, answer
    rest = [name for name in group.names if name != old]
    group.net.split([old, "client"], rest)
    status, answer = await asked(group, old, "/v1/peer/cdc", **begin)
    assert (status, answer["type"]) == (503, "no-master"), answer
    group.net.heal()
    await group.stop()
    assert not group.fatal


@virtual
async def test_messages_of_pages_go_to_members_alone() -> None:
    group = await started(411)
    to, sender = group.names[0], group.names[1]
    named = {"group": "sim", "sender": sender, "to": to, "uuid": "00000000000000aa", "since": 1, "first": 1, "last": 9}
    for change, slug in (
        ({"sender": "n9"}, "wrong-name"),
        ({"to": sender}, "wrong-name"),
        ({"group": "another"}, "wrong-group"),
        ({}, "not-found"),
    ):
        url = f"{group.url(to)}/v1/peer/messages?{urlencode(named | change)}"
        answer = await group.client.request("GET", url, timeout_s=5.0)
        assert msgspec.json.decode(bytes(answer.body))["type"] == slug
    await group.stop()
    assert not group.fatal


async def ordered(group: Group, to: str, target: str, header: str) -> tuple[int, dict[str, Any]]:
    response = await group.client.request(
        "POST", group.url(to) + target, headers={**JSON, HEADER: header}, body=b"", timeout_s=10.0
    )
    return response.status, msgspec.json.decode(bytes(response.body))


@virtual
async def test_a_stranger_gets_nothing_done_by_a_commands_signature() -> None:
    """It has recorded an order: it sends that again, elsewhere, for something else, and after a restart."""
    group = await started(412, levels=LEVELS, anonymous="append")
    assert group.keys is not None
    key, rotate, place = group.keys.signing, "/v1/admin/rotate", "n1:7701"

    def signed(session: str, n: int) -> str:
        by = Signer(sender=CLI, to=place, process="00000000000000ff", session=session, n=n)
        return sign_call(key, by, group="sim", method="POST", target=rotate, body=digest(b"")).header()

    first = signed(NO_SESSION, 1)
    status, answer = await ordered(group, "n1", rotate, first)
    assert (status, answer["type"]) == (401, "stale-session")
    recorded = signed(answer["session"], 1)
    assert (await ordered(group, "n1", rotate, recorded))[0] == 200

    async def nothing_done(before: dict[str, int]) -> None:
        assert (await group.append(b"more", acks="all"))[0] == 200
        segments = {name: len(node.opened().log.view.segments()) for name, node in group.nodes.items()}
        for to in group.names:
            for target in (rotate, "/v1/admin/transfer", "/v1/admin/checkpoint", "/v1/peer/stand", f"/x/..{rotate}"):
                for header in (first, recorded, recorded.replace("n=1 ", "n=2 "), recorded.replace(CLI, "n2")):
                    status, answer = await ordered(group, to, target, header)
                    assert status in (401, 404, 409), (to, target, answer)
        assert segments == {name: len(node.opened().log.view.segments()) for name, node in group.nodes.items()}
        assert terms(group) == before

    await nothing_done(terms(group))
    group.kill("n1")
    await group.start("n1")
    await group.serving()
    await fed(group, 2)
    await nothing_done(terms(group))
    await group.stop()
    assert not group.fatal
