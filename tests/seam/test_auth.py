"""Members know each other: what a stranger without the key, with another key, or with recorded calls gets done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from repl.auth import group_key
from repl.auth.group_key import GroupKeys
from repl.auth.signatures import HEADER, NO_SESSION, Signer, digest, feed_values, sign_call
from repl.group.feed_hello import encode_hello
from repl.lead.level_raising import raise_level
from repl.web.types import BytesBody, Network, Request, Response
from tests.fakes.loop import virtual
from tests.fakes.random import SeededRandom
from tests.seam.nodes import JSON, KEY, Group
from tests.seam.test_group_level import all_told, at_level, lead
from tests.seam.test_membership import fed, incarnation
from tests.seam.test_strangers import hello_of
from vlsn.errors import BadArgument, Forbidden, Unauthorized, Unreachable, WrongVersion
from vlsn.ids import NodeName
from vlsn.levels import LEVELS, SIGNED

OTHER = group_key.new_key(SeededRandom("another key"), "one")


async def started(seed: int, **settings: Any) -> Group:
    group = Group(seed, **{"levels": LEVELS, **settings})
    await group.start()
    await group.serving()
    await fed(group, 2)
    assert (await group.append(b"everywhere", acks="all"))[0] == 200
    return group


async def called(
    group: Group, to: str, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, dict[str, Any], Mapping[str, str]]:
    """A stranger's call: its status, its problem document and its headers."""
    data = msgspec.json.encode(body) if isinstance(body, dict) else body or b""
    response = await group.client.request(
        method, group.url(to) + target, headers={**JSON, **(headers or {})}, body=data, timeout_s=10.0
    )
    return response.status, msgspec.json.decode(bytes(response.body)), response.headers


def named(group: Group, sender: str, to: str, **fields: Any) -> dict[str, Any]:
    return {"group": "sim", "sender": sender, "to": to, "incarnation": incarnation(group, sender), **fields}


def calls(group: Group, to: str) -> list[tuple[str, str, dict[str, Any] | None]]:
    """One call of each kind in n2's name."""
    process = f"{group.nodes['n2'].member.process:016x}"
    asks = "group=sim&sender=n2&to=" + to
    return [
        ("POST", "/v1/peer/hello", named(group, "n2", to, process=process, purpose="discovery", levels=LEVELS)),
        ("POST", "/v1/peer/vote", named(group, "n2", to, term=9, pre=False, transfer=True, last_term=9, last_vlsn=99)),
        ("POST", "/v1/peer/stand", named(group, "n2", to, term=1)),
        ("POST", "/v1/peer/read_index", named(group, "n2", to)),
        ("POST", "/v1/peer/cdc", named(group, "n2", to, consumer="c", begins=1)),
        ("POST", "/v1/peer/restore", named(group, "n2", to, purpose="look")),
        ("POST", "/v1/peer/restore", named(group, "n2", to, purpose="give-up")),
        ("GET", "/v1/peer/restore?session=a&segment=1&start=0&end=100&have=0", None),
        ("GET", f"/v1/peer/block?{asks}&term=0&first=1", None),
        ("GET", f"/v1/peer/copy?{asks}&vlsn=1", None),
        ("GET", f"/v1/peer/status?{asks}", None),
        ("GET", f"/v1/peer/messages?{asks}&uuid=a&since=0&first=1&last=1", None),
    ]


def states(group: Group) -> dict[str, tuple[int, str]]:
    return {name: (node.opened().log.node_file.record.term, node.state) for name, node in group.nodes.items()}


@virtual
async def test_a_stranger_gets_nothing_done_in_a_members_name() -> None:
    group = await started(501)
    before = states(group)
    for to in ("n1", "n3"):
        for method, target, body in calls(group, to):
            status, answer, headers = await called(group, to, method, target, body)
            assert (status, answer["type"]) == (401, "unauthorized"), (target, answer)
            assert HEADER not in headers, "what is signed for a stranger could be shown to a member"
    assert states(group) == before
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_stranger_gets_no_feed_and_acknowledges_nothing_in_a_members_name() -> None:
    """Its acknowledgements would make entries durable that no other node has."""
    group = await started(502)
    master = group.master
    lost, other = (name for name in group.names if name != master)
    hello = encode_hello(hello_of(group, lost, master))
    group.kill(lost, other)
    with pytest.raises(Unauthorized):
        await group.client.connect(
            f"{group.url(master)}/v1/feed", headers=hello, message_bytes_max=1 << 20, timeout_s=5.0
        )
    durable = group.nodes[master].dtvlsn()
    status, answer = await group.append(b"nobody else has it", to=master)
    assert status != 200, answer
    assert group.nodes[master].dtvlsn() == durable
    await group.stop()


