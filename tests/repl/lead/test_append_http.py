"""``POST /v1/entries`` against a real node on fakes."""

from __future__ import annotations

import asyncio
import json as stdlib_json

import pytest

from repl.api import Acks
from repl.node.gateway import Gateway
from repl.web.limits import BODY_S, PIECE_BYTES, PIECES_A_TURN_BYTES, AppendLimits
from tests.fakes.loop import run
from tests.repl.web.calls import (
    BATCH,
    NDJSON,
    OCTETS,
    ChunkedBody,
    StalledBody,
    UnreadableBody,
    call,
    json,
    refused,
    request,
    turning,
)
from tests.repl.web.one_node import FIRST, TERM, follower, masterless, started
from vlsn.errors import (
    DuplicateForgotten,
    Halted,
    InsufficientReplicas,
    NoSpace,
    NotMaster,
    OutOfSequence,
    QueueFull,
    UnknownProducer,
    VlsnLogError,
)
from vlsn.format import batch
from vlsn.limits import (
    BATCH_ENTRIES_MAX,
    BODIES_IN_FLIGHT_BYTES_MAX,
    BODY_BYTES_MAX,
    ENTRY_BYTES_MAX,
    KEY_BYTES_MAX,
    MIB,
)


async def test_append_octets_answers_what_the_node_acknowledged() -> None:
    node = await started()
    response = await call(node, "POST", "/v1/entries", OCTETS, b"value")
    assert response.status == 200
    told = {"first": FIRST, "last": FIRST, "term": TERM, "durable": True, "synced": 1, "acks": "majority"}
    assert json(response) == told | {"durability": {"local": "sync", "replica": "sync"}}
    assert node.submitted == [(None, b"value")]


async def test_append_empty_octets_is_one_empty_entry() -> None:
    node = await started()
    assert (await call(node, "POST", "/v1/entries", OCTETS, b"")).status == 200
    assert node.submitted == [(None, b"")]


NAMED = "producer=00000000000000ff&sequence=0"
LINES = b'{"value":"a"}\n{"value":"b"}'


@pytest.mark.parametrize(
    ("kind", "body", "values"),
    [
        (OCTETS, b"a", [b"a"]),
        (NDJSON, LINES, [b"a", b"b"]),
        (NDJSON, LINES + b"\n" + b'{"value":"more"}\n' * (PIECE_BYTES // 10), None),
        (BATCH, batch.encode([b"a", b"b"]), [b"a", b"b"]),
    ],
    ids=["octets", "lines", "many lines", "batch"],
)
async def test_append_takes_a_producer_and_its_sequence(
    kind: dict[str, str], body: bytes, values: list[bytes] | None
) -> None:
    node = await started(segment_bytes=MIB)
    assert (await call(node, "POST", f"/v1/entries?{NAMED}", kind, body)).status == 200
    assert (await call(node, "POST", f"/v1/entries?{NAMED}&born=60", kind, body)).status == 200
    assert (await call(node, "POST", "/v1/entries", kind, body)).status == 200
    named = [(submission.producer, submission.sequence, born) for submission, born in node.asked]
    assert named == [(255, 0, None), (255, 0, 60), (0, 0, None)]
    assert values is None or node.submitted == [(None, value) for value in values * 3]


async def test_append_takes_a_batch_that_names_its_producer() -> None:
    node = await started()
    named = batch.encode([b"v"], producer=(255, 0))
    for again in (False, True):
        response = await call(node, "POST", "/v1/entries?born=3", BATCH, named)
        assert json(response).get("duplicate", False) is again
    assert [(submission.producer, born) for submission, born in node.asked] == [(255, 3)] * 2
    refused(await call(node, "POST", f"/v1/entries?{NAMED}", BATCH, named), 400, "bad-argument")


@pytest.mark.parametrize(
    "query",
    [
        "producer=00000000000000ff",
        "sequence=7",
        "producer=ff&sequence=7",
        "producer=00000000000000FF&sequence=7",
        "producer=0000000000000000&sequence=7",
        "producer=00000000000000ff&sequence=-1",
        "producer=00000000000000ff&sequence=9223372036854775807",
        f"{NAMED}&born=x",
    ],
)
async def test_append_refuses_half_a_producer(query: str) -> None:
    node = await started()
    refused(await call(node, "POST", f"/v1/entries?{query}", OCTETS, b"v"), 400, "bad-argument")
    assert not node.asked


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (OutOfSequence("9 where 7 is due"), "out-of-sequence"),
        (UnknownProducer("who"), "unknown-producer"),
        (DuplicateForgotten("long ago"), "duplicate-forgotten"),
    ],
)
async def test_append_says_what_a_producer_is_refused_for(error: VlsnLogError, slug: str) -> None:
    node = await started(refuse=error)
    refused(await call(node, "POST", f"/v1/entries?{NAMED}", OCTETS, b"v"), 409, slug)
    assert error.retry_safe is isinstance(error, OutOfSequence), "the others may be in the log"


