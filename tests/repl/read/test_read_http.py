"""``GET /v1/entries`` and ``/v1/entries/{vlsn}`` against a real node on fakes."""

from __future__ import annotations

import asyncio
import base64
import json as stdlib_json
from typing import Any

import pytest

from repl.api import LINEARIZABLE, Freshness
from repl.node.gateway import Gateway
from repl.web.limits import ENCODED_TIMES_MAX, PAGES_IN_FLIGHT_BYTES_MAX, PIECES_A_TURN_BYTES, READ_BYTES_MAX
from repl.web.types import Response
from tests.repl.web.calls import BATCH, call, refused, request, turning, whole_body
from tests.repl.web.one_node import FIRST, TERM, OneGroup, OneNode, started
from vlsn.errors import Damaged, Lagging, NotMaster, TooFarBehind, VlsnLogError
from vlsn.format import block
from vlsn.format.batch import encode
from vlsn.ids import Vlsn
from vlsn.levels import LEVELS
from vlsn.limits import MIB

BLOCKS = {"Accept": "application/x-vlsnlog-blocks"}


async def rows(response: Response) -> list[dict[str, Any]]:
    assert response.status == 200
    assert response.headers["Content-Type"] == "application/x-ndjson"
    return [stdlib_json.loads(line) for line in (await whole_body(response)).splitlines()]


async def node_with(*values: bytes, **settings: Any) -> OneNode:
    node = await started(**settings)
    if values:
        await node.append(*values)
    return node


async def waiting_in(node: OneNode) -> None:
    """Returns once what was asked has had its turns, and waits."""
    for _ in range(20):
        await asyncio.sleep(0)


class Confirms:
    """Notes what a node is asked to confirm, and confirms it, or fails as ``error`` says."""

    def __init__(self, node: OneNode) -> None:
        self.calls: list[str] = []
        self.error: VlsnLogError | None = None
        self._node = node
        node.opened().read_index.confirm = self.confirm  # type: ignore[method-assign]

    async def confirm(self, timeout_s: float, asked: Freshness = LINEARIZABLE) -> int:
        more = "" if asked == LINEARIZABLE else f", {asked.at_least} and {asked.lag_max_s} s"
        self.calls.append(f"confirm in {timeout_s:g} s{more}")
        if self.error is not None:
            raise self.error
        return self._node.dtvlsn()


async def test_read_gives_data_from_the_first_there_is() -> None:
    response = await call(await node_with(b"a", b"\xff"), "GET", "/v1/entries")
    found = await rows(response)
    assert [(row["vlsn"], row["term"], row.get("value"), row.get("value_b64")) for row in found] == [
        (FIRST, TERM, "a", None),
        (FIRST + 1, TERM, None, "/w=="),
    ]
    assert (response.headers["Vlsnlog-Next"], response.headers["Vlsnlog-Durable"]) == (str(FIRST + 2), str(FIRST + 1))


async def test_read_from_and_limit_page_through_without_gap_or_double() -> None:
    node = await node_with(*[b"%d" % n for n in range(25)])
    seen: list[str] = []
    next_vlsn = "1"
    while True:
        response = await call(node, "GET", f"/v1/entries?from={next_vlsn}&limit=7")
        page = await rows(response)
        if not page:
            break
        assert len(page) <= 7
        seen += [row["value"] for row in page]
        next_vlsn = response.headers["Vlsnlog-Next"]
    assert seen == [str(n) for n in range(25)]


async def test_read_all_kinds_shows_each_kind() -> None:
    found = await rows(await call(await node_with(b"a"), "GET", "/v1/entries?kinds=all"))
    assert [(row["vlsn"], row["kind"]) for row in found] == [
        (1, "TERM"),
        (2, "GROUP"),
        (3, "COMMIT"),
        (FIRST, "DATA"),
    ]


async def test_read_from_the_start_and_from_the_end() -> None:
    node = await node_with(b"a", b"b")
    assert [row["vlsn"] for row in await rows(await call(node, "GET", "/v1/entries?from=start"))] == [FIRST, FIRST + 1]
    response = await call(node, "GET", "/v1/entries?from=end")
    assert (await rows(response), response.headers["Vlsnlog-Next"]) == ([], str(FIRST + 2))
    waiting = asyncio.create_task(call(node, "GET", "/v1/entries?from=end&wait=60"))
    await waiting_in(node)
    await node.append(b"c")
    assert [row["vlsn"] for row in await rows(await waiting)] == [FIRST + 2]


