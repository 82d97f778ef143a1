"""``docs/reference/cli.md``: every command with its help, its options, its exit status and an example."""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import cleandoc
from typing import Any, Final

import click

from repl.cli.examples import EXAMPLES
from repl.cli.main import vlsnlog

SHARED: Final = (
    *("--config", "--log-level", "--url", "--context", "--json"),
    *("--tls-ca", "--tls-cert", "--tls-key", "--token-file", "--group-key"),
)
"""Options that many commands have. Their help is on the page once."""
SECTIONS: Final = {
    "Run nodes": ("demo", "cluster", "node", "config", "check", "status"),
    "Write and read": ("append", "read", "export"),
    "Members": ("group",),
    "Consumers and destinations": ("consumer", "cdc", "dest"),
    "Who gets in": ("key", "token", "certs"),
    "Order nodes": ("checkpoint", "rotate", "clean", "restore"),
    "Look into a directory": ("dump", "verify", "index", "page"),
    "Prove and mend": ("audit", "repair", "truncate"),
    "Measure": ("bench",),
    "Names, errors and reports": ("context", "explain", "debug-bundle"),
}
"""The commands, by purpose."""
FINDINGS: Final = {
    "demo": "a check of the demonstration failed",
    "append": "the outcome of an append is unknown",
    "read": "an entry is damaged",
    "check": "something needs a look",
    "debug-bundle": "no node answers; the zip is written all the same",
    "status": "the group is degraded, or an alarm is raised",
    "group upgrade": "with `--dry-run`: the level cannot be raised yet",
    "cdc list": "a consumer is parked, or is no longer configured",
    "dump": "a frame is damaged",
    "verify": "the directory has a finding; a torn tail is none",
    "index": "the index has a finding",
    "page print": "a page file is damaged",
    "audit": "the copies differ, or a copy is damaged",
    "repair": "a difference is left, or the repaired directory has a finding",
    "bench": "an append failed, or a check of the result failed",
}
"""The meaning of exit status 1. Other commands end with 0 or 2, unless the outcome of an order is unknown."""
_HEAD: Final = """# Commands

<!-- made by `make reference` from the code; do not edit -->

This page lists every command of `vlsnlog`, with its options, its exit status and an example.
`make reference` makes the page from the code.
The option `--help` of a command shows the same on a terminal.

## For all commands

The value of an option comes from the first of these sources that has it: the flag, the environment variable, the
[config file](settings.md), the default. The variable of `--base-port` is `VLSNLOG_BASE_PORT`.

A list of URLs in `--url` is separated by commas. `append` and `read` use any of the nodes that serves.
`checkpoint` and `rotate` act on every node in the list.
`--json` prints one object, or one object a line where a command prints many.

| exit status | meaning |
|---|---|
| 0 | The command has done what was asked, and all checks hold. |
| 1 | The command has a finding, such as damage, a difference, a degraded group or an unknown outcome. |
| 2 | The command was refused, was used wrongly, or could not run. |
| 130 | Ctrl-C ended the command; `read --follow` and `status --watch` end with 0. |

An error is one line on stderr: the fault and the remedy. A closed pipe (`| head`) ends a command without an error.

"""


def page() -> str:
    """Returns the text of the page."""
    root = click.Context(vlsnlog, info_name="vlsnlog")
    parts = [
        _HEAD,
        "All commands have `--config` and `--log-level`. Each command names the others that it has:\n\n",
        _table(_shared(root)),
        "\n",
    ]
    own = [each for each in vlsnlog.params if "--version" in each.opts or "--show-completion" in each.opts]
    parts += ["`vlsnlog` itself has these options:\n\n", _table([_row(each, root) for each in own])]
    for title, names in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        for name in names:
            command = vlsnlog.get_command(root, name)
            assert command is not None
            parts += _command(name, command, root)
    return "".join(parts)


def all_commands() -> Iterator[tuple[str, click.Command]]:
    """Yields every command that is no group, with the words that call it."""
    yield from _below(vlsnlog, "", click.Context(vlsnlog))


