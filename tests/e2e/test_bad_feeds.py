"""``WS /v1/feed`` from where it should not come: refused before the upgrade, or ended after it, alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientWebSocketResponse

from repl.api import FeedHello
from repl.auth.signatures import HEADER
from repl.group.feed_hello import encode_hello
from tests.e2e.calls import UPGRADE, Answer, call
from tests.e2e.group import Group
from tests.e2e.signing import signed
from tests.e2e.sockets import tell, until_closed, websocket
from vlsn.format.feed_messages import (
    Ack,
    Matchpoint,
    MessageType,
    Refuse,
    Start,
    Syncup,
    TermRun,
    ack_message,
    decode_json,
    decode_position,
    encode,
    message_type,
)
from vlsn.ids import Incarnation, NodeName, Term
from vlsn.levels import LEVELS
from vlsn.real.disk import PosixDisk
from vlsn.state import node_file
from vlsn.state.node_file import NodeRecord


def record(group: Group, name: str) -> NodeRecord:
    return node_file.read(PosixDisk(), str(group.path(name) / "node.id"))


def hello(group: Group, name: str, *, at: str = "n1", **changed: str) -> dict[str, str]:
    """Returns the headers that ``name`` itself would send to ``at``, some of them changed, and signed then."""
    own = record(group, name)
    sent = encode_hello(
        FeedHello(
            group=own.group,
            node=NodeName(name),
            incarnation=Incarnation(own.incarnation),
            to=NodeName("n1"),
            to_incarnation=Incarnation(record(group, "n1").incarnation),
            term=Term(own.term),
            process=1,
        )
    )
    sent |= {f"Vlsnlog-{header.replace('_', '-')}": value for header, value in changed.items()}
    return {**sent, HEADER: signed(group, at, sent["Vlsnlog-Node"], "GET", "/v1/feed", feed=sent)}


def feed(group: Group, headers: Mapping[str, str], *, name: str = "n1") -> Answer:
    return call("GET", f"{group.urls[name]}/v1/feed", headers={**UPGRADE, **headers})


ELSEWHERE = "0123456789abcdef"


def test_a_feed_that_is_not_for_this_node_is_refused_before_the_upgrade(group: Group) -> None:
    with group.unharmed():
        for changed, status, slug in (
            ({"Version": str(LEVELS.max + 1)}, 400, "wrong-version"),
            ({"Group": "another"}, 409, "wrong-group"),
            ({"To": "n2"}, 409, "wrong-name"),
            ({"To": "n9"}, 409, "wrong-name"),
            ({"Node": "n9"}, 403, "not-listed"),
            ({"Node": "n1"}, 409, "wrong-name"),
            ({"To_Incarnation": ELSEWHERE}, 409, "wrong-incarnation"),
            ({"Incarnation": ELSEWHERE}, 409, "duplicate-feed"),
        ):
            answer = feed(group, hello(group, "n2", **changed))
            assert (answer.status, answer.json()["type"]) == (status, slug), (changed, answer)
            answer.refused(status, slug)


def test_a_listed_member_of_a_higher_term_makes_the_master_step_down_and_somebody_lead_above_it(hurt: Group) -> None:
    term = hurt.status("n1")["term"]
    feed(hurt, hello(hurt, "n2", Term=str(term + 7))).refused(409, "stale-term")
    hurt.until(lambda: hurt.status(hurt.leader)["term"] > term + 7, "somebody leads above it")
    hurt.append(b"on")


def test_a_replica_feeds_nobody(group: Group) -> None:
    with group.unharmed():
        headers = hello(group, "n2", at="n3", To="n3", To_Incarnation=f"{record(group, 'n3').incarnation:016x}")
        feed(group, headers, name="n3").refused(503, "no-master")


# A feed under the identity of a replica that is dead.


@pytest.fixture
def bereft(hurt: Group) -> Group:
    """Returns the group without n3, whose place somebody takes."""
    hurt.kill("n3")
    hurt.until(lambda: not hurt.feeder("n3"), "the feed of n3 has ended")
    return hurt


@asynccontextmanager
async def fed(group: Group) -> AsyncIterator[ClientWebSocketResponse]:
    """Returns a feed for n3. On leaving, the master has ended it."""
    async with websocket(f"{group.master}/v1/feed", hello(group, "n3")) as socket:
        yield socket
    group.until(lambda: not group.feeder("n3"), "the feed of n3 has ended")


def empty(group: Group) -> bytes:
    """Makes the SYNCUP of an empty log."""
    return encode(Syncup(first=0, last=0, last_sync=0, stored_term=record(group, "n3").term, term_runs=[]))


def refusal(messages: list[bytes]) -> str:
    """Returns the type that a REFUSE gives, the only message there is."""
    (message,) = messages
    return decode_json(message, Refuse).slug


SYNCUP = bytes([MessageType.SYNCUP])
NO_SYNCUPS: dict[str, bytes] = {
    "nothing": b"",
    "a zero": b"\0",
    "no JSON": SYNCUP + b"{",
    "a deep nest": SYNCUP + b'{"term_runs":' + b"[" * 100_000,
    "runs with a hole": encode(
        Syncup(first=1, last=9, last_sync=9, stored_term=2, term_runs=[TermRun(1, 1, 3), TermRun(2, 5, 9)])
    ),
}


async def test_what_is_no_syncup_ends_that_feed_alone(bereft: Group) -> None:
    with bereft.unharmed():
        for what, message in NO_SYNCUPS.items():
            async with fed(bereft) as socket:
                await socket.send_bytes(message)
                assert refusal(await until_closed(socket)) == "bad-body", what
        async with fed(bereft) as socket:
            await socket.send_str("hello")
            await until_closed(socket)
        async with fed(bereft) as socket:
            await tell(socket, SYNCUP + bytes(2 << 20))
            await until_closed(socket)
        async with fed(bereft) as socket:
            await socket.send_bytes(encode(Syncup(0, 0, 0, stored_term=1 << 40, term_runs=[])))
            assert refusal(await until_closed(socket)) == "stale-term"
    bereft.start("n3")


async def test_what_is_no_start_ends_that_feed_alone(bereft: Group) -> None:
    with bereft.unharmed():
        for message in (
            b"",
            encode(Start(1 << 70)),
            encode(Refuse("internal", "I do not like it")),
            bytes([MessageType.START]) + b'{"from_vlsn":1.5}',
        ):
            async with fed(bereft) as socket:
                await socket.send_bytes(empty(bereft))
                assert decode_json(await socket.receive_bytes(), Matchpoint).vlsn == 0
                await socket.send_bytes(message)
                await until_closed(socket)
    bereft.start("n3")


async def test_garbage_among_acknowledgements_ends_that_feed_alone(bereft: Group) -> None:
    with bereft.unharmed():
        term = bereft.status("n1")["term"]
        for message in (
            b"",
            ack_message(Ack(term + 1, 1, 1)),
            ack_message(Ack(term, 1, 2)),
            ack_message(Ack(term, 1 << 60, 1 << 60)),
            encode(Start(1)),
            encode(Refuse("internal", "enough")),
        ):
            async with fed(bereft) as socket:
                await socket.send_bytes(empty(bereft))
                await socket.receive_bytes()
                await socket.send_bytes(encode(Start(1)))
                blocks = await socket.receive_bytes()
                assert message_type(blocks) is MessageType.BLOCKS
                assert decode_position(blocks).term == term
                await socket.send_bytes(message)
                await until_closed(socket)
    bereft.start("n3")


async def test_a_second_feed_of_one_incarnation_takes_the_place_of_the_first(bereft: Group) -> None:
    async with fed(bereft) as first, websocket(f"{bereft.master}/v1/feed", hello(bereft, "n3")) as second:
        await until_closed(first)
        await second.send_bytes(empty(bereft))
        assert message_type(await second.receive_bytes()) is MessageType.MATCHPOINT
        feed(bereft, hello(bereft, "n3", Incarnation=ELSEWHERE)).refused(409, "duplicate-feed")
    bereft.start("n3")


async def test_a_replica_with_more_than_the_master_is_told_where_the_two_part(bereft: Group) -> None:
    """The replica rolls back what lies past that; the master changes nothing."""
    with bereft.unharmed():
        told = bereft.status("n1")
        last, term = told["range"]["last"], told["term"]
        runs = [TermRun(term, 1, last + 5)] if term == 1 else [TermRun(1, 1, 2), TermRun(term, 3, last + 5)]
        async with fed(bereft) as socket:
            await socket.send_bytes(encode(Syncup(1, last + 5, last + 5, stored_term=term, term_runs=runs)))
            assert decode_json(await socket.receive_bytes(), Matchpoint).vlsn == last
    bereft.start("n3")
