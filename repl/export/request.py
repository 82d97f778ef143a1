"""Requests for exports, and their checks. This module needs no Spark."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from repl.spark.places import is_url
from vlsn.errors import BadArgument
from vlsn.limits import MIB

BATCH_ENTRIES: Final = 1_000_000
BATCH_ENTRIES_MAX: Final = 100_000_000
FILE_BYTES: Final = 128 * MIB
FILE_BYTES_MIN: Final = MIB
INTERVAL_S: Final = 10.0
"""A continuous export checks for new entries once in this many seconds. By default, a batch also covers this many
seconds of entries."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A position in the log, as the user has typed it: a VLSN, a time, or the word ``end``."""

    text: str
    vlsn: int = 0
    time_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The parameters of an export, which ``run_export`` checks."""

    source: str
    to: str
    format: str
    partition_by: str = ""
    key_prefix: bytes = b""
    begin: Bound | None = None
    upto: Bound | None = None
    continuous: bool = False
    interval_s: float = INTERVAL_S
    batch_entries: int = BATCH_ENTRIES
    file_bytes: int = FILE_BYTES
    skip_trimmed: bool = False
    one_exporter: bool = False
    spark_master: str = "local[2]"


def check_request(request: Request) -> None:
    """Checks what every format needs. Raises ``BadArgument``."""
    if not 1 <= request.batch_entries <= BATCH_ENTRIES_MAX:
        raise BadArgument(f"--batch-entries is {request.batch_entries}; it must be 1 to {BATCH_ENTRIES_MAX}")
    if request.file_bytes < FILE_BYTES_MIN:
        raise BadArgument(f"--file-size is {request.file_bytes} bytes; it must be {FILE_BYTES_MIN} or more")
    if request.continuous and not is_url(request.source):
        raise BadArgument("--continuous follows a group: name its URLs, not a directory")
    begin, upto = request.begin, request.upto
    if begin is not None and upto is not None and begin.vlsn > upto.vlsn > 0:
        raise BadArgument(f"--to-vlsn {upto.text} is before --from {begin.text}")
