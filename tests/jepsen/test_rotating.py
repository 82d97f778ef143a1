"""Key and certificates exchanged under faults: a short run, and checks that no refusal passes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from harness.checks import check
from harness.checks.refusals import is_refusal
from harness.command import add_options, run_command
from harness.group.nodes import SETTINGS, Group, SomeUrls, make_group
from harness.judge import refusals
from harness.ops import Op
from harness.report.progress import Progress
from harness.report.results import command, document, table
from harness.rotating.credentials import Credentials
from harness.rotating.rotations import AUTHORITY, CERTIFICATES, KEY, MOVE, Asked, Rotation
from harness.run import Options, Outcome, check_options, run

from repl.cluster import KEY_FILE
from repl.net.network import AiohttpNetwork
from vlsn.errors import BadArgument

OPTIONS = Options(
    workload="append",
    kinds=("kill", "partition"),
    nodes=3,
    seconds=10.0,
    seed=21,
    rate=100.0,
    writers=4,
    interval_s=6.0,
    audit=False,
    between="proxies",
    rotations=Asked(keys=1, certificates=1),
)


@pytest.mark.real
@pytest.mark.long
def test_key_certificates_and_authority_are_exchanged_under_faults(tmp_path: Path) -> None:
    outcome = asyncio.run(run(OPTIONS, tmp_path, progress=Progress(quiet=True)))
    lines = "\n".join([*table(outcome), *map(str, outcome.rotated)])
    assert not outcome.found, lines
    assert [why for why in outcome.lacks if "acknowledged appends" not in why] == [], lines
    steps = {each.what: list(each.steps) for each in outcome.rotated}
    assert steps == {
        KEY: ["add", "use", "drop"],
        AUTHORITY: ["both trusted", "issued", "shown", "old dropped"],
        CERTIFICATES: ["issued", "shown"],
    }, lines
    assert all(each.done for each in outcome.rotated) and outcome.ops["ok"] > 20, lines


@pytest.mark.real
@pytest.mark.long
def test_a_group_moves_to_tls_alone_under_load(tmp_path: Path) -> None:
    options = replace(OPTIONS, kinds=(), rotations=Asked(move=True))
    outcome = asyncio.run(run(options, tmp_path, progress=Progress(quiet=True)))
    lines = "\n".join([*table(outcome), *map(str, outcome.rotated)])
    assert not outcome.found, lines
    assert [why for why in outcome.lacks if "acknowledged appends" not in why] == [], lines
    assert [(each.what, list(each.steps)) for each in outcome.rotated] == [(MOVE, ["allow", "moved", "require"])], lines
    assert outcome.ops["ok"] > 20, lines


@pytest.mark.parametrize(
    "error",
    [
        "unauthorized: the signature of n2's call is wrong",
        "unreachable: POST https://h:1/v1/entries: TLS: unable to get local issuer certificate",
        "unreachable: https://h:1: TLS: TLSV1_ALERT_UNKNOWN_CA",
        "lost-answer: SSLCertVerificationError [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed",
        "misdirected: this port speaks TLS alone",
    ],
)
@pytest.mark.parametrize("f", ["append", "poll", "look"])
def test_a_client_that_was_refused_for_a_rotation_is_found(f: str, error: str) -> None:
    value = {"numbers": [7]} if f == "append" else {}
    history = [Op(0, 0, "w1", "invoke", f, value), Op(1, 2_000_000, "w1", "fail", f, value, error)]
    (anomaly,) = [each for each in check(history).all() if each.rule == "refused"]
    assert (anomaly.where, anomaly.seconds) == ("w1", 0.002) and error in anomaly.detail


@pytest.mark.parametrize(
    "error",
    [
        "no-master: this node is not the master; it is https://198.18.0.1:7701",
        "unreachable: POST https://h:1/v1/entries: Connection refused",
        "unreachable: https://h:1: TLS: UNEXPECTED_EOF_WHILE_READING",
        "unreachable: https://h:1: no answer within 5 s",
        "no master is known; asked https://h:1",
        "cancelled",
    ],
)
def test_what_a_kill_or_a_pause_does_to_a_client_is_no_refusal(error: str) -> None:
    value = {"numbers": [7]}
    history = [Op(0, 0, "w1", "invoke", "append", value), Op(1, 2, "w1", "info", "append", value, error)]
    assert "refused" not in check(history).counts


def test_a_member_that_was_refused_is_found_in_the_log_of_a_node(tmp_path: Path) -> None:
    said = {
        "n1": "INFO n1 tls.reloaded not_after=1 authorities_gone=0\nWARNING n1 feed.end why='Server disconnected'\n",
        "n2": "WARNING n2 peer.silent peer=n1 why='http://h:1/v1/peer/hello: n1 does not accept the key r2: unknown'\n",
        "n5": "WARNING n5 peer.silent why='the answer in n1's name is not signed: this node speaks TLS alone: use https://'\n",
        "n3": "WARNING n3 tls.reload-failed why='tls_cert: n3.pem: no member would accept it'\n",
    }
    for name, text in said.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "node.log").write_text(text)
    found = refusals({name: tmp_path / name for name in (*said, "n4")})
    assert [(each.rule, each.where) for each in found] == [("member-refused", "n2"), ("member-refused", "n3")]
    assert is_refusal("WARNING n1 peer.silent why='http://h:1: TLS: the certificate does not name vlsnlog:g/n2'")


@contextmanager
def a_group(directory: Path) -> Iterator[Group]:
    """A group whose nodes are never started: a running one is only said to be."""

    async def made() -> Group:
        network = AiohttpNetwork()
        group = await make_group(directory, network, nodes=3, settings=SETTINGS)
        await group.links.close()
        await network.close()
        return group

    yield asyncio.run(made())


def test_a_stopped_node_gets_what_it_missed_before_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with a_group(tmp_path / "nodes") as group:
        credentials = Credentials(group, tmp_path / "secrets", Random(1))
        first = credentials.key_file.read_bytes()
        for name in group.names:
            group.starting(name)
        assert credentials.missed == 0
        monkeypatch.setattr(group, "running", lambda name: name != "n2")
        asyncio.run(credentials.bring_all({KEY_FILE: b"r1\n"}))
        held = {name: (tmp_path / "secrets" / name / KEY_FILE).read_bytes() for name in group.names}
        assert held == {"n1": b"r1\n", "n2": first, "n3": b"r1\n"}
        group.starting("n2")
        assert (tmp_path / "secrets" / "n2" / KEY_FILE).read_bytes() == b"r1\n" and credentials.missed == 1
        assert {(tmp_path / "secrets" / name / KEY_FILE).stat().st_mode & 0o777 for name in group.names} == {0o600}
        assert all(str(tmp_path / "secrets" / name) in group.node(name).config_path.read_text() for name in group.names)


def test_a_rotation_that_is_not_done_leaves_the_verdict_open() -> None:
    rotation = Rotation(KEY, 2, 3.0, {"add": 4.0})
    outcome = Outcome(OPTIONS, ops={"ok": 2000, "fail": 0, "info": 0}, rotated=[rotation])
    assert str(rotation) == "key 2: 3.0 s: add 4.0: NOT DONE"
    assert document(outcome)["rotated"][0]["steps_s"] == {"add": 4.0}
    assert any("rotations done: key" in line and line.split()[-1] == "0" for line in table(outcome))


def test_the_command_of_a_run_says_its_rotations() -> None:
    assert "--rotate-keys 1 --rotate-certs 1" in command(OPTIONS)
    assert command(replace(OPTIONS, rotations=Asked(move=True))).endswith("--move off-to-require --between proxies")
    assert [Asked(2, 3).count, Asked(2).count, Asked(move=True).count, bool(Asked())] == [6, 2, 1, False]


@pytest.mark.parametrize("kind", ["clock", "members"])
def test_faults_that_a_rotation_cannot_have_beside_it_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.nemesis.clock.find_library", lambda: Path("/here"))
    with pytest.raises(BadArgument, match=f"rotations: {kind}"):
        check_options(replace(OPTIONS, kinds=(kind,)))
    check_options(OPTIONS)


def test_workloads_run_in_turn_until_one_is_not_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    asked: list[str] = []

    def run_one(options: argparse.Namespace) -> int:
        asked.append(options.workload)
        return int(options.workload == "tail")

    monkeypatch.setattr("harness.command._run_one", run_one)
    assert run_command(parser.parse_args(["--workload", "append,transaction"])) == 0
    assert run_command(parser.parse_args(["--workload", "tail,cdc"])) == 1
    assert asked == ["append", "transaction", "tail"]


@pytest.mark.parametrize("words", [["--workload", "appends"], ["--rotate-keys", "-1"]])
def test_what_a_run_cannot_do_is_refused_before_it_begins(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert run_command(parser.parse_args(words)) == 2
    assert words[0] in capsys.readouterr().out


def test_urls_of_some_nodes_follow_those_of_all() -> None:
    urls = {"n1": "http://1", "n2": "http://2"}
    some = SomeUrls(urls, ["n2", "n1"])
    urls["n2"] = "https://2"
    assert list(some.items()) == [("n2", "https://2"), ("n1", "http://1")] and len(some) == 2
