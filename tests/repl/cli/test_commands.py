"""The commands against nodes on fakes: their output and exit status."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from repl import connect_sync
from repl.cli.append import _append
from repl.cli.lines import Body, bodies
from repl.cli.status import status as status_command
from repl.node.capacity import files_most, memory_bytes, readers_of
from tests.repl.cli.shell import NOWHERE, Result, Shell
from tests.repl.client.group import ServedNode
from tests.repl.web.one_node import FIRST, TERM, OneNode, cleaned, follower
from vlsn.errors import Halted, InsufficientReplicas, OutcomeUnknown, TooLarge, VlsnLogError
from vlsn.format.segment import FIRST_FRAME
from vlsn.format.submission import FRAME_OVERHEAD_BYTES
from vlsn.limits import SEGMENT_BYTES_MIN


def test_append_prints_first_and_last(shell: Shell, node: OneNode) -> None:
    assert shell("append", "hello", "--key", "k") == Result(0, b"4 4\n", "")
    assert shell("append", "") == Result(0, b"5 5\n", "")
    assert shell("append", "-", stdin=b"a\nb\n") == Result(0, b"6 7\n", "")
    held = b'"durability":{"local":"sync","replica":"sync"}'
    answer = b'{"first":8,"last":8,"term":%d,"durable":true,"synced":1,"acks":"majority",%s}\n' % (TERM, held)
    assert shell("append", "two\nlines", "--json") == Result(0, answer, "")
    assert shell("append", "--acks", "none", "--", "-dash") == Result(0, b"9 9\n", "")
    assert node.values == [b"hello", b"", b"a", b"b", b"two\nlines", b"-dash"]
    assert node.entries[0].key == b"k"


def test_append_asks_for_a_durability_and_says_what_held(shell: Shell, node: OneNode) -> None:
    lower = json.loads(shell("append", "v", "--durability", "sync,no_sync", "--json").out)
    assert (lower["durable"], lower["durability"]) == (True, {"local": "sync", "replica": "no_sync"})
    many = json.loads(shell("append", "-", "--durability", "write_no_sync", "--json", stdin=b"a\nb\n").out)
    assert (many["durable"], many["durability"]) == (False, {"local": "write_no_sync", "replica": "write_no_sync"})
    submissions = len(node.asked)
    for wrong in ("fast", "sync,sync,sync", ""):
        refused = shell("append", "v", "--durability", wrong)
        assert (refused.status, refused.out) == (2, b"") and "is not one of sync, write_no_sync, no_sync" in refused.err
        refused = shell("group", "set", f"durability={wrong}")
        assert (refused.status, refused.out) == (2, b"") and "is not one of sync, write_no_sync, no_sync" in refused.err
    assert len(node.asked) == submissions


def test_append_splits_a_file_at_newlines_only(shell: Shell, node: OneNode, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b" a \r\n\n\x00\xff\xe2\x80\xa8\x0b\n\nlast")
    assert shell("append", "--file", str(path)) == Result(0, b"4 8\n", "")
    assert node.values == [b" a \r", b"", b"\x00\xff\xe2\x80\xa8\x0b", b"", b"last"]
    assert shell("append", "--file", str(path), "--skip-lines", "4").out == b"9 9\n"
    assert shell("append", "--file", str(path), "--skip-lines", "9").out == b"0 0\n"
    path.write_bytes(b"")
    assert shell("append", "--file", str(path)) == Result(0, b"0 0\n", "")
    path.write_bytes(b"\n")
    assert shell("append", "--file", str(path)).out == b"10 10\n"
    assert node.values[5:] == [b"last", b""]


def test_a_large_file_goes_as_several_bodies_in_order(shell: Shell, node: OneNode, tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(40_000)))
    assert shell("append", "--file", str(path)) == Result(0, b"4 40003\n", "")
    assert node.values == [b"%d" % number for number in range(40_000)]
    assert len(node.asked) >= 5


class Dripping(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        piece, self._data = self._data[:7], self._data[7:]
        return piece


def test_lines_of_a_slow_pipe_do_not_wait_for_more() -> None:
    source = Dripping(b"one\ntwo\nthree\n\nlast")
    found = list(bodies(source, 1))  # type: ignore[arg-type]
    assert [body.values for body in found] == [[b"two", b"three"], [b""], [b"last"]]


def test_a_line_that_is_too_long_is_named_behind_what_comes_before_it() -> None:
    source = io.BytesIO(b"one\ntwo\n" + b"y" * 2_000_000 + b"\nafter\n")
    found = bodies(source, 1)
    assert next(found) == Body([b"two"], None)
    with pytest.raises(TooLarge, match="line 3 "):
        next(found)
    source.seek(0)
    assert list(bodies(source, 3)) == [Body([b"after"], None)]


def test_bodies_keep_to_their_limits_whatever_the_chunks() -> None:
    lines = [b"x" * (number % 7 * 10_000) for number in range(200)]
    found = list(bodies(io.BytesIO(b"\n".join(lines)), 3))
    assert [line for body in found for line in body.values] == lines[3:]
    room = SEGMENT_BYTES_MIN - FIRST_FRAME - FRAME_OVERHEAD_BYTES
    assert all(len(body) == 1 or sum(len(line) + 8 for line in body.values) <= room for body in found)
    assert max(map(len, found)) > 1
    with pytest.raises(TooLarge):
        list(bodies(io.BytesIO(b"y" * 4_000_000)))


def test_append_tells_how_far_it_came(shell: Shell, node: OneNode, tmp_path: Path) -> None:
    def refuse_third(values: list[bytes]) -> VlsnLogError | None:
        return Halted("this node needs a person") if len(node.asked) == 3 else None

    node.refusals = refuse_third
    path = tmp_path / "input"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(100, 30_100)))
    result = shell("append", "--file", str(path), "--skip-lines", "100")
    assert result.status == 2
    assert result.out == b""
    done = len(node.values)
    assert done == sum(map(len, islice(bodies(io.BytesIO(path.read_bytes()), 100), 2))) > 1000
    assert f"needs a person; {done} lines are acknowledged (VLSN {FIRST} to {done + FIRST - 1})" in result.err
    assert f"--skip-lines {done + 100}\n" in result.err
    assert result.err.count("\n") == 1


def test_append_ends_on_a_refusal_while_its_input_says_nothing(served: ServedNode) -> None:
    served.node.refusals = lambda values: Halted("this node needs a person") if values == [b"two"] else None
    quiet = threading.Event()

    def lines() -> Iterator[Body]:
        yield Body([b"one"], None)
        yield Body([b"two"], None)
        quiet.wait(60)

    began = time.monotonic()
    try:
        with pytest.raises(VlsnLogError, match=r"needs a person; 1 lines are acknowledged .*--skip-lines 1"):
            asyncio.run(_append([served.url], "majority", None, 50.0, lines(), skipped=0))
    finally:
        quiet.set()
    assert time.monotonic() - began < 30
    assert served.node.values == [b"one"]


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(InsufficientReplicas("too few"), 2), (OutcomeUnknown("who knows"), 1), (Halted("stuck"), 2)],
)
def test_a_failed_append_has_its_exit_status(shell: Shell, node: OneNode, refusal: VlsnLogError, status: int) -> None:
    node.refuse = refusal
    result = shell("append", "x", "--timeout", "0.3")
    assert (result.status, result.out) == (status, b"")
    assert str(refusal) in result.err
    assert result.err.count("\n") == 1


def test_usage_errors_are_one_line_and_status_2(shell: Shell, tmp_path: Path) -> None:
    for arguments in (
        ("append",),
        ("append", "a", "b"),
        ("append", "a", "--file", "f"),
        ("append", "a", "--skip-lines", "1"),
        ("append", "--file", str(tmp_path / "absent")),
        ("append", "a", "--acks", "most"),
        ("append", "a", "--timeout", "0"),
        ("append", "a", "--url", "nonsense"),
        ("read", "--from", "0"),
        ("read", "--from", "5", "--to", "4"),
        ("read", "--format", "xml"),
        ("nonsense",),
        ("status", "--nonsense"),
        ("node", "--name", "n1"),
        ("node", "--config", str(tmp_path / "absent.toml")),
        ("dump", str(tmp_path / "absent")),
        ("dump", str(tmp_path)),
        ("verify", str(tmp_path)),
        ("audit", str(tmp_path)),
        ("audit", "a", "b", "--history", "h"),
        ("bench", "nonsense"),
        ("bench", "append", "--bytes-max", "0"),
        ("bench", "wal", "--bytes-max", "0"),
        ("cluster",),
        ("cluster", "--dir", str(tmp_path), "--nodes", "0"),
        ("demo", "--input", str(tmp_path / "absent")),
        ("config", "--config", str(tmp_path / "absent.toml")),
    ):
        result = shell(*arguments)
        assert (result.status, result.out) == (2, b""), arguments
        assert result.err.count("\n") == 1, (arguments, result.err)
        assert result.err.startswith("vlsnlog")


@pytest.mark.long
def test_a_node_that_is_not_there_is_said_at_once(shell: Shell) -> None:
    for arguments in (("append", "x"), ("read",), ("read", "--follow"), ("checkpoint",)):
        result = shell(*arguments, "--url", NOWHERE)
        assert result.status == 2, arguments
        assert NOWHERE in result.err


def test_read_prints_raw_values_or_objects(shell: Shell, node: OneNode) -> None:
    shell("append", "-", stdin=b"a\n\n\xff\n")
    shell("append", "b", "--key", "k")
    assert shell("read") == Result(0, b"a\n\n\xff\nb\n", "")
    assert shell("read", "--from", "5", "--to", "6").out == b"\n\xff\n"
    rows = [json.loads(line) for line in shell("read", "--format", "json").out.splitlines()]
    assert [row["vlsn"] for row in rows] == [4, 5, 6, 7]
    assert [row.get("value") for row in rows] == ["a", "", None, "b"]
    assert (rows[2]["value_b64"], rows[3]["key"]) == ("/w==", "k")
    assert shell("read", "--json").out == shell("read", "--format", "json").out
    everything = [json.loads(line) for line in shell("read", "--json", "--all-kinds").out.splitlines()]
    assert {row["kind"] for row in everything} == {"DATA", "TERM", "GROUP", "COMMIT"}
    assert [row["vlsn"] for row in everything] == list(range(1, 8))


def test_read_follow_ends_at_to(shell: Shell) -> None:
    shell("append", "-", stdin=b"a\nb\nc\n")
    assert shell("read", "--follow", "--to", "5").out == b"a\nb\n"


def test_read_of_an_empty_log_prints_nothing(shell: Shell) -> None:
    assert shell("read") == Result(0, b"", "")
    assert shell("read", "--from", "100").out == b""


def test_trimmed_is_refused_with_the_first_left(shell: Shell) -> None:
    with ServedNode(cleaned) as served:
        result = shell("read", "--from", "2", "--url", served.url)
        first = served.node.opened().log.view.range.first
    assert result.status == 2
    assert f"the first still here is {first}" in result.err


def test_the_settings_name_the_same_directory_wherever_they_are_read_again(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, elsewhere = tmp_path / "group", tmp_path / "elsewhere"
    (group / "n1").mkdir(parents=True)
    elsewhere.mkdir()
    (group / "n1" / "node.toml").write_text('name = "n1"\ndir = "data"\nmembers = { n1 = "http://127.0.0.1:7701" }\n')
    monkeypatch.chdir(group)
    printed = shell("config", "--config", "n1/node.toml")
    (elsewhere / "node.toml").write_bytes(printed.out)
    monkeypatch.chdir(elsewhere)
    for path in ("node.toml", str(elsewhere / "node.toml")):
        assert json.loads(shell("config", "--config", path, "--json").out)["dir"] == str(group / "n1" / "data")
    monkeypatch.chdir(group)
    assert json.loads(shell("config", "--config", "n1/node.toml", "--json").out)["dir"] == str(group / "n1" / "data")


def segment_of(node: OneNode) -> int:
    """Returns the number of the node's newest segment."""
    return max(node.opened().log.view.ends)