class Forger:
    """Signs calls with a key, in the name of a process of its own."""

    def __init__(self, group: Group, keys: GroupKeys, sender: str = "n2") -> None:
        self.group, self.key, self.sender = group, keys.signing, sender
        self.session, self.n = NO_SESSION, 0
        self.process = "00000000000000ff"

    def header(self, to: str, method: str, target: str, data: bytes, feed: list[str] | None = None) -> str:
        self.n += 1
        by = Signer(sender=self.sender, to=to, process=self.process, session=self.session, n=self.n)
        call = {"group": "sim", "method": method, "target": target, "body": digest(data)}
        return sign_call(self.key, by, **call, feed=feed or ()).header()  # type: ignore[arg-type]

    async def call(self, to: str, method: str, target: str, body: dict[str, Any] | None) -> tuple[int, dict[str, Any]]:
        data = msgspec.json.encode(body) if body is not None else b""
        header = self.header(to, method, target, data)
        status, answer, _ = await called(self.group, to, method, target, data, {HEADER: header})
        return status, answer


@virtual
async def test_another_key_is_no_key() -> None:
    """The same ID with another secret, and an ID that is not known."""
    group = await started(503)
    before = states(group)
    for key in (OTHER, replace(OTHER, id="two")):
        forger = Forger(group, GroupKeys((key,)))
        for method, target, body in calls(group, "n1"):
            status, answer = await forger.call("n1", method, target, body)
            assert (status, answer["type"]) == (401, "unauthorized"), (target, answer)
    assert states(group) == before
    await group.stop()


@virtual
async def test_a_recorded_call_is_answered_once() -> None:
    """Sent again it is refused, to its receiver, to another member, and after a restart of the receiver."""
    group = await started(504)
    assert group.keys is not None
    forger = Forger(group, group.keys)
    hello = next(body for _, target, body in calls(group, "n1") if target == "/v1/peer/hello")
    status, answer = await forger.call("n1", "POST", "/v1/peer/hello", hello)
    assert (status, answer["type"]) == (401, "stale-session")
    forger.session = answer["session"]
    data = msgspec.json.encode(hello)
    header = forger.header("n1", "POST", "/v1/peer/hello", data)
    sent = ("POST", "/v1/peer/hello", data, {HEADER: header})
    assert (await called(group, "n1", *sent))[0] == 200
    for _ in range(2):
        status, answer, _ = await called(group, "n1", *sent)
        assert (status, answer["type"]) == (401, "unauthorized")
        assert "come before" in answer["detail"]
    status, answer, _ = await called(group, "n3", *sent)
    assert (status, answer["type"]) == (409, "wrong-name"), answer
    group.kill("n1")
    await group.start("n1")
    await group.until(lambda: group.state("n1") in ("REPLICA", "MASTER"), "n1 is back")
    status, answer, _ = await called(group, "n1", *sent)
    assert (status, answer["type"]) == (401, "stale-session")
    await group.stop()


@pytest.mark.parametrize("what", ["body", "target", "method", "sender", "n"])
@virtual
async def test_a_call_that_was_changed_on_its_way_is_refused(what: str) -> None:
    group = await started(505)
    assert group.keys is not None
    forger = Forger(group, group.keys)
    body = named(group, "n2", "n1")
    _, answer = await forger.call("n1", "POST", "/v1/peer/read_index", body)
    forger.session = answer["session"]
    data = msgspec.json.encode(body)
    header = forger.header("n1", "POST", "/v1/peer/read_index", data)
    method, target = "POST", "/v1/peer/read_index"
    match what:
        case "body":
            data = data.replace(b"}", b" }")
        case "target":
            target = "/v1/peer/hello"
        case "method":
            method = "PUT"
        case "sender":
            header = header.replace("from=n2", "from=n3")
        case "n":
            header = header.replace(f" n={forger.n} ", f" n={forger.n + 1} ")
    status, answer, _ = await called(group, "n1", method, target, data, {HEADER: header})
    assert (status, answer["type"]) == (401, "unauthorized"), answer
    await group.stop()


