"""``docs/man``: a man page for each command, and for each group of commands, made from the help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, Final

import click

from repl.cli.examples import EXAMPLES
from repl.cli.main import vlsnlog
from tests.pages.commands import FINDINGS

EXIT_STATUS: Final = (
    ("0", "The command has done what was asked, and all checks hold."),
    ("1", "The command has a finding, or the outcome of an order is unknown."),
    ("2", "The command was refused, was used wrongly, or could not run."),
    ("130", "Ctrl-C ended the command."),
)
_HEAD: Final = '.\\" Made by `make reference` from the code; do not edit.\n.TH {name} 1 "" vlsnlog "vlsnlog manual"\n'


def man_pages() -> dict[str, str]:
    """Returns each page's text by its file name."""
    root = click.Context(vlsnlog, info_name="vlsnlog")
    commands = {name: _got(vlsnlog, root, name) for name in vlsnlog.list_commands(root)}
    found = {"vlsnlog.1": _joined(_of_all(root, commands))}
    for name, command in commands.items():
        found[f"vlsnlog-{name}.1"] = _joined(_of_command(name, command, root))
    return found


def _joined(parts: Iterator[str]) -> str:
    return "".join(parts)


def _got(group: click.Group, context: click.Context, name: str) -> click.Command:
    command = group.get_command(context, name)
    assert command is not None
    return command


def _of_all(root: click.Context, commands: dict[str, click.Command]) -> Iterator[str]:
    yield _HEAD.format(name="VLSNLOG")
    yield f".SH NAME\nvlsnlog \\- {_roff(_first_sentence(vlsnlog))}\n"
    yield ".SH SYNOPSIS\n\\fBvlsnlog\\fR [\\fIoptions\\fR] \\fIcommand\\fR [\\fIarguments\\fR]\n"
    yield ".SH COMMANDS\n"
    for name, command in commands.items():
        yield f".TP\n\\fBvlsnlog\\-{_roff(name)}\\fR(1)\n{_roff(_first_sentence(command))}\n"
    yield from _options(vlsnlog, root)
    yield from _environment()
    yield from _status("")


def _of_command(name: str, command: click.Command, root: click.Context) -> Iterator[str]:
    yield _HEAD.format(name=f"VLSNLOG-{name.upper()}")
    yield f".SH NAME\nvlsnlog\\-{_roff(name)} \\- {_roff(_first_sentence(command))}\n"
    context = click.Context(command, info_name=name, parent=root)
    if isinstance(command, click.Group):
        inner = {each: _got(command, context, each) for each in command.list_commands(context)}
        yield ".SH SYNOPSIS\n"
        yield ".br\n".join(_usage(f"{name} {each}", below, context) for each, below in inner.items())
        yield f".SH DESCRIPTION\n{_paragraphs(command)}"
        also = {new: old for old, new in getattr(command, "also", {}).items()}
        for each, below in inner.items():
            yield f".SH {each.upper()}\n{_usage(f'{name} {each}', below, context)}.PP\n{_paragraphs(below)}"
            if each in also:
                yield f".PP\nIts other name is \\fB{_roff(also[each])}\\fR.\n"
            yield from _options(below, context, heading=".PP\n")
            yield f".PP\nExample:\n.PP\n.in +4n\n.nf\n$ {_roff(EXAMPLES[f'{name} {each}'])}\n.fi\n.in\n"
    else:
        yield f".SH SYNOPSIS\n{_usage(name, command, root)}.SH DESCRIPTION\n{_paragraphs(command)}"
        yield from _options(command, context)
        yield f".SH EXAMPLES\n.in +4n\n.nf\n$ {_roff(EXAMPLES[name])}\n.fi\n.in\n"
    yield from _environment()
    yield from _status(name)
    yield ".SH SEE ALSO\n\\fBvlsnlog\\fR(1)\n"


def _usage(path: str, command: click.Command, parent: click.Context) -> str:
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    pieces = " ".join(command.collect_usage_pieces(context)).replace("[OPTIONS]", "[options]")
    return f"\\fBvlsnlog {_roff(path)}\\fR {_roff(pieces)}\n"


def _options(command: click.Command, context: click.Context, heading: str = ".SH OPTIONS\n") -> Iterator[str]:
    inner = click.Context(command, info_name=command.name, parent=context)
    records = [
        record
        for each in command.params
        if isinstance(each, click.Option) and (record := each.get_help_record(inner)) is not None
    ]
    if records:
        yield heading
    for flags, text in records:
        yield f".TP\n\\fB{_roff(flags)}\\fR\n{_roff(' '.join(text.split()))}\n"


def _environment() -> Iterator[str]:
    yield ".SH ENVIRONMENT\nThe variable of an option is its name in capitals: "
    yield "VLSNLOG_URL is the variable of \\fB\\-\\-url\\fR.\nA flag comes before a variable, a variable before the "
    yield "config file, and that before the default.\n"


def _status(name: str) -> Iterator[str]:
    yield ".SH EXIT STATUS\n"
    finding = FINDINGS.get(name) or FINDINGS.get(name.split()[0] if name else "")
    for status, text in EXIT_STATUS:
        said = f"{finding[0].upper()}{finding[1:]}." if finding and status == "1" else text
        yield f".TP\n{status}\n{_roff(said)}\n"


def _first_sentence(command: click.Command) -> str:
    return command.get_short_help_str(limit=300).rstrip(".")


def _paragraphs(command: click.Command) -> str:
    text = cleandoc(command.help or "").replace("``", "`").partition("\f")[0]
    parts = [re.sub(r"\s*\n\s*", " ", each.strip()) for each in text.split("\n\n")]
    return ".PP\n".join(f"{_roff(each)}\n" for each in parts if each and each != "\b")


def _roff(text: Any) -> str:
    """Returns text that roff prints as it is."""
    escaped = str(text).replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("…", "\\&...")
    return f"\\&{escaped}" if escaped[:1] in ".'" else escaped
