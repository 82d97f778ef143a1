"""Options of shipped consumers: read, checked, and refused with what to write instead."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from repl.cdc.consumer import CdcContext
from repl.config import whole_size
from vlsn.errors import BadArgument

T = TypeVar("T", bound=msgspec.Struct)
SIZES = "_bytes"
"""Options whose names end so may be written ``64MiB``."""


def options_of(kind: type[T], given: Mapping[str, Any]) -> T:
    """Reads the table ``options`` as a ``kind``. Raises ``BadArgument``."""
    known = [each.encode_name for each in msgspec.structs.fields(kind)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise BadArgument(f"options: unknown option {name[:40]!r}; {advice}")
    read = {
        name: whole_size(value, f"options: {name}") if name.endswith(SIZES) and isinstance(value, str) else value
        for name, value in given.items()
    }
    try:
        return msgspec.convert(read, kind)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$.")
        raise BadArgument(f"options: {place.rstrip('`')}: {said}" if place else f"options: {said}") from None


def check_path(name: str, path: str) -> str:
    """Returns ``path`` without a slash at its end. Raises ``BadArgument`` where it is not absolute."""
    if not path.startswith("/") or "\0" in path:
        raise BadArgument(
            f"options: {name}: {path[:100]!r} is no absolute path; a node's own directory may be anywhere"
        )
    return path.rstrip("/") or "/"


def check_runs_on(context: CdcContext, where: str, why: str) -> None:
    """Raises ``BadArgument`` where its settings have it run elsewhere."""
    if context.run_on != where:
        raise BadArgument(f'run_on: this consumer needs run_on = "{where}": {why}')


__all__ = ["check_path", "check_runs_on", "options_of"]