@virtual
async def test_a_member_speaks_in_its_own_name_only() -> None:
    group = await started(506)
    assert group.keys is not None
    forger = Forger(group, group.keys, sender="n3")
    forger.session = (await forger.call("n1", *calls(group, "n1")[0]))[1]["session"]
    for method, target, body in calls(group, "n1"):
        if "session=a" in target:
            continue
        status, answer = await forger.call("n1", method, target, body)
        assert (status, answer["type"]) == (401, "unauthorized"), (target, answer)
        assert "in the name of n2" in answer["detail"]
    await group.stop()


@virtual
async def test_a_feed_is_signed_with_its_headers() -> None:
    group = await started(507)
    assert group.keys is not None
    master = group.master
    name = next(each for each in group.names if each != master)
    forger = Forger(group, group.keys, sender=name)
    _, answer = await forger.call(master, "GET", f"/v1/peer/copy?group=sim&sender={name}&to={master}&vlsn=1", None)
    forger.session = answer["session"]
    headers = encode_hello(hello_of(group, name, master))
    header = forger.header(master, "GET", "/v1/feed", b"", feed_values(headers))
    changed = {**headers, "Vlsnlog-Term": "99", HEADER: header}
    with pytest.raises(Unauthorized, match="wrong"):
        await group.client.connect(
            f"{group.url(master)}/v1/feed", headers=changed, message_bytes_max=1 << 20, timeout_s=5.0
        )
    await group.stop()


def answering(group: Group, change: Any) -> None:
    """Changes the answers that members get from each other."""
    for node in group.nodes.values():
        network: Network = node.member.calls._network
        request = network.request

        async def changed(*args: Any, request: Any = request, **settings: Any) -> Response:
            answer: Response = await request(*args, **settings)
            return change(answer)  # type: ignore[no-any-return]

        network.request = changed  # type: ignore[method-assign]


def unsigned(answer: Response) -> Response:
    return Response(answer.status, {k: v for k, v in answer.headers.items() if k != HEADER}, answer.body)


def other_body(answer: Response) -> Response:
    return Response(answer.status, answer.headers, bytes(answer.body) + b" ")


def other_status(answer: Response) -> Response:
    return Response(200 if answer.status != 200 else 409, answer.headers, answer.body)


@pytest.mark.parametrize("change", [unsigned, other_body, other_status])
@virtual
async def test_an_answer_of_somebody_else_counts_as_none(change: Any) -> None:
    group = await started(508)
    answering(group, change)
    node = group.nodes["n1"]
    await group.until(lambda: set(node.member.members.silent) == {"n2", "n3"}, "n1 counts both as silent", 20.0)
    said = node.member.members.silent[NodeName("n2")]
    assert "not signed" in said or "signed with another key, or for another call" in said
    await group.stop()


@virtual
async def test_a_feed_whose_answer_is_unsigned_is_not_taken() -> None:
    group = await started(509)
    master = group.master
    name = next(each for each in group.names if each != master)
    node = group.nodes[name]
    door = group.nodes[master].services.door
    serve = door.serve

    async def bare(request: Request, handler: Any) -> Any:
        answer = await serve(request, handler)
        return replace(answer, headers={}) if request.path == "/v1/feed" else answer

    door.serve = bare  # type: ignore[method-assign]
    group.net.cut(master, name)
    await group.until(lambda: "not signed" in node.member.reason, f"{name} takes no feed")
    assert node.following is None or node.following.feed is None or not node.following.feed.streaming
    await group.stop()


@virtual
async def test_a_node_without_the_key_is_no_member() -> None:
    """It has the address, the name and the directory of n3, and another key."""
    group = await started(510)
    group.kill("n3")
    group.keys, keys = GroupKeys((OTHER,)), group.keys
    await group.start("n3")
    await asyncio.sleep(10)
    assert group.state("n3") == "UNKNOWN"
    assert "n3" in group.nodes[group.master].member.members.silent
    assert (await group.append(b"by two"))[0] == 200
    group.kill("n3")
    group.keys = keys
    await group.start("n3")
    await group.until(lambda: group.state("n3") == "REPLICA", "n3 is back with the key")
    await group.stop()


