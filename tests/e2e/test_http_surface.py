"""The HTTP table, call by call, on a real master and a real replica."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPResponse
from urllib.parse import urlsplit

import pytest

from tests.e2e.calls import BATCH, NDJSON, OCTETS, Answer, call, connection, raw_socket, send
from tests.e2e.group import NAMES, Group
from vlsn.format import batch
from vlsn.format.segment import FIRST_FRAME, SegmentHeader
from vlsn.limits import ENTRY_BYTES_MAX, MIB

pytestmark = pytest.mark.feature("HTTP")

STATUS_FIELDS = {
    *("group", "node", "state", "master", "term", "range", "dtvlsn", "checkpoint"),
    *("feeders", "replica", "log", "members"),
}
METRICS = (
    *("last_vlsn", "durable_vlsn", "feeder_lag_vlsns", "queue_entries", "append_seconds_count"),
    *("append_seconds_sum", "append_seconds_bucket", "fdatasync_seconds_count", "fdatasync_seconds_bucket", "role"),
    *("index_hits_total", "index_misses_total", "index_buckets_created_total", "index_buckets_deleted_total"),
    *("index_flushes_total", "index_mended_total"),
)


def read(group: Group, name: str, query: str, headers: dict[str, str] | None = None) -> Answer:
    return call("GET", f"{group.urls[name]}/v1/entries?{query}", headers=headers)


# Appends.


def test_octets_are_one_entry_whatever_they_are(group: Group) -> None:
    last = group.settle()
    appended = group.post(b"\x00\xff\n", query="?key=k%20%FF").ok()
    term = group.status("n1")["term"]
    assert (appended["first"], appended["last"], appended["term"]) == (last + 1, last + 1, term)
    assert (appended["durable"], appended["acks"]) == (True, "majority")
    assert 2 <= appended["synced"] <= 3
    empty = group.post(b"").ok()
    assert empty["first"] == last + 2
    rows = read(group, "n1", f"from={last + 1}").lines()
    assert [row["vlsn"] for row in rows] == [last + 1, last + 2]
    assert base64.b64decode(rows[0]["value_b64"]) == b"\x00\xff\n"
    assert base64.b64decode(rows[0]["key_b64"]) == b"k \xff"
    assert rows[1]["value"] == ""
    assert not {"key", "key_b64", "kind"} & rows[1].keys()


@pytest.mark.parametrize("headers", [OCTETS, NDJSON, BATCH])
def test_a_replica_sends_appends_to_the_master(group: Group, headers: dict[str, str]) -> None:
    body = {"octet": b"x", "x-ndj": b'{"value":"x"}', "x-vls": batch.encode([b"x"])}[headers["Content-Type"][12:17]]
    path = "/v1/entries?acks=all&timeout=7.5"
    answer = call("POST", group.urls["n2"] + path, body=body, headers=headers)
    assert answer.status == 307
    assert answer.headers["location"] == group.master + path
    appended = call("POST", answer.headers["location"], body=body, headers=headers).ok()
    assert (appended["acks"], appended["synced"], appended["durable"]) == ("all", 3, True)


@pytest.mark.parametrize("acks", ["none", "majority", "all"])
def test_each_ack_policy_is_told_what_it_waited_for(group: Group, acks: str) -> None:
    appended = group.post(b"x", query=f"?acks={acks}").ok()
    assert appended["acks"] == acks
    assert appended["synced"] >= {"none": 0, "majority": 2, "all": 3}[acks]
    assert appended["durable"] is (appended["synced"] >= 2)


def test_many_at_once_each_get_a_vlsn_of_their_own(group: Group) -> None:
    last = group.settle()
    values = [b"%d" % number for number in range(600)]
    with ThreadPoolExecutor(32) as clients:
        vlsns = [vlsn for (vlsn,) in clients.map(group.append, values)]
    assert sorted(vlsns) == list(range(last + 1, last + 601))
    group.settle()
    for name in NAMES:
        rows = read(group, name, f"from={last + 1}").lines()
        assert {row["vlsn"]: row["value"].encode() for row in rows} == dict(zip(vlsns, values, strict=True))


def test_what_a_client_sent_stays_sent_when_it_leaves(group: Group) -> None:
    last = group.settle()
    with raw_socket(group.master) as link:
        head = b"POST /v1/entries HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/octet-stream\r\n"
        link.sendall(head + b"Content-Length: 4\r\n\r\ngone")
    page = read(group, "n2", f"from={last + 1}&wait=60").lines()
    assert [(row["vlsn"], row["value"]) for row in page] == [(last + 1, "gone")]


# Reads.


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_page_ends_at_its_limit_and_tells_what_is_next(group: Group, name: str) -> None:
    first, second, third = group.append(b"a", b"b", b"c")
    group.settle()
    page = read(group, name, f"from={first}&limit=2")
    assert [(row["vlsn"], row["value"]) for row in page.lines()] == [(first, "a"), (second, "b")]
    assert page.headers["content-type"] == "application/x-ndjson"
    assert (page.headers["vlsnlog-next"], page.headers["vlsnlog-durable"]) == (str(third), str(third))
    row = page.lines()[0]
    assert row["term"] == group.status(name)["term"]
    assert abs(row["time"] / 1e6 - page_time(page)) < 60
    beyond = read(group, name, f"from={third + 1}")
    assert (beyond.status, beyond.body, beyond.headers["vlsnlog-next"]) == (200, b"", str(third + 1))


def page_time(page: Answer) -> float:
    from email.utils import parsedate_to_datetime

    return parsedate_to_datetime(page.headers["date"]).timestamp()


def test_a_page_has_at_most_4_mib_and_never_less_than_one_entry(group: Group) -> None:
    vlsns = group.append(*[b"x" * ENTRY_BYTES_MAX] * 5)
    got: list[int] = []
    at = vlsns[0]
    while at <= vlsns[-1]:
        page = read(group, "n1", f"from={at}")
        rows = page.lines()
        assert rows
        assert sum(len(row["value"]) for row in rows) <= 4 * MIB
        got += [row["vlsn"] for row in rows]
        at = int(page.headers["vlsnlog-next"])
    assert got == vlsns


def test_without_from_a_page_begins_with_the_first_there_is(group: Group) -> None:
    rows = read(group, "n2", "limit=2&kinds=all").lines()
    assert [(row["vlsn"], row["kind"]) for row in rows] == [(1, "TERM"), (2, "GROUP")]
    assert json.loads(rows[1]["value"])["group"] == group.status("n2")["group"]
    (row,) = read(group, "n2", "limit=1").lines()
    assert row["vlsn"] == 4
    assert "kind" not in row


# The tail.


class Events:
    """Server-sent events of one connection, one at a time."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        self._link = connection(url)
        send(self._link, "GET", url, headers=headers)
        self._response: HTTPResponse = self._link.getresponse()
        assert self._response.status == 200
        assert self._response.getheader("Content-Type") == "text/event-stream"

    def __enter__(self) -> Events:
        return self

    def __exit__(self, *exception: object) -> None:
        self._response.close()
        self._link.close()

    def next(self) -> tuple[int, str]:
        """Id and value of the next event; comments are passed over."""
        while True:
            lines = self._record()
            if not lines[0].startswith(b":"):
                assert [line.partition(b": ")[0] for line in lines] == [b"id", b"data"]
                data = json.loads(lines[1].removeprefix(b"data: "))
                assert lines[0] == b"id: %d" % data["vlsn"]
                return data["vlsn"], data["value"]

    def _record(self) -> list[bytes]:
        lines: list[bytes] = []
        while (line := self._response.readline().rstrip(b"\n")) or not lines:
            assert line, "the stream has ended"
            lines.append(line)
        return lines


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_a_tail_tells_each_entry_and_resumes_after_the_last_one_seen(group: Group, name: str) -> None:
    first, second = group.append(b"one", b"two")
    url = f"{group.urls[name]}/v1/tail?from={first}"
    with Events(url) as events:
        assert [events.next(), events.next()] == [(first, "one"), (second, "two")]
        (third,) = group.append(b"three")
        assert events.next() == (third, "three")
    with Events(url, {"Last-Event-ID": str(second)}) as events:
        assert events.next() == (third, "three")


