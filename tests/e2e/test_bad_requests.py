"""Requests that are refused: a stable type for each, the node unharmed, the log unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random

import pytest

from repl.auth.signatures import HEADER
from tests.e2e.calls import BATCH, JSON, NDJSON, OCTETS, UPGRADE, Answer, call, raw, raw_socket
from tests.e2e.group import Group
from tests.e2e.signing import signed
from tests.vlsn.strategies import with_batch_header
from vlsn.format import batch
from vlsn.levels import LEVELS
from vlsn.limits import ENTRY_BYTES_MAX, KEY_BYTES_MAX, MIB

GOOD = batch.encode([b"first", b"second value", b"x"])
REFUSED: dict[str, tuple[bytes, dict[str, str], str, int, str]] = {
    "a batch of a later version": (with_batch_header(GOOD, version=2), BATCH, "", 400, "wrong-version"),
    "a batch with a flipped bit": (GOOD[:-1] + b"y", BATCH, "", 400, "bad-body"),
    "a batch that says more than it has": (with_batch_header(GOOD, count=4), BATCH, "", 400, "bad-body"),
    "a batch that announces too much": (with_batch_header(GOOD, count=1 << 31), BATCH, "", 413, "too-large"),
    "a bad line after many good ones": (b'{"value":"a"}\n' * 1000 + b'{"value":}', NDJSON, "", 400, "bad-body"),
    "a deep nest": (b'{"value":' + b"[" * 100_000, NDJSON, "", 400, "bad-body"),
    "a line that is no entry": (b'{"value":"' + b"x" * (MIB + 1) + b'"}', NDJSON, "", 413, "too-large"),
    "a body past the limit": (bytes(ENTRY_BYTES_MAX + 1), OCTETS, "", 413, "too-large"),
    "no content type": (b"x", {}, "", 415, "unsupported-type"),
    "a coding": (b"x", {**OCTETS, "Content-Encoding": "gzip"}, "", 415, "unsupported-type"),
    "an unknown parameter": (b"x", OCTETS, "?limit=1", 400, "bad-argument"),
    "a key over the limit": (b"x", OCTETS, "?key=" + "k" * (KEY_BYTES_MAX + 1), 413, "too-large"),
}
"""One of each kind. All others are in the tests of each format and of each call."""


def post(group: Group, body: bytes | Iterator[bytes], headers: dict[str, str], query: str = "") -> Answer:
    return call("POST", f"{group.master}/v1/entries{query}", body=body, headers=headers)


def test_an_append_that_is_refused_logs_nothing(group: Group) -> None:
    with group.unharmed():
        for what, (body, headers, query, status, slug) in REFUSED.items():
            answer = post(group, body, headers, query)
            assert (answer.status, answer.json()["type"]) == (status, slug), (what, answer)
            answer.refused(status, slug)
    assert "line 1001" in post(group, *REFUSED["a bad line after many good ones"][:2]).json()["detail"]
    assert post(group, b"x", OCTETS, "?key=" + "%41" * KEY_BYTES_MAX).status == 200


def test_a_chunked_body_within_the_limit_is_taken(group: Group) -> None:
    vlsn = post(group, iter([b"in ", b"three ", b"chunks"]), OCTETS).ok()["first"]
    assert call("GET", f"{group.master}/v1/entries/{vlsn}").body == b"in three chunks"


BAD_READS = (
    *("/v1/entries?from=0", "/v1/tail?from=-1", "/v1/entries/x", "/v1/entries?limit=10001", "/v1/entries?wait=61"),
    *("/v1/entries?kinds=some", "/v1/entries?form=1", "/v1/entries?from=1&from=2", "/v1/tail?limit=1"),
    *("/v1/status?x=1", "/v1/entries/3?x=1", "/v1/segments?x=1", "/v1/entries?from=1%00"),
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

    def ask(body: bytes, sender: str = "n2") -> Answer:
        signature = signed(group, "n1", sender, "POST", "/v1/peer/hello", body=body, feed=None)
        return call("POST", url, headers={**JSON, HEADER: signature}, body=body)

    with group.unharmed():
        assert ask(json.dumps(question).encode()).ok()["name"] == "n1"
        unsigned = json.dumps({**question, "levels": LEVELS}).encode()
        call("POST", url, headers=JSON, body=unsigned).refused(401, "unauthorized")
        call("POST", url, headers=JSON, body=json.dumps(question).encode()).refused(400, "wrong-version")
        for body in (b"", b"x", b"[]", b"null", b"{}", b"\xff", b'{"group":', b"[" * 60_000):
            ask(body).refused(400, "bad-body")
        for member, value, status, slug in (
            ("group", "another", 409, "wrong-group"),
            ("to", "n3", 409, "wrong-name"),
            ("sender", "n9", 403, "not-listed"),
            ("purpose", "world domination", 400, "bad-body"),
            ("incarnation", "xyz", 400, "bad-body"),
            ("term", "1", 400, "bad-body"),
            ("sender", 5, 400, "bad-body"),
        ):
            sender = value if member == "sender" and isinstance(value, str) else "n2"
            answer = ask(json.dumps({**question, member: value}).encode(), sender)
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


# Bytes that are hardly HTTP.


def head(*lines: str) -> bytes:
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


HOST = "Host: localhost"
POST = "POST /v1/entries HTTP/1.1"
TYPE = "Content-Type: application/octet-stream"
NO_HTTP = {
    "random": bytes(range(256)) * 8,
    "zeros": bytes(1000),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "no target": head("GET HTTP/1.1", HOST),
    "an unknown method": head("BREW / HTTP/1.1", HOST),
    "a NUL in the target": head("GET /\0 HTTP/1.1", HOST),
    "a field without a colon": head("GET / HTTP/1.1", HOST, "nonsense"),
    "a space before the colon": head("GET / HTTP/1.1", HOST, "Accept : x"),
    "a length that is no number": head(POST, HOST, TYPE, "Content-Length: many"),
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
