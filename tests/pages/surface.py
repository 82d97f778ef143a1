"""``docs/reference/python.md``: the public names of the packages, with signatures and docstrings."""

from __future__ import annotations

import ast
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final

CLIENT: Final = "vlsnlog"
"""The package that programs import. Its name stands here only."""
LOCAL: Final = "vlsn"
TESTING: Final = "vlsnlog.testing"
ROOTS: Final = ("repl", "vlsn", "vlsnlog")
"""The packages whose classes are documented, whatever package they are imported from."""
ERRORS: Final = "vlsn.errors"
WIDTH: Final = 96
SECTIONS: Final = {
    "Connect": ("connect", "connect_sync", "Client", "SyncClient", "TlsFiles", "Endpoints", "Status"),
    "Append": (
        *("Appended", "Acks", "Durability", "GivenDurability", "GroupDurability", "CodecName", "Buffer"),
        *("ProducerAt", "ProducerPlace"),
    ),
    "Transactions": ("Transaction", "SyncTransaction"),
    "Read": ("Entry", "Begin", "Consistency", "Page", "BlocksPage", "Rows", "Span", "Spans", "read_arrow"),
    "Consumers": ("Consumer", "SyncConsumer", "Positions", "SyncPositions", "ConsumerAt", "ConsumerChange"),
    "Destinations": (
        *("Destination", "Message", "Messages", "Destinations"),
        *("SyncDestination", "SyncMessage", "SyncMessages", "SyncDestinations"),
    ),
    "Sinks": ("Sinks", "SyncSinks", "SinkAt", "SinkChange", "SinkState"),
}
"""The public names of the client, by task. The errors have a table."""
SECTIONED: Final = frozenset(name for names in SECTIONS.values() for name in names)
LOCAL_SECTION: Final = (
    *("Log", "LogTransaction", "LogOptions", "LogStats", "Durability", "Entry", "Retention", "Fate", "CleaningReport"),
    *("LogHold", "Owner", "Checkpoint", "VlsnRange", "IndexStats", "Histogram", "Seconds", "Fault"),
    *("Vlsn", "Term", "Buffer"),
)
_HEAD: Final = f"""# Python

<!-- made by `make reference` from the code; do not edit -->

This page lists the public classes and functions, with their signatures and docstrings.
`make reference` makes the page from the code. [Applications](../applications.md) shows whole programs.

* A program that uses a group imports from `{CLIENT}`: `from {CLIENT} import connect`.
* A test of a program has a group of its own by [`{TESTING}`](#groups-for-tests).
* A program with its own log, without a cluster, imports from [`{LOCAL}`](#the-local-log): `from {LOCAL} import Log`.

The classes `Sync…` are the same without asyncio: each call blocks until it is done.
"""
_ERRORS_HEAD: Final = f"""
## Errors

All errors are in `{CLIENT}` and in `{LOCAL}`, and have the root class `VlsnLogError`. Each class has these attributes:

* `slug` is the stable type that HTTP and the command line show.
* `retry_safe` is true if nothing of the call was logged, so that repeating the call cannot log an entry twice.
* `transient` is true if the same append may well succeed a moment later.

| error | base class | slug | `retry_safe` | `transient` | meaning |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Returns the text of the page."""
    client, local = import_module(CLIENT), import_module(LOCAL)
    parts = [_HEAD]
    for title, names in SECTIONS.items():
        parts.append(f"\n## {title}\n")
        parts += [_item(client, name) for name in names]
    parts.append(_ERRORS_HEAD)
    parts += [_error(client, name) for name in client.__all__ if _is_error(getattr(client, name))]
    parts.append("\n## The local log\n")
    parts += [_item(local, name, prefix=f"{LOCAL}.") for name in LOCAL_SECTION]
    testing = import_module(TESTING)
    parts.append("\n## Groups for tests\n\n[Test a program](../applications.md#test-a-program) shows them in use.\n")
    parts += [_item(testing, name, prefix=f"{TESTING}.") for name in testing.__all__]
    return "".join(parts)


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _error(module: ModuleType, name: str) -> str:
    kind: Any = getattr(module, name)
    flags = ["yes" if each else "no" for each in (kind.retry_safe, kind.transient)]
    text = re.sub(r"\s+", " ", markdown(inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]))
    cells = [
        f"`{name}`",
        f"`{kind.__bases__[0].__name__}`",
        f"[`{kind.slug}`](../errors.md#{kind.slug})",
        *flags,
        text.replace("|", "\\|"),
    ]
    return f"| {' | '.join(cells)} |\n"


def _item(module: ModuleType, name: str, prefix: str = "") -> str:
    value = getattr(module, name)
    head = f"\n### `{prefix}{name}`\n"
    if isinstance(value, type) and _is_ours(value):
        return head + _class(value, name, prefix)
    if inspect.isfunction(value):
        return head + _function(value, name)
    return head + _alias(module, name)


def _function(function: Any, name: str, *, of_class: str = "") -> str:
    awaited = function if of_class.startswith("Sync") else inspect.unwrap(function)
    kind = "async def" if inspect.iscoroutinefunction(awaited) else "def"
    text = markdown(inspect.getdoc(function) or "")
    # a blocking method that is made of an asynchronous one has the docstring of that one
    origin = getattr(inspect.unwrap(function), "__qualname__", "")
    if of_class.startswith("Sync") and origin.partition(".")[0] in SECTIONED and origin != f"{of_class}.{name}":
        text = f"Works as [`{origin}`](#{origin.replace('.', '').lower()}), and blocks until it is done."
    return _code(f"{kind} {name}{_signature(function, name, of_class=bool(of_class))}") + (
        f"\n{text}\n" if text else ""
    )


