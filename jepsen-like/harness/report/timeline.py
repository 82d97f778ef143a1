"""``timeline.html``: a run on one self-contained page. It shows appends and their durations, each node's state and its
faults, over one axis of time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from harness.checks import Anomaly
from harness.ops import Op
from harness.report.axes import HEIGHTS, LEFT, WIDE, WIDTH, Frame
from harness.report.results import command, verdict
from harness.report.series import END_STATES, GONE, Fault, Series, Stretch, series_of
from harness.run import Outcome

TEMPLATE = Path(__file__).with_name("timeline.html")
DIGIT = 6.5
"""Pixels of a digit of a term."""
KINDS_SHOWN = ("kill", "pause", "disk", "clock", "transfer", "members", "cleaning", "partition")


def write_timeline(outcome: Outcome, history: Sequence[Op], path: Path) -> None:
    path.write_text(page(outcome, history), encoding="utf-8")


def page(outcome: Outcome, history: Sequence[Op]) -> str:
    series = series_of(history)
    options = outcome.options
    heading = f"{options.workload} on {options.nodes} nodes, {', '.join(options.kinds) or 'no faults'}"
    parts = {
        "title": escape(f"vlsnlog: {heading}"),
        "heading": escape(heading),
        "class": {"True": "valid", "False": "invalid"}.get(str(outcome.valid), ""),
        "verdict": escape(verdict(outcome).partition(":")[0]),
        "command": escape(command(options)),
        "tiles": _tiles(outcome),
        "anomalies": _anomalies(outcome),
        "chart": chart(series, _names(series, options.nodes), list(outcome.found.all())),
        "legend": _legend(series),
        "faults": _fault_table(series.faults),
        "data": _data(series),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, part in parts.items():
        text = text.replace("{{" + name + "}}", part)
    return text


def _names(series: Series, nodes: int) -> list[str]:
    """Returns the founders, and every other node that was ever reported up."""
    seen = {stretch.node for stretch in series.stretches if stretch.state != GONE}
    return sorted({f"n{number}" for number in range(1, nodes + 1)} | seen)


def chart(series: Series, names: list[str], anomalies: Iterable[Anomaly]) -> str:
    """Returns the SVG: appends, waits, a lane a node, a lane for partitions."""
    frame = Frame(series.seconds, names)
    parts = [
        *_no_majority(series, frame),
        *frame.axis(),
        *_appends(series, frame),
        *_waits(series, frame),
        *(part for each in series.stretches if each.node in names for part in _state(each, frame)),
        *(part for fault in series.faults for part in _fault(fault, frame)),
    ]
    for anomaly in anomalies:
        if anomaly.seconds:
            x = frame.x(anomaly.seconds)
            line = f'<line class="anomaly" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{frame.bottom}">'
            parts.append(f"{line}<title>{escape(str(anomaly))}</title></line>")
    parts.append(f'<line class="cross" x1="0" x2="0" y1="0" y2="{frame.bottom}"/>')
    height = frame.bottom + 24
    label = "appends, waits, nodes and faults over time"
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _no_majority(series: Series, frame: Frame) -> Iterable[str]:
    """Draws the times without a majority as background of appends and waits, since faults cause gaps there."""
    yield (
        '<defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" class="hatch"/><line class="hatch" y2="6"/></pattern></defs>'
    )
    for start, end in series.without_majority:
        x, wide = frame.x(start), frame.wide(end - start)
        title = f"<title>no majority can be reached, {start:.1f}–{end:.1f} s</title>"
        for row in ("appends", "waits"):
            box = f'x="{x:.1f}" y="{frame.top(row)}" width="{wide:.1f}" height="{HEIGHTS[row]}"'
            yield f'<rect fill="url(#hatch)" {box}>{title}</rect>'


def _appends(series: Series, frame: Frame) -> Iterable[str]:
    top, height = frame.top("appends"), HEIGHTS["appends"]
    most = max((sum(bucket.counts.values()) for bucket in series.buckets), default=0) or 1
    yield from frame.title("appends", "appends a second")
    yield from frame.scale(
        "appends", [(1.0, f"{most / series.bucket_s:,.0f}"), (0.5, f"{most / series.bucket_s / 2:,.0f}")]
    )
    wide = max(0.6, series.bucket_s / max(series.seconds, 1e-9) * WIDE - 0.8)
    for bucket in series.buckets:
        base: float = top + height
        for end in END_STATES:
            tall = bucket.counts[end] / most * height
            if tall:
                base -= tall
                x = frame.x(bucket.start_s)
                yield f'<rect class="{end}" x="{x:.1f}" y="{base:.1f}" width="{wide:.1f}" height="{tall:.1f}"/>'


def _waits(series: Series, frame: Frame) -> Iterable[str]:
    """Draws waits, logarithmic, from 1 ms on."""
    yield from frame.title("waits", "how long an acknowledged append took")
    yield from frame.scale("waits", [(frame.wait_share(wait), label) for wait, label in frame.WAITS])
    line: list[str] = []
    for bucket in series.buckets:
        middle, longest = bucket.wait_s(0.5), bucket.wait_s(1.0)
        x = frame.x(bucket.start_s + series.bucket_s / 2)
        if middle is None or longest is None:
            yield from _line(line)
            line = []
            continue
        y = frame.wait_y(middle)
        line.append(f"M{x - 1:.1f},{y:.1f}h2" if not line else f"L{x:.1f},{y:.1f}")
        yield f'<circle class="max" cx="{x:.1f}" cy="{frame.wait_y(longest):.1f}" r="2"/>'
    yield from _line(line)


def _line(parts: list[str]) -> Iterable[str]:
    """Draws a line; one moment alone is a short stroke."""
    if parts:
        yield f'<path class="p50" d="{"".join(parts)}"/>'


def _state(stretch: Stretch, frame: Frame) -> Iterable[str]:
    x, wide = frame.x(stretch.start_s), frame.wide(stretch.end_s - stretch.start_s)
    y, tall = frame.top(stretch.node), HEIGHTS["state"]
    words = f"{stretch.node} {stretch.state}, term {stretch.term}: {stretch.start_s:.1f}–{stretch.end_s:.1f} s"
    title = f"<title>{escape(f'{words} {stretch.reason}'.strip())}</title>"
    rect = f'<rect class="{escape(stretch.state)}" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{tall}" rx="2">'
    yield f"{rect}{title}</rect>"
    if stretch.state == "MASTER" and wide > 8 + DIGIT * len(str(stretch.term)):
        yield f'<text class="term" x="{x + 4:.1f}" y="{y + tall - 5}">{stretch.term}</text>'


def _fault(fault: Fault, frame: Frame) -> Iterable[str]:
    x, wide = frame.x(fault.start_s), max(2.0, frame.wide(fault.end_s - fault.start_s))
    lanes = ["partitions"] if fault.kind == "partition" else [name for name in fault.nodes if name in frame.names]
    missed = "" if fault.struck else " missed"
    title = f"<title>{escape(_fault_words(fault))}</title>"
    for lane in lanes:
        y = frame.fault_y(lane, fault.kind)
        tall = HEIGHTS["mark"] if lane != "partitions" else HEIGHTS["partitions"] - 4
        box = f'x="{x:.1f}" y="{y}" width="{wide:.1f}" height="{tall}" rx="2"'
        yield f'<rect class="mark {fault.kind}{missed}" {box}>{title}</rect>'
        words = f"{fault.way} {' '.join(fault.nodes)}"
        if lane == "partitions" and wide > 6 * len(words):
            yield f'<text class="term" x="{x + 4:.1f}" y="{y + tall - 5}">{escape(words)}</text>'


def _fault_words(fault: Fault) -> str:
    words = f"{fault.kind} {fault.way} {' '.join(fault.nodes)}, {fault.start_s:.1f}–{fault.end_s:.1f} s {fault.detail}"
    return words.strip() + ("" if fault.struck else " (met nothing)")


def _tiles(outcome: Outcome) -> str:
    ops = outcome.ops
    figures = [
        (f"{ops['ok']:,}", "acknowledged"),
        (f"{ops['fail']:,}", "failed"),
        (f"{ops['info']:,}", "unknown"),
        (f"{max(0, len(outcome.masters) - 1)}", "changes of master"),
        (f"{sum(outcome.faults.values())}", "faults struck"),
        (f"{outcome.entries:,}", "entries read at the end"),
        *([(f"{outcome.audited:,}", "found in all copies by Spark")] if outcome.audited else []),
        (f"{sum(outcome.found.counts.values()):,}", "anomalies"),
    ]
    return "".join(f'<div class="tile"><b>{figure}</b><span>{label}</span></div>' for figure, label in figures)


def _anomalies(outcome: Outcome) -> str:
    items = [f'<li class="bad">{escape(str(each))}</li>' for each in outcome.found.all()]
    items += [f"<li>lacks: {escape(why)}</li>" for why in outcome.lacks]
    return f'<section class="card"><h2>Findings</h2><ul>{"".join(items)}</ul></section>' if items else ""


def _legend(series: Series) -> str:
    shown = [("ok", "acknowledged"), ("fail", "failed"), ("info", "unknown"), ("master", "master (its term)")]
    shown += [("replica", "replica"), ("unknown", "neither"), ("none", "no answer")]
    shown += (
        [("bad", "damaged or halted")] if any(each.state in ("DAMAGED", "HALTED") for each in series.stretches) else []
    )
    struck = {fault.kind for fault in series.faults}
    shown += [(kind, kind) for kind in KINDS_SHOWN if kind in struck]
    items = "".join(
        f'<span><i class="{name}" style="background: var(--{name})"></i>{label}</span>' for name, label in shown
    )
    items += '<span><i class="hatched"></i>no majority can be reached</span>' if series.without_majority else ""
    items += "<span>pale: a fault that met nothing</span><span>line: p50, dots: longest</span>"
    return f'<div class="legend">{items}</div>'


def _fault_table(faults: Sequence[Fault]) -> str:
    if not faults:
        return '<p class="dim">none were asked for</p>'
    rows = "".join(
        f'<tr><td class="n">{fault.start_s:.1f}</td><td class="n">{fault.end_s - fault.start_s:.1f}</td>'
        f"<td>{escape(fault.kind)}</td><td>{escape(fault.way)}</td><td>{escape(' '.join(fault.nodes))}</td>"
        f"<td>{escape(fault.detail)}</td><td>{'struck' if fault.struck else 'met nothing'}</td></tr>"
        for fault in faults
    )
    head = '<th class="n">at s</th><th class="n">for s</th><th>kind</th><th>way</th><th>nodes</th><th></th><th></th>'
    return f"<table><tr>{head}</tr>{rows}</table>"


def _data(series: Series) -> str:
    document = {
        "left": LEFT,
        "wide": WIDE,
        "width": WIDTH,
        "seconds": series.seconds,
        "bucket_s": series.bucket_s,
        "buckets": [
            [*(bucket.counts[end] for end in END_STATES), bucket.wait_s(0.5), bucket.wait_s(1.0)]
            for bucket in series.buckets
        ],
        "stretches": [
            [each.node, round(each.start_s, 3), round(each.end_s, 3), each.state, each.term, each.reason]
            for each in series.stretches
        ],
        "faults": [
            [
                each.kind,
                round(each.start_s, 3),
                round(each.end_s, 3),
                f"{each.way} {' '.join(each.nodes)} {each.detail}",
            ]
            for each in series.faults
        ],
    }
    return json.dumps(document).replace("</", "<\\/")
