"""Contexts: names of groups on the command line."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from repl.cli.contexts import Context, Contexts, learned
from tests.repl.cli.shell import NOWHERE, Shell
from tests.repl.client.group import ServedNode


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "vlsnlog" / "contexts.toml"


@pytest.fixture
def bare(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Commands whose environment names no node."""
    monkeypatch.delenv("VLSNLOG_URL")
    return shell


def test_a_command_reaches_the_group_of_the_context_in_use(bare: Shell, served: ServedNode, home: Path) -> None:
    added = bare("context", "add", "prod", "--url", served.url)
    assert (added.status, added.out.decode()) == (0, f"prod: {served.url}\n"), added
    assert stat.S_IMODE(home.stat().st_mode) == 0o600
    assert bare("append", "a value").status == 0
    bare("context", "add", "test", "--url", NOWHERE)
    assert bare("status", "--json").status == 0, "the first one stays in use"
    assert bare("status", "--context", "test", "--json").status == 1
    assert bare("context", "use", "test").status == 0
    assert bare("status", "--json").status == 1
    assert bare("status", "--url", served.url, "--json").status == 0, "a flag is stronger"
    listed = msgspec.json.decode(bare("context", "list", "--json").out)
    assert [(each["name"], each["current"]) for each in listed["contexts"]] == [("prod", False), ("test", True)]
    assert bare("context", "remove", "test").status == 0
    assert bare("context", "list").out.decode().split() == [
        *("context", "token", "URLs"),
        *("-", "prod", "-", served.url),
    ]


def test_variables_and_config_files_are_stronger_than_a_context(
    bare: Shell, served: ServedNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare("context", "add", "test", "--url", NOWHERE)
    config = tmp_path / "commands.toml"
    config.write_text(f'url = "{served.url}"\n')
    assert bare("status", "--config", str(config), "--json").status == 0
    assert bare("--config", str(config), "status", "--json").status == 0
    monkeypatch.setenv("VLSNLOG_URL", served.url)
    assert bare("status", "--json").status == 0
    monkeypatch.setenv("VLSNLOG_CONTEXT", "nobody")
    refused = bare("status", "--json")
    assert refused.status == 2 and "no context 'nobody'; there are test" in refused.err


def test_a_context_that_no_node_answers_is_stored(bare: Shell) -> None:
    added = bare("context", "add", "prod", "--url", NOWHERE)
    assert added.status == 0 and "no node answers now" in added.out.decode()


def test_a_context_learns_members_that_do_not_answer_where_the_user_said(home: Path) -> None:
    contexts = Contexts.read()
    contexts.put("prod", Context("http://a:1,http://b:1"))
    contexts.write()
    members = [{"name": name, "url": f"http://{name}:1"} for name in "abc"] + [{"name": "d", "url": "http://x:9"}]
    learned("prod", [{"node": "d", "url": "http://b:1", "members": members}, {"node": "a", "url": "http://a:1"}])
    assert Contexts.read().of("prod").urls == ["http://a:1", "http://b:1", "http://c:1"]
    before = home.stat().st_mtime_ns
    learned("prod", [{"node": "a", "url": "http://a:1"}])
    learned("nobody", [{"node": "d", "url": "http://b:1", "members": members}])
    assert home.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "text",
    ["current = 1\n[prod]\nurl = 7\n", "[prod]\nurl = 'ftp://a'\n", "[prod]\nhost = 'a'\n", "not toml", "\x00\xff"],
)
def test_a_file_that_is_none_of_contexts_is_refused_with_its_name(bare: Shell, home: Path, text: str) -> None:
    home.parent.mkdir(parents=True)
    home.write_text(text)
    for command in (["status"], ["context", "list"], ["context", "add", "a", "--url", NOWHERE]):
        refused = bare(*command)
        assert refused.status == 2 and str(home) in refused.err and refused.err.count("\n") == 1, refused
    assert home.read_text() == text


@pytest.mark.parametrize("name", ["current", "a/b", "", "x" * 33])
def test_a_name_that_is_none_is_refused(bare: Shell, name: str, home: Path) -> None:
    refused = bare("context", "add", "--url", NOWHERE, "--", name)
    assert refused.status == 2 and not home.exists()
    assert bare("context", "use", "nobody").status == bare("context", "remove", "nobody").status == 2


def test_a_credential_that_is_no_file_is_refused(bare: Shell, tmp_path: Path, home: Path) -> None:
    for name in ("--token-file", "--tls-ca", "--group-key"):
        refused = bare("context", "add", "a", "--url", NOWHERE, name, str(tmp_path / "none"))
        assert refused.status == 2 and str(tmp_path / "none") in refused.err and not home.exists()


def test_credentials_are_files_that_a_command_then_uses(bare: Shell, served: ServedNode, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("no token at all\n")
    token.chmod(0o600)
    bare("context", "add", "prod", "--url", served.url, "--token-file", str(token))
    refused = bare("status", "--json")
    assert refused.status == 2 and str(token) in refused.err, refused
    token.chmod(0o644)
    assert "chmod 600" in bare("status", "--json").err