def test_checkpoint_and_rotate_go_to_every_url(shell: Shell, served: ServedNode, node: OneNode) -> None:
    result = shell("checkpoint")
    last = node.opened().log.care.checkpointer.last
    assert last is not None
    assert result == Result(0, f"{served.url} node=n1 id={last.id} last=3 dtvlsn=3\n".encode(), "")
    segment = segment_of(node)
    [told] = json.loads(shell("rotate", "--json").out)["nodes"]
    assert (told["url"], told["number"]) == (served.url, segment + 1)
    assert segment_of(node) == segment + 1
    shell("append", "v")
    result = shell("rotate", "--url", f"{NOWHERE},{served.url}")
    assert result.status == 2
    assert result.out.startswith(f"{served.url} node=n1 number={segment + 2} ".encode())
    assert NOWHERE in result.err


def test_restores_end_with_the_first_node_that_does_not_answer(
    shell: Shell,
) -> None:
    with ServedNode(follower) as served:
        result = shell("restore", "--url", f"{NOWHERE},{served.url}")
        assert (result.status, NOWHERE in result.err) == (2, True)
        assert served.node.state == "REPLICA"
        assert shell("restore", "--url", served.url) == Result(
            0, f"{served.url} node=n2 state=RESTORING\n".encode(), ""
        )


