"""``GET /v1/tail`` against a node in memory."""

from __future__ import annotations

import asyncio
import json as stdlib_json
from typing import Any

import pytest

from repl.api import EntryPage
from repl.http import limits, tail
from repl.http.routes import Gateway
from repl.http.types import Response, Stream
from tests.repl.http.calls import call, refused, whole_body
from tests.repl.http.memory_node import MemoryNode
from vlsn.errors import Halted
from vlsn.limits import MIB


def stream_of(response: Response) -> Stream:
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/event-stream"
    assert response.stream is not None
    return response.stream


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
    node = MemoryNode()
    node.append(b"a", b"two\nlines")
    stream = stream_of(await call(node, "GET", "/v1/tail?from=1"))
    assert events(await anext(stream)) == [(2, "a"), (3, "two\nlines")]
    coming = asyncio.ensure_future(anext(stream))
    await node.until_waits()
    node.append(b"c")
    assert events(await coming) == [(4, "c")]
    await stream.aclose()


async def test_tail_resumes_after_the_last_event_id() -> None:
    node = MemoryNode()
    node.append(b"a", b"b", b"c")
    stream = stream_of(await call(node, "GET", "/v1/tail?from=1", {"Last-Event-ID": "3"}))
    assert events(await anext(stream)) == [(4, "c")]
    await stream.aclose()


async def test_tail_ids_with_terms_find_out_that_what_was_read_is_not_in_the_log() -> None:
    node = MemoryNode()
    node.append(b"a", b"b", b"c")
    stream = stream_of(await call(node, "GET", "/v1/tail?from=3&ids=vlsn@term"))
    first = (await anext(stream)).split(b"\n")[0]
    assert first == b"id: 3@7"
    await stream.aclose()
    seen = {"Last-Event-ID": first.removeprefix(b"id: ").decode()}
    for target in ("/v1/tail?ids=vlsn@term", "/v1/tail?from=2&after_term=6"):
        again = stream_of(await call(node, "GET", target, seen))
        assert b'"value":"c"' in await anext(again)
        await again.aclose()
    other = refused(await call(node, "GET", "/v1/tail?ids=vlsn@term", {"Last-Event-ID": "3@6"}), 409, "not-in-log")
    assert (other["vlsn"], other["term"], other["found"]) == (3, 6, 7)


async def test_tail_comments_when_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "TAIL_COMMENT_S", 0.01)
    node = MemoryNode()
    stream = stream_of(await call(node, "GET", "/v1/tail"))
    for _ in range(3):
        assert (await anext(stream)).startswith(b":")
    node.append(b"a")
    assert events(await anext(stream)) == [(2, "a")]
    await stream.aclose()


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
    refused(await call(MemoryNode(), "GET", target, headers), 400, "bad-argument")


async def test_tail_trimmed_start_is_refused_before_the_stream() -> None:
    node = MemoryNode()
    node.append(b"a", b"b")
    node.first = 3
    assert refused(await call(node, "GET", "/v1/tail?from=1"), 410, "trimmed")["first"] == 3


async def test_tail_that_fails_later_says_why_and_ends() -> None:
    node = MemoryNode()
    node.append(b"a")
    stream = stream_of(await call(node, "GET", "/v1/tail"))
    await anext(stream)
    coming = asyncio.ensure_future(anext(stream))
    await node.until_waits()
    node.wake(Halted("a person is needed"))
    event, _, data = (await coming).partition(b"\ndata: ")
    assert event == b"event: error"
    assert stdlib_json.loads(data)["type"] == "halted"
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    await stream.aclose()


async def test_tail_places_are_few_and_given_back() -> None:
    gateway = Gateway(MemoryNode().services)
    streams = [stream_of(await call(gateway, "GET", "/v1/tail")) for _ in range(limits.TAILS_MAX)]
    refused(await call(gateway, "GET", "/v1/tail"), 429, "queue-full")
    await streams[0].aclose()
    await streams[0].aclose()
    last = stream_of(await call(gateway, "GET", "/v1/tail"))
    refused(await call(gateway, "GET", "/v1/tail"), 429, "queue-full")
    for stream in [*streams, last]:
        await stream.aclose()


async def test_tail_events_that_nobody_takes_are_counted_and_end_the_next_tail() -> None:
    node = MemoryNode()
    node.append(bytes(MIB), b"after")  # six bytes of JSON for each of the first entry's
    gateway = Gateway(node.services)
    held: list[Stream] = []
    while True:
        stream = stream_of(await call(gateway, "GET", "/v1/tail?from=2"))
        piece = await anext(stream)
        if piece.startswith(b"event: error\n"):
            break
        held.append(stream)
    assert b'"type":"queue-full"' in piece
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    assert 6 * MIB * len(held) <= limits.TAILS_IN_FLIGHT_BYTES_MAX < 6 * MIB * (len(held) + 1)
    other = stream_of(await call(gateway, "GET", "/v1/tail?from=3"))
    assert events(await anext(other)) == [(3, "after")]
    assert events(await anext(held[0])) == [(3, "after")]  # it has taken what it had
    stream = stream_of(await call(gateway, "GET", "/v1/tail?from=2"))
    assert (await anext(stream)).startswith(b"id: 2\n")
    for each in (*held, other, stream):
        await each.aclose()
        await each.aclose()


async def test_one_large_entry_is_counted_until_it_is_taken() -> None:
    node = MemoryNode()
    node.append(b"x" * MIB)
    gateway = Gateway(node.services)
    held: list[Response] = []
    while (response := await call(gateway, "GET", "/v1/entries/2")).status == 200:
        held.append(response)
    refused(response, 429, "queue-full")
    assert len(held) == limits.PAGES_IN_FLIGHT_BYTES_MAX // MIB
    assert await whole_body(held[0]) == b"x" * MIB
    assert (await call(gateway, "GET", "/v1/entries/2")).status == 200


class CountingNode(MemoryNode):
    """Counts the pages that it is asked for."""

    reads = 0

    async def read(self, from_vlsn: int | None, **wanted: Any) -> EntryPage:
        self.reads += 1
        return await super().read(from_vlsn, **wanted)


async def test_tails_that_stand_at_one_place_share_one_read_and_one_answer() -> None:
    node = CountingNode()
    gateway = Gateway(node.services)
    streams = [stream_of(await call(gateway, "GET", "/v1/tail?from=2")) for _ in range(50)]
    for stream in streams:
        assert (await anext(stream)).startswith(b":")
    coming = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await node.until_waits()
    before = node.reads
    node.append(b"to all")
    pieces = await asyncio.gather(*coming)
    assert all(events(piece) == [(2, "to all")] for piece in pieces)
    assert node.reads == before + 1
    for stream in streams:
        await stream.aclose()


async def test_a_tail_that_leaves_does_not_take_the_page_away_from_the_others() -> None:
    node = MemoryNode()
    gateway = Gateway(node.services)
    streams = [stream_of(await call(gateway, "GET", "/v1/tail?from=2")) for _ in range(3)]
    for stream in streams:
        await anext(stream)
    coming = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await node.until_waits()
    coming[0].cancel()
    await asyncio.wait(coming[:1])
    late = asyncio.ensure_future(anext(streams[0]))
    for each in coming[1:]:
        each.cancel()
    await asyncio.wait(coming[1:])
    node.append(b"a")
    assert events(await late) == [(2, "a")]
    for stream in streams:
        await stream.aclose()
