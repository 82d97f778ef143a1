"""Live nodes as sources: a server of a copy's files as ``/v1/segments`` serves them, with its faults."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar, TypeVar
from urllib.request import Request

import pytest
from tenacity import wait_none

from repl.audit import live
from repl.audit.history import parts_of
from repl.audit.source import Gone, Unreadable
from repl.auth.tokens import new_secret
from tests.fakes.random import SeededRandom
from tests.repl.audit.jobs import audited
from tests.repl.audit.logs import STORY, Copy
from tests.repl.credentials.test_bearer import written
from vlsn.errors import BadArgument
from vlsn.format.segment import segment_name

LAST, DTVLSN = 2000, 1995


S = TypeVar("S", bound=ThreadingHTTPServer)


class Server(ThreadingHTTPServer):
    """Serves ``copy`` as a node would; ``faults`` are statuses (0: a cut connection) for the next segment reads."""

    daemon_threads = True

    def __init__(self, copy: Copy) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.copy = copy
        self.faults: list[int] = []
        self.requests: list[str] = []
        self.knows: list[int] = []
        """DTVLSNs that the next questions for its status are answered with; then the whole one's."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        if self.path == "/v1/status":
            span = {"first": 1, "last": LAST, "last_sync": LAST, "last_txn_end": 0}
            known = self.server.knows.pop(0) if self.server.knows else DTVLSN
            self.answer(200, {"group": "g", "node": "n2", "range": span, "dtvlsn": known})
        elif self.path == "/v1/segments":
            rows = [{"number": number, "end": end} for number, end in self.server.copy.ends.items()]
            self.answer(200, {"group": "g", "node": "n2", "segments": rows})
        elif self.server.faults:
            if status := self.server.faults.pop(0):
                self.answer(status, {"type": "damaged", "detail": "no such luck"})
            else:
                self.close_connection = True
        else:
            self.piece(int(self.path.rpartition("/")[2]))

    def piece(self, number: int) -> None:
        data = (self.server.copy.path / segment_name(number)).read_bytes()
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        assert match is not None
        start, last = map(int, match.groups())
        body = data[start : last + 1]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{start + len(body) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, status: int, value: dict[str, object]) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(server: S) -> Iterator[S]:
    """Runs a server in a thread of its own."""
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def served(copy: Copy) -> AbstractContextManager[Server]:
    return serving(Server(copy))