@pytest.mark.parametrize(
    ("query", "vlsns"),
    [
        ("key=a", [0]),
        ("key=%FF%00", [1]),
        ("key_b64=/wA%3D", [1]),
        ("key=", [2]),
        ("key_prefix=a", [0, 3]),
        ("key_prefix_b64=YQ==&limit=1", [0]),
        ("key_prefix=", [0, 1, 2, 3]),
        ("key=b", []),
    ],
)
async def test_read_of_a_key_or_a_prefix(query: str, vlsns: list[int]) -> None:
    node = await started()
    body = encode([b"v"] * 4, [b"a", b"\xff\x00", b"", b"ab"])
    assert (await call(node, "POST", "/v1/entries", BATCH, body)).status == 200
    found = await rows(await call(node, "GET", f"/v1/entries?{query}"))
    assert [row["vlsn"] - FIRST for row in found] == vlsns


async def test_blocks_are_whole_and_so_are_not_filtered() -> None:
    refused(await call(await node_with(b"a"), "GET", "/v1/entries?key=a", BLOCKS), 400, "bad-argument")


async def test_read_past_the_durable_end_is_empty_not_an_error() -> None:
    response = await call(await node_with(b"a"), "GET", "/v1/entries?from=100")
    assert (await rows(response), response.headers["Vlsnlog-Next"]) == ([], "100")


@pytest.mark.parametrize(
    "query",
    [
        "from=0",
        "from=-1",
        "from=x",
        "from=",
        "at=" + "9" * 5_000,
        "at=9223372036854775808",
        "from=1.0",
        "from=+1",
        "from=%D9%A1",
        "from=18446744073709551616",
        "from=99999999999999999999999",
        "limit=0",
        "limit=10001",
        "limit=ten",
        "wait=61",
        "wait=-1",
        "wait=nan",
        "kinds=some",
        "form=1",
        "from=1&from=2",
        "from=End",
        "from=end&after_term=1",
        "key=a&key_prefix=b",
        "key=a&key_b64=YQ==",
        "key_b64=YQ",
        "key_b64=Y%0aQ==",
        "key_prefix_b64=%C3%A4",
        "key=" + "a" * 65_537,
    ],
)
async def test_read_bad_parameter_is_refused(query: str) -> None:
    refused(await call(await node_with(b"a"), "GET", f"/v1/entries?{query}"), 400, "bad-argument")


async def test_read_waits_for_the_first_entry() -> None:
    node = await node_with(b"a")
    waiting = asyncio.create_task(call(node, "GET", f"/v1/entries?from={FIRST + 1}&wait=60"))
    await waiting_in(node)
    await node.append(b"b", b"c")
    assert [row["vlsn"] for row in await rows(await waiting)] == [FIRST + 1, FIRST + 2]


async def test_read_wait_that_brings_nothing_is_empty() -> None:
    assert await rows(await call(await node_with(b"a"), "GET", f"/v1/entries?from={FIRST + 1}&wait=0.01")) == []


async def test_read_damage_names_the_place() -> None:
    async def rotten(vlsn: int) -> block.Entry:
        raise Damaged("rotten", file="00000001.vlog", offset=4096, vlsn=vlsn)

    node = await started()
    node.opened().reads.one = rotten  # type: ignore[method-assign]
    document = refused(await call(node, "GET", "/v1/entries/5"), 500, "damaged")
    assert (document["file"], document["offset"], document["vlsn"]) == ("00000001.vlog", 4096, 5)


