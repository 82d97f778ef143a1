"""Formats the rows as a table."""

from __future__ import annotations

from collections.abc import Sequence

from harness.hostile.suite import Row
from repl.aligned import aligned

_HEAD = ("kind", "/healthz p99 / longest, ms", "lead", "appends", "p99, ms", "verdict")


def table(rows: Sequence[Row]) -> list[str]:
    """Formats aligned lines, one group for each kind, with what was sent and found below it."""
    cells = [_HEAD] + [_cells(row) for row in rows]
    lines = []
    for number, line in enumerate(aligned(list(zip(*cells, strict=True)))):
        lines.append(line)
        if number:
            row = rows[number - 1]
            lines.append(f"    sent: {row.sent or 'nothing'}")
            lines += [f"    FOUND {each}" for each in row.found]
    return lines


def _cells(row: Row) -> tuple[str, ...]:
    silences = "  ".join(f"{name} {row.p99_ms[name]:,.0f} / {row.longest_ms[name]:,.0f}" for name in row.p99_ms)
    leads = " → ".join(f"{name}@{term}" for term, name in row.leads)
    verdict = "holds" if row.holds else "DOES NOT HOLD"
    return (row.kind, silences, leads, f"{row.acknowledged:,}", f"{row.append_p99_ms:,.0f}", verdict)