def _below(group: click.Group, path: str, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _below(command, f"{path}{name} ", context)
        else:
            yield f"{path}{name}", command


def _command(name: str, command: click.Command, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    yield f"\n###{'#' if ' ' in name else ''} `vlsnlog {name}`\n\n{_help(command)}\n"
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            below = command.get_command(context, inner)
            assert below is not None
            yield from _command(f"{name} {inner}", below, context)
        return
    pieces = " ".join(command.collect_usage_pieces(context)).replace("[OPTIONS]", "[options]")
    yield f"\n```text\nvlsnlog {name} {pieces}\n```\n\nExample:\n\n```console\n$ {EXAMPLES[name]}\n```\n"
    if name == "node":
        yield "\nEach [setting](settings.md) of a node is an option: `segment_bytes` is `--segment-bytes`. "
        yield "`--member NAME=URL` names one member, and is used once for each.\n"
        return
    rows = [
        _row(each, context)
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden and (each.required or each.opts[-1] not in SHARED)
    ]
    if rows:
        yield "\n" + _table(rows)
    shared = [flag for flag in SHARED[2:] if any(flag in each.opts for each in command.params)]
    if shared:
        yield f"\n[Shared options](#for-all-commands): {', '.join(f'`{flag}`' for flag in shared)}.\n"
    finding = FINDINGS.get(name) or FINDINGS.get(name.split()[0])
    if finding:
        yield f"\nExit status 1: {finding}.\n"


def _help(command: click.Command) -> str:
    """Returns a command's help in Markdown, a line for each paragraph."""
    text = cleandoc(command.help or "").replace("``", "`").partition("\f")[0]
    paragraphs = [re.sub(r"\s*\n\s*", " ", each.strip()) for each in text.split("\n\n")]
    return "\n\n".join(_escaped(each) for each in paragraphs if each and each != "\b")


def _escaped(text: str) -> str:
    """Keeps asterisks and angle brackets outside code as they are."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(each if each.startswith("`") else re.sub(r"([*<>])", r"\\\1", each) for each in parts)


def _shared(root: click.Context) -> list[tuple[str, str, str]]:
    found: dict[str, tuple[str, str, str]] = {}
    for _, command in sorted(all_commands(), key=lambda each: each[0] == "node"):
        for each in command.params:
            if isinstance(each, click.Option) and each.opts[-1] in SHARED:
                found.setdefault(each.opts[-1], _row(each, root))
    return [found[name] for name in SHARED]


def _row(option: click.Parameter, context: click.Context) -> tuple[str, str, str]:
    assert isinstance(option, click.Option)
    flags = " / ".join(f"`{flag}`" for flag in (*sorted(option.opts, key=len, reverse=True), *option.secondary_opts))
    takes_value = not option.is_flag and not option.count
    if takes_value and not isinstance(option.type, click.Choice):
        flags = f"{flags[:-1]} {_metavar(option, context)}`"
    text = _escaped((option.help or "").replace("``", "`").strip())
    choices = ", ".join(f"`{each}`" for each in option.type.choices) if isinstance(option.type, click.Choice) else ""
    if choices:
        text = f"{choices}. {text}"
    return flags, f"{text.rstrip('.')}{_range(option)}.", _default(option, context)


def _metavar(option: click.Option, context: click.Context) -> str:
    """Returns the word for an option's value: its own, or the name of its type."""
    if option.metavar is None and isinstance(option.type, click.IntRange | click.FloatRange):
        return "N"
    return option.make_metavar(context)


def _range(option: click.Option) -> str:
    if not isinstance(option.type, click.IntRange | click.FloatRange):
        return ""
    low, high = option.type.min, option.type.max
    said = f"from {low:,}" if low is not None else ""
    if high is not None and high < 1 << 40:
        said = f"{said} to {high:,}".strip()
    return f" ({said})" if said else ""


def _default(option: click.Option, context: click.Context) -> str:
    if option.required:
        return "required"
    value: Any = option.get_default(context, call=False)
    if value is None or value in ("", (), False) or callable(value) or "Sentinel" in type(value).__name__:
        return ""
    return f"`{str(value).removesuffix('.0')}`"


def _table(rows: list[tuple[str, str, str]]) -> str:
    lines = ["| option | meaning | default |", "|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"
