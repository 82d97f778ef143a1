"""The schema of a config file: it has every setting, and its verdict is the node's as far as a schema can say it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import jsonschema_rs
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repl.cdc_settings import SHIPPED, CdcSettings
from repl.cli.config_schema import node_schema
from repl.config import COMMAND_SETTINGS, NODE_SETTINGS, load_node_config, toml_of
from tests.repl.cli.shell import Shell
from vlsn.errors import BadArgument

SCHEMA: Final = node_schema()
VALIDATOR: Final = jsonschema_rs.Draft202012Validator(SCHEMA)
BASE: Final[dict[str, Any]] = {"name": "n1", "dir": ".", "members": {"n1": "http://127.0.0.1:7701"}}
FILES: Final = {"tls_cert": "c.pem", "tls_key": "k.pem", "tls_ca": "ca.pem"}
TABLES: Final[tuple[dict[str, Any], ...]] = (
    {"name": "a", "consumer": "shop.cdc:Orders"},
    {"name": "a", "consumer": "jsonl", "options": {"directory": "/lake", "rotate_bytes": "64MiB"}},
    {"name": "a", "consumer": "parquet", "options": {"directory": "/lake", "compression": "snappy"}},
    {"name": "a", "consumer": "mirror", "run_on": "master", "options": {"url": "http://127.0.0.1:7711"}},
    {"name": "a", "consumer": "webhook", "options": {"url": "https://h.example/in", "secret_env": "SECRET"}},
    {"name": "a", "consumer": "postgres", "run_on": "master", "options": {"dsn": "postgresql://u@h/d"}},
)
UNSAID: Final = re.compile(
    r"is not among them|both have|more than half of|is over bod|tls: (off|require), but|is given twice"
    r"|: options: (?!.*(?:unknown|Expected|missing))"
)
"""Refusals that a schema cannot say: rules between two settings, and the inner form of an option's text."""
OF_NUMBERS: Final = re.compile(
    r"out of range|no multiple|is under|at least|ahead_bytes: \d|Expected `(int|float)` [<>]="
)
"""Refusals that a schema cannot say about quoted numbers."""
WORDS: Final = (
    *("", "n1", "n 1", "..", "x" * 33, "OFF", "Require", "allow", "json", "append", "true", "False", "/lake"),
    *("1000", "64MiB", "1 gb", "64 MiX", "2.5", "1e1", "h.example", "h,g:1", "a=http://h:1", "n1=http://h:1,"),
    *("127.0.0.1:7701", "[::1]:0", ":7701", "h:65535", "h:65536", "h:99999", "https://h:1", "http://h:0", "http://h"),
    *("start", "end", "batch", "segment", "node", "master", "m:C", "m.n:C.D", "m:", "jsonl", "mirror", "webhook"),
)
VALUES: Final[tuple[Any, ...]] = (
    *WORDS,
    *(True, False, 0, 1, -1, 60, 65_536, 1 << 20, (1 << 20) + 1, 1 << 40, 1 << 62, 0.5, 0.01, 1.5, 61.5, -0.5),
    *([], ["h"], ["h:1", "g"], ["a b"], [1], ["n1=http://h:1"], {}),
    *({"n1": "http://h:1/"}, {"n1": "HTTPS://[::1]:1"}, {"n1": 1}, {"n 1": "http://h:1"}, {"n1": "http://h:0"}),
)


def _bounds() -> Iterator[float]:
    """Yields the limits of numbers. None is a float such as 1.0, which JSON Schema takes for a whole number."""
    for each in (*NODE_SETTINGS.values(), *COMMAND_SETTINGS.values()):
        low, high = each.metadata["low"], each.metadata["high"]
        if str(each.type) == "int":
            yield from (low, high, low - 1, high + 1 if high < 1 << 53 else 2 * high - 1)  # above 2**53 floats round
        elif str(each.type) == "float":
            yield from (int(bound) if bound % 1 == 0 else bound for bound in (low, high, low - 0.001))


def _leaves(kind: type[msgspec.Struct]) -> list[str]:
    return [each.encode_name for each in msgspec.structs.fields(kind)]


values = st.sampled_from(VALUES) | st.sampled_from(sorted(set(_bounds())))
others = st.text(max_size=8) | st.integers(-(1 << 53), 1 << 53) | st.floats(-1e6, 1e6).filter(lambda x: x % 1 != 0)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """Draws a config file: a good one with up to three settings changed."""
    document = dict(BASE)
    if draw(st.booleans()):
        document |= FILES
    if draw(st.booleans()):
        document["cdc"] = [table := json.loads(json.dumps(draw(st.sampled_from(TABLES))))]
        for name in draw(st.lists(st.sampled_from([*_leaves(CdcSettings), "strange"]), max_size=2)):
            table[name] = draw(values | others)
        shipped = SHIPPED.get(str(table["consumer"]))
        if shipped is not None and isinstance(table.get("options"), dict):
            for name in draw(st.lists(st.sampled_from([*_leaves(shipped.options), "strange"]), max_size=2)):
                table["options"][name] = draw(values | others)
    for name in draw(st.lists(st.sampled_from([*sorted(NODE_SETTINGS.keys() - {"cdc"}), "strange"]), max_size=3)):
        document[name] = draw(values | others)
    for name in draw(st.lists(st.sampled_from([*document]), max_size=1)):
        del document[name]
    return document


