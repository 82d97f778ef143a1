"""The pages of ``docs/reference`` are those that the code makes, and they have everything."""

from __future__ import annotations

import re
import shlex
from importlib import import_module

import click
import pytest

from repl.cli.main import vlsnlog
from repl.config import NODE_SETTINGS
from tests.pages import REFERENCE, made
from tests.pages.commands import EXAMPLES, FINDINGS, SECTIONS, all_commands
from tests.pages.settings import SECTIONS as SETTINGS
from tests.pages.surface import CLIENT, ERRORS, LOCAL, LOCAL_SECTION, _is_error
from tests.pages.surface import SECTIONS as SURFACE

COMMANDS = dict(all_commands())


def test_the_pages_are_those_that_the_code_makes() -> None:
    assert {path.name for path in REFERENCE.iterdir()} == set(made())
    old = [name for name, text in made().items() if (REFERENCE / name).read_text() != text]
    assert old == [], "run `make reference`"


def test_each_setting_is_in_one_section() -> None:
    listed = [name for names in SETTINGS.values() for name in names]
    assert sorted(listed) == sorted(NODE_SETTINGS)


def test_each_command_is_in_one_section_and_has_an_example() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted(listed) == sorted(vlsnlog.list_commands(click.Context(vlsnlog)))
    assert EXAMPLES.keys() == COMMANDS.keys()
    assert FINDINGS.keys() <= COMMANDS.keys() | set(listed)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_understood_by_its_command(name: str) -> None:
    """Values of options are not converted, because files and nodes of an example do not exist."""
    words = shlex.split(EXAMPLES[name])
    count = 1 + len(name.split())
    assert words[:count] == ["vlsnlog", *name.split()]
    command = COMMANDS[name]
    context = click.Context(command, info_name=name)
    values, rest, _ = command.make_parser(context).parse_args(words[count:])
    assert rest == []
    assert [each.name for each in command.params if each.required and values.get(each.name or "") is None] == []


def test_each_public_name_is_on_the_page_once() -> None:
    client, local = import_module(CLIENT), import_module(LOCAL)
    assert sorted(name for names in SURFACE.values() for name in names) == sorted(
        name for name in client.__all__ if not _is_error(getattr(client, name))
    )
    assert sorted(LOCAL_SECTION) == sorted(name for name in local.__all__ if not _is_error(getattr(local, name)))
    text = (REFERENCE / "python.md").read_text()
    table = re.findall(r"^\| `(\w+)` \|", text.split("\n## Errors\n")[1].split("\n## ")[0], re.MULTILINE)
    assert table == list(import_module(ERRORS).classes())


def test_the_page_of_names_has_what_a_program_uses() -> None:
    text = (REFERENCE / "python.md").read_text()
    for heading in (
        "Client.append",
        "Client.read",
        "SyncClient.append",
        "Consumer.commit",
        "Message.ack",
        "vlsn.Log.open",
    ):
        assert text.count(f"\n#### `{heading}`\n") == 1, heading
    assert " object at 0x" not in text