def _class(kind: type, name: str, prefix: str) -> str:
    text, fields = markdown(_own_doc(kind)), [tuple(row) for row in _fields(kind)]
    parts = [f"\n{text}\n" if text else ""]
    if fields:
        heads = ("attribute", "type", "default", "meaning")
        columns = [index for index in range(len(heads)) if any(row[index] for row in fields)]
        parts.append(f"\n| {' | '.join(heads[index] for index in columns)} |\n|{'---|' * len(columns)}\n")
        fields = [tuple(row[index] for index in columns) for row in fields]
        parts += [f"| {' | '.join(each.replace('|', chr(92) + '|') for each in row)} |\n" for row in fields]
    for method, value in _methods(kind):
        parts.append(f"\n#### `{prefix}{name}.{method}`\n")
        if isinstance(value, property):
            returns = inspect.signature(value.fget).return_annotation if value.fget else ""
            text = markdown(inspect.getdoc(value) or "")
            parts.append(_code(f"{method}: {_annotation(returns)}") + (f"\n{text}\n" if text else ""))
        else:
            parts.append(_function(value, method, of_class="" if isinstance(value, staticmethod) else name))
    return "".join(parts)


def _own_doc(kind: type) -> str:
    """Returns the docstring that is written in the class. Dataclasses and structs make one otherwise."""
    text = vars(kind).get("__doc__") or ""
    return "" if text.startswith(f"{kind.__name__}(") else inspect.cleandoc(text)


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ROOTS


def _bases(kind: type) -> list[type]:
    return [each for each in kind.__mro__ if _is_ours(each)]


def _methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yields the public methods and properties of a class and its bases, each once, in the order of the source."""
    seen: set[str] = set()
    for base in _bases(kind):
        for name, value in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            inner = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if isinstance(value, property) or (callable(inner) and not isinstance(inner, type)):
                seen.add(name)
                yield name, value if isinstance(value, property) else inner


@cache
def _body(kind: type) -> ast.ClassDef:
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(found, ast.ClassDef)
    return found


def _fields(kind: type) -> Iterator[tuple[str, str, str, str]]:
    """Yields the attributes that a class declares: name, type, default, and the docstring below the declaration."""
    for base in reversed(_bases(kind)):
        body = _body(base).body
        for each, after in zip(body, [*body[1:], None], strict=True):
            name, shown, default = _declared(each, is_enum=issubclass(kind, enum.Enum))
            if name and not name.startswith("_"):
                yield f"`{name}`", f"`{shown}`" if shown else "", f"`{default}`" if default else "", _doc_of(after)


def _declared(each: ast.stmt, *, is_enum: bool) -> tuple[str, str, str]:
    if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
        if "ClassVar" in ast.unparse(each.annotation):
            return "", "", ""
        default = ast.unparse(each.value) if each.value is not None else ""
        return each.target.id, ast.unparse(each.annotation), "" if "(" in default else default
    if is_enum and isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
        return each.targets[0].id, "", ast.unparse(each.value)
    return "", "", ""


def _doc_of(after: ast.stmt | None) -> str:
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return re.sub(r"\s+", " ", markdown(inspect.cleandoc(after.value.value)))
    return ""


def _alias(module: ModuleType, name: str) -> str:
    """Returns an alias of a type as its module declares it, with the docstring below."""
    places = {**import_module(LOCAL)._FROM, **import_module(CLIENT)._FROM}
    source = import_module(places[name])
    body = ast.parse(inspect.getsource(source)).body
    for each, after in zip(body, [*body[1:], None], strict=True):
        targets = (
            each.targets if isinstance(each, ast.Assign) else [each.target] if isinstance(each, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            assert isinstance(each, ast.Assign | ast.AnnAssign) and each.value is not None
            text = _doc_of(after)
            return _code(f"{name} = {ast.unparse(each.value)}") + (f"\n{text}\n" if text else "")
    raise AssertionError(f"{source.__name__} declares no {name}")


def _signature(function: Any, name: str, *, of_class: bool) -> str:
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1 if of_class else 0 :]
    said = [_parameter(each) for each in parameters]
    for index, each in enumerate(parameters):
        if each.kind is inspect.Parameter.KEYWORD_ONLY:
            said.insert(index, "*")
            break
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            break
    returns = f" -> {_annotation(signature.return_annotation)}"
    one = f"({', '.join(said)}){returns}"
    if len(name) + len(one) + 10 <= WIDTH:
        return one
    return "(\n" + "".join(f"    {each},\n" for each in said) + f"){returns}"


def _parameter(each: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(each.kind.name, "")
    said = f"{stars}{each.name}: {_annotation(each.annotation)}"
    return said if each.default is inspect.Parameter.empty else f"{said} = {_value(each.default)}"


def _annotation(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _value(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    return repr(value) if isinstance(value, int | float | str | bytes | tuple | None) else "…"


def _code(text: str) -> str:
    return f"\n```python\n{text}\n```\n"


def markdown(docstring: str) -> str:
    """Returns a docstring as Markdown. Text that is indented is code."""
    parts = []
    for paragraph in docstring.split("\n\n"):
        is_code = all(line.startswith("    ") for line in paragraph.splitlines())
        text = paragraph if is_code else re.sub(r"``", "`", paragraph)
        parts.append(f"```python\n{textwrap.dedent(text)}\n```" if is_code and text.strip() else text)
    return "\n\n".join(parts).strip()