async def test_read_blocks_gives_them_whole() -> None:
    node = await started()
    await call(node, "POST", "/v1/entries", {"Content-Type": "application/octet-stream"}, b"abc")
    await call(node, "POST", "/v1/entries", {"Content-Type": "application/octet-stream"}, b"d")
    response = await call(node, "GET", f"/v1/entries?from={FIRST}", BLOCKS)
    body = await whole_body(response)
    values, at = [], 0
    while at < len(body):
        header = block.decode_header(body, at)
        values += [entry.value for entry in block.entries(body[at : at + header.size], header)]
        at += header.size + -header.size % 8
    assert values == [b"abc", b"d"]
    assert response.headers["Content-Type"] == BLOCKS["Accept"]
    assert response.headers["Vlsnlog-Next"] == str(FIRST + 2)


async def test_read_large_page_is_whole_and_counted_until_it_is_taken() -> None:
    values = [bytes([65 + n]) * (MIB - 100) for n in range(4)]
    gateway = Gateway((await node_with(*values, segment_bytes=8 * MIB)).services)
    held: list[Response] = []
    while True:
        response = await call(gateway, "GET", "/v1/entries")
        if response.status != 200:
            break
        held.append(response)
    refused(response, 429, "queue-full")
    assert READ_BYTES_MAX * len(held) <= PAGES_IN_FLIGHT_BYTES_MAX < READ_BYTES_MAX * (len(held) + 2)
    found = await rows(held[0])
    assert [row["value"].encode() for row in found] == values
    assert int(held[0].headers["Content-Length"]) == sum(
        len(stdlib_json.dumps(row, separators=(",", ":"))) + 1 for row in found
    )
    for response in held[1:]:
        assert response.stream is not None
        await response.stream.aclose()
        await response.stream.aclose()
    assert (await call(gateway, "GET", "/v1/entries")).status == 200