async def test_a_head_that_never_comes_again_is_not_remembered() -> None:
    gateway = Gateway((await started()).services)
    assert gateway.quick(request("POST", "/v1/entries", OCTETS)) is not None
    assert gateway.quick(request("POST", f"/v1/entries?{NAMED}", OCTETS)) is None


@pytest.mark.parametrize(
    ("query", "key"),
    [
        ("key=k", b"k"),
        ("key=", None),
        ("key=a%20b+c", b"a b c"),
        ("key=%FF%00", b"\xff\x00"),
        ("key=%C3%A4", "ä".encode()),
    ],
)
async def test_append_key_parameter_is_the_percent_decoded_bytes(query: str, key: bytes | None) -> None:
    node = await started()
    assert (await call(node, "POST", f"/v1/entries?{query}", OCTETS, b"v")).status == 200
    assert node.submitted == [(key, b"v")]


async def test_append_content_type_ignores_case_and_parameters() -> None:
    node = await started()
    headers = {"content-type": "Application/Octet-Stream; charset=utf-8"}
    assert (await call(node, "POST", "/v1/entries", headers, b"v")).status == 200


async def test_append_ndjson_is_one_atomic_append_of_its_lines() -> None:
    node = await started()
    body = b'{"value":"a"}\n{"value_b64":"/w==","key":"k"}\n{"key_b64":"AA==","value":""}\n{"value":"\\u00e4","key":""}'
    response = await call(node, "POST", "/v1/entries", NDJSON, body)
    assert (json(response)["first"], json(response)["last"], len(node.asked)) == (FIRST, FIRST + 3, 1)
    assert node.submitted == [(None, b"a"), (b"k", b"\xff"), (b"\0", b""), (None, "ä".encode())]


async def test_append_batch_is_taken_as_it_is() -> None:
    node = await started()
    response = await call(node, "POST", "/v1/entries", BATCH, batch.encode([b"a", b"b"], [None, b"k"]))
    assert json(response)["last"] == FIRST + 1
    assert node.submitted == [(None, b"a"), (b"k", b"b")]


@pytest.mark.parametrize("acks", list(Acks))
async def test_append_passes_the_ack_policy_on(acks: Acks) -> None:
    node = await started()
    response = await call(node, "POST", f"/v1/entries?acks={acks.value}&timeout=2.5", OCTETS, b"v")
    assert json(response)["acks"] == acks.value


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("/v1/entries?acks=most", "acks"),
        ("/v1/entries?acks=", "acks"),
        ("/v1/entries?acks=none&acks=all", "acks"),
        ("/v1/entries?timeout=0", "timeout"),
        ("/v1/entries?timeout=-1", "timeout"),
        ("/v1/entries?timeout=601", "timeout"),
        ("/v1/entries?timeout=nan", "timeout"),
        ("/v1/entries?timeout=inf", "timeout"),
        ("/v1/entries?timeout=1e1", "timeout"),
        ("/v1/entries?timeout=%D9%A1", "timeout"),
        ("/v1/entries?ack=none", "ack"),
        ("/v1/entries?%FF=1", "unknown"),
        ("/v1/entries?acks", "acks"),
        ("/v1/entries?" + "&".join(f"p{n}=1" for n in range(99)), "query"),
    ],
)
async def test_append_bad_parameter_is_refused_and_named(target: str, named: str) -> None:
    node = await started()
    assert named in refused(await call(node, "POST", target, OCTETS, b"v"), 400, "bad-argument")["detail"]
    assert not node.asked


