"""The pages of ``docs/reference`` are those that the code makes, and they have everything."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from repl.cli.examples import EXAMPLES
from repl.cli.main import vlsnlog
from repl.config import NODE_SETTINGS
from tests.pages import MAN, REFERENCE, made
from tests.pages.commands import FINDINGS, SECTIONS, all_commands
from tests.pages.man import man_pages
from tests.pages.settings import SECTIONS as SETTINGS
from tests.pages.surface import CLIENT, ERRORS, LOCAL, LOCAL_SECTION, _is_error
from tests.pages.surface import SECTIONS as SURFACE

COMMANDS = dict(all_commands())


def test_the_pages_are_those_that_the_code_makes() -> None:
    assert {path.name for path in REFERENCE.iterdir()} == set(made())
    old = [name for name, text in made().items() if (REFERENCE / name).read_text() != text]
    assert old == [], "run `make reference`"


def test_the_man_pages_are_those_that_the_code_makes() -> None:
    pages = man_pages()
    assert {path.name for path in MAN.iterdir()} == set(pages)
    assert [name for name, text in pages.items() if (MAN / name).read_text() != text] == [], "run `make reference`"
    for name, command in COMMANDS.items():
        text = pages[f"vlsnlog-{name.split()[0]}.1"].replace("\\-", "-")
        flags = [
            flag for each in command.params if isinstance(each, click.Option) for flag in each.opts if not each.hidden
        ]
        assert [flag for flag in flags if flag not in text] == [], name
        assert f"$ {EXAMPLES[name]}" in text


def test_the_man_pages_are_right_roff(tmp_path: Path) -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    for name in sorted(man_pages()):
        made = subprocess.run(["groff", "-man", "-Tutf8", "-ww", str(MAN / name)], capture_output=True, text=True)
        assert (made.returncode, made.stderr) == (0, ""), name


def test_an_example_ends_each_help_and_runs_as_it_is_shown() -> None:
    for name in COMMANDS:
        shown = CliRunner().invoke(vlsnlog, [*name.split(), "--help"])
        assert shown.exit_code == 0 and shown.output.rstrip().endswith(f"Example:\n  $ {EXAMPLES[name]}"), name


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ("dest drop", "dest delete"),
        ("key new", "key create"),
        ("key drop", "key remove"),
        ("cdc status", "cdc show"),
        ("cdc reset", "cdc move"),
        ("consumer reset", "consumer move"),
    ],
)
def test_a_former_name_of_a_command_is_that_command(other: str, name: str) -> None:
    helps = [CliRunner().invoke(vlsnlog, [*each.split(), "--help"]).output.partition("\n")[2] for each in (other, name)]
    assert helps[0] == helps[1] and "Example" in helps[0]
    group, verb = other.split()
    assert f"Also: {verb}." in " ".join(CliRunner().invoke(vlsnlog, [group, "--help"]).output.split())


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
        "vlsnlog.testing.Group.power_cut",
    ):
        assert text.count(f"\n#### `{heading}`\n") == 1, heading
    assert " object at 0x" not in text
