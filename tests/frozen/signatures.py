"""The public calls of both clients, and of all that they return, as text.

Types stand as they are written in the source, without their modules: where a class is defined is no one's concern.
"""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import FunctionType
from typing import Any

import pyarrow as pa

import repl
import vlsn
from repl.arrow import read as arrow_read
from tests.frozen.files import Frozen
from tests.surface.test_surface import NUMPY, programs, types_in
from vlsn.errors import VlsnLogError

_ADDRESS = re.compile(r"<(?:\w+\.)*([^ ]*|function [^ ]*)(?: object)? at 0x[0-9a-f]+>")
"""A default that is an object: its class counts, without its module and its place in memory."""
_MODULE = re.compile(r"\b(?:vlsn|feeder|replica|repl)\.(?:\w+\.)*(?=\w)")


def frozen() -> Iterator[Frozen]:
    """Yields one text a package: all that it makes public, and each type that a call of these returns."""
    arrow_read.pa = pa  # type: ignore[attr-defined]  # imported for typing alone
    for package in (repl, vlsn):
        public = {name: getattr(package, name) for name in package.__all__}
        yield Frozen(name=package.__name__, facts="".join(f"{line}\n" for line in _lines(public)))


def _lines(public: dict[str, Any]) -> list[str]:
    lines, kinds = list[str](), list[type]()
    for name, each in public.items():
        if isinstance(each, FunctionType):
            lines += _signatures(name, [each, *typing.get_overloads(each)])
            kinds += _returned([each])
        elif isinstance(each, type):
            kinds.append(each)
        else:
            lines.append(_MODULE.sub("", f"{name} = {each!r}"))
    seen = set[type]()
    while kinds:
        kind = kinds.pop()
        if kind not in seen:
            seen.add(kind)
            lines += _of_type(kind)
            if not issubclass(kind, VlsnLogError):
                kinds += [each for calls in programs(kind).values() for each in _returned(calls)]
    return sorted(lines)


def _of_type(kind: type) -> Iterator[str]:
    if issubclass(kind, VlsnLogError):
        bases = ", ".join(each.__name__ for each in kind.__mro__[1:] if issubclass(each, VlsnLogError))
        yield f"{kind.__name__}: a {bases}, {kind.slug!r}, retry_safe {kind.retry_safe}"
        return
    yield f"{kind.__name__}: a class"
    if is_dataclass(kind) or hasattr(kind, "__struct_fields__"):  # others are made by a call
        yield from _signatures(kind.__name__, [kind])
    for name, calls in programs(kind).items():
        yield from _signatures(f"{kind.__name__}.{name}", calls)
    for name in sorted({name for each in kind.__mro__ for name in inspect.get_annotations(each)}):
        if not name.startswith("_"):
            yield f"{kind.__name__}.{name}: an attribute"


def _signatures(name: str, calls: list[Any]) -> Iterator[str]:
    for call in calls:
        yield _MODULE.sub("", _ADDRESS.sub(r"<\1>", f"{name}{inspect.signature(call)}"))


def _returned(calls: list[FunctionType]) -> list[type]:
    return [kind for call in calls for kind in types_in(typing.get_type_hints(call, localns=NUMPY).get("return"))]
