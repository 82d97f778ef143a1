"""``docs/reference/settings.md``: every setting of the config file, from the declarations that the product reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, Field
from typing import Any, Final

import msgspec

from repl.cdc_settings import SHIPPED, SIZES, CdcSettings
from repl.cli.config_schema import node_schema
from repl.config import COMMAND_SETTINGS, FILE_ONLY, NODE_SETTINGS

NO_LIMIT: Final = 1 << 62
SCHEMA_FILE: Final = "node.schema.json"
SECTIONS: Final = {
    "The node and its group": ("name", "dir", "listen", "members", "hosts", "group"),
    "Keys, TLS and roles": (
        *("group_key", "tls", "tls_cert", "tls_key", "tls_ca", "anonymous", "insecure", "token_grace_s"),
    ),
    "The node's own log lines": ("log_level", "log_format"),
    "Limits of an append": (
        *("entry_bytes_max", "key_bytes_max", "body_bytes_max", "bodies_in_flight_bytes_max", "block_bytes_max"),
        *("queue_entries_max", "queue_bytes_max", "ack_timeout_s"),
    ),
    "Files and memory of the log": (
        *("segment_bytes", "roll_period_s", "ring_bytes_max", "unsynced_bytes_max", "free_bytes_min"),
        *("index_map_bytes", "state_map_bytes"),
    ),
    "How much of the log is kept": (*("retention_bytes", "retention_age_s", "hold_bytes_max", "cleaning_period_s"),),
    "Pages of destinations": ("page_bytes", "pages_bytes_max", "pages_messages_max"),
    "Syncs, checkpoints and checks": (
        *("sync_interval_s", "idle_end_s", "checkpoint_bytes", "checkpoint_period_s"),
        *("scrub_bytes_per_s", "scrub_period_s", "scan_bytes_per_s"),
    ),
    "Between members": ("heartbeat_s", "election_timeout_s", "connect_timeout_s", "ready_lag_vlsns_max"),
    "Clients' connections": ("head_s", "idle_s", "readers_max"),
    "Consumers inside the node": ("cdc_buffer_bytes", "cdc"),
}
"""All settings of a node, by subject."""

_HEAD: Final = f"""# Settings

<!-- made by `make reference` from the code; do not edit -->

This page lists every setting of the config file of a node. `make reference` makes the page from the code.
[Operating](../operating.md) explains which settings to choose.

A setting comes from the first of these sources that has it:

1. the flag, such as `--segment-bytes 16MiB`,
2. the environment variable, such as `VLSNLOG_SEGMENT_BYTES=16MiB`,
3. the TOML file that `--config` names, such as `segment_bytes = "16MiB"`,
4. the default.

`vlsnlog config` prints the value of each setting, and its source.
Sizes may be numbers of bytes, or texts such as `"64MiB"` and `"1GB"`.
Settings that end in `_s` are in seconds, and may have fractions.
Paths in a config file are relative to that file.
A setting that does not exist, or is out of its range, is an error that names the setting; the node does not start.

## In an editor

The JSON Schema [`{SCHEMA_FILE}`]({SCHEMA_FILE}) has all settings with types, ranges, defaults and meanings.
`vlsnlog config schema` prints the schema of the installed version:

```console
$ vlsnlog config schema > {SCHEMA_FILE}
```

Editors with Taplo ("Even Better TOML" in VS Code) then complete and check a file that begins with this line:

```toml
#:schema ./{SCHEMA_FILE}
name = "n1"
dir = "."

[members]
n1 = "http://127.0.0.1:7701"
```