@virtual
async def test_below_the_level_nodes_that_cannot_sign_are_members_and_are_named() -> None:
    """n3 has no key. The group is founded, serves and elects; nobody is refused."""
    group = Group(511, levels=LEVELS)
    keys = group.keys
    await group.start("n1", "n2")
    group.keys = None
    await group.start("n3")
    group.keys = keys
    await group.serving()
    await fed(group, 2)
    assert (await group.append(b"everywhere", acks="all"))[0] == 200
    assert {group.nodes[name].opened().log.view.level for name in group.names} == {SIGNED - 1}
    for name in ("n1", "n2"):
        members = group.nodes[name].member.members
        await group.until(lambda members=members: members.unsigned == {"n3"}, "n3 is named")  # type: ignore[misc]
    group.kill(group.master)
    await group.serving()
    await group.stop()
    assert not group.fatal


@virtual
async def test_an_unsigned_answer_claims_no_level_that_needs_signatures() -> None:
    group = await started(512, keyed=True, levels=LEVELS.below(SIGNED))
    node = group.nodes["n1"]
    claims = {"levels": [1, SIGNED], "name": "n2"}

    def claimed(answer: Response) -> Response:
        body = msgspec.json.decode(bytes(answer.body))
        if body.get("name") != "n2":
            return answer
        return Response(answer.status, {}, msgspec.json.encode({**body, **claims}))

    answering(group, claimed)
    await group.until(lambda: "n2" in node.member.members.unsigned, "n2's answer came unsigned", 20.0)
    assert node.member.members.levels[NodeName("n2")].max < SIGNED
    await group.stop()


def test_a_call_that_is_read_before_its_check_keeps_the_names_of_its_certificate() -> None:
    request = Request("POST", "/v1/peer/hello", {}, BytesBody(b""), members=frozenset({"n1"}))
    read = request.with_body(b"{}")
    read.check_member("n1")
    with pytest.raises(Forbidden):
        read.check_member("n2")


@virtual
async def test_calls_made_at_once_all_get_through() -> None:
    """The first of a session: each is answered with it, and signed again."""
    group = await started(513)
    calls = group.nodes["n2"].member.calls
    calls._sessions.clear()
    target = f"{group.url('n1')}/v1/peer/copy?group=sim&sender=n2&to=n1&vlsn=1"
    answers = await asyncio.gather(*(calls.request("n1", "GET", target, timeout_s=5.0) for _ in range(300)))
    assert {answer.status for answer in answers} <= {200, 503, 429, 404}
    with pytest.raises(Unreachable):
        await calls.request("n1", "GET", target.replace("n1:", "n9:"), timeout_s=5.0)
    await group.stop()


@virtual
async def test_an_older_binary_is_told_that_the_level_is_what_is_missing() -> None:
    """It does not know ``unauthorized``, and its operator must learn what to do."""
    group = await started(514)
    process = f"{group.nodes['n2'].member.process:016x}"
    hello = named(group, "n2", "n1", process=process, purpose="discovery", levels=LEVELS.below(SIGNED))
    status, answer, _ = await called(group, "n1", "POST", "/v1/peer/hello", hello)
    assert (status, answer["type"]) == (400, "wrong-version")
    assert "run a later vlsnlog" in answer["detail"]
    headers = encode_hello(hello_of(group, "n2", group.master, levels=LEVELS.below(SIGNED)))
    with pytest.raises(WrongVersion):
        await group.client.connect(
            f"{group.url(group.master)}/v1/feed", headers=headers, message_bytes_max=1 << 20, timeout_s=5.0
        )
    await group.stop()