def _toml(document: dict[str, Any]) -> str:
    tables = document.get("cdc", [])
    lines = [f"{toml_of(name)} = {toml_of(value)}" for name, value in document.items() if name != "cdc"]
    for table in tables:
        lines += ["[[cdc]]", *(f"{toml_of(name)} = {toml_of(value)}" for name, value in table.items())]
    return "\n".join(lines) + "\n"


def _refusal(document: dict[str, Any], path: Path) -> str:
    """Returns the node's error for a config file; empty if the node accepts the file."""
    path.write_text(_toml(document))
    try:
        load_node_config(path=path, environment={})
    except BadArgument as error:
        return str(error)
    return ""


def _is_quoted(document: dict[str, Any], refusal: str) -> bool:
    """Returns whether the refused number is a string in the config file."""
    (table,) = document.get("cdc", [{}])
    options = table.get("options")
    values = document | table | (options if isinstance(options, dict) else {})
    return any(isinstance(values.get(name), str) for name in re.findall(r"([a-z_]+): ", refusal))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=500)
@given(document=documents())
def test_the_schema_and_a_node_refuse_the_same_files(tmp_path: Path, document: dict[str, Any]) -> None:
    refusal = _refusal(document, tmp_path / "node.toml")
    faults = [fault.message for fault in VALIDATOR.iter_errors(document)]
    if not refusal:
        assert faults == []
    elif not UNSAID.search(refusal) and not (OF_NUMBERS.search(refusal) and _is_quoted(document, refusal)):
        assert faults != [], refusal


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table["consumer"])
def test_good_files_pass(tmp_path: Path, table: dict[str, Any]) -> None:
    document = BASE | {"cdc": [table], "segment_bytes": "64MiB", "tls": "Allow", **FILES}
    assert _refusal(document, tmp_path / "node.toml") == "" and VALIDATOR.is_valid(document)


@pytest.mark.parametrize(
    "more",
    [
        {"segmant_bytes": 1 << 20},
        {"segment_bytes": "64MiX"},
        {"segment_bytes": (1 << 20) + 1},
        {"heartbeat_s": 0.001},
        {"heartbeat_s": True},
        {"tls": "on"},
        {"tls": "require"},
        {"listen": "127.0.0.1:65536"},
        {"members": {}},
        {"name": "n 1"},
        {"hosts": ["a b"]},
        {"dir": 5},
        {"insecure": "yes"},
        {"scan_bytes_per_s": 1},
        {"cdc": {}},
        {"cdc": [{"name": "a"}]},
        {"cdc": [{"name": "..", "consumer": "m:C"}]},
        {"cdc": [{"name": "a", "consumer": "m:C", "retries_max": -1}]},
        {"cdc": [{"name": "a", "consumer": "m:C", "from": 0}]},
        {"cdc": [{"name": "a", "consumer": "m:C", "commit": "each"}]},
        {"cdc": [{"name": "a", "consumer": "m:C", "ahead_bytes": 1}]},
        {"cdc": [{"name": "a", "consumer": "jsonl"}]},
        {"cdc": [{"name": "a", "consumer": "jsonl", "options": {"directory": "/lake", "rotate": 1}}]},
        {"cdc": [{"name": "a", "consumer": "mirror", "options": {"url": "http://127.0.0.1:7711"}}]},
        {"cdc": [{"name": "a", "consumer": "m:C"}] * 65},
    ],
    ids=str,
)
def test_each_kind_of_mistake_is_found_by_both(tmp_path: Path, more: dict[str, Any]) -> None:
    document = BASE | more
    if "cdc" in more and isinstance(more["cdc"], dict):
        (tmp_path / "node.toml").write_text(_toml(BASE) + "[cdc]\n")
        with pytest.raises(BadArgument):
            load_node_config(path=tmp_path / "node.toml", environment={})
    else:
        assert _refusal(document, tmp_path / "node.toml")
    assert not VALIDATOR.is_valid(document)


def test_the_schema_has_each_setting_with_its_meaning() -> None:
    assert SCHEMA["properties"].keys() == NODE_SETTINGS.keys() | COMMAND_SETTINGS.keys()
    assert SCHEMA["required"] == ["name", "dir", "members"]
    tables: dict[str, type[msgspec.Struct]] = {
        "cdc": CdcSettings,
        **{f"cdc-{name}": each.options for name, each in SHIPPED.items()},
    }
    assert SCHEMA["$defs"].keys() == tables.keys()
    for name, kind in tables.items():
        assert list(SCHEMA["$defs"][name]["properties"]) == _leaves(kind)
    for table in (SCHEMA, *SCHEMA["$defs"].values()):
        assert [name for name, each in table["properties"].items() if not each.get("description")] == []


def test_defaults_of_the_schema_are_valid() -> None:
    defaults = {name: each["default"] for name, each in SCHEMA["properties"].items() if "default" in each}
    assert len(defaults) > 40 and VALIDATOR.is_valid(BASE | defaults)


def test_config_prints_the_schema(shell: Shell) -> None:
    printed = shell("config", "schema")
    assert printed.status == 0 and json.loads(printed.out) == SCHEMA
    wrong = shell("config", "scheme")
    assert wrong.status == 2 and "schema" in wrong.err
