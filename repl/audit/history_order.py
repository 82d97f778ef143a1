"""The order of a client's history: if one append was acknowledged before another was sent, it must have the lower VLSN.

    VLSN    7  sent 1.0  acked 1.4
            8  sent 1.2  acked 1.3      right: both were under way at once
            9  sent 0.2  acked 0.9      wrong: 9 was acknowledged before 7 was sent, so it must have the lower VLSN

So, in the order of VLSNs, no append may be acknowledged before any append with a lower VLSN was sent. Each task checks
a range of VLSNs. The driver gets two lines of every range, and compares them with the lines of the ranges before.
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
    """The times of one range: of the append that was sent last, and of the append that was acknowledged first."""

    range: int
    sent_vlsn: int
    sent: float
    acked_vlsn: int
    acked: float


def check_order(at: int, pieces: Sequence[bytes], history: str) -> tuple[Span, int, list[Finding]]:
    """Checks the order of the appends in one range (``TIMED`` rows). Returns the range's span, the number of appends
    out of order, and findings for some of them."""
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
    """Compares the ranges with one another. Reports the first append of each range that is out of order."""
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
