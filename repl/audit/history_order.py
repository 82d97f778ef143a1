"""The order of a client's history: an append acknowledged before another one was sent has the lower VLSN.

    VLSN    7  sent 1.0  acked 1.4
            8  sent 1.2  acked 1.3      right: both were under way at once
            9  sent 0.2  acked 0.9      wrong: it was acknowledged before 7 was sent, and lies behind it

So along rising VLSNs nothing may be acknowledged before the latest of all ``sent`` so far.  Tasks have a range of VLSNs
each; of every range the driver gets two lines, and holds them against those of the ranges before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from repl.audit.findings import FINDINGS_MAX, Finding
from repl.audit.history import TIMED
from repl.audit.rules import AuditRule


@dataclass(frozen=True, slots=True)
class Span:
    """The times of one range: the append that was sent last, and the one that was acknowledged first."""

    range: int
    sent_vlsn: int
    sent: float
    acked_vlsn: int
    acked: float


def check_order(at: int, pieces: Sequence[bytes], history: str) -> tuple[Span, int, list[Finding]]:
    """Checks the appends of one range, ``TIMED`` rows. Returns with the findings how many there are, and its span."""
    rows = np.unique(np.concatenate([np.frombuffer(piece, TIMED) for piece in pieces]))
    latest = np.maximum.accumulate(rows["sent"])
    wrong = np.flatnonzero(rows["acked"][1:] < latest[:-1]) + 1
    findings = []
    for row in wrong[:FINDINGS_MAX].tolist():
        before = rows[int(rows["sent"][:row].argmax())]
        findings.append(_finding(history, rows[row]["vlsn"], rows[row]["acked"], before["vlsn"], before["sent"]))
    sent, acked = rows[int(rows["sent"].argmax())], rows[int(rows["acked"].argmin())]
    span = Span(at, int(sent["vlsn"]), float(sent["sent"]), int(acked["vlsn"]), float(acked["acked"]))
    return span, len(wrong), findings


def check_spans(spans: Iterable[Span], history: str) -> Iterator[Finding]:
    """Holds the ranges against one another; names the first append of each that is out of order."""
    before: Span | None = None
    for span in sorted(spans, key=lambda span: span.range):
        if before is not None and span.acked < before.sent:
            yield _finding(history, span.acked_vlsn, span.acked, before.sent_vlsn, before.sent)
        if before is None or span.sent > before.sent:
            before = span


def _finding(history: str, vlsn: Any, acked: Any, before: Any, sent: Any) -> Finding:
    return Finding(
        rule=AuditRule.HISTORY_ORDER,
        source=history,
        file="",
        offset=0,
        vlsn=int(vlsn),
        detail=f"it was acknowledged at {acked}, and lies behind VLSN {before}, which was sent at {sent}",
        more={"acked": float(acked), "before": int(before), "before_sent": float(sent)},
    )
