"""The JSON Schema (2020-12) of a config file, for editors and other checks before a node starts.

The schema is made from the settings that the product itself reads (``NODE_SETTINGS``, ``CdcSettings``), so it has every
setting with its type, range, default and meaning. The schema refuses no file that a node accepts. The node alone
checks rules between two settings, ranges of quoted numbers, and whether files exist.
"""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import MISSING, Field
from functools import cache
from itertools import pairwise
from typing import Any, Final

import msgspec

from repl import cdc_settings
from repl.cdc_settings import (
    AHEAD_BYTES,
    AHEAD_BYTES_MIN,
    CONSUMERS_MAX,
    MEMORY_BYTES_MIN,
    SHIPPED,
    SIZES,
    CdcSettings,
)
from repl.config import COMMAND_SETTINGS, NODE_SETTINGS
from vlsn import limits
from vlsn.ids import NUMBER_MAX

Schema = dict[str, Any]

_HOST: Final = r"(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\])"
_HIGH_PORT: Final = "[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_PORT: Final = f"(?:[0-9]{{1,4}}|0[0-9]{{4}}|{_HIGH_PORT})"
_PORT_NOT_0: Final = f"0*(?:[1-9][0-9]{{0,3}}|{_HIGH_PORT})"
_URL: Final = r"[Hh][Tt][Tt][Pp][Ss]?://(?:[^\s/?#@:\[\],]+|\[[^\s\[\]]+\]):" + _PORT_NOT_0 + "/*"
_NAME: Final = r"[A-Za-z0-9._-]{1,32}"
_WORD: Final = r"[\p{L}_][\p{L}\p{M}\p{N}_]*"
_DOTTED: Final = rf"{_WORD}(?:\.{_WORD})*"
_WHOLE: Final = {"type": "string", "pattern": r"^\s*[0-9]{1,19}\s*$"}
_SIZE: Final = {"type": "string", "pattern": r"^\s*[0-9]{1,19}\s*(?:(?:[KkMmGg][Ii]?)?[Bb])?\s*$"}
_NUMBER: Final = {
    "type": "string",
    "pattern": r"^\s*[+-]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[Ee][+-]?[0-9_]+)?\s*$",
}
_TRUTH: Final = {"type": "string", "pattern": "^(?:[Tt][Rr][Uu][Ee]|[Ff][Aa][Ll][Ss][Ee])$"}
_PATTERNS: Final = {
    "name": f"^{_NAME}$",
    "group": f"^{_NAME}$",
    "listen": rf"^(?:.+:{_PORT})?$",
    "url": rf"^\s*{_URL}\s*(?:,\s*(?:{_URL}\s*)?)*$",
}


def node_schema() -> Schema:
    """Returns the schema of a node's config file. The file may have the commands' settings, too."""
    node = {name: _setting(each) for name, each in NODE_SETTINGS.items()}
    commands = {name: _setting(each) for name, each in COMMAND_SETTINGS.items()}
    files = ["tls_cert", "tls_key", "tls_ca"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Config file of a vlsnlog node",
        "type": "object",
        "properties": node | commands,
        "required": [name for name, each in NODE_SETTINGS.items() if _is_required(each)],
        "additionalProperties": False,
        "if": {"properties": {"tls": _any_case(["allow", "require"])}, "required": ["tls"]},
        "then": {"required": files},
        "$defs": {"cdc": _cdc(), **{f"cdc-{name}": _struct(each.options) for name, each in SHIPPED.items()}},
    }


def _is_required(each: Field[Any]) -> bool:
    return each.default is MISSING and each.default_factory is MISSING


def _setting(each: Field[Any]) -> Schema:
    """Returns the schema of one setting: its meaning and default first, which editors show."""
    said: Schema = {"description": each.metadata["text"]}
    if not _is_required(each) and each.default is not None and each.default != "":
        said["default"] = list(each.default) if isinstance(each.default, tuple) else each.default
    return said | _kind(each)


def _kind(each: Field[Any]) -> Schema:
    kind, low, high = str(each.type), each.metadata["low"], each.metadata["high"]
    if each.name == "cdc":
        return {"type": "array", "maxItems": CONSUMERS_MAX, "items": {"$ref": "#/$defs/cdc"}}
    if kind.startswith("Mapping"):
        return _members()
    if kind.startswith("tuple"):
        one = rf"\s*(?:{_HOST}(?::[0-9]{{1,5}})?)?\s*"
        many = {"type": "string", "pattern": rf"^{one}(?:,{one})*$"}
        return {"anyOf": [{"type": "array", "items": {"type": "string", "pattern": f"^{one}$"}}, many]}
    if kind == "int":
        return _integer(each.name, low, high)
    if kind == "float":
        return {"anyOf": [{"type": "number", "minimum": low, "maximum": high}, _NUMBER]}
    if kind == "bool":
        return {"anyOf": [{"type": "boolean"}, _TRUTH]}
    if each.metadata["choices"]:
        return _any_case(each.metadata["choices"])
    return {"type": "string"} | ({"pattern": _PATTERNS[each.name]} if each.name in _PATTERNS else {})


