"""Settings: where they come from, and every way to get them wrong."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.config import (
    COMMAND_SETTINGS,
    NODE_SETTINGS,
    NodeConfig,
    load_node_config,
    parse_members,
    resolve,
    split_listen,
    toml_of,
)
from repl.credentials.urls import split_urls
from vlsn.errors import BadArgument
from vlsn.ids import NodeName

MEMBERS = ("n1=http://127.0.0.1:7701", "n2=http://127.0.0.1:7702")
FILE = """
name = "n1"
group = "g"
dir = "data"
listen = "127.0.0.1:7701"
segment_bytes = "1MiB"

[members]
n1 = "http://127.0.0.1:7701"
n2 = "http://127.0.0.1:7702/"
"""


def load(flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None, **more: Any) -> NodeConfig:
    given = {"name": "n1", "dir": "/data", "members": MEMBERS, **(flags or {})}
    return load_node_config(flags=given, environment=environment or {}, **more)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(FILE)
    return path


def test_a_file_is_enough_and_its_paths_are_relative_to_it(path: Path) -> None:
    config = load_node_config(path=path, environment={})
    assert (config.name, config.group, config.dir) == ("n1", "g", path.parent / "data")
    assert config.members == {"n1": "http://127.0.0.1:7701", "n2": "http://127.0.0.1:7702"}
    assert (config.host, config.port, config.url) == ("127.0.0.1", 7701, "http://127.0.0.1:7701")
    assert config.segment_bytes == 1 << 20


def test_flag_is_stronger_than_environment_than_file_than_default(path: Path) -> None:
    flags = {"segment_bytes": "4MiB", "group": None}
    environment = {"VLSNLOG_SEGMENT_BYTES": "2MiB", "VLSNLOG_GROUP": "from-env", "VLSNLOG_HEARTBEAT_S": "0.5"}
    resolved = resolve(NODE_SETTINGS, flags=flags, environment=environment, path=path)
    chosen = {
        name: (resolved.values[name], resolved.sources[name])
        for name in ("segment_bytes", "group", "heartbeat_s", "name", "log_level")
    }
    assert chosen == {
        "segment_bytes": (4 << 20, "flag"),
        "group": ("from-env", "environment"),
        "heartbeat_s": (0.5, "environment"),
        "name": ("n1", "node.toml"),
        "log_level": ("info", "default"),
    }


def test_members_come_from_flags_and_environment_too() -> None:
    assert list(load().members) == ["n1", "n2"]
    config = load({"members": None}, {"VLSNLOG_MEMBER": "b=http://h:1, n1=http://h:2"})
    assert config.members == {"b": "http://h:1", "n1": "http://h:2"}
    assert config.first_member == "b"


def test_listen_defaults_to_this_machine_alone_on_the_port_of_the_members_url() -> None:
    config = load()
    assert config.listen == "127.0.0.1:7701"
    assert load({"listen": "[::1]:80"}).host == "::1"
    assert load({"listen": "0.0.0.0:0"}).port == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"name": None}, "name: not given"),
        ({"dir": None}, "dir: not given"),
        ({"members": None}, "members: not given"),
        ({"members": ()}, "members: none"),
        ({"name": "n3"}, "'n3' is not among them"),
        ({"name": "a b"}, "is no name"),
        ({"name": "x" * 33}, "is no name"),
        ({"group": ""}, "is no name"),
        ({"group": "é"}, "is no name"),
        ({"members": (*MEMBERS, "n1=http://h:3")}, "n1 is given twice"),
        ({"members": (*MEMBERS, "n3=http://127.0.0.1:7702")}, "n2 and n3 both have"),
        ({"members": ("n1",)}, "NAME=URL"),
        ({"members": ("n1=ftp://h:1",)}, "no http URL"),
        ({"members": ("n1=http://h",)}, "names no port"),
        ({"members": ("n1=http://h:99999",)}, "no URL"),
        ({"members": ("n1=http://h:1/path",)}, "more than host and port"),
        ({"members": ("n1=http://user@h:1",)}, "more than host and port"),
        ({"listen": "7701"}, "HOST:PORT"),
        ({"listen": "h:x"}, "HOST:PORT"),
        ({"listen": ":7701"}, "HOST:PORT"),
        ({"listen": "h:65536"}, "HOST:PORT"),
        ({"segment_bytes": "64"}, "out of range"),
        ({"segment_bytes": "64 miles"}, "whole number"),
        ({"page_bytes": "1KiB"}, "must be 16384 to 67108864"),
        ({"page_bytes": "1GiB"}, "must be 16384 to 67108864"),
        ({"pages_messages_max": "-1"}, "whole number"),
        ({"segment_bytes": "-1"}, "whole number"),
        ({"queue_entries_max": "1MiB"}, "whole number"),
        ({"heartbeat_s": "soon"}, "no number"),
        ({"heartbeat_s": "nan"}, "out of range"),
        ({"heartbeat_s": "1.5"}, "out of range"),
        ({"heartbeat_s": "0.8"}, "more than half of election_timeout_s"),
        ({"scan_bytes_per_s": "1000"}, "would give the node up as silent"),
        ({"body_bytes_max": "1KiB"}, "is over body_bytes_max"),
        ({"bodies_in_flight_bytes_max": "8MiB"}, "is over bodies_in_flight_bytes_max"),
        ({"log_level": "loud"}, "debug, info"),
    ],
)
def test_a_wrong_setting_is_named_with_what_to_write(flags: dict[str, Any], words: str) -> None:
    with pytest.raises(BadArgument, match=words.replace("(", r"\(")):
        load(flags)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (FILE + 'n1 = "http://127.0.0.1:7703"\n', "twice"),
        (FILE.replace("segment_bytes", "sgment_bytes"), "did you mean 'segment_bytes'"),
        ("xyzzy = 1\n", "vlsnlog config"),
        (FILE.replace('"1MiB"', "true"), "whole number"),
        (FILE.replace('"g"', "7"), "must be a string"),
        (FILE.replace('n1 = "http://127.0.0.1:7701"', "n1 = 7701"), "must be a string"),
        ("name = ", "not valid TOML"),
        ('members = 7\nname = "n1"\n', "NAME = URL"),
        ('name = "n1"\n', "dir: not given"),
    ],
)
def test_a_wrong_file_is_named(path: Path, text: str, words: str) -> None:
    path.write_text(text)
    with pytest.raises(BadArgument, match=words):
        load_node_config(path=path, environment={})


def test_a_missing_or_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="no such config file"):
        load_node_config(path=tmp_path / "absent.toml", environment={})
    with pytest.raises(BadArgument, match="no config file"):
        load_node_config(path=Path("/dev/zero"), environment={})
    with pytest.raises(BadArgument, match="cannot be read"):
        load_node_config(path=tmp_path, environment={})
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"\n')
    with pytest.raises(BadArgument, match="cannot be read"):
        load_node_config(path=tmp_path / "latin.toml", environment={})


def test_a_command_reads_the_same_file_as_a_node(path: Path) -> None:
    path.write_text(FILE + "")
    resolved = resolve(COMMAND_SETTINGS, environment={"VLSNLOG_ACKS": "ALL"}, path=path)
    assert resolved.values["acks"] == "all"
    assert resolved.values["url"] == "http://127.0.0.1:7701"


def test_url_lists_are_split_checked_and_kept_in_order() -> None:
    assert split_urls(" http://b:2/ ,http://a:1,,http://b:2") == ["http://b:2", "http://a:1"]
    for wrong in ("", ",", "host:1", "http://h:1,nonsense", "ftp://h:1"):
        with pytest.raises(BadArgument, match="url"):
            split_urls(wrong)


def test_pairs_and_addresses_are_parsed_whole() -> None:
    assert parse_members(["a=http://h:1/"]) == {NodeName("a"): "http://h:1"}
    assert split_listen("localhost:80") == ("localhost", 80)


def test_tls_needs_its_files_and_a_url_that_fits(tmp_path: Path) -> None:
    files = {f"tls_{each}": tmp_path / f"{each}.pem" for each in ("cert", "key", "ca")}

    def config(url: str, **more: Any) -> NodeConfig:
        return NodeConfig(name=NodeName("n1"), dir=tmp_path, members={NodeName("n1"): url}, **more)

    assert config("http://h:1").tls == "off"
    assert config("https://h:1", tls="allow", **files).tls_ca == tmp_path / "ca.pem"
    assert config("http://h:1", tls="allow", **files).tls == "allow"
    with pytest.raises(BadArgument, match="tls: off, but the URL of n1"):
        config("https://h:1")
    with pytest.raises(BadArgument, match="tls: require, but the URL of n1"):
        config("http://h:1", tls="require", **files)
    for name in files:
        with pytest.raises(BadArgument, match=f"{name}: not given"):
            config("https://h:1", tls="require", **{**files, name: None})


def test_files_of_tls_are_relative_to_the_config_file(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text(
        'name = "n1"\ndir = "."\ntls = "require"\ntls_cert = "n1.pem"\ntls_key = "n1.key"\ntls_ca = "/etc/ca.pem"\n'
        '[members]\nn1 = "https://h:1"\n'
    )
    loaded = load_node_config(path=path, environment={})
    assert (loaded.tls_cert, loaded.tls_key) == (tmp_path / "n1.pem", tmp_path / "n1.key")
    assert loaded.tls_ca == Path("/etc/ca.pem")


def test_a_path_in_a_file_is_a_string(path: Path) -> None:
    path.write_text(FILE.replace('dir = "data"', "dir = 5"))
    with pytest.raises(BadArgument, match="dir: must be a string, not 5"):
        load_node_config(path=path, environment={})


@given(text=st.text())
def test_printed_text_is_read_back(text: str) -> None:
    assert tomllib.loads(f"each = {toml_of({text: [text]})}") == {"each": {text: [text]}}


def test_every_control_character_is_read_back() -> None:
    text = "".join(map(chr, range(0xA0)))
    assert tomllib.loads(f"each = {toml_of(text)}") == {"each": text}