@pytest.mark.parametrize("headers", [NDJSON, BATCH])
async def test_append_key_parameter_goes_with_octets_only(headers: dict[str, str]) -> None:
    node = await started()
    refused(await call(node, "POST", "/v1/entries?key=k", headers, b"v"), 400, "bad-argument")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Content-Type": "application/json"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        OCTETS | {"Content-Encoding": "gzip"},
    ],
)
async def test_append_other_content_type_or_encoding_is_unsupported(headers: dict[str, str]) -> None:
    node = await started()
    refused(await call(node, "POST", "/v1/entries", headers, b"v"), 415, "unsupported-type")
    assert not node.asked


@pytest.mark.parametrize(
    ("headers", "limit"), [(OCTETS, ENTRY_BYTES_MAX), (NDJSON, BODY_BYTES_MAX), (BATCH, BODY_BYTES_MAX)]
)
async def test_append_announced_over_the_limit_is_refused_unread(headers: dict[str, str], limit: int) -> None:
    node = await started()
    refused(await call(node, "POST", "/v1/entries", headers, UnreadableBody(limit + 1)), 413, "too-large")


async def test_append_chunked_body_is_cut_at_the_limit_and_its_budget_given_back() -> None:
    node = await started()
    gateway = Gateway(node.services)
    for _ in range(3):
        body = ChunkedBody(bytes(64 * 1024) for _ in range(1000))
        refused(await call(gateway, "POST", "/v1/entries", OCTETS, body), 413, "too-large")
        assert body.read_count == ENTRY_BYTES_MAX // (64 * 1024) + 1
    body = ChunkedBody([b"a", b"b", b"c"])
    assert (await call(gateway, "POST", "/v1/entries", OCTETS, body)).status == 200
    assert node.submitted == [(None, b"abc")]


async def test_append_largest_entry_and_key_go_through() -> None:
    node = await started(segment_bytes=2 * MIB)
    target = f"/v1/entries?key={'k' * KEY_BYTES_MAX}"
    assert (await call(node, "POST", target, OCTETS, bytes(ENTRY_BYTES_MAX))).status == 200
    refused(await call(node, "POST", target + "k", OCTETS, b""), 413, "too-large")


