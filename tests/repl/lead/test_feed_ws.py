"""``WS /v1/feed`` up to its upgrade."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from repl.api import FeedHello
from repl.group.feed_hello import decode_hello, encode_hello
from repl.node.gateway import Gateway
from repl.web import limits
from repl.web.types import Headers, Upgrade
from tests.repl.web.calls import call, refused, request
from tests.repl.web.channels import pair
from tests.repl.web.one_node import OneNode, started
from vlsn.errors import (
    BadBody,
    ChannelClosed,
    DuplicateFeed,
    NotListed,
    NotMaster,
    StaleTerm,
    VlsnLogError,
    WrongIncarnation,
    WrongName,
    WrongVersion,
)
from vlsn.ids import Incarnation, NodeName, Term
from vlsn.levels import LEVELS, Levels
from vlsn.seams import Channel

HELLO = FeedHello(
    group="sim",
    node=NodeName("n2"),
    incarnation=Incarnation(0x0123456789ABCDEF),
    to=NodeName("n1"),
    to_incarnation=Incarnation(0xABCD),
    term=Term(7),
    process=99,
)
HEADERS = encode_hello(HELLO) | {"Upgrade": "websocket"}


@pytest.mark.parametrize("to_incarnation", [None, Incarnation(0), Incarnation(2**64 - 1)])
def test_hello_goes_through_its_headers(to_incarnation: Incarnation | None) -> None:
    hello = FeedHello("g", NodeName("n2"), Incarnation(1), NodeName("n1"), to_incarnation, Term(0), 0)
    assert decode_hello(Headers(encode_hello(hello)), to="n1", levels=LEVELS) == hello


@pytest.mark.parametrize(("own", "told"), [((1, 1), "1-2"), ((1, 2), "1"), ((1, 2), "2-3"), ((2, 3), "1-2")])
def test_a_feed_needs_one_level_in_common(own: tuple[int, int], told: str) -> None:
    hello = decode_hello(Headers(HEADERS | {"Vlsnlog-Version": told}), to="n1", levels=Levels(*own))
    assert str(hello.levels) == told
    assert decode_hello(Headers(encode_hello(hello)), to="n1", levels=Levels(*own)) == hello


@pytest.mark.parametrize(("own", "told"), [((1, 1), "2-3"), ((2, 3), "1"), ((3, 4), "1-2"), ((1, 2), "5")])
def test_a_feed_without_a_common_level_is_refused_whatever_its_other_headers_are(
    own: tuple[int, int], told: str
) -> None:
    with pytest.raises(WrongVersion, match=f"the replica speaks level {told}, n1 level {Levels(*own)}"):
        decode_hello(Headers({"Vlsnlog-Version": told, "Vlsnlog-Term": "another day's"}), to="n1", levels=Levels(*own))


@pytest.mark.parametrize("told", ["0", "1-", "-1", "1-1-1", "1.0", "01", "65536", "1-65536", "1 - 2", "１", ""])
def test_levels_that_are_none_are_refused(told: str) -> None:
    with pytest.raises(WrongVersion):
        decode_hello(Headers(HEADERS | {"Vlsnlog-Version": told}), to="n1", levels=LEVELS)


def test_levels_the_wrong_way_round_are_refused() -> None:
    with pytest.raises(BadBody):
        decode_hello(Headers(HEADERS | {"Vlsnlog-Version": "3-1"}), to="n1", levels=LEVELS)


class Fed:
    """Notes the feeds that a node is asked for, and sends each message back."""

    def __init__(self, node: OneNode, refuse: VlsnLogError | None = None) -> None:
        self.feeds: list[tuple[FeedHello, list[bytes]]] = []
        self._refuse = refuse
        node.services.feeds.check_feed = self.check  # type: ignore[method-assign]
        node.services.feeds.serve_feed = self.serve  # type: ignore[method-assign]

    async def check(self, hello: FeedHello) -> None:
        if self._refuse is not None:
            raise self._refuse

    async def serve(self, hello: FeedHello, channel: Channel) -> None:
        messages: list[bytes] = []
        self.feeds.append((hello, messages))
        with suppress(ChannelClosed):
            while True:
                messages.append(bytes(await channel.receive()))
                await channel.send(messages[-1])


async def test_feed_is_handed_to_the_node_with_its_hello() -> None:
    node = await started()
    fed = Fed(node)
    upgrade = await Gateway(node.services).handle(request("GET", "/v1/feed", HEADERS))
    assert isinstance(upgrade, Upgrade)
    ours, theirs = pair()
    serving = asyncio.ensure_future(upgrade.run(theirs))
    await ours.send(b"syncup")
    assert await ours.receive() == b"syncup"
    await ours.close()
    await serving
    assert fed.feeds == [(HELLO, [b"syncup"])]


@pytest.mark.parametrize(
    ("header", "value", "status", "slug"),
    [
        ("Vlsnlog-Version", "5", 400, "wrong-version"),
        ("Vlsnlog-Version", "", 400, "wrong-version"),
        ("Vlsnlog-Version", None, 400, "wrong-version"),
        ("Vlsnlog-Group", "other", 409, "wrong-group"),
        ("Vlsnlog-Group", None, 400, "bad-argument"),
        ("Vlsnlog-Group", "a b", 400, "bad-argument"),
        ("Vlsnlog-Node", "n" * 33, 400, "bad-argument"),
        ("Vlsnlog-Incarnation", "0x01234567890123", 400, "bad-argument"),
        ("Vlsnlog-Incarnation", "0123456789abcdef0", 400, "bad-argument"),
        ("Vlsnlog-Incarnation", None, 400, "bad-argument"),
        ("Vlsnlog-To", "", 400, "bad-argument"),
        ("Vlsnlog-To-Incarnation", "", 400, "bad-argument"),
        ("Vlsnlog-Term", "-1", 400, "bad-argument"),
        ("Vlsnlog-Term", "9" * 20, 400, "bad-argument"),
        ("Vlsnlog-Term", "9" * 19, 400, "bad-argument"),  # no other message could carry it on
        ("Vlsnlog-Term", str(2**63 - 1), 400, "bad-argument"),
        ("Vlsnlog-Process", "1", 400, "bad-argument"),
        ("Upgrade", None, 400, "bad-argument"),
        ("Upgrade", "h2c", 400, "bad-argument"),
    ],
)
async def test_feed_wrong_header_is_refused_before_the_upgrade(
    header: str, value: str | None, status: int, slug: str
) -> None:
    headers = {name: text for name, text in HEADERS.items() if name != header}
    if value is not None:
        headers[header] = value
    refused(await call(await started(), "GET", "/v1/feed", headers), status, slug)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WrongName("not me"), 409),
        (WrongIncarnation("another life"), 409),
        (NotListed("unknown"), 403),
        (StaleTerm("behind"), 409),
        (DuplicateFeed("fed"), 409),
        (NotMaster("no"), 503),
    ],
)
async def test_feed_refused_by_the_node_answers_its_type(error: VlsnLogError, status: int) -> None:
    node = await started()
    Fed(node, error)
    refused(await call(node, "GET", "/v1/feed", HEADERS), status, error.slug)


async def test_feed_places_are_limited_and_given_back() -> None:
    node = await started()
    Fed(node)
    gateway = Gateway(node.services)
    ends, runs = [], []
    for _ in range(limits.FEEDS_MAX):
        upgrade = await gateway.handle(request("GET", "/v1/feed", HEADERS))
        assert isinstance(upgrade, Upgrade)
        ours, theirs = pair()
        ends.append(ours)
        runs.append(asyncio.ensure_future(upgrade.run(theirs)))
    await asyncio.sleep(0)
    refused(await call(gateway, "GET", "/v1/feed", HEADERS), 429, "queue-full")
    for end in ends:
        await end.close()
    await asyncio.gather(*runs)
    assert isinstance(await gateway.handle(request("GET", "/v1/feed", HEADERS)), Upgrade)
