"""Checks the nodes' final logs, as each node serves its own."""

from __future__ import annotations

from collections.abc import Iterator

from harness.checks.view import NEVER, Anomaly, View


def contiguity(view: View) -> Iterator[Anomaly]:
    for final in view.finals:
        due, term = final.first, 0
        for vlsn, entry_term, number in final.page.entries():
            if vlsn != due:
                yield Anomaly("log-gap", final.node, f"VLSN {due} was due", vlsn, max(number, 0))
            if entry_term < term:
                yield Anomaly("term-falls", final.node, f"term {entry_term} after term {term}", vlsn, max(number, 0))
            due, term = vlsn + 1, entry_term
        if due <= final.to:
            yield Anomaly("log-gap", final.node, f"ends there, was to be read up to {final.to}", due - 1)


def acknowledged_everywhere(view: View) -> Iterator[Anomaly]:
    for final in view.finals:
        kept = dict(zip(final.page.vlsns, final.page.numbers, strict=True))
        for number, vlsn in view.acknowledged.items():
            if vlsn >= final.first and kept.get(vlsn) != number and (final.whole or vlsn <= final.to):
                detail = f"acknowledged there, but it is {kept.get(vlsn, 'nothing')}"
                yield Anomaly("missing", final.node, detail, vlsn, number)


def equal_logs(view: View) -> Iterator[Anomaly]:
    """Compares each log with the first node's, as far as both have it and were read: one anomaly a node."""
    if not view.finals:
        return
    for final in view.finals[1:]:
        whole = final.whole and view.finals[0].whole
        start = max(final.first, view.finals[0].first)
        to = NEVER if whole else min(final.to, view.finals[0].to)
        first = [each for each in view.finals[0].page.entries() if start <= each[0] <= to]
        other = [each for each in final.page.entries() if start <= each[0] <= to]
        if other != first:
            size = min(len(first), len(other))
            at = next((at for at in range(size) if first[at] != other[at]), size)
            ours, theirs = (log[at] if at < len(log) else None for log in (first, other))
            vlsn = (theirs or ours or (0,))[0]
            detail = f"(VLSN, term, value) is {theirs}, in the log of {view.finals[0].node} {ours}"
            yield Anomaly("logs-differ", final.node, detail, vlsn)


CHECKS = (contiguity, acknowledged_everywhere, equal_logs)