def test_options_come_from_the_config_file_too(
    shell: Shell, served: ServedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLSNLOG_URL")
    path = tmp_path / "client.toml"
    path.write_text(f'url = "{served.url}"\nformat = "json"\n')
    assert shell("append", "x", "--config", str(path)).status == 0
    assert shell("--config", str(path), "read").out.startswith(b'{"vlsn":4')
    assert shell("--config", str(path), "read", "--format", "raw").out == b"x\n"
    monkeypatch.setenv("VLSNLOG_CONFIG", str(path))
    monkeypatch.setenv("VLSNLOG_FORMAT", "raw")
    assert shell("read").out == b"x\n"
    path.write_text("urll = 1\n")
    result = shell("read")
    assert result.status == 2
    assert "did you mean 'url'" in result.err


def test_config_prints_every_setting_with_its_source(shell: Shell, served: ServedNode, tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text('name = "n1"\ndir = "."\n[members]\nn1 = "http://h:1"\n')
    document = json.loads(shell("config", "--config", str(path), "--json").out)
    assert (document["url"], document["sources"]["url"]) == (served.url, "environment")
    assert (document["name"], document["sources"]["name"]) == ("n1", "node.toml")
    assert (document["acks"], document["sources"]["acks"]) == ("majority", "default")
    assert document["members"] == {"n1": "http://h:1"}
    again = tmp_path / "again.toml"
    again.write_bytes(shell("config", "--config", str(path)).out)
    assert json.loads(shell("config", "--config", str(again), "--json").out)["members"] == {"n1": "http://h:1"}


def test_config_says_what_a_zero_becomes_on_this_machine(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("")
    found = json.loads(shell("config", "--config", str(path), "--json").out)
    here = readers_of(0, files=files_most(), memory=memory_bytes())
    assert (found["readers_max"], found["here"]) == (0, {"readers_max": here})
    assert f"  # default; here {here}\n" in shell("config", "--config", str(path)).out.decode()
    path.write_text("readers_max = 300\n")
    found = json.loads(shell("config", "--config", str(path), "--json").out)
    assert (found["readers_max"], found["here"]) == (300, {})
    assert b"; here" not in shell("config", "--config", str(path)).out


def test_version_help_and_completion(shell: Shell) -> None:
    assert shell("--version").out.startswith(b"vlsnlog ")
    assert b"append" in shell("--help").out
    assert shell("read", "--help").status == 0
    assert b"_VLSNLOG_COMPLETE" in shell("--show-completion", "bash").out


def command(served: ServedNode, *arguments: str, **pipes: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "repl.cli.start", *arguments, "--url", served.url], **pipes)


def test_a_closed_pipe_ends_quietly(served: ServedNode, shell: Shell) -> None:
    shell("append", "-", stdin=b"x" * 900 + b"\n" + b"y\n" * 3000)
    with command(served, "read", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        reading.stdout.read(10)
        reading.stdout.close()
        shell("append", "more")
        assert reading.wait(60) == 0
        assert reading.stderr.read() == b""


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.long
def test_streams_that_are_closed_or_full_end_no_command_in_a_traceback(
    served: ServedNode, node: OneNode, unbuffered: str
) -> None:
    with connect_sync(served.url) as log:
        log.append(b"an entry")
    full = "vlsnlog: its output could not be written: No space left on device\n"
    cases = {
        "append v >&-": (0, ""),
        "append - <&-": (0, ""),
        "read >&- 2>&-": (0, ""),
        "status --json <&- >&-": (0, ""),
        "nosuch 2>&-": (2, ""),
        "read > /dev/full": (2, full),
        "--help > /dev/full": (2, full),
        "append v > /dev/full": (1, "could not be printed: No space left on device\n"),
    }
    vlsnlog = Path(sys.executable).with_name("vlsnlog")
    running = [
        subprocess.Popen(
            ["sh", "-c", f"PYTHONUNBUFFERED={unbuffered} VLSNLOG_URL={served.url} exec {vlsnlog} {redirected}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for redirected in cases
    ]
    for (redirected, (status, told)), process in zip(cases.items(), running, strict=True):
        _, err = process.communicate(timeout=60)
        assert (process.returncode, err.count("\n")) == (status, bool(told)), (redirected, err)
        assert err.endswith(told), (redirected, err)


def answering(body: bytes) -> Iterator[str]:
    """Yields the URL of a server that gives this one answer to everything."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    accepted, _ = listening.accept()
                except OSError:
                    return
                with accepted, suppress(OSError):
                    accepted.recv(65536)
                    accepted.sendall(body)

        threading.Thread(target=answer, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.long
@pytest.mark.parametrize(
    "body",
    [
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b'HTTP/1.1 200 OK\r\nContent-Length: 25\r\n\r\n{"node":5,"state":["up"]}',
    ],
)
def test_what_is_no_node_is_told_so_by_every_command(shell: Shell, body: bytes) -> None:
    with contextmanager(answering)(body) as url:
        ended = shell("status", "--url", url)
        assert (ended.status, b"UNREACHABLE" in ended.out) == (1, True), ended
        for arguments in (
            ("append", "v", "--timeout", "1"),
            ("read", "--to", "3"),
            ("group", "show"),
            ("group", "transfer-master"),
            ("group", "remove", "n1"),
            ("group", "set", "producers=100"),
            ("group", "upgrade"),
            ("clean",),
        ):
            ended = shell(*arguments, "--url", url)
            assert (ended.status, ended.out, ended.err.count("\n")) == (2, b"", 1), (arguments, ended)
            assert "a fault of vlsnlog" not in ended.err
            assert "message=" not in ended.err


def test_a_fault_of_ours_is_one_line_too(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **settings: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(status_command, "callback", fail)
    ended = shell("status")
    assert (ended.status, ended.out) == (2, b"")
    assert ended.err == (
        "vlsnlog: a fault of vlsnlog itself (RuntimeError: two lines); --log-level debug shows where\n"
    )


def test_commands_of_a_command_take_the_config_file_and_say_what_they_do_in_whole_sentences(
    shell: Shell, served: ServedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for group in ("group", "bench"):
        ended = shell(group, "--help")
        assert ended.status == 0
        assert b"..." not in ended.out.partition(b"Commands:")[2]
    monkeypatch.delenv("VLSNLOG_URL")
    config = tmp_path / "vlsnlog.toml"
    config.write_text(f'url = "{served.url}"\n')
    assert b"n1" in shell("--config", str(config), "group", "show").out


def test_ctrl_c_ends_a_follow_quietly(served: ServedNode, shell: Shell) -> None:
    shell("append", "x")
    with command(served, "read", "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        assert reading.stdout.readline() == b"x\n"
        reading.send_signal(signal.SIGINT)
        assert reading.wait(60) == 0
        assert reading.stderr.read() == b""


def test_ctrl_c_ends_a_waiting_append_quietly(served: ServedNode, node: OneNode) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with command(served, "append", "-", **pipes) as appending:
        assert appending.stdin is not None
        assert appending.stderr is not None
        appending.stdin.write(b"first\n")
        appending.stdin.flush()
        wait_until(lambda: node.values == [b"first"])
        appending.send_signal(signal.SIGINT)
        assert appending.wait(60) == 130
        assert appending.stderr.read().strip() == b""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
