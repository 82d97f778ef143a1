"""Clocks that jump, by libfaketime: each node reads its own offset from a file.

Only the wall clock is changed; a monotonic clock does not jump on a real machine either.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Final

LIBRARY_VARIABLE: Final = "VLSNLOG_LIBFAKETIME"
PACKAGE: Final = "libfaketime (Debian, Ubuntu: apt-get install libfaketime; or set VLSNLOG_LIBFAKETIME=/path/to/it)"
_PLACES: Final = ("/usr/lib/*/faketime", "/usr/lib64/faketime", "/usr/lib/faketime", "/usr/local/lib/faketime")
_NAME: Final = "libfaketime.so.1"
JUMPS_S: Final = (0.2, 1.0, 5.0, 90.0, 3_600.0, 4 * 3_600.0)


def find_library() -> Path | None:
    """Finds libfaketime on this machine."""
    given = os.environ.get(LIBRARY_VARIABLE)
    if given:
        return Path(given) if Path(given).is_file() else None
    for place in _PLACES:
        for found in sorted(Path("/").glob(place[1:] + "/" + _NAME)):
            return found
    return None


def environment(library: Path, directory: Path) -> dict[str, str]:
    """Makes the environment of a node whose clock ``set_offset`` moves."""
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME_TIMESTAMP_FILE": str(_file(directory)),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


def set_offset(directory: Path, seconds: float) -> None:
    """Sets the node's wall clock off by ``seconds``, within a second."""
    file = _file(directory)
    new = file.with_suffix(".new")
    new.write_text(f"{seconds:+.3f}\n")
    new.rename(file)


def moved(pid: int | None) -> bool:
    """Says whether that process reads its clock through the library."""
    try:
        return _NAME in Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False


def draw_offset(chance: Random) -> float:
    return chance.choice(JUMPS_S) * chance.choice((-1, 1))


def _file(directory: Path) -> Path:
    return directory / "faketime.rc"