class Redirecting(BaseHTTPRequestHandler):
    """Sends everybody to ``to``, and notes what it got."""

    to = ""
    tokens: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        self.send_response(307)
        self.send_header("Location", f"{self.to}{self.path}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_a_token_of_a_file_goes_to_the_source_alone(copies: list[Copy], tmp_path: Path) -> None:
    one, other = new_secret(SeededRandom(1)), new_secret(SeededRandom(2))
    path, heard = written(tmp_path / "token", one.text), list[str | None]()

    class Hearing(Handler):
        def do_GET(self) -> None:
            heard.append(self.headers["Authorization"])
            super().do_GET()

    server = Server(copies[0])
    server.RequestHandlerClass = Hearing
    with serving(server):
        source = live.LiveSource(server.url, token_file=path)
        assert source.group()[0] == "g" and heard == [f"Bearer {one.text}"]
        written(tmp_path / "token", other.text)
        source.group()
        assert heard[1:] == [f"Bearer {other.text}"], "a new one needs no other source"
        Redirecting.to = server.url
        with serving(ThreadingHTTPServer(("127.0.0.1", 0), Redirecting)) as elsewhere:
            url = f"http://127.0.0.1:{elsewhere.server_address[1]}"
            assert live.LiveSource(url, token_file=path).group()[0] == "g"
        assert heard[2:] == [None] and Redirecting.tokens == [f"Bearer {other.text}"]
        with pytest.raises(BadArgument, match="https"):
            live.LiveSource("http://10.0.0.7:7701", token_file=path).group()
        written(tmp_path / "token", other.text, 0o644)
        with pytest.raises(BadArgument, match="mode 0644"):
            source.group()
        assert other.secret not in repr(source)


@pytest.fixture
def copies(tmp_path: Path) -> list[Copy]:
    return [Copy(tmp_path / node, node).add(*STORY).write() for node in ("n1", "n2")]


def test_a_live_node_equals_a_directory(copies: list[Copy]) -> None:
    copies[0].checkpoint(dtvlsn=LAST).write()
    with served(copies[1]) as server:
        report = audited(copies[0], server.url)
    assert (report.exit_code, report.compared_from, report.compared_to) == (0, 1, DTVLSN)
    assert [(source.node, source.live, source.last) for source in report.sources] == [
        ("n1", False, LAST),
        ("n2", True, LAST),
    ]


def test_a_history_is_held_against_a_live_node_too(tmp_path: Path, copies: list[Copy]) -> None:
    values = [(b"value %d" % vlsn).ljust(60, b".").decode() for vlsn in range(1, DTVLSN + 1)]
    values[700] = "another value"
    history = tmp_path / "history"
    history.write_text(
        "".join(json.dumps({"vlsn": vlsn, "value": value}) + "\n" for vlsn, value in enumerate(values, 1))
    )
    copies[0].checkpoint(dtvlsn=LAST).write()
    with served(copies[1]) as server:
        report = audited(copies[0], server.url, history=parts_of(str(history)))
        found = [(finding.rule, finding.source, finding.vlsn) for finding in report.findings]
        assert found == [("history-differs", source, 701) for source in sorted([str(copies[0].path), server.url])]
    assert report.history is not None
    assert report.history.everywhere == DTVLSN - 1


def test_damage_at_a_live_node_is_named(copies: list[Copy]) -> None:
    file, offset = copies[1].flip(501, 100)
    with served(copies[1]) as server:
        report = audited(copies[0], server.url + "/")
        (finding,) = report.findings
        assert (finding.source, finding.file, finding.offset) == (server.url, file, offset)
    assert (finding.vlsn, report.exit_code) == (501, 1)


def test_a_damaged_header_of_a_live_node_hides_no_block(copies: list[Copy]) -> None:
    copies[1].flip_at(2, 60)
    with served(copies[1]) as server:
        report = audited(copies[0], server.url)
    assert [(finding.rule, finding.file) for finding in report.findings] == [("segment-header", segment_name(2))]
    assert report.equal


def test_what_fails_once_is_asked_again(copies: list[Copy], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "PIECE_BYTES", 16 << 10)
    with served(copies[1]) as server:
        server.faults = [503, 0, 429, 500]
        report = audited(copies[0], server.url)
        assert report.exit_code == 0
        assert server.faults == []
        assert sum(path.startswith("/v1/segments/") for path in server.requests) > 4 * 4


@pytest.mark.parametrize(("status", "message"), [(410, "answered 410"), (404, "no such luck")])
def test_a_refusal_ends_the_audit(copies: list[Copy], status: int, message: str) -> None:
    with served(copies[1]) as server:
        server.faults = [status]
        with pytest.raises(Unreadable, match=message):
            audited(copies[0], server.url)


def test_a_node_that_is_down_ends_the_audit(copies: list[Copy], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live._fetch.retry, "wait", lambda state: 0)
    with served(copies[1]) as server:
        url = server.url
    with pytest.raises(Unreadable, match="is the node up"):
        audited(copies[0], url)


@pytest.mark.parametrize("refuses", [False, True])
def test_a_node_that_does_not_answer_is_given_up_in_time(refuses: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    def pass_s(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    def opened(request: Request, timeout: float) -> None:
        pass_s(0.0 if refuses else timeout)
        raise ConnectionRefusedError if refuses else TimeoutError

    monkeypatch.setattr(live, "monotonic", lambda: now_s)
    monkeypatch.setattr(live._PLAIN, "open", opened)
    monkeypatch.setattr(live._fetch.retry, "sleep", pass_s)
    monkeypatch.setattr(live, "_GIVEN_UP", set())
    with pytest.raises(Gone, match="is the node up"):
        live.LiveSource("http://n1", give_up_s=5.0).dtvlsn()
    assert 1.0 < now_s <= 5.0


def test_a_node_that_is_busy_is_asked_until_it_has_time(copies: list[Copy], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live._fetch.retry, "wait", lambda state: 0)
    with served(copies[1]) as server:
        server.faults = [429] * 40
        assert audited(copies[0], server.url).exit_code == 0
        assert server.faults == []
        monkeypatch.setattr(live, "BUSY_S", 0.0)
        server.faults = [429] * 4
        with pytest.raises(Unreadable, match="answered 429"):
            audited(copies[0], server.url)


def test_a_piece_comes_into_the_readers_own_memory(copies: list[Copy], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is asked for again; memory that is too small stays as it was."""
    monkeypatch.setattr(live._fetch.retry, "wait", wait_none())
    with served(copies[1]) as server:
        source = live.LiveSource(server.url)
        part = source.survey(0).parts[0]
        data = (copies[1].path / part.file).read_bytes()[: part.end]
        into, small = bytearray(b"\xff" * (part.end + 9)), bytearray(8)
        server.faults = [503, 0]
        found = source.read(part, 0, part.end, into)
        assert found.obj is into  # type: ignore[union-attr]
        assert bytes(found) == data
        assert bytes(into[part.end :]) == b"\xff" * 9
        assert bytes(source.read(part, 16, part.end, small)) == data[16:]
        assert bytes(small) == bytes(8)
        with pytest.raises(Unreadable, match=r"gave \d+ bytes of"):
            source.read(part, 0, (copies[1].path / part.file).stat().st_size + 8)
