"""Requests that are refused: a stable type for each, the node unharmed, the log unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from struct import pack_into
from urllib.parse import urlsplit

import pytest

from tests.e2e.calls import BATCH, JSON, NDJSON, OCTETS, UPGRADE, Answer, call, connection, raw, raw_socket, whole
from tests.e2e.group import Group
from vlsn.format import batch
from vlsn.format.batch import BATCH_BYTES
from vlsn.format.checksum import crc
from vlsn.limits import BATCH_ENTRIES_MAX, BODY_BYTES_MAX, ENTRY_BYTES_MAX, KEY_BYTES_MAX, MIB

VALUES = [b"first", b"second value", b"x"]
COUNT, KEY_BYTES, VALUE_BYTES, BODY_BYTES, BODY_CRC, HEADER_CRC = 8, 12, 16, 20, 24, 28
OFFSETS = BATCH_BYTES
"""The offsets column of three values without keys: 0 5 17 18."""


def bent(at: int, value: int, *, data: bytes = b"", more: bytes = b"") -> bytes:
    """Bends a right batch: one u32 replaced and ``more`` behind it, its checksums right again. What is left to find is
    what was bent."""
    spoilt = bytearray(data or batch.encode(VALUES)) + more
    pack_into("<I", spoilt, at, value)
    if at != BODY_CRC:
        pack_into("<I", spoilt, BODY_CRC, crc(spoilt[BATCH_BYTES:]))
    if at != HEADER_CRC:
        pack_into("<I", spoilt, HEADER_CRC, crc(spoilt[:HEADER_CRC]))
    return bytes(spoilt)


GOOD = batch.encode(VALUES)
BODY = len(GOOD) - BATCH_BYTES
BAD_BATCHES = {
    "nothing": b"",
    "half a header": GOOD[:20],
    "a header alone": GOOD[:BATCH_BYTES],
    "cut short": GOOD[:-1],
    "one byte more": GOOD + b"\0",
    "two batches": GOOD + GOOD,
    "another magic": bent(0, 0x32424C56),
    "unknown flags": bent(4, 1 | 0x10 << 8),
    "keys that are not there": bent(4, 1 | 8 << 8),
    "reserved bytes": bent(4, 1 | 1 << 16),
    "no entries": bent(COUNT, 0),
    "fewer entries than offsets": bent(COUNT, 2),
    "more entries than offsets": bent(COUNT, 4),
    "key bytes without the flag": bent(KEY_BYTES, 4),
    "fewer value bytes": bent(VALUE_BYTES, 17),
    "more value bytes": bent(VALUE_BYTES, 19),
    "value bytes past all": bent(VALUE_BYTES, 0xFFFF_FFFF),
    "a shorter body": bent(BODY_BYTES, BODY - 1),
    "a longer body": bent(BODY_BYTES, BODY + 8, more=bytes(8)),
    "body checksum": bent(BODY_CRC, 0),
    "header checksum": bent(HEADER_CRC, 0),
    "offsets that do not begin at 0": bent(OFFSETS, 1),
    "offsets that fall": bent(OFFSETS + 4, 18),
    "an offset past the end": bent(OFFSETS + 8, 19),
    "an offset far past the end": bent(OFFSETS + 8, 0x7FFF_FFFF),
    "a negative offset": bent(OFFSETS + 4, 0xFFFF_FFFF),
    "offsets that end early": bent(OFFSETS + 12, 17),
}


def post(group: Group, body: bytes | Iterator[bytes], headers: dict[str, str], query: str = "") -> Answer:
    return call("POST", f"{group.master}/v1/entries{query}", body=body, headers=headers)


def test_a_batch_of_a_later_version_is_no_malformed_one(group: Group) -> None:
    with group.unharmed():
        post(group, bent(4, 2), BATCH).refused(400, "wrong-version")
        wrong = bytearray(bent(4, 2))
        wrong[HEADER_CRC] ^= 1
        post(group, bytes(wrong), BATCH).refused(400, "bad-body")


def test_every_malformed_batch_is_a_bad_body(group: Group) -> None:
    with group.unharmed():
        for what, body in BAD_BATCHES.items():
            answer = post(group, body, BATCH)
            assert (answer.status, answer.json()["type"]) == (400, "bad-body"), (what, answer)
            answer.refused(400, "bad-body")
    assert post(group, GOOD, BATCH).status == 200


def test_padding_that_is_not_zero_is_a_bad_body(group: Group) -> None:
    padded = batch.encode([b"a", b"b"])  # three offsets, four bytes of padding, two values
    assert padded[BATCH_BYTES + 12 : BATCH_BYTES + 16] == bytes(4)
    with group.unharmed():
        post(group, bent(BATCH_BYTES + 12, 1 << 24, data=padded), BATCH).refused(400, "bad-body")


def test_a_keyed_batch_is_checked_in_both_columns(group: Group) -> None:
    keyed = batch.encode([b"a", b"bb", b"c"], [b"k", b"", b"key"])
    values = OFFSETS + 16
    with group.unharmed():
        for at, value in ((OFFSETS + 4, 9), (OFFSETS, 1), (OFFSETS + 12, 3), (values + 8, 1 << 31), (values + 4, 4)):
            post(group, bent(at, value, data=keyed), BATCH).refused(400, "bad-body")
        post(group, bent(4, 1, data=keyed), BATCH).refused(400, "bad-body")


def test_a_batch_over_a_limit_is_too_large(group: Group) -> None:
    with group.unharmed():
        for body in (
            bent(COUNT, BATCH_ENTRIES_MAX + 1),
            bent(COUNT, 0xFFFF_FFFF),
            bent(BODY_BYTES, BODY_BYTES_MAX + 1),
            bent(BODY_BYTES, 0xFFFF_FFFF),
            batch.encode([b"small", bytes(ENTRY_BYTES_MAX + 1)]),
            batch.encode([b"x"], [bytes(KEY_BYTES_MAX + 1)]),
        ):
            post(group, body, BATCH).refused(413, "too-large")


BAD_LINES: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "an empty line": b'{"value":"a"}\n\n{"value":"b"}',
    "only a newline": b"\n",
    "an array": b'["a"]',
    "null": b"null",
    "cut short": b'{"value":"a"}\n{"value":"b',
    "two objects on a line": b'{"value":"a"}{"value":"b"}',
    "an object over two lines": b'{"value":\n"a"}',
    "no value": b'{"key":"k"}',
    "both values": b'{"value":"a","value_b64":"YQ=="}',
    "both keys": b'{"value":"a","key":"a","key_b64":"YQ=="}',
    "a member twice": b'{"value":"a","value":"b"}',
    "a number": b'{"value":1}',
    "null as a value": b'{"value":null}',
    "an unknown member": b'{"value":"a","valve":"b"}',
    "base64 of no alphabet": b'{"value_b64":"!!!!"}',
    "base64 without padding": b'{"value_b64":"YQ"}',
    "base64 with spaces": b'{"value_b64":"YQ= ="}',
    "base64 with bits left over": b'{"value_b64":"YR=="}',
    "base64 of a key": b'{"value":"a","key_b64":"*"}',
    "a lone high surrogate": b'{"value":"\\ud800"}',
    "a lone low surrogate": b'{"value":"\\udc00"}',
    "a lone surrogate in a key": b'{"value":"a","key":"x\\udfff"}',
    "a surrogate in UTF-8": b'{"value":"\xed\xa0\x80"}',
    "bytes that are not UTF-8": b'{"value":"\xff"}',
    "a control character": b'{"value":"\x01"}',
    "a byte order mark": b'\xef\xbb\xbf{"value":"a"}',
    "NaN": b'{"value":NaN}',
    "a deep nest": b'{"value":' + b"[" * 100_000,
    "a bad line after many good ones": b'{"value":"a"}\n' * 1000 + b'{"value":}',
}


def test_every_malformed_line_is_a_bad_body(group: Group) -> None:
    with group.unharmed():
        for what, body in BAD_LINES.items():
            answer = post(group, body, NDJSON)
            assert (answer.status, answer.json()["type"]) == (400, "bad-body"), (what, answer)
            answer.refused(400, "bad-body")
    detail = post(group, BAD_LINES["a bad line after many good ones"], NDJSON).json()["detail"]
    assert "line 1001" in detail


def test_too_many_lines_or_too_long_ones_are_too_large(group: Group) -> None:
    with group.unharmed():
        post(group, b'{"value":""}\n' * (BATCH_ENTRIES_MAX + 1), NDJSON).refused(413, "too-large")
        post(group, b'{"value":"' + b"x" * (ENTRY_BYTES_MAX + 1) + b'"}', NDJSON).refused(413, "too-large")
        post(group, b'{"value":"","key":"' + b"x" * (KEY_BYTES_MAX + 1) + b'"}', NDJSON).refused(413, "too-large")


LIMITS = [(OCTETS, ENTRY_BYTES_MAX), (NDJSON, BODY_BYTES_MAX), (BATCH, BODY_BYTES_MAX)]


@pytest.mark.parametrize(("headers", "limit"), LIMITS)
def test_a_body_announced_over_the_limit_is_refused_unread(group: Group, headers: dict[str, str], limit: int) -> None:
    # A batch's own 32-byte header counts too: the format's body of 16 MiB is not what HTTP takes.
    with group.unharmed():
        for length in (limit + 1, 1 << 40, 10**18):
            link = connection(group.master)
            try:
                link.putrequest("POST", "/v1/entries")
                for name, value in {**headers, "Content-Length": str(length)}.items():
                    link.putheader(name, value)
                link.endheaders(b"x")
                whole(link.getresponse()).refused(413, "too-large")
            finally:
                link.close()


@pytest.mark.parametrize(("headers", "limit"), LIMITS)
def test_a_body_that_grows_over_the_limit_is_refused(group: Group, headers: dict[str, str], limit: int) -> None:
    with group.unharmed():
        post(group, (bytes(MIB // 2) for _ in range(limit // (MIB // 2) + 1)), headers).refused(413, "too-large")


def test_a_chunked_body_within_the_limit_is_taken(group: Group) -> None:
    vlsn = post(group, iter([b"in ", b"three ", b"chunks"]), OCTETS).ok()["first"]
    assert call("GET", f"{group.master}/v1/entries/{vlsn}").body == b"in three chunks"


def test_a_content_type_that_is_not_read_is_unsupported(group: Group) -> None:
    with group.unharmed():
        for kind in (
            "text/plain",
            "application/json",
            "application/x-www-form-urlencoded",
            "",
            "application",
            "a" * 500,
        ):
            post(group, b"x", {"Content-Type": kind}).refused(415, "unsupported-type")
        call("POST", f"{group.master}/v1/entries", body=b"x").refused(415, "unsupported-type")
        post(group, b"x", {**OCTETS, "Content-Encoding": "gzip"}).refused(415, "unsupported-type")
    assert post(group, b"x", {"Content-Type": "Application/Octet-Stream; charset=binary"}).status == 200


BAD_APPEND_QUERIES = (
    *("acks=most", "acks=", "acks=Majority", "acks=2", "acks=all&acks=none"),
    *("timeout=0", "timeout=-1", "timeout=601", "timeout=1e3", "timeout=nan", "timeout=inf", "timeout=x", "timeout="),
    *("limit=1", "acks", "key=a&key=b", "=x", "&".join(f"p{number}=1" for number in range(40))),
)


def test_parameters_of_an_append_are_known_and_in_range(group: Group) -> None:
    with group.unharmed():
        for query in BAD_APPEND_QUERIES:
            answer = post(group, b"x", OCTETS, "?" + query)
            assert (answer.status, answer.json()["type"]) == (400, "bad-argument"), (query, answer)
        post(group, b'{"value":"x"}', NDJSON, "?key=k").refused(400, "bad-argument")
        post(group, b"x", OCTETS, "?key=" + "k" * (KEY_BYTES_MAX + 1)).refused(413, "too-large")
    assert post(group, b"x", OCTETS, "?key=" + "%41" * KEY_BYTES_MAX).status == 200


BAD_NUMBERS = ("0", "-1", "+1", "x", "1.5", "1e3", "", "%20", "0x10", str(1 << 64), "9" * 30, "%D9%A1", "1%00")
BAD_READS = (
    *(f"/v1/entries?from={number}" for number in BAD_NUMBERS),
    *(f"/v1/tail?from={number}" for number in BAD_NUMBERS),
    *(f"/v1/entries/{number}" for number in BAD_NUMBERS if number),
    *(f"/v1/entries?limit={number}" for number in ("0", "-1", "10001", "x", "", "1.0")),
    *(f"/v1/entries?wait={number}" for number in ("-1", "60.1", "61", "x", "", "inf", "nan", "1e1")),
    *("/v1/entries?kinds=", "/v1/entries?kinds=some", "/v1/entries?form=1", "/v1/entries?from=1&from=2"),
    *("/v1/entries?from", "/v1/tail?limit=1", "/v1/status?x=1", "/v1/entries/3?x=1", "/v1/segments?x=1"),
)


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_parameters_of_a_read_are_known_and_in_range(group: Group, name: str) -> None:
    with group.unharmed():
        for target in BAD_READS:
            answer = call("GET", group.urls[name] + target)
            assert (answer.status, answer.json()["type"]) == (400, "bad-argument"), (target, answer)
        for seen in ("x", "-1", "1.", "1.x", "1.5.2", "1.-5", str(1 << 64)):
            call("GET", f"{group.urls[name]}/v1/tail", headers={"Last-Event-ID": seen}).refused(400, "bad-argument")
        for action in ("checkpoint", "rotate"):
            call("POST", f"{group.urls[name]}/v1/admin/{action}?x=1").refused(400, "bad-argument")


def test_what_a_peer_asks_is_checked(group: Group) -> None:
    url = f"{group.master}/v1/peer/hello"
    question = {
        "group": group.status("n1")["group"],
        "sender": "n2",
        "to": "n1",
        "incarnation": "0" * 16,
        "process": "0" * 16,
        "purpose": "discovery",
        "term": 0,
    }
    with group.unharmed():
        assert call("POST", url, headers=JSON, body=json.dumps(question).encode()).ok()["name"] == "n1"
        for body in (b"", b"x", b"[]", b"null", b"{}", b"\xff", b'{"group":', b"[" * 60_000):
            call("POST", url, headers=JSON, body=body).refused(400, "bad-body")
        for member, value, status, slug in (
            ("group", "another", 409, "wrong-group"),
            ("to", "n3", 409, "wrong-name"),
            ("sender", "n9", 403, "not-listed"),
            ("purpose", "world domination", 400, "bad-body"),
            ("incarnation", "xyz", 400, "bad-body"),
            ("term", "1", 400, "bad-body"),
            ("sender", 5, 400, "bad-body"),
        ):
            answer = call("POST", url, headers=JSON, body=json.dumps({**question, member: value}).encode())
            assert (answer.status, answer.json()["type"]) == (status, slug), (member, value, answer)
        call("POST", url, headers=JSON, body=bytes(64 * 1024 + 1)).refused(413, "too-large")


def test_what_is_no_upgrade_is_refused_before_it(group: Group) -> None:
    with group.unharmed():
        call("GET", f"{group.master}/v1/produce").refused(400, "bad-argument")
        call("GET", f"{group.master}/v1/produce?x=1", headers=UPGRADE).refused(400, "bad-argument")
        for name, value in (
            ("Sec-WebSocket-Version", "5"),
            ("Sec-WebSocket-Key", ""),
            ("Sec-WebSocket-Key", "short"),
            ("Upgrade", "h2c"),
        ):
            answer = call("GET", f"{group.master}/v1/produce", headers={**UPGRADE, name: value})
            assert (answer.status, answer.json()["type"]) == (400, "bad-argument"), (name, value, answer)
        answer = call("GET", f"{group.urls['n2']}/v1/produce", headers=UPGRADE)
        assert (answer.status, answer.headers["location"]) == (307, f"{group.master}/v1/produce")


# What is hardly HTTP.


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


HOST = "Host: localhost"
POST = "POST /v1/entries HTTP/1.1"
TYPE = "Content-Type: application/octet-stream"
NO_HTTP = {
    "random": bytes(range(256)) * 8,
    "zeros": bytes(1000),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/3.7": head("GET / HTTP/3.7", HOST),
    "no target": head("GET HTTP/1.1", HOST),
    "an unknown method": head("BREW / HTTP/1.1", HOST),
    "a NUL in the target": head("GET /\0 HTTP/1.1", HOST),
    "a field without a colon": head("GET / HTTP/1.1", HOST, "nonsense"),
    "a space before the colon": head("GET / HTTP/1.1", HOST, "Accept : x"),
    "a huge target": head("GET /" + "x" * 300_000 + " HTTP/1.1", HOST),
    "a huge field": head("GET / HTTP/1.1", HOST, "X: " + "x" * 100_000),
    "too many fields": head("GET / HTTP/1.1", HOST, *(f"X-{number}: x" for number in range(5_000))),
    "a negative length": head(POST, HOST, TYPE, "Content-Length: -1"),
    "a length that is no number": head(POST, HOST, TYPE, "Content-Length: many"),
    "two lengths": head(POST, HOST, TYPE, "Content-Length: 1", "Content-Length: 2") + b"xx",
    "length and chunks": head(POST, HOST, TYPE, "Content-Length: 3", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
    "an unknown encoding": head(POST, HOST, TYPE, "Transfer-Encoding: gzip") + b"x",
    "a chunk of no length": head(POST, HOST, TYPE, "Transfer-Encoding: chunked") + b"xyz\r\nabc\r\n0\r\n\r\n",
    "a chunk of negative length": head(POST, HOST, TYPE, "Transfer-Encoding: chunked") + b"-1\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": head(POST, HOST, TYPE, "Transfer-Encoding: chunked") + b"1\r\nabc\r\n0\r\n\r\n",
}


def test_what_is_no_http_ends_its_connection_only(group: Group) -> None:
    with group.unharmed():
        for what, sent in NO_HTTP.items():
            got = raw(group.master, sent)
            assert not got or got.startswith(b"HTTP/1.1 400 "), (what, got[:300])
            assert not got or b'"type":"bad-argument"' in got or b'"type":"bad-body"' in got, (what, got[:600])


def test_no_mutation_of_requests_does_harm(group: Group) -> None:
    rng = Random(34)
    right = [
        head(POST, HOST, TYPE, "Content-Length: 4") + b"GET ",
        head("GET /v1/entries?from=1&limit=2 HTTP/1.1", HOST, "Accept: */*"),
        head("GET /v1/feed HTTP/1.1", HOST, *(f"{name}: {value}" for name, value in UPGRADE.items())),
        head("GET /v1/segments/1 HTTP/1.1", HOST, "Range: bytes=0-9"),
    ]
    process = group.status("n1")["process"]
    for _ in range(250):
        sent = bytearray(rng.choice(right))
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(sent))
            sent[at : at + rng.randrange(3)] = rng.randbytes(rng.randrange(3))
        got = raw(group.master, bytes(sent))
        assert not got or got.startswith(b"HTTP/1.1 "), (bytes(sent), got[:300])
        assert b'"type":"internal"' not in got, (bytes(sent), got[:600])
    assert group.status("n1")["process"] == process
    group.append(b"after them")  # a mutated request may be a right one, whose entry is synced after its link has ended
    with group.unharmed():
        pass


def test_a_request_that_breaks_off_changes_nothing(group: Group) -> None:
    request = head(POST, HOST, TYPE, "Content-Length: 100") + b"x" * 100
    chunked = head(POST, HOST, TYPE, "Transfer-Encoding: chunked") + b"5\r\nhello\r\n5\r\nhello\r\n"
    with group.unharmed():
        for cut in (1, 10, len(request) - 101, len(request) - 99, len(request) - 1):
            raw(group.master, request[:cut])
        raw(group.master, chunked)
        raw(group.master, chunked[:-3])


def test_slow_clients_keep_nobody_waiting(group: Group) -> None:
    with group.unharmed(appended=1), ExitStack() as slow:
        for number in range(200):
            link = slow.enter_context(raw_socket(group.master))
            link.sendall((head(POST, HOST, TYPE, "Content-Length: 100") + b"x" * 99)[: 1 + number % 150])
        assert call("GET", f"{group.master}/healthz").status == 200
        (vlsn,) = group.append(b"while they dawdle")
        assert call("GET", f"{group.master}/v1/entries/{vlsn}").body == b"while they dawdle"


def test_http_1_0_is_served_and_closed(group: Group) -> None:
    got = raw(group.master, b"GET /healthz HTTP/1.0\r\n\r\n", shut=False)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    assert got.endswith(b'{"alive":true}')
    sent = b"POST /v1/entries HTTP/1.0\r\nContent-Type: application/octet-stream\r\nContent-Length: 3\r\n\r\nold"
    got = raw(group.master, sent, shut=False)
    assert got.startswith(b"HTTP/1.1 200 OK\r\n")
    vlsn = json.loads(got.partition(b"\r\n\r\n")[2])["first"]
    got = raw(group.master, b"GET /v1/entries/%d HTTP/1.0\r\n\r\n" % vlsn, shut=False)
    assert got.endswith(b"\r\n\r\nold")


def test_pipelined_requests_are_answered_in_order(group: Group) -> None:
    first = group.settle() + 1
    sent = [head(POST, HOST, TYPE, "Content-Length: 1") + b"%d" % number for number in range(5)]
    last = head("GET /v1/entries/0 HTTP/1.1", HOST, "Connection: close")
    got = raw(group.master, *sent, last, shut=False)
    answers = re.findall(rb'"first":(\d+)', got)
    assert [int(answer) for answer in answers] == list(range(first, first + 5))
    assert got.count(b"HTTP/1.1 200 OK") == 5
    assert b'"type":"bad-argument"' in got


def test_a_page_in_a_browser_has_a_node_do_nothing(group: Group) -> None:
    """A fetch without a word of ours sends any name, any origin, a content type that needs no leave."""
    own = f"127.0.0.1:{urlsplit(group.master).port}"
    hello = json.dumps({"group": "x"}).encode()
    with group.unharmed():
        for headers, status, slug in (
            ({"Host": "evil.example"}, 421, "misdirected"),
            ({"Host": own, "Origin": "http://evil.example"}, 403, "forbidden"),
            ({"Host": own, "Sec-Fetch-Site": "cross-site"}, 403, "forbidden"),
        ):
            for path in ("/v1/admin/rotate", "/v1/admin/restore", "/v1/peer/vote"):
                call("POST", group.master + path, headers={**JSON, **headers}, body=b"{}").refused(status, slug)
            for _ in range(3):  # the short way learns what is sent again
                call("POST", f"{group.master}/v1/entries", headers={**OCTETS, **headers}, body=b"x").refused(
                    status, slug
                )
            call("GET", f"{group.master}/v1/produce", headers={**UPGRADE, **headers}).refused(status, slug)
            call("GET", f"{group.master}/v1/status", headers=headers).refused(status, slug)
        for path in ("/v1/admin/rotate", "/v1/peer/hello"):
            call("POST", group.master + path, headers={"Content-Type": "text/plain"}, body=hello).refused(
                415, "unsupported-type"
            )
        page = {"Host": own, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}
        assert call("GET", f"{group.master}/", headers=page).status == 200
        assert call("GET", f"{group.master}/v1/status", headers=page).status == 200