# The log's files.


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_segments_are_the_files_up_to_the_synced_length(group: Group, name: str) -> None:
    group.append(b"x" * 1000)
    group.settle()
    url = f"{group.urls[name]}/v1/segments"
    listing = call("GET", url).ok()
    assert (listing["group"], listing["node"]) == (group.status(name)["group"], name)
    last = listing["segments"][-1]
    whole_file = call("GET", f"{url}/{last['number']}")
    assert (whole_file.status, whole_file.headers["accept-ranges"]) == (200, "bytes")
    assert len(whole_file.body) >= last["end"]
    assert SegmentHeader.decode(whole_file.body[:4096]).node == name
    # A node may write to its log at any time: each answer names the length that it was cut from.
    parts = [(whole_file.body, 0, len(whole_file.body))]
    for asked, start, end in (
        ("bytes=0-99", 0, 100),
        (f"bytes={FIRST_FRAME}-", FIRST_FRAME, None),
        ("bytes=-10", -10, None),
        (f"bytes=1-{1 << 40}", 1, None),
    ):
        part = call("GET", f"{url}/{last['number']}", headers={"Range": asked})
        length = int(part.headers["content-range"].rpartition("/")[2])
        assert length >= last["end"]
        start, end = start % length, end or length
        assert (part.status, part.headers["content-range"]) == (206, f"bytes {start}-{end - 1}/{length}")
        parts.append((part.body, start, end))
    file = (group.path(name) / last["file"]).read_bytes()
    for body, start, end in parts:
        assert body == file[start:end]


# A node's reports on itself.


