"""The calls that take and answer JSON, on a real master and a real replica: destinations call by call, and for every
call of the surface bodies that mean nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.e2e.calls import JSON, NDJSON, call
from tests.e2e.group import Group

SETTINGS = {
    "prefix": "surface-",
    "from": "end",
    "max_bytes": 0,
    "max_messages": 0,
    "full_policy": "page",
    "ack_timeout_s": 30.0,
    "attempts_max": 4,
    "dead_letter": "surface-dead",
}
"""The fields that the surface lists of a destination."""


@pytest.fixture
def path(group: Group) -> Iterator[str]:
    path = f"{group.master}/v1/destinations/surface"
    yield path
    call("DELETE", path)


def messages(url: str) -> list[tuple[int, int, str, str]]:
    answer = call("GET", url)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-ndjson")
    return [(row["vlsn"], row["attempt"], row["key"], row["value"]) for row in answer.lines()]


def test_destinations_answer_as_their_table_says(group: Group, path: str) -> None:
    body = json.dumps(SETTINGS).encode()
    made = call("PUT", path, headers=JSON, body=body)
    assert (made.status, made.json().keys() >= SETTINGS.keys()) == (201, True)
    assert {name: made.json()[name] for name in SETTINGS.keys() - {"from"}} == {
        name: value for name, value in SETTINGS.items() if name != "from"
    }
    changed = call("PUT", path, headers=JSON, body=b'{"attempts_max":5}')
    assert (changed.status, changed.json()["attempts_max"]) == (200, 5)
    assert call("GET", path).ok()["from"] == changed.json()["floor"] + 1
    entries = b'{"value":"a","key":"surface-1"}\n{"value":"b","key":"surface-2"}\n{"value":"c","key":"other"}'
    first = call("POST", f"{group.master}/v1/entries", headers=NDJSON, body=entries).ok()["first"]
    assert messages(f"{path}/messages?max=1&wait=20") == [(first, 1, "surface-1", "a")]
    assert messages(f"{path}/messages?wait=20") == [(first + 1, 1, "surface-2", "b")]
    assert messages(f"{path}/messages") == []
    assert call("POST", f"{path}/ack", headers=JSON, body=b'{"vlsns":[%d]}' % first).status == 200
    assert call("POST", f"{path}/nack", headers=JSON, body=b'{"vlsns":[%d]}' % (first + 1)).status == 200
    assert messages(f"{path}/messages?wait=20") == [(first + 1, 2, "surface-2", "b")]
    assert call("POST", f"{path}/ack?wait=0", headers=JSON, body=b'{"vlsns":[%d]}' % (first + 1)).status == 200
    assert call("DELETE", path).status == 200
    for method, call_of_it in (("GET", ""), ("DELETE", ""), ("GET", "/messages")):
        call(method, path + call_of_it).refused(404, "not-found")


NO_OBJECTS = (b"null", b"[]", b"1", b"{", b"\xff", b"[" * 60_000, b"NaN", b"{}x", b'{"surprise":1}', b"\xef\xbb\xbf{}")
NO_VALUES = (b"-1", b"1.5", b"true", b"[]", b"{}", b"NaN", b"1e999", b"1" + b"0" * 400, b'"\\ud800"', b'"no\\n"')
FIELDS = (
    ("PUT", "/v1/consumers/surface", ("next",)),
    ("PUT", "/v1/destinations/surface", ("from", "max_bytes", "max_messages", "full_policy", "attempts_max")),
    ("POST", "/v1/destinations/surface/ack", ("vlsns",)),
    ("POST", "/v1/destinations/surface/nack", ("vlsns",)),
    ("POST", "/v1/destinations/surface/move", ("to",)),
    ("POST", "/v1/admin/group", ("change",)),
    ("POST", "/v1/admin/group/settings", ("level", "producers", "durability")),
    ("POST", "/v1/transactions/t-0000000000000001-1-1/commit", ("positions", "sinks")),
)


@pytest.mark.parametrize(("method", "target", "names"), FIELDS, ids=lambda each: each if isinstance(each, str) else "")
def test_what_means_nothing_is_refused_and_logs_nothing(
    group: Group, path: str, method: str, target: str, names: tuple[str, ...]
) -> None:
    assert call("PUT", path, headers=JSON, body=b'{"prefix":"surface-"}').status == 201
    url = group.master + target
    with group.unharmed():
        bodies = [*NO_OBJECTS, *(b'{"%b":%b}' % (name.encode(), value) for name in names for value in NO_VALUES)]
        for body in bodies:
            empty = body in (b'{"vlsns":[]}', b'{"positions":{}}', b'{"sinks":{}}')
            if empty:
                continue
            answer = call(method, url, headers=JSON, body=body)
            assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json"), (body, answer)
            assert answer.json()["type"] in ("bad-body", "bad-argument"), (body, answer)
        for kind in ("text/plain", "application/x-www-form-urlencoded", "application/x-ndjson"):
            call(method, url, headers={"Content-Type": kind}, body=b"{}").refused(415, "unsupported-type")