def test_append_a_body_that_stalls_is_refused_in_time_and_its_budget_given_back() -> None:
    announced = [*[BODY_BYTES_MAX] * (BODIES_IN_FLIGHT_BYTES_MAX // BODY_BYTES_MAX - 1), BODY_BYTES_MAX - 1]

    async def stall() -> None:
        gateway, loop = Gateway((await started()).services), asyncio.get_running_loop()
        began = loop.time()
        bodies = [StalledBody(length) for length in (*announced, None)]
        calls = [asyncio.create_task(call(gateway, "POST", "/v1/entries", NDJSON, body)) for body in bodies]
        await asyncio.sleep(BODY_S - 1)
        assert not any(each.done() for each in calls)
        refused(await call(gateway, "POST", "/v1/entries", OCTETS, b"v"), 429, "queue-full")
        for each in calls:
            assert f"within {BODY_S:g} s" in refused(await each, 400, "bad-body")["detail"]
        assert loop.time() - began == pytest.approx(BODY_S, abs=0.1)
        assert (await call(gateway, "POST", "/v1/entries", OCTETS, b"v")).status == 200

    run(stall())


async def test_append_bodies_in_flight_over_the_budget_are_refused_unread_until_some_are_answered() -> None:
    node = await started(hold=True)
    body, count = b'{"value":"' + b"x" * 10_000 + b'"}\n', 4
    gateway = Gateway(node.services, AppendLimits(bodies_in_flight_bytes_max=count * len(body)))
    calls = [asyncio.create_task(call(gateway, "POST", "/v1/entries", NDJSON, body)) for _ in range(count)]
    await node.until_unanswered(count)
    refused(await call(gateway, "POST", "/v1/entries", NDJSON, UnreadableBody(len(body))), 429, "queue-full")
    refused(await call(gateway, "POST", "/v1/entries", NDJSON, ChunkedBody([body] * 2)), 429, "queue-full")
    node.release()
    assert {response.status for response in await asyncio.gather(*calls)} == {200}
    assert (await call(gateway, "POST", "/v1/entries", NDJSON, body)).status == 200


async def test_append_too_many_entries_in_one_body_is_too_large() -> None:
    node = await started(segment_bytes=4 * MIB)
    body = b'{"value":""}\n' * (BATCH_ENTRIES_MAX + 1)
    refused(await call(node, "POST", "/v1/entries", NDJSON, body), 413, "too-large")
    assert (await call(node, "POST", "/v1/entries", NDJSON, body[: 13 * BATCH_ENTRIES_MAX])).status == 200


async def test_append_ndjson_entry_and_key_limits_hold_for_each_line() -> None:
    node = await started()
    large = b'{"value":"' + b"x" * (ENTRY_BYTES_MAX + 1) + b'"}'
    refused(await call(node, "POST", "/v1/entries", NDJSON, b'{"value":"a"}\n' + large), 413, "too-large")
    key = b'{"value":"","key":"' + b"x" * (KEY_BYTES_MAX + 1) + b'"}'
    refused(await call(node, "POST", "/v1/entries", NDJSON, key), 413, "too-large")
    assert not node.asked


@pytest.mark.parametrize("spoilt", [b"", b"VLB1", b"x" * 100])
async def test_append_malformed_batch_is_a_bad_body(spoilt: bytes) -> None:
    refused(await call(await started(), "POST", "/v1/entries", BATCH, spoilt), 400, "bad-body")


@pytest.mark.parametrize("at", [0, 4, 5, 6, 8, 12, 16, 20, 24, 28, 32, 40, 47])
async def test_append_batch_with_any_byte_flipped_is_a_bad_body(at: int) -> None:
    node = await started()
    body = bytearray(batch.encode([b"value", b"other"]))
    body[at] ^= 0x40
    response = await call(node, "POST", "/v1/entries", BATCH, bytes(body))
    assert response.status in (400, 413)
    assert not node.asked


async def test_append_elsewhere_redirects_with_the_same_path_and_query() -> None:
    node = await follower()
    response = await call(node, "POST", "/v1/entries?acks=all&key=%41", OCTETS, UnreadableBody(5))
    assert response.status == 307
    assert response.headers["Location"] == "http://n1:7701/v1/entries?acks=all&key=%41"


async def test_append_without_a_known_master_is_refused() -> None:
    node = await masterless()
    refused(await call(node, "POST", "/v1/entries", OCTETS, b"v"), 503, "no-master")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QueueFull("full"), 429),
        (NotMaster("no longer"), 503),
        (InsufficientReplicas("one of three"), 503),
        (NoSpace("disk full"), 503),
        (Halted("stopped"), 503),
    ],
)
async def test_append_refused_by_the_node_answers_its_type(error: VlsnLogError, status: int) -> None:
    node = await started(refuse=error)
    gateway = Gateway(node.services)
    refused(await call(gateway, "POST", "/v1/entries", OCTETS, bytes(1000)), status, error.slug)
    node.refuse = None
    assert (await call(gateway, "POST", "/v1/entries", OCTETS, b"v")).status == 200


async def test_append_not_acknowledged_in_time_is_an_unknown_outcome() -> None:
    node = await started(hold=True)
    refused(await call(node, "POST", "/v1/entries?timeout=0.01", OCTETS, b"v"), 504, "outcome-unknown")
    assert node.submitted == [(None, b"v")]