def _integer(name: str, low: float, high: float) -> Schema:
    whole: Schema = {"type": "integer", "minimum": low, "maximum": high}
    if name == "segment_bytes":
        whole["multipleOf"] = limits.SEGMENT_BYTES_STEP
    if name == "scan_bytes_per_s":
        return {"anyOf": [{"const": 0}, whole | {"minimum": limits.SCAN_BYTES_PER_S_MIN}, _SIZE]}
    return {"anyOf": [whole, _SIZE if "bytes" in name else _WHOLE]}


def _any_case(choices: Any) -> Schema:
    """Accepts a word in upper and lower case. The list is for editors, which offer its words."""
    letters = ("".join(f"[{each.upper()}{each}]" if each.isalpha() else each for each in word) for word in choices)
    return {"anyOf": [{"enum": list(choices)}, {"type": "string", "pattern": f"^(?:{'|'.join(letters)})$"}]}


def _members() -> Schema:
    url, pair = {"type": "string", "pattern": f"^{_URL}$"}, rf"\s*{_NAME}={_URL}\s*"
    names = {"propertyNames": {"pattern": f"^{_NAME}$"}, "additionalProperties": url, "minProperties": 1}
    return {
        "anyOf": [
            {"type": "object", **names},
            {"type": "array", "minItems": 1, "items": {"type": "string", "pattern": f"^{_NAME}={_URL}$"}},
            {"type": "string", "pattern": rf"^(?:\s*,)*{pair}(?:,\s*(?:{pair})?)*$"},
        ]
    }


def _cdc() -> Schema:
    """Returns the schema of one table ``[[cdc]]``, with the options of the consumers that are part of vlsnlog."""
    table = _struct(CdcSettings)
    said: dict[str, Schema] = {
        "name": {"pattern": rf"^{_NAME}$", "not": {"enum": [".", ".."]}},
        "consumer": {"pattern": rf"^(?:{_DOTTED}:{_DOTTED}|[a-z][a-z0-9_-]{{0,63}})$"},
        "run_on": {"enum": ["node", "master"]},
        "commit": {"enum": ["batch", "segment"]},
        "from": {"anyOf": [{"enum": ["start", "end"]}, {"type": "integer", "minimum": 1, "maximum": NUMBER_MAX}]},
        "memory_bytes_max": _sized({"type": "integer", "minimum": MEMORY_BYTES_MIN, "maximum": (1 << 48) - 1}),
        "ahead_bytes": _sized({"type": "integer", "minimum": AHEAD_BYTES_MIN, "maximum": AHEAD_BYTES}),
    }
    for name, rule in said.items():
        table["properties"][name] = {
            key: value for key, value in table["properties"][name].items() if key in ("description", "default", "type")
        } | rule
        if "anyOf" in rule or "enum" in rule:
            table["properties"][name].pop("type", None)
    return table | {"allOf": [_shipped(name) for name in SHIPPED]}


def _shipped(name: str) -> Schema:
    run_on, options = SHIPPED[name].run_on, f"cdc-{name}"
    needs: Schema = {"properties": {"options": {"$ref": f"#/$defs/{options}"}}, "required": ["options"]}
    if run_on:
        needs["properties"]["run_on"] = {"const": run_on}
    if run_on == "master":  # the default is node
        needs["required"].append("run_on")
    return {"if": {"properties": {"consumer": {"const": name}}, "required": ["consumer"]}, "then": needs}


def _struct(kind: type[msgspec.Struct]) -> Schema:
    """Returns the schema of a table. Its fields' docstrings are their meanings."""
    made = msgspec.json.schema(kind)["$defs"][kind.__name__]
    meanings = field_docs(kind)
    properties = {}
    for each in msgspec.structs.fields(kind):
        name, rule = each.encode_name, dict(made["properties"][each.encode_name])
        said: Schema = {"description": meanings[each.name]} if each.name in meanings else {}
        if "default" in rule:
            said["default"] = rule.pop("default")
        properties[name] = said | (_sized(rule) if SIZES in name and rule.get("type") == "integer" else rule)
    rest = {key: made[key] for key in ("type", "required", "additionalProperties") if key in made}
    return {"description": _plain(kind.__doc__ or ""), "properties": properties, **rest}


def _sized(rule: Schema) -> Schema:
    return {"anyOf": [rule, _SIZE]}


@cache
def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Returns the docstring of each field of ``kind`` that has one."""
    tree = ast.parse(inspect.getsource(cdc_settings))
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__]
    return {
        field.target.id: _plain(doc.value.value)
        for field, doc in pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(doc, ast.Expr) and isinstance(doc.value, ast.Constant) and isinstance(doc.value.value, str)
    }


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text.replace("``", "`")).strip()