@pytest.mark.parametrize("value", [b"\x01" * 4_000, b"\xff" * 200_000, b"\x01" * MIB, b"\xfe" * (MIB - 1)])
async def test_read_page_of_what_takes_more_bytes_as_json_ends_sooner_and_leaves_turns_to_others(value: bytes) -> None:
    gateway = Gateway((await node_with(*[value] * (9 * MIB // len(value)), segment_bytes=16 * MIB)).services)
    seen, next_vlsn = 0, "1"
    async with turning() as turns:
        while True:
            response = await call(gateway, "GET", f"/v1/entries?from={next_vlsn}&limit=10000")
            found = await rows(response)
            if not found:
                break
            length = int(response.headers.get("Content-Length", len(response.body)))
            assert length <= ENCODED_TIMES_MAX * READ_BYTES_MAX + 6 * len(value) + 100
            assert [row["vlsn"] for row in found] == list(range(found[0]["vlsn"], found[0]["vlsn"] + len(found)))
            assert [_value(row) for row in found] == [value] * len(found)
            seen, next_vlsn = seen + len(found), response.headers["Vlsnlog-Next"]
            assert response.headers["Vlsnlog-Term"] == str(TERM)
            assert int(next_vlsn) == found[-1]["vlsn"] + 1
    assert seen == 9 * MIB // len(value)
    assert turns[0] > 9 * MIB // (2 * PIECES_A_TURN_BYTES)


def _value(row: dict[str, Any]) -> bytes:
    return base64.b64decode(row["value_b64"]) if "value_b64" in row else row["value"].encode()


async def test_read_waits_have_a_limit_and_take_no_place_of_those_that_do_not() -> None:
    node = await node_with(b"a")
    gateway = Gateway(node.services, readers_max=20)
    target = f"/v1/entries?from={FIRST + 1}&wait=60"
    waiting = [asyncio.create_task(call(gateway, "GET", target)) for _ in range(20)]
    await waiting_in(node)
    refused(await call(gateway, "GET", target), 429, "queue-full")
    refused(await call(gateway, "GET", "/v1/tail"), 429, "queue-full")
    assert len(await rows(await call(gateway, "GET", "/v1/entries"))) == 1
    waiting[0].cancel()
    await asyncio.wait(waiting[:1])
    waiting.append(asyncio.create_task(call(gateway, "GET", target)))
    await asyncio.sleep(0)
    refused(await call(gateway, "GET", target), 429, "queue-full")
    await node.append(b"b")
    for response in await asyncio.gather(*waiting[1:]):
        assert len(await rows(response)) == 1


async def test_read_one_gives_the_value_as_the_body() -> None:
    response = await call(await node_with(b"\xff\0"), "GET", f"/v1/entries/{FIRST}")
    assert (response.status, response.body) == (200, b"\xff\0")
    assert response.headers["Content-Type"] == "application/octet-stream"
    assert response.headers["Vlsnlog-Term"] == str(TERM)


@pytest.mark.parametrize(
    ("item", "status", "slug"),
    [
        ("1", 404, "not-data"),
        (str(FIRST + 1), 404, "not-yet"),
        ("0", 400, "bad-argument"),
        ("-1", 400, "bad-argument"),
        ("x", 400, "bad-argument"),
        ("2.", 400, "bad-argument"),
        ("2?from=1", 400, "bad-argument"),
        ("", 404, "not-found"),
        ("2/", 404, "not-found"),
        ("2/3", 404, "not-found"),
    ],
)
async def test_read_one_refusals(item: str, status: int, slug: str) -> None:
    refused(await call(await node_with(b"a"), "GET", f"/v1/entries/{item}"), status, slug)


@pytest.mark.parametrize("path", ["/v1/entries", "/v1/entries?from=2", f"/v1/entries/{FIRST}", "/v1/tail"])
async def test_read_linearizable_is_confirmed_first_and_a_durable_one_is_not(path: str) -> None:
    node = await node_with(b"a")
    confirms = Confirms(node)
    separator = "&" if "?" in path else "?"
    for consistency in ("", "consistency=durable"):
        assert (await call(node, "GET", f"{path}{separator}{consistency}".rstrip("?&"))).status == 200
    assert confirms.calls == []
    response = await call(node, "GET", f"{path}{separator}consistency=linearizable")
    assert response.status == 200
    assert confirms.calls == ["confirm in 5 s"]
    await call(node, "GET", f"{path}{separator}consistency=linearizable&timeout=0.25")
    assert confirms.calls[1:] == ["confirm in 0.25 s"]
    refused(await call(node, "GET", f"{path}{separator}consistency=eventual"), 400, "bad-argument")
    refused(await call(node, "GET", f"{path}{separator}consistency=linearizable&timeout=61"), 400, "bad-argument")


@pytest.mark.parametrize(
    "path", ["/v1/entries?from=2&wait=1&", f"/v1/entries/{FIRST}?", "/v1/tail?", "/v1/spans?", "/v1/sinks?"]
)
async def test_read_of_a_vlsn_or_of_a_lag_is_confirmed_before_it_is_answered(path: str) -> None:
    node = await node_with(b"a")
    confirms = Confirms(node)
    for asked, said in (
        ("at_least=7", "confirm in 5 s, 7 and None s"),
        ("lag_max=0.25&timeout=2", "confirm in 2 s, 0 and 0.25 s"),
        ("at_least=7&lag_max=0&consistency=durable", "confirm in 5 s, 7 and 0.0 s"),
    ):
        assert (await call(node, "GET", f"{path}{asked}")).status == 200
        assert confirms.calls.pop(0) == said
        confirms.calls.clear()
        assert Gateway(node.services).quick(request("GET", f"{path}{asked}")) is None
    confirms.error = TooFarBehind("not that far")
    response = await call(node, "GET", f"{path}lag_max=1")
    refused(response, 503, "lagging")
    assert response.headers["Retry-After"] == "1"
    for bad in ("at_least=0", "at_least=-1", "lag_max=-1", "lag_max=86400.5", "lag_max=1e3"):
        refused(await call(node, "GET", f"{path}{bad}"), 400, "bad-argument")


@pytest.mark.parametrize("path", ["/v1/entries", f"/v1/entries/{FIRST}", "/v1/tail"])
async def test_read_that_nobody_confirms_is_refused_and_can_be_tried_again(path: str) -> None:
    node = await node_with(b"a")
    confirms = Confirms(node)
    for error, slug in ((NotMaster("nobody leads"), "no-master"), (Lagging("not that far"), "not-yet")):
        confirms.error = error
        response = await call(node, "GET", f"{path}?consistency=linearizable")
        refused(response, 503, slug)
        assert response.headers["Retry-After"] == "1"
    refused(await call(node, "GET", "/v1/entries/9"), 404, "not-yet")  # what is not durable anywhere is not there


@pytest.mark.parametrize("path", ["/v1/entries", "/v1/tail"])
async def test_read_after_what_is_not_in_the_log_is_refused_with_both_terms(path: str) -> None:
    node = await node_with(b"a", b"b")
    assert (await call(node, "GET", f"{path}?from=5&after_term=1")).status == 200
    document = refused(await call(node, "GET", f"{path}?from=5&after_term=2"), 409, "not-in-log")
    assert (document["vlsn"], document["term"], document["found"]) == (4, 2, 1)
    # The log ends at VLSN 5 in term 1: VLSN 8 can bear term 1 and follow later.
    assert (await call(node, "GET", f"{path}?from=9&after_term=1")).status == 200
    refused(await call(node, "GET", f"{path}?from=1&after_term=6"), 400, "bad-argument")
    refused(await call(node, "GET", f"{path}?after_term=6"), 400, "bad-argument")


@pytest.mark.parametrize("path", ["/v1/entries", "/v1/tail"])
async def test_read_after_an_entry_of_an_earlier_term_than_the_log_has_there_is_refused(path: str) -> None:
    """Also past the log's end: terms never fall along a log, so no entry of the earlier term can follow."""
    group = OneGroup(1, 1, levels=LEVELS)
    await group.start()
    await group.serving()
    await group.appended(b"a")
    group.kill("n1")
    await group.start()
    await group.serving()
    node, last = group.nodes["n1"], await group.appended(b"b")
    assert node.opened().log.view.history.term_of(Vlsn(last)) == TERM + 1
    for behind in (last, last + 9):
        assert (await call(node, "GET", f"{path}?from={behind + 1}&after_term={TERM + 1}")).status == 200
        document = refused(await call(node, "GET", f"{path}?from={behind + 1}&after_term={TERM}"), 409, "not-in-log")
        assert (document["vlsn"], document["term"], document["found"]) == (behind, TERM, TERM + 1)


async def test_read_is_checked_again_with_what_came_while_it_waited() -> None:
    """A log that was too short to tell, and grows past the place in a higher term."""
    node = await node_with(b"a")
    waiting = asyncio.create_task(call(node, "GET", f"/v1/entries?from={FIRST + 2}&after_term=8&wait=5"))
    await waiting_in(node)
    await node.append(b"b", b"c")  # of term 1, where the reader has read one of term 8
    refused(await waiting, 409, "not-in-log")


async def test_where_a_producer_goes_on_is_told_once_that_is_confirmed() -> None:
    node = await node_with(b"a")
    confirms = Confirms(node)
    for sequence in range(3):
        body = encode([b"p"], producer=(0xAB, sequence))
        assert (await call(node, "POST", f"/v1/entries?born={FIRST}", BATCH, body)).status == 200
    answer = await call(node, "GET", "/v1/producers/00000000000000ab?timeout=0.5")
    assert confirms.calls == ["confirm in 0.5 s"]
    assert stdlib_json.loads(bytes(answer.body)) == {
        "producer": "00000000000000ab",
        "next": 3,
        "first": FIRST + 3,
        "last": FIRST + 3,
        "term": TERM,
        "durable": FIRST + 3,
        "forgotten_to": 0,
    }
    unknown = stdlib_json.loads(bytes((await call(node, "GET", "/v1/producers/00000000000000ac")).body))
    assert (unknown["next"], unknown["first"], unknown["last"]) == (0, 0, 0)
    for wrong in ("ab", "0" * 16, "00000000000000AB", "00000000000000ab?timeout=0", "00000000000000ab?x=1"):
        refused(await call(node, "GET", f"/v1/producers/{wrong}"), 400, "bad-argument")
    refused(await call(node, "GET", "/v1/producers/"), 404, "not-found")
    refused(await call(node, "GET", "/v1/producers"), 404, "not-found")
    refused(await call(node, "POST", "/v1/producers/00000000000000ab"), 405, "not-allowed")
    confirms.error = NotMaster("nobody leads")
    refused(await call(node, "GET", "/v1/producers/00000000000000ab"), 503, "no-master")
