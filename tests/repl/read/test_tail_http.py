"""``GET /v1/tail`` against a real node on fakes."""

from __future__ import annotations

import asyncio
import json as stdlib_json
from typing import Any

import pytest

from repl.api import Acks, EntryPage
from repl.node.gateway import Gateway
from repl.read import tail_http as tail
from repl.web import limits
from repl.web.types import Piece, Response
from tests.repl.web.calls import call, refused, whole_body
from tests.repl.web.one_node import FIRST, TERM, OneNode, started
from vlsn.errors import Halted
from vlsn.format.submission import Transaction, values_of
from vlsn.limits import MIB


class Client:
    """Takes what is pushed (``types.Sink``), unless told not to; gives it a piece at a time."""

    def __init__(self, response: Response) -> None:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.push is not None
        self._push = response.push
        self._pieces: asyncio.Queue[Piece | None] = asyncio.Queue()
        self.takes = True
        self.pieces: list[Piece] = []
        self._push.begin(self)

    def write(self, piece: Piece) -> bool:
        self.pieces.append(piece)
        self._pieces.put_nowait(piece)
        return self.takes

    def end(self) -> None:
        self._pieces.put_nowait(None)

    def go_on(self) -> None:
        self.takes = True
        self._push.go_on()

    def leave(self) -> None:
        self._push.close()

    async def next(self) -> bytes:
        piece = await asyncio.wait_for(self._pieces.get(), 10)
        return b"" if piece is None else piece.data

    @property
    def has_more(self) -> bool:
        return not self._pieces.empty()


async def waiting() -> None:
    """Returns once the tails have had their turns, and wait."""
    for _ in range(20):
        await asyncio.sleep(0)


async def tail_of(node: OneNode | Gateway, target: str, headers: dict[str, str] | None = None) -> Client:
    return Client(await call(node, "GET", target, headers))


def events(piece: bytes) -> list[tuple[int, str]]:
    """(id, value) of each event; checks the framing on the way."""
    found = []
    assert piece.endswith(b"\n\n")
    for event in piece[:-2].split(b"\n\n"):
        head, _, data = event.partition(b"\ndata: ")
        row = stdlib_json.loads(data)
        assert head == b"id: %d" % row["vlsn"]
        found.append((row["vlsn"], row["value"]))
    return found


async def test_tail_gives_what_is_there_then_what_comes() -> None:
    node = await started()
    await node.append(b"a", b"two\nlines")
    client = await tail_of(node, "/v1/tail?from=1")
    assert events(await client.next()) == [(FIRST, "a"), (FIRST + 1, "two\nlines")]
    await waiting()
    await node.append(b"c")
    assert events(await client.next()) == [(FIRST + 2, "c")]
    client.leave()


async def test_tail_resumes_after_the_last_event_id() -> None:
    node = await started()
    await node.append(b"a", b"b", b"c")
    client = await tail_of(node, "/v1/tail?from=1", {"Last-Event-ID": "5"})
    assert events(await client.next()) == [(FIRST + 2, "c")]
    client.leave()


async def test_tail_ids_with_terms_find_out_that_what_was_read_is_not_in_the_log() -> None:
    node = await started()
    await node.append(b"a", b"b", b"c")
    client = await tail_of(node, "/v1/tail?from=5&ids=vlsn@term")
    first = (await client.next()).split(b"\n")[0]
    assert first == b"id: 5@1"
    client.leave()
    seen = {"Last-Event-ID": first.removeprefix(b"id: ").decode()}
    for target in ("/v1/tail?ids=vlsn@term", "/v1/tail?from=4&after_term=2"):
        again = await tail_of(node, target, seen)
        assert b'"value":"c"' in await again.next()
        again.leave()
    other = refused(await call(node, "GET", "/v1/tail?ids=vlsn@term", {"Last-Event-ID": "5@2"}), 409, "not-in-log")
    assert (other["vlsn"], other["term"], other["found"]) == (5, 2, TERM)


async def test_events_and_lines_name_a_transaction_where_it_is_asked_for() -> None:
    node = await started()
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    node.services.appends.submit(Transaction([values_of([b"a", b"b"], None)]), Acks.MAJORITY, done.set_result)
    await done
    for asked, named in (("", 0), ("&txns=true", 2), ("&txns=false", 0)):
        client = await tail_of(node, f"/v1/tail?from=1{asked}")
        assert (await client.next()).count(b'"txn":%d' % FIRST) == named
        client.leave()
        lines = await call(node, "GET", f"/v1/entries?from=1{asked}")
        assert bytes(lines.body).count(b'"txn":%d' % FIRST) == named
    refused(await call(node, "GET", "/v1/entries?txns=yes"), 400, "bad-argument")