def test_every_node_tells_its_status(group: Group) -> None:
    last = group.settle()
    told = {name: group.status(name) for name in NAMES}
    for name, status in told.items():
        assert status.keys() >= STATUS_FIELDS
        assert (status["node"], status["master"], status["term"]) == (name, "n1", told["n1"]["term"])
        assert status["range"].keys() == {"first", "last", "last_sync", "last_txn_end"}
        assert (status["range"]["first"], status["range"]["last"], status["range"]["last_sync"]) == (1, last, last)
        assert status["dtvlsn"] == last
        log = status["log"]
        assert log.keys() >= {"segments", "bytes", "queue_length", "active", "rolls"}
        assert log["rolls"].keys() == {"size", "error", "slow_sync", "period", "request"}
        assert set(log["active"]) <= {file.name for file in group.path(name).glob("*.vlog")}
        assert {member["name"]: member["url"] for member in status["members"]} == group.urls
    assert [told[name]["state"] for name in NAMES] == ["MASTER", "REPLICA", "REPLICA"]
    feeders = {feeder["replica"]: feeder for feeder in told["n1"]["feeders"]}
    assert feeders.keys() == {"n2", "n3"}
    for feeder in feeders.values():
        assert (feeder["sent"], feeder["acked"], feeder["lag_vlsns"], feeder["lag_s"]) == (last, last, 0, 0)
        assert feeder["mode"] in ("BUFFER", "ARCHIVE")
    assert told["n2"]["feeders"] == []
    assert told["n2"]["replica"]["master"] == "n1"


@pytest.mark.parametrize("name", ["n1", "n2"])
def test_metrics_have_their_names(group: Group, name: str) -> None:
    last = group.settle()
    answer = call("GET", f"{group.urls[name]}/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    lines = [line for line in answer.body.decode().splitlines() if not line.startswith("#")]
    names = {line.partition("{")[0].partition(" ")[0] for line in lines}
    wanted = {f"vlsnlog_{metric}" for metric in METRICS}
    if name != "n1":
        wanted.remove("vlsnlog_feeder_lag_vlsns")
    assert wanted <= names
    assert f"vlsnlog_last_vlsn {float(last)}" in lines or f"vlsnlog_last_vlsn {last:.12g}" in lines
    assert f'vlsnlog_role{{state="{group.status(name)["state"]}"}} 1.0' in lines


@pytest.mark.parametrize("name", NAMES)
def test_a_whole_node_is_alive_and_ready_and_has_a_page(group: Group, name: str) -> None:
    group.settle()
    url = group.urls[name]
    assert call("GET", f"{url}/healthz").status == 200
    ready = call("GET", f"{url}/readyz")
    assert (ready.status, ready.json()["ready"]) == (200, True)
    page = call("GET", f"{url}/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"<html" in page.body.lower()
    assert b"/v1/status" in page.body


@pytest.mark.parametrize("name", ["n1", "n3"])
def test_a_checkpoint_and_a_roll_on_request(group: Group, name: str) -> None:
    group.append(b"before")
    last = group.settle()
    url = f"{group.urls[name]}/v1/admin"
    checkpoint = call("POST", f"{url}/checkpoint").ok()
    assert (checkpoint["node"], checkpoint["last"]) == (name, last)
    assert group.status(name)["checkpoint"]["id"] == checkpoint["id"]
    before = group.status(name)["log"]
    rolled = call("POST", f"{url}/rotate").ok()
    (vlsn,) = group.append(b"after")
    group.settle()
    after = group.status(name)["log"]
    assert after["rolls"]["request"] == before["rolls"]["request"] + 1
    assert after["active"][0] == rolled["file"]
    listed = call("GET", f"{group.urls[name]}/v1/segments").ok()["segments"]
    assert [each["number"] for each in listed if not each["sealed"]] == [rolled["number"]]
    page = read(group, name, f"from={last}").lines()
    assert [(row["vlsn"], row["value"]) for row in page[-2:]] == [(last, "before"), (vlsn, "after")]


def test_it_listens_on_this_host_only(group: Group) -> None:
    assert {urlsplit(url).hostname for url in group.urls.values()} == {"127.0.0.1"}
    ports = {urlsplit(url).port for url in group.urls.values()}
    listening = listening_addresses()
    assert {address for address, port in listening if port in ports} == {"127.0.0.1"}


def listening_addresses() -> list[tuple[str, int | None]]:
    """Address and port of every listening TCP socket of this machine (``/proc/net/tcp``, IPv4 and IPv6)."""
    found: list[tuple[str, int | None]] = []
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as lines:
            for line in list(lines)[1:]:
                local, state = line.split()[1], line.split()[3]
                if state == "0A":
                    address, _, port = local.partition(":")
                    four = (
                        ".".join(str(byte) for byte in reversed(bytes.fromhex(address))) if table == "tcp" else address
                    )
                    found.append((four, int(port, 16)))
    return found
