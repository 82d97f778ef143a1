"""Arguments that no command can mean: each is refused by one line, before a node is asked or anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from repl.cli.main import main

ENDLESS = "9" * 5_000
"""More digits than Python makes a number of."""
NO_VLSN = ("0", "-1", "1.5", "", "٣", "1_0", "18446744073709551616", ENDLESS)
NO_SECONDS = ("nan", "inf", "-1", "x", "")
NO_NAME = ("", "a/b", "a b", "a?x=1", "a#b", "../admin/rotate#", "ü", "a" * 33, "\udcff")
NOWHERE = ("--url", "http://127.0.0.1:9")


def refused(capfd: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 2, arguments
    said = capfd.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1), (arguments, said.err)
    assert "a fault of vlsnlog itself" not in said.err, (arguments, said.err)
    assert "127.0.0.1:9" not in said.err, (arguments, said.err)  # nobody was asked
    return said.err


@pytest.mark.parametrize(
    "command",
    [
        ("read", "--from"),
        ("read", "--to"),
        ("consumer", "reset", "billing", "--to"),
        ("cdc", "reset", "lines", "--to"),
        ("cdc", "skip", "lines", "--to"),
        ("cdc", "resend", "lines", "--to", "9", "--from"),
        ("dest", "move", "orders", "--to"),
        ("dest", "create", "orders", "--from"),
    ],
    ids=" ".join,
)
def test_what_is_no_vlsn_is_refused(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    for text in NO_VLSN:
        assert len(refused(capfd, *command, text, *NOWHERE)) < 6_000


@pytest.mark.parametrize("setting", ["--max-bytes", "--max-messages", "--page-limit-bytes"])
def test_a_limit_of_a_destination_is_a_number_that_a_log_can_hold(
    setting: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for text in ("-1", "1.5", "", "9223372036854775808", ENDLESS):
        refused(capfd, "dest", "create", "orders", setting, text, *NOWHERE)


@pytest.mark.parametrize(
    "command",
    [
        ("append", "x", *NOWHERE, "--timeout"),
        ("dest", "create", "orders", *NOWHERE, "--ack-timeout"),
        ("group", "promote", "n1", *NOWHERE, "--timeout"),
        ("clean", "/", "--dry-run", "--retention-age-s"),
        ("export", "http://127.0.0.1:9", "--to", "/nowhere", "--format", "json", "--interval"),
    ],
    ids=lambda command: command[0],
)
def test_what_is_no_number_of_seconds_is_refused(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """NaN is outside every range and JSON cannot hold it: the setting would count as left out."""
    for text in NO_SECONDS:
        refused(capfd, *command, text)


@pytest.mark.parametrize(
    "command",
    [
        ("cdc", "status"),
        ("cdc", "pause"),
        ("cdc", "reset", "--to", "4"),
        ("cdc", "skip", "--to", "4"),
        ("group", "remove"),
        ("group", "promote"),
        ("group", "transfer-master"),
        ("consumer", "show"),
        ("dest", "show"),
        ("dest", "create"),
    ],
    ids=" ".join,
)
def test_a_name_is_no_path_to_something_else(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    for text in NO_NAME:
        if (command[0] in ("consumer", "dest") and text == "a" * 33) or (command[0] == "consumer" and text == "a/b"):
            continue  # these may have it
        if command == ("group", "transfer-master") and not text:
            continue  # whoever is furthest
        refused(capfd, *command, *NOWHERE, "--", text)


def test_a_key_that_is_no_utf8_is_no_prefix(capfd: pytest.CaptureFixture[str]) -> None:
    for option in ("--prefix", "--dead-letter"):
        refused(capfd, "dest", "create", "orders", option, "\udcff", *NOWHERE)


@pytest.mark.parametrize("setting", ["producers=" + ENDLESS, "producers=٣", "producers=-1", "producers=", "producers"])
def test_a_setting_of_the_group_is_a_number(setting: str, capfd: pytest.CaptureFixture[str]) -> None:
    refused(capfd, "group", "set", setting, *NOWHERE)


@pytest.mark.parametrize(
    "text",
    [
        f"heartbeat_s = {ENDLESS}",
        "cdc = " + "[" * 20_000,
        f'segment_bytes = "{ENDLESS}MiB"',
        'segment_bytes = "٣"',
        f'listen = "127.0.0.1:8{ENDLESS}"',
        'listen = "127.0.0.1:٣"',
        "sync_interval_s = nan",
    ],
    ids=lambda text: text[:24],
)
def test_a_config_file_with_what_has_no_end_is_refused(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f'name = "n1"\ndir = "."\n{text}\n[members]\nn1 = "http://127.0.0.1:7701"\n')
    assert "node.toml" in refused(capfd, "node", "--config", str(path)) or "listen" in text or "nan" in text


@pytest.mark.parametrize(
    "command", [("checkpoint",), ("clean",), ("cdc", "list"), ("cdc", "pause", "lines")], ids=" ".join
)
def test_several_nodes_refuse_in_one_line(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--url", "http://127.0.0.1:9,http://127.0.0.1:13"]) == 2
    said = capfd.readouterr().err
    assert (said.count("\n"), said.count("http://127.0.0.1:9: "), said.count("http://127.0.0.1:13: ")) == (1, 1, 1), (
        said
    )
