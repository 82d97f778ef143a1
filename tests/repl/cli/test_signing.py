"""Orders of commands: signed with the group's key, and only signed answers count. Against real nodes on fakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from repl.auth import group_key
from repl.auth.group_key import GroupKeys
from repl.auth.signatures import HEADER
from repl.cli.signing import GROUP_KEY, TOKEN, SigningNetwork
from repl.web.types import Response
from tests.fakes.loop import virtual
from tests.fakes.random import SeededRandom
from tests.seam.nodes import JSON, Group
from vlsn.errors import Unauthorized, Unreachable
from vlsn.levels import LEVELS
from vlsn.real.disk import PosixDisk

ROTATE = "/v1/admin/rotate"
OTHER = GroupKeys((group_key.new_key(SeededRandom("another key"), "one"),))


class Command(SigningNetwork):
    """A command's network, with what it sent and was answered. ``change`` changes each answer on its way."""

    def __init__(self, group: Group, change: Callable[[Response], Response] = lambda answer: answer) -> None:
        self.sent: list[tuple[str, str, dict[str, str], bytes]] = []
        self.group, self.change = group, change
        super().__init__(self)
        self._network = _Recorded(self)  # type: ignore[assignment]

    async def order(self, to: str = "n1", path: str = ROTATE, method: str = "POST") -> Response:
        return await self.request(method, self.group.url(to) + path, headers=dict(JSON), timeout_s=5.0)


class _Recorded:
    def __init__(self, command: Command) -> None:
        self._command = command

    async def request(self, method: str, url: str, *, headers: Any = None, body: Any = b"", **more: Any) -> Response:
        fields = dict(headers or {})
        self._command.sent.append((method, url, fields, bytes(body)))
        client = self._command.group.client
        answer = await client.request(method, url, headers=fields, body=body, **more)
        return self._command.change(answer) if HEADER in fields else answer


def written(directory: Path, keys: GroupKeys) -> str:
    path = str(directory / "some.key")
    disk = PosixDisk()
    group_key.replace(disk, path, keys, SeededRandom(1))
    return path