@virtual
async def test_a_key_is_exchanged_while_appends_go_on() -> None:
    """Each node reads its file by itself, so for seconds their files differ; nobody is refused."""
    group = await started(515)
    assert group.keys is not None
    new = group_key.new_key(SeededRandom(3), "two")
    both = group.keys.with_key(new)
    acked: list[bytes] = []
    going = True

    async def append() -> None:
        while going:
            value = b"%d" % len(acked)
            status, answer = await group.append(value)
            assert status == 200, answer
            acked.append(value)
            await asyncio.sleep(0.05)

    appending = asyncio.create_task(append())
    for keys in (both, both.signing_with("two"), GroupKeys((new,))):
        for name in group.names:
            group.write_key(name, keys)
            await asyncio.sleep(3.3)
        await group.until(
            lambda keys=keys: all(node.member.keyring.keys == keys for node in group.nodes.values()),  # type: ignore[misc]
            "all have read their files",
        )
        for node in group.nodes.values():
            members = node.member.members
            await group.until(
                lambda members=members, keys=keys: (  # type: ignore[misc]
                    len(members.keys) >= 2 and all(ids == keys.ids for ids in members.keys.values())
                ),
                "all have told their keys",
                15.0,
            )
            assert not members.silent
    assert not appending.done()
    going = False
    await appending
    group.kill("n3")
    group.keys = GroupKeys((new,))
    await group.start("n3")
    await group.until(lambda: group.state("n3") == "REPLICA", "n3 is back with the new key")
    assert sorted((await group.read("n1")).values()) == sorted([b"everywhere", *acked])
    await group.stop()
    assert not group.fatal


@virtual
async def test_a_key_file_that_cannot_be_read_changes_nothing() -> None:
    group = await started(516)
    disk = group.machines["n2"].disk
    for data, mode in ((b"", 0o600), (b"one 00\n", 0o600), (group_key.encode(GroupKeys((OTHER,))), 0o644)):
        disk.write_content(KEY, data, mode=mode)
        await asyncio.sleep(6)
        assert group.nodes["n2"].member.keyring.keys == group.keys
    events = group.nodes["n2"].member.events.since(1, 1000)["events"]
    assert [each["event"] for each in events if each["event"].startswith("key.")] == ["key.unread"] * 3
    assert not any(OTHER.secret.hex() in str(each) for each in events)
    assert (await group.append(b"on", acks="all"))[0] == 200
    await group.stop()


@virtual
async def test_a_group_founded_with_keys_is_at_the_level_that_needs_them() -> None:
    group = await started(517)
    assert {node.opened().log.view.level for node in group.nodes.values()} == {SIGNED}
    status = await group.client.request("GET", f"{group.url('n1')}/v1/status", timeout_s=5.0)
    told = msgspec.json.decode(bytes(status.body))["key"]
    assert (told["signs"], told["accepts"], told["unsigned"], told["signed_only"]) == ("one", ["one"], [], True)
    await group.stop()


@virtual
async def test_the_level_is_raised_once_every_member_signs() -> None:
    """n3 has no key: refused, and named. With the key it is raised; the same binary without one does not start."""
    group = Group(518, levels=LEVELS)
    keys = group.keys
    await group.start("n1", "n2")
    group.keys = None
    await group.start("n3")
    await group.serving()
    await fed(group, 2)
    await all_told(group)
    with pytest.raises(BadArgument, match="n3"):
        await raise_level(lead(group), SIGNED)
    group.kill("n3")
    group.keys = keys
    await group.start("n3")
    await group.until(lambda: group.state("n3") == "REPLICA", "n3 is back with the key")
    members = group.nodes[group.master].member.members
    await group.until(lambda: not members.unsigned and members.levels[NodeName("n3")].hold(SIGNED), "it signs", 20.0)
    method, target, body = calls(group, group.master)[0]
    await called(group, group.master, method, target, {**(body or {}), "sender": "n3"})
    assert "n3" in members.unsigned
    with pytest.raises(BadArgument, match="needs the signatures of n3, whose last call had none"):
        await raise_level(lead(group), SIGNED)
    await group.until(lambda: not members.unsigned, "it has signed since", 20.0)
    await raise_level(lead(group), SIGNED)
    await at_level(group, SIGNED)
    status, answer, _ = await called(group, "n1", *calls(group, "n1")[0])
    assert (status, answer["type"]) == (401, "unauthorized")
    group.kill("n3")
    group.keys = None
    await group.start("n3")
    await group.until(lambda: bool(group.fatal), "n3 without the key ends")
    assert "needs the group's key" in str(group.fatal[0][1])
