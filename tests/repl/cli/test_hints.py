"""The commands that errors, events, reasons and pages print: each can be run as it stands there."""

from __future__ import annotations

import ast
import gc
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from repl.cli.main import vlsnlog
from vlsn.errors import VlsnLogError

ROOT = Path(__file__).parents[3]
URL = "http://127.0.0.1:7701"
_HINT = re.compile(r"`vlsnlog ([^`$]*)`")
_BARE = re.compile(rf"(?<![`(\w])(?<!\ba )vlsnlog (?:{'|'.join(vlsnlog.list_commands(click.Context(vlsnlog)))})\b(?!:)")
"""A command outside of backticks, and not the name that begins a command's own line."""


def parse(command: str) -> None:
    """Parses a command as a shell and ``vlsnlog`` do, and runs nothing. Raises ``click.UsageError``."""
    arguments, group = shlex.split(command), vlsnlog
    context = group.make_context("vlsnlog", arguments)
    while isinstance(context.command, click.Group):
        name, found, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
        assert name is not None and found is not None
        context = found.make_context(name, rest, parent=context)


def printed(path: Path) -> Iterator[str]:
    """Yields the strings of a module but for its docstrings, values as ``1``, a URL or a file."""
    gc.disable()  # a finaliser that prints a traceback parses, too, and Python 3.11 counts both parses as one
    try:
        tree = ast.parse(path.read_text())
    finally:
        gc.enable()
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    within = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
            text = re.sub(r"(?<=--url )\0", URL, "".join(map(str, parts)))
            yield re.sub(r"(?<=--config )\0", "node.toml", text).replace("\0", "1")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | within:
            yield node.value


def _filled(page: str) -> str:
    """Returns a page of a browser, with values in the place of its variables."""
    return re.sub(r"(?<!vlsnlog )\$\{[^}]*\}", "1", re.sub(r"(?<=--url )\$\{[^}]*\}", URL, page))


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_OPEN = {"URL": URL, "URLS": URL, "VLSN": "1", "N": "1", "M": "2", "NAME": "n1", "FILE": "f", "DIR": "."}
_OPEN |= {"SOURCE": ".", "LEVEL": "sync", "/var/lib/vlsnlog/node.toml": "node.toml"}
_OPEN |= {"/var/lib/vlsnlog/data": "data"}
_COMMANDS = (ROOT / "repl/audit/mends.py", ROOT / "repl/cli/examples.py")
"""Their strings are whole commands, which tests/repl/audit/test_audit.py and tests/pages/test_reference.py type."""
ROOMS = ("vlsn", "feeder", "replica", "repl")
MODULES = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")) if path not in _COMMANDS]
"""All else that a process may print comes from these."""


def test_each_command_that_is_printed_runs_as_it_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1").mkdir()
    (tmp_path / "node.toml").touch()
    found, wrong = 0, []
    for path in [*MODULES, ROOT / "repl/node/page.html"]:
        for text in printed(path) if path.suffix == ".py" else [_filled(path.read_text())]:
            whole = [text.removeprefix("vlsnlog ")] if _BARE.match(text) and " --" in text else []
            for hint in whole or _HINT.findall(text):
                found += 1
                try:
                    parse(hint)
                except click.exceptions.Exit:
                    pass  # it asks for help
                except click.UsageError as error:
                    wrong.append(f"{path.relative_to(ROOT)}: `vlsnlog {hint}`: {error.format_message()}")
            bare = _BARE.search(text)
            if bare is not None and bare[0] != text and not whole:
                wrong.append(f"{path.relative_to(ROOT)}: {bare[0]!r} is not between backticks")
    assert not wrong, "\n".join(wrong)
    assert found >= 20


def _sample(command: str) -> str:
    """Puts something in the place of what a page leaves open."""
    command = re.split(r"\s+[#|>&]|;", command)[0]
    for name, value in _OPEN.items():
        command = re.sub(rf"(?<![\w-]){name}(?![\w-])", value, command)
    return command


def shown(page: Path) -> Iterator[str]:
    """Yields the commands of a page: its console lines, and what stands between backticks with arguments."""
    text = page.read_text()
    yield from re.findall(r"^\w*\$ vlsnlog (.*)$", text, re.MULTILINE)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (command for command in _HINT.findall(prose) if re.search(r" --\w|[A-Z]{2}", command))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_command_on_a_page_runs_once_what_it_leaves_open_is_put_in(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.toml").touch()
    (tmp_path / "certs").mkdir()
    (tmp_path / "vlsnlog").mkdir()
    (tmp_path / "vlsnlog/contexts.toml").write_text(f'[test]\nurl = "{URL}"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("n1", "n2", "n3"):
        (tmp_path / "data" / name).mkdir(parents=True)
    wrong = []
    for command in shown(page):
        try:
            parse(_sample(command))
        except click.exceptions.Exit:
            pass
        except (click.UsageError, VlsnLogError, ValueError) as error:
            wrong.append(f"`vlsnlog {command}`: {error}")
    assert not wrong, "\n".join(wrong)


def test_options_are_written_with_dashes() -> None:
    def options(command: click.Command) -> Iterator[str]:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                within = command.get_command(context, name)
                assert within is not None
                yield from options(within)
        for each in command.params:
            yield from (f"{command.name} {option}" for option in (*each.opts, *each.secondary_opts) if "-" in option)

    found = list(options(vlsnlog))
    assert {"node --tls-cert", "node --group-key"} <= set(found)
    assert [option for option in found if "_" in option] == []