async def started(seed: int, directory: Path, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Group:
    """Returns a group whose key the command has."""
    group = Group(seed, **{"levels": LEVELS, "anonymous": "append", **settings})
    await group.start()
    await group.serving()
    if group.keys is not None:
        monkeypatch.setenv(GROUP_KEY, written(directory, group.keys))
    return group


def segments(group: Group) -> list[int]:
    return [len(node.opened().log.view.segments()) for node in group.nodes.values()]


async def filled(group: Group) -> list[int]:
    """Appends, so that each node would begin a segment if it was ordered to; returns how many each has."""
    status, answer = await group.append(b"more", acks="all")
    assert status == 200, answer
    return segments(group)


@virtual
async def test_an_order_is_signed_and_so_is_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = await started(701, tmp_path, monkeypatch, anonymous="none")
    command = Command(group)
    assert (await command.order()).status == 200
    assert (await command.order(path="/v1/cdc/lines/pause")).status == 404
    assert (await command.order("n2", "/v1/admin/tokens", "GET")).status == 200
    shown = await command.order(path="/v1/status", method="GET")
    assert (shown.status, HEADER in shown.headers) == (200, True), "asked again, signed, because it was refused"
    bare = await group.client.request("POST", group.url("n1") + ROTATE, headers=JSON, timeout_s=5.0)
    assert bare.status == 401 and b"--group-key" in bytes(bare.body)
    await group.stop()


@virtual
async def test_an_answer_of_somebody_else_is_no_answer_to_an_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger with a node's address says that an order is done."""

    def done(answer: Response) -> Response:
        return Response(200, {"Content-Type": "application/json"}, b'{"node":"n1"}')

    def other_body(answer: Response) -> Response:
        return Response(answer.status, answer.headers, bytes(answer.body).replace(b"n1", b"n2"))

    def other_status(answer: Response) -> Response:
        return Response(200 if answer.status != 200 else 202, answer.headers, answer.body)

    group = await started(702, tmp_path, monkeypatch)
    for change in (done, other_body, other_status):
        with pytest.raises(Unreachable, match=r"not signed|signed with another key, or for another call"):
            await Command(group, change).order()
    await group.stop()


@virtual
async def test_another_key_orders_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the ID of the group's key, and with its own."""
    group = await started(703, tmp_path, monkeypatch)
    before = await filled(group)
    monkeypatch.setenv(GROUP_KEY, written(tmp_path, OTHER))
    with pytest.raises(Unreachable, match="does not accept the key one: the signature of @cli's call is wrong"):
        await Command(group).order()
    monkeypatch.setenv(GROUP_KEY, written(tmp_path, GroupKeys((group_key.new_key(SeededRandom(5), "two"),))))
    command = Command(group)
    with pytest.raises(Unauthorized, match=r"accepts the keys one, and .* signs with another"):
        await command.order()
    assert [url for _, url, _, _ in command.sent] == [f"{group.url('n1')}/v1/key"], "nothing else was sent"
    assert segments(group) == before
    await group.stop()


@virtual
async def test_a_key_that_is_named_sends_nothing_to_a_node_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await started(704, tmp_path, monkeypatch, keyed=False, anonymous="all")
    monkeypatch.setenv(GROUP_KEY, written(tmp_path, OTHER))
    before = await filled(group)
    with pytest.raises(Unauthorized, match="has no key of a group"):
        await Command(group).order()
    assert segments(group) == before
    monkeypatch.delenv(GROUP_KEY)
    assert (await Command(group).order()).status == 200, "as it always was"
    await group.stop()


@virtual
async def test_an_order_counts_once_and_at_the_node_that_it_was_sent_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await started(705, tmp_path, monkeypatch)
    command = Command(group)
    before = await filled(group)
    assert (await command.order()).status == 200
    assert segments(group) == [before[0] + 1, *before[1:]]
    method, _, headers, body = command.sent[-1]
    before = await filled(group)
    for name in group.names:
        answer = await group.client.request(method, group.url(name) + ROTATE, headers=headers, body=body, timeout_s=5.0)
        assert answer.status == (401 if name == "n1" else 409), bytes(answer.body)
    # A stranger at n1's address passes the command on to n2, whose session it then has.
    known = group.names[0], group.url("n2")
    relay = Command(group)
    request = relay._network.request

    async def passed_on(method: str, url: str, **more: Any) -> Response:
        return await request(method, url.replace(group.url(known[0]), known[1]), **more)

    relay._network.request = passed_on  # type: ignore[method-assign]
    answer = await relay.order("n1")
    assert (answer.status, msgspec.json.decode(answer.body)["type"]) == (409, "wrong-name")
    assert segments(group) == before
    await group.stop()


@virtual
async def test_a_members_signature_gives_no_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signature of members is for members: a call of one, led to another path, would be an order."""
    group = await started(706, tmp_path, monkeypatch)
    node = group.nodes["n2"]
    before = await filled(group)
    answer = await node.member.calls.request("n1", "POST", group.url("n1") + ROTATE, headers=JSON, timeout_s=5.0)
    assert (answer.status, msgspec.json.decode(answer.body)["type"]) == (409, "wrong-name")
    assert segments(group) == before
    await group.stop()


@virtual
async def test_without_a_key_an_order_has_the_token_but_not_over_plain_http_to_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = await started(707, tmp_path, monkeypatch)
    monkeypatch.delenv(GROUP_KEY)
    monkeypatch.setenv(TOKEN, "vlt_abcdefgh_" + "A" * 43)
    command = Command(group)
    assert (await command.order()).status == 401
    assert "Authorization" not in command.sent[-1][2], "n1 is another machine"
    await group.stop()
