"""A node's log, read over plain HTTP with nothing of ours in between."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from harness.history import LogRead

LIMIT = 10_000


def read_log(url: str, from_vlsn: int, *, to_vlsn: int) -> LogRead:
    """Reads DATA entries from ``from_vlsn`` to ``to_vlsn`` as this one node serves them. Raises ``OSError`` when it
    does not answer, ``ValueError`` when it answers with anything but 200."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
    log = LogRead(from_vlsn)
    at = from_vlsn
    try:
        while at <= to_vlsn:
            connection.request("GET", f"/v1/entries?from={at}&limit={LIMIT}")
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                raise ValueError(f"{url} answered {answer.status} to a read from {at}: {body[:300]!r}")
            rows = [json.loads(line) for line in body.splitlines()]
            log.add((row["vlsn"], row.get("value", "")) for row in rows if row["vlsn"] <= to_vlsn)
            after = int(answer.headers["Vlsnlog-Next"])
            if after <= at and not rows:
                break
            at = max(after, at + 1)
    finally:
        connection.close()
    return log