async def test_append_of_a_client_that_leaves_stays_submitted_and_gives_its_budget_back() -> None:
    node = await started(hold=True)
    gateway = Gateway(node.services, AppendLimits(bodies_in_flight_bytes_max=40_000))
    for _ in range(5):
        task = asyncio.create_task(call(gateway, "POST", "/v1/entries", OCTETS, bytes(10_000)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert node.unanswered == 0
    assert len(node.submitted) == 5


LONG = b'{"value":"v"}\n' * 40_000


async def test_append_of_a_long_ndjson_body_leaves_turns_to_others() -> None:
    node = await started(segment_bytes=4 * MIB)
    async with turning() as turns:
        appending = asyncio.create_task(call(node, "POST", "/v1/entries", NDJSON, LONG))
        await node.until_unanswered(1)
        decoding = turns[0]
        assert json(await appending)["last"] == FIRST + 39_999
    assert decoding > len(LONG) // PIECES_A_TURN_BYTES
    assert node.submitted == [(None, b"v")] * 40_000


@pytest.mark.parametrize("one", [b"\\u0041", b"\\ud83d\\ude00", b'\\"', b"A"])
async def test_append_of_a_long_line_leaves_turns_to_others(one: bytes) -> None:
    node = await started(segment_bytes=8 * MIB)
    line = b'{"key":"k","value":"' + one * (5_000_000 // len(one)) + b'"}'
    gateway = Gateway(node.services, AppendLimits(entry_bytes_max=5_000_000))
    async with turning() as turns:
        appending = asyncio.create_task(call(gateway, "POST", "/v1/entries", NDJSON, line))
        await node.until_unanswered(1)
        decoding = turns[0]
        assert json(await appending)["last"] == FIRST
    assert decoding > len(line) // PIECES_A_TURN_BYTES
    [(key, value)] = node.submitted
    assert (key, value.decode()) == (b"k", stdlib_json.loads(line)["value"])


async def test_append_of_a_long_ndjson_body_that_fails_or_is_given_up_gives_its_budget_back() -> None:
    node = await started(segment_bytes=4 * MIB)
    gateway = Gateway(node.services, AppendLimits(bodies_in_flight_bytes_max=2 * len(LONG)))
    for _ in range(3):
        document = refused(await call(gateway, "POST", "/v1/entries", NDJSON, LONG + b"{"), 400, "bad-body")
        assert document["detail"].startswith("line 40001:")
        task = asyncio.create_task(call(gateway, "POST", "/v1/entries", NDJSON, LONG))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    assert not node.asked
    assert (await call(gateway, "POST", "/v1/entries", NDJSON, LONG)).status == 200


async def test_quick_serves_no_long_ndjson_body() -> None:
    gateway = Gateway((await started()).services)
    for length, good in ((PIECE_BYTES, True), (PIECE_BYTES + 1, False)):
        head = request("POST", "/v1/entries", {**NDJSON, "Content-Length": str(length)})
        assert (gateway.quick(head) is not None) == good
    assert gateway.quick(request("POST", "/v1/entries", {**OCTETS, "Content-Length": "200000"})) is not None


async def test_append_answer_and_cancel_in_one_wake_up_harm_nothing() -> None:
    node = await started(hold=True)
    task = asyncio.create_task(call(node, "POST", "/v1/entries", OCTETS, b"v"))
    await asyncio.sleep(0)
    task.cancel()
    node.release()
    await asyncio.wait([task])
    assert task.cancelled()


async def test_append_fault_of_the_node_is_internal() -> None:
    node = await started(refuse=TypeError("any fault of ours"))
    document = refused(await call(node, "POST", "/v1/entries", OCTETS, b"v"), 500, "internal")
    assert "TypeError" in document["detail"]


async def test_quick_serves_only_heads_that_append_would_take() -> None:
    gateway = Gateway((await started()).services)
    assert gateway.quick(request("POST", "/v1/entries?acks=all", OCTETS)) is not None
    assert gateway.quick(request("POST", "/v1/entries?acks=most", OCTETS)) is None
    assert gateway.quick(request("POST", "/v1/entries", {})) is None
    assert gateway.quick(request("GET", "/v1/entries", OCTETS)) is None
    assert gateway.quick(request("POST", "/v1/admin/rotate", OCTETS)) is None


async def test_quick_gives_the_answers_that_append_gives() -> None:
    node = await started()
    gateway = Gateway(node.services)
    start = gateway.quick(request("POST", "/v1/entries?acks=all&key=k", OCTETS))
    assert start is not None
    answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    leave = start(b"v", answered.set_result)
    response = await answered
    leave()
    assert json(response)["acks"] == "all"  # type: ignore[arg-type]
    assert node.submitted == [(b"k", b"v")]

    refusals: list[object] = []
    node.refuse = QueueFull("full")
    start(b"v", refusals.append)
    for other in (await follower(), await masterless()):
        start = Gateway(other.services).quick(request("POST", "/v1/entries", OCTETS))
        assert start is not None
        start(b"v", refusals.append)
    assert [response.status for response in refusals] == [429, 307, 503]  # type: ignore[attr-defined]
    assert node.services.member.counts.refused == {"queue-full": 1}
    assert other.services.member.counts.refused == {"no-master": 1}


async def test_quick_left_before_its_answer_ends_the_wait() -> None:
    node = await started(hold=True)
    start = Gateway(node.services).quick(request("POST", "/v1/entries", OCTETS))
    assert start is not None
    leave = start(b"v", lambda response: pytest.fail("answered a client that had left"))
    leave()
    assert node.unanswered == 0