The schema accepts each file that a node accepts.
Only the node checks rules between two settings, and whether files exist.
"""


def page() -> str:
    """Returns the text of the page."""
    parts = [_HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"## {title}\n\n{_table(_rows(NODE_SETTINGS[name] for name in names))}")
    parts.append(
        "## Commands\n\nThese settings are the defaults of commands' options. A node ignores them.\n\n"
        + _table(_rows(COMMAND_SETTINGS.values()))
    )
    definitions = node_schema()["$defs"]
    parts.append(
        "## Tables `[[cdc]]`\n\nEach table configures one [consumer inside a node](../cdc.md). "
        "Tables have neither flags nor environment variables.\n\n" + _table(_fields(CdcSettings, definitions["cdc"]))
    )
    for name, shipped in SHIPPED.items():
        where = f' The consumer needs `run_on = "{shipped.run_on}"`: {shipped.why}.' if shipped.run_on else ""
        parts.append(
            f'### Options of `{name}`\n\nThese options are for a consumer with `consumer = "{name}"`.'
            f"{where}\n\n{_table(_fields(shipped.options, definitions[f'cdc-{name}']))}"
        )
    return "\n".join(parts)


def _table(rows: Iterable[tuple[str, str, str, str]]) -> str:
    lines = ["| setting | value | default | meaning |", "|---|---|---|---|"]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _rows(settings: Iterable[Field[Any]]) -> Iterator[tuple[str, str, str, str]]:
    for each in settings:
        yield f"`{each.name}`", _value(each), _default(each), _sentence(each.metadata["text"])


def _sentence(text: str) -> str:
    text = re.sub(r"(?<!`)(\[\[cdc\]\]|/readyz)", r"`\1`", text)
    return f"{text[0].upper()}{text[1:]}."


def _value(each: Field[Any]) -> str:
    kind, about = str(each.type), each.metadata
    if each.name in FILE_ONLY:
        return "tables"
    if kind.startswith("Mapping"):
        return "table of `NAME = URL`"
    if kind.startswith("tuple"):
        return "list of texts"
    if about["choices"]:
        return ", ".join(f"`{choice}`" for choice in about["choices"])
    words = {"int": "size" if "bytes" in each.name else "whole number", "float": "seconds", "bool": "true or false"}
    word = words.get(kind, "path" if kind.startswith("Path") else "text")
    return word if kind not in ("int", "float") else f"{word}, {_range(each.name, about['low'], about['high'])}"


def _range(name: str, low: float, high: float) -> str:
    said = f"from {_number(name, low)}"
    return said if high >= NO_LIMIT else f"{said} to {_number(name, high)}"


def _number(name: str, number: float) -> str:
    """Returns a number as a person writes it in a config file: a size in the largest unit that divides it."""
    if SIZES in f"_{name}" and number >= 1024:
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if number % size == 0:
                return f"{int(number) // size}{unit}"
    return f"{number:,}".removesuffix(".0") if number >= 10_000 else f"{number}".removesuffix(".0")


def _default(each: Field[Any]) -> str:
    if each.default is MISSING and each.default_factory is MISSING:
        return "required"
    return _literal(each.name, each.default)


def _literal(name: str, value: Any) -> str:
    if value is None or value == "" or value == () or value == {}:
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        said = _number(name, value)
        return f'`"{said}"`' if said.endswith("iB") else f"`{said.replace(',', '_')}`"
    return f'`"{value}"`'


def _fields(kind: type[msgspec.Struct], schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    for each in msgspec.structs.fields(kind):
        name = each.encode_name
        rule = schema["properties"][name]
        default = "required" if name in schema["required"] else _literal(name, rule.get("default"))
        yield f"`{name}`", _ruled(name, rule), default, rule["description"]


def _ruled(name: str, rule: Mapping[str, Any]) -> str:
    """Returns what a rule of the schema allows, in words."""
    if "enum" in rule:
        return ", ".join(f"`{choice}`" for choice in rule["enum"])
    if name == "from":
        return "`start`, `end` or a VLSN"
    kind = rule.get("type") or rule["anyOf"][0]["type"]
    limits = rule if "minimum" in rule else rule.get("anyOf", [{}])[0]
    words = {
        "string": "text",
        "boolean": "true or false",
        "object": "table",
        "number": "number",
        "integer": "whole number",
    }
    word = "size" if SIZES in name else "seconds" if name.endswith("_s") else words[kind]
    return f"{word}, {_range(name, limits['minimum'], limits['maximum'])}" if "minimum" in limits else word