async def test_tail_comments_when_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "TAIL_COMMENT_S", 0.1)
    node = await started()
    client = await tail_of(node, "/v1/tail")
    for _ in range(3):
        assert (await client.next()).startswith(b":")
    await node.append(b"a")
    while (piece := await client.next()).startswith(b":"):
        pass
    assert events(piece) == [(FIRST, "a")]
    client.leave()


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/v1/tail?from=0", {}),
        ("/v1/tail?limit=1", {}),
        ("/v1/tail", {"Last-Event-ID": "x"}),
        ("/v1/tail", {"Last-Event-ID": "-1"}),
        ("/v1/tail", {"Last-Event-ID": "3@"}),
        ("/v1/tail", {"Last-Event-ID": "3@0"}),
        ("/v1/tail", {"Last-Event-ID": "0@7"}),
        ("/v1/tail", {"Last-Event-ID": "3@7@1"}),
        ("/v1/tail?ids=term", {}),
    ],
)
async def test_tail_bad_parameter_is_refused(target: str, headers: dict[str, str]) -> None:
    refused(await call(await started(), "GET", target, headers), 400, "bad-argument")


async def test_tail_that_fails_later_says_why_and_ends() -> None:
    node = await started()
    await node.append(b"a")
    client = await tail_of(node, "/v1/tail")
    await client.next()
    await waiting()

    async def halted(*_: Any, **wanted: Any) -> EntryPage:
        raise Halted("a person is needed")

    node.opened().reads.page = halted  # type: ignore[method-assign]
    await node.append(b"b")
    event, _, data = (await client.next()).partition(b"\ndata: ")
    assert event == b"event: error"
    assert stdlib_json.loads(data)["type"] == "halted"
    assert await client.next() == b""
    client.leave()


async def test_tail_places_are_limited_and_given_back() -> None:
    gateway = Gateway((await started()).services, readers_max=30)
    clients = [await tail_of(gateway, "/v1/tail") for _ in range(30)]
    answer = await call(gateway, "GET", "/v1/tail")
    refused(answer, 429, "queue-full")
    clients[0].leave()
    clients[0].leave()
    last = await tail_of(gateway, "/v1/tail")
    refused(await call(gateway, "GET", "/v1/tail"), 429, "queue-full")
    for client in [*clients, last]:
        client.leave()


async def test_a_tail_that_takes_nothing_is_left_out_until_it_does_and_then_misses_nothing() -> None:
    node = await started()
    gateway = Gateway(node.services)
    slow, quick = await tail_of(gateway, "/v1/tail?from=4"), await tail_of(gateway, "/v1/tail?from=4")
    assert (await slow.next()).startswith(b":") and (await quick.next()).startswith(b":")
    slow.takes = False
    for vlsn, value in enumerate((b"a", b"b", b"c"), FIRST):
        await waiting()
        await node.append(value)
        assert events(await quick.next()) == [(vlsn, value.decode())]
    assert events(await slow.next()) == [(FIRST, "a")]
    assert not slow.has_more
    slow.go_on()
    assert events(await slow.next()) == [(FIRST + 1, "b"), (FIRST + 2, "c")]
    slow.leave()
    quick.leave()


async def test_one_large_entry_is_counted_until_it_is_taken() -> None:
    node = await started(segment_bytes=2 * MIB)
    await node.append(b"x" * MIB)
    gateway = Gateway(node.services)
    held: list[Response] = []
    while (response := await call(gateway, "GET", f"/v1/entries/{FIRST}")).status == 200:
        held.append(response)
    refused(response, 429, "queue-full")
    assert len(held) == limits.PAGES_IN_FLIGHT_BYTES_MAX // MIB
    assert await whole_body(held[0]) == b"x" * MIB
    assert (await call(gateway, "GET", f"/v1/entries/{FIRST}")).status == 200


async def test_tails_that_stand_at_one_place_share_one_read_and_one_answer() -> None:
    node = await started()
    read, reads = node.opened().reads.page, 0

    async def counted(*place: Any, **wanted: Any) -> EntryPage:
        nonlocal reads
        reads += 1
        return await read(*place, **wanted)

    node.opened().reads.page = counted  # type: ignore[method-assign]
    gateway = Gateway(node.services)
    clients = [await tail_of(gateway, "/v1/tail?from=4") for _ in range(50)]
    for client in clients:
        assert (await client.next()).startswith(b":")
    await waiting()
    before = reads
    await node.append(b"to all")
    pieces = [await client.next() for client in clients]
    assert all(events(piece) == [(FIRST, "to all")] for piece in pieces)
    assert len({id(client.pieces[-1]) for client in clients}) == 1
    assert reads == before + 1
    for client in clients:
        client.leave()


async def test_a_tail_that_leaves_does_not_take_the_page_away_from_the_others() -> None:
    node = await started()
    gateway = Gateway(node.services)
    clients = [await tail_of(gateway, "/v1/tail?from=4") for _ in range(3)]
    for client in clients:
        await client.next()
    await waiting()
    clients[0].leave()
    clients[1].leave()
    await node.append(b"a")
    assert events(await clients[2].next()) == [(FIRST, "a")]
    clients[2].leave()
    assert not any(client.has_more for client in clients)
