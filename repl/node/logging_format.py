"""Lines of a node's log: as text for a person, or as one JSON object each for a collector.

    2026-01-02 03:04:05,678 WARNING n2 peer.silent peer=n3 why='connection refused'
    {"time":"2026-01-02T03:04:05.678901Z","level":"warning","node":"n2","event":"peer.silent","peer":"n3","why":"…"}

A line that is not an event has its text under ``message``. A fault has its traceback under ``fault``.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import IO, Final

import msgspec

TEXT: Final = "%(asctime)s %(levelname)s %(message)s"
JSON: Final = "json"


def log_to(stream: IO[str], *, level: str, format: str) -> None:
    """Sends everything that this process logs to ``stream``."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if format == JSON else logging.Formatter(TEXT))
    logging.basicConfig(level=level.upper(), handlers=[handler])


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
        }
        said = getattr(record, "said", None)
        line |= said if said is not None else {"message": record.getMessage()}
        if record.exc_info:
            line["fault"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()
