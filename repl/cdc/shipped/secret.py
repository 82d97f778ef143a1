"""Reads secrets of a consumer from a file or an environment variable. Settings and messages never contain a secret."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from vlsn.errors import BadArgument

SECRET_BYTES_MAX: Final = 4096


def secret_of(name: str, file: str, variable: str) -> bytes:
    """Reads the secret of option ``name``, without surrounding space. Raises ``BadArgument``; the error's text does
    not show the secret."""
    if variable:
        found = os.environb.get(variable.encode())
        if found is None:
            raise BadArgument(f"options: {name}_env: the node's environment has no {variable}")
    else:
        try:
            with Path(file).open("rb") as opened:
                found = opened.read(SECRET_BYTES_MAX + 1)
        except OSError as error:
            raise BadArgument(f"options: {name}_file: {file}: {error.strerror}") from None
    if len(found) > SECRET_BYTES_MAX or b"\0" in found:
        raise BadArgument(f"options: {name}: is no secret of at most {SECRET_BYTES_MAX} bytes")
    return found.strip()
