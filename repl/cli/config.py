"""``vlsnlog config``: prints the value of every setting, and the source of the value; or the files' schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from repl.cdc_settings import CdcSettings
from repl.cli.options import Command, config_path, json_option
from repl.cli.report import print_json
from repl.config import COMMAND_SETTINGS, FILE_ONLY, NODE_SETTINGS, resolve, toml_of
from repl.node.capacity import files_most, memory_bytes, readers_of


@click.command(cls=Command)
@click.argument("what", type=click.Choice(["schema"]), required=False, metavar="[schema]")
@json_option
def config(what: str | None, as_json: bool) -> None:
    """Print the settings: from VLSNLOG_* variables, then the --config file, then defaults.

    The output without --json is itself a config file. For a setting of 0, a comment shows its value on this machine.

    `vlsnlog config schema` prints the JSON Schema of a node's config file, which editors use for completion and checks.
    """
    if what == "schema":
        from repl.cli.config_schema import node_schema

        click.echo(json.dumps(node_schema(), indent=2, ensure_ascii=False))
        return
    resolved = resolve({**COMMAND_SETTINGS, **NODE_SETTINGS}, path=config_path())
    if as_json:
        values = {name: _plain(value) for name, value in resolved.values.items()}
        print_json({**values, "sources": resolved.sources, "here": _here(values)})
        return
    becomes = _here(resolved.values)
    tables = {name: value for name, value in resolved.values.items() if isinstance(value, Mapping)}
    for name, value in resolved.values.items():
        if name not in tables and name not in FILE_ONLY and value is not None:
            said = f"; here {becomes[name]}" if name in becomes else ""
            click.echo(f"{name} = {_toml(value)}".ljust(44) + f"  # {resolved.sources[name]}{said}")
    for name, value in tables.items():
        click.echo(f"\n[{name}]".ljust(45) + f"  # {resolved.sources[name]}")
        for key, item in value.items():
            click.echo(f"{_toml(key)} = {_toml(item)}")
    for each in _plain(resolved.values.get("cdc", ())):
        click.echo("\n[[cdc]]".ljust(45) + f"  # {resolved.sources['cdc']}")
        for key, item in each.items():
            click.echo(f"{key} = {_toml(item)}")


def _here(values: Mapping[str, Any]) -> dict[str, int]:
    """Returns the settings whose value is 0, with the value that they have on this machine."""
    if values["readers_max"]:
        return {}
    return {"readers_max": readers_of(0, files=files_most(), memory=memory_bytes())}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple) and value and isinstance(value[0], CdcSettings):
        return msgspec.to_builtins(value)
    # paths are absolute, because the output may be read in another directory
    return str(value.absolute()) if isinstance(value, Path) else value


def _toml(value: Any) -> str:
    return toml_of(_plain(value))
