"""``vlsnlog node``: runs one node until SIGTERM or Ctrl-C.

Each setting of ``repl.config.NodeConfig`` is an option of this command.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from repl import config
from repl.cli.options import WithExample
from repl.config import ENVIRONMENT_PREFIX, FILE_ONLY, NODE_SETTINGS
from repl.node.lifeline import PID_FILE, tie_to_parent, write_pid


def _flag(name: str) -> click.Option:
    each = NODE_SETTINGS[name]
    text = str(each.metadata["text"])
    text = text[:1].upper() + text[1:]
    if name == "members":
        return click.Option(["--member", "members"], multiple=True, metavar="NAME=URL", help=f"{text}; once for each.")
    kind, flag = str(each.type), name.replace("_", "-")
    if kind.startswith("Path"):
        return click.Option([f"--{flag}"], type=click.Path(path_type=Path), help=text + ".")
    if kind == "bool":
        return click.Option([f"--{flag}/--no-{flag}"], default=None, help=f"{text}.  [default: no-{flag}]")
    metavar = "BYTES" if "bytes" in name else {"int": "NUMBER", "float": "SECONDS"}.get(kind, "TEXT")
    shown = "" if not isinstance(each.default, int | float) else f"  [default: {each.default:g}]"
    if isinstance(each.default, int):
        shown = f"  [default: {each.default}]"
    return click.Option([f"--{flag}"], metavar=metavar, help=f"{text}.{shown}")


def _run(config_path: Path | None, **flags: Any) -> int:
    tied = tie_to_parent()
    given = {name: value for name, value in flags.items() if value is not None and value != ()}
    settings = config.load_node_config(path=config_path, flags=given)
    if not tied:
        _take_over_pid_file(settings.dir)
    from repl.node.process import run_node

    return run_node(settings)


def _take_over_pid_file(directory: Path) -> None:
    """If this node belongs to a local cluster, writes this process's id to the node's pid file."""
    from vlsn.real.disk import PosixDisk
    from vlsn.segments.directory import LOCK_NAME

    if (directory / PID_FILE).exists() and not PosixDisk().is_locked(str(directory / LOCK_NAME)):
        write_pid(directory, os.getpid())


node = WithExample(
    "node",
    callback=_run,
    help="Run one node until SIGTERM or Ctrl-C.",
    params=[
        click.Option(
            ["--config", "config_path"],
            type=click.Path(path_type=Path, dir_okay=False),
            envvar=ENVIRONMENT_PREFIX + "CONFIG",
            help="TOML file with the same names as the options; paths in it are relative to it.",
        ),
        *(_flag(name) for name in NODE_SETTINGS if name not in FILE_ONLY),
    ],
)
