"""Draws a lane (a horizontal bar) for each copy: its segments along the VLSNs, and the missing, rolled-back and
differing ranges.

Everything is first sorted into ``BINS`` bins of the axis, so the number of shapes in a lane does not grow with the
number of segments. Positions are percentages, so that lines and marks keep their sizes on any screen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from repl.audit.digest import RANGE_BITS, differing
from repl.audit.majority import most
from repl.audit.page.figures import count
from repl.audit.page.markup import Children, Markup, tag
from repl.audit.report import AuditReport, SourceReport

BINS: Final = 720
SEGMENTS_DRAWN: Final = 240
"""If a copy has more segments than this, they are drawn as one bar, without their borders."""
_LEAST: Final = 0.3
"""The width of the narrowest mark, in percent of the lane."""
Spans = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Axis:
    """The axis of a lane, from VLSN ``first`` to ``last``, both inclusive."""

    first: int
    last: int

    @property
    def width(self) -> int:
        return self.last - self.first + 1

    def at(self, vlsn: float) -> float:
        """Returns the position of a VLSN's left edge, in percent."""
        return min(100.0, max(0.0, 100.0 * (vlsn - self.first) / self.width))

    def has(self, first: int, last: int) -> bool:
        return first <= self.last and last >= self.first

    def bin(self, vlsn: int) -> int:
        return min(BINS - 1, max(0, (vlsn - self.first) * BINS // self.width))


def vlsn_space(report: AuditReport) -> Children:
    """Draws the whole log, then the end of the log if the copies end at different VLSNs."""
    held = [each for each in report.sources if each.last]
    if not held:
        return tag("p", "No copy has a visible block.", class_="quiet")
    marks = [row.last for each in held for row in each.overmarks]
    whole = Axis(min(each.first for each in held), max([*marks, *(each.last for each in held)]))
    pieces: list[Children] = [_legend(report), _map(report, whole)]
    ends = [end for each in held for end in (each.last, min(each.dtvlsn, each.last))]
    spread = max(ends) - min(ends)
    if 0 < spread < whole.width // 8:
        zoomed = Axis(max(whole.first, max(ends) - 3 * spread), whole.last)
        pieces += [tag("h3", f"Its end, from VLSN {count(zoomed.first)}"), _map(report, zoomed)]
    return pieces


def _map(report: AuditReport, axis: Axis) -> Markup:
    wrong = _differing(report)
    lanes = [_lane(report, each, axis, wrong.get(index, [])) for index, each in enumerate(report.sources)]
    low, high = max(report.compared_from, axis.first), min(report.compared_to, axis.last)
    compared: Children = None
    if report.compared_to and low <= high:
        left, right = axis.at(low), axis.at(high + 1)
        words = f"compared: VLSN {count(report.compared_from)} to {count(report.compared_to)}"
        compared = _row("", tag("svg", _rect(left, right, 4, 4, "compared", words), height="12", aria_label=words), "")
    ticks = [axis.first + (axis.width - 1) * part // 4 for part in range(5)]
    scale = tag("div", [tag("span", count(each)) for each in ticks], class_="scale")
    return tag("div", compared, lanes, _row("", scale, "VLSN"), class_="lanes")


def _row(name: Children, drawn: Children, note: Children) -> Markup:
    return tag(
        "div", tag("b", name), tag("div", drawn, class_="drawn"), tag("span", note, class_="quiet"), class_="lane"
    )


def _lane(report: AuditReport, copy: SourceReport, axis: Axis, wrong: Spans) -> Markup:
    shapes: list[Children] = [tag("rect", x="0", y="17", width="100%", height="14", class_="void", rx="2")]
    shapes += _segments(copy, axis)
    shapes += _marks(axis, [(each.first, each.last) for each in copy.holes], 17, 14, "hole", "missing")
    shapes += _marks(axis, [(each.first, each.last) for each in copy.unread], 17, 14, "unread", "not audited")
    shapes += _marks(axis, wrong, 33, 4, "differs", "not what most copies hold")
    shapes += _marks(axis, [(each.first, each.last) for each in copy.overmarks], 39, 4, "over", "overmarked")
    for name, at in (("durable end", min(copy.dtvlsn, copy.last)),):
        if copy.last and axis.has(at, at):
            words = f"{name}: VLSN {count(at)}"
            shapes.append(_rect(axis.at(at + 1), axis.at(at + 1), 13, 22, "durable", words, least=0.0))
    shapes += _findings(report, copy, axis)
    words = f"{copy.node}: VLSN {copy.first} to {copy.last}, durable {copy.dtvlsn}"
    picture = tag("svg", shapes, height="48", role="img", aria_label=words)
    behind = max(each.last for each in report.sources) - copy.last
    note = f"{count(behind)} behind" if behind else "to the end"
    return _row(copy.node, picture, note)


def _segments(copy: SourceReport, axis: Axis) -> list[Children]:
    rows = [row for row in copy.segments if row.last and axis.has(row.first, row.last)]
    if len(rows) <= SEGMENTS_DRAWN:
        return [
            _rect(
                axis.at(row.first),
                axis.at(row.last + 1),
                17,
                14,
                "segment" if row.number % 2 else "segment odd",
                f"{row.file}: VLSN {count(row.first)} to {count(row.last)}, {count(row.entries)} entries",
                least=0.0,
            )
            for row in rows
        ]
    spans = _binned(axis, [(row.first, row.last) for row in rows])
    words = f"{count(len(rows))} segments"
    return [_rect(100 * low / BINS, 100 * high / BINS, 17, 14, "segment", words, least=0.0) for low, high, _ in spans]


def _marks(axis: Axis, spans: Iterable[tuple[int, int]], y: int, height: int, kind: str, words: str) -> list[Children]:
    """Draws spans of VLSNs. Spans that are close together are drawn as one."""
    inside = [(first, last) for first, last in spans if axis.has(first, last)]
    if len(inside) <= BINS // 4:
        return [
            _rect(axis.at(first), axis.at(last + 1), y, height, kind, f"{words}: VLSN {count(first)} to {count(last)}")
            for first, last in inside
        ]
    return [
        _rect(100 * low / BINS, 100 * high / BINS, y, height, kind, f"{words}: {count(several)} places")
        for low, high, several in _binned(axis, inside)
    ]


def _binned(axis: Axis, spans: Iterable[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Returns the runs (first, end) of bins that spans cover. Each run comes with the number of spans that begin in
    it."""
    begins, edges = [0] * BINS, [0] * (BINS + 1)
    for first, last in spans:
        low, high = axis.bin(first), axis.bin(last)
        begins[low] += 1
        edges[low] += 1
        edges[high + 1] -= 1
    runs: list[tuple[int, int, int]] = []
    depth = 0
    for at in range(BINS):
        depth += edges[at]
        if depth and runs and runs[-1][1] == at:
            runs[-1] = runs[-1][0], at + 1, runs[-1][2] + begins[at]
        elif depth:
            runs.append((at, at + 1, begins[at]))
    return runs


def _findings(report: AuditReport, copy: SourceReport, axis: Axis) -> list[Children]:
    """Draws a triangle for each bin in which the copy has a finding."""
    bins: dict[int, list[str]] = {}
    for finding in report.findings:
        if finding.source == copy.source and finding.vlsn and axis.has(finding.vlsn, finding.vlsn):
            bins.setdefault(axis.bin(finding.vlsn), []).append(f"{finding.rule} at VLSN {count(finding.vlsn)}")
    drawn: list[Children] = []
    for at, words in sorted(bins.items()):
        told = "; ".join(words[:3]) + (f"; and {len(words) - 3} more" if len(words) > 3 else "")
        place = 100 * (at + 0.5) / BINS
        drawn.append(
            tag(
                "svg",
                tag("path", tag("title", told), d="M-6 1H6L0 12Z", class_="finding"),
                x=f"{place:.3f}%",
                y="2",
                overflow="visible",
            )
        )
    return drawn


def _rect(left: float, right: float, y: int, height: int, kind: str, words: str, least: float = _LEAST) -> Markup:
    width = max(right - left, least)
    left = min(left, 100.0 - width)
    title = tag("title", words)
    size = f"{width:.3f}%" if width else "2"
    return tag("rect", title, x=f"{left:.3f}%", y=y, width=size, height=height, class_=kind)


def _differing(report: AuditReport) -> dict[int, Spans]:
    """Returns, by the index of each copy, the ranges in which the copy differs from most copies. The ranges are joined,
    and limited to the compared VLSNs."""
    digests = [each.digests for each in report.sources]
    found: dict[int, Spans] = {}
    for at in differing(digests, [each.knows for each in report.sources]):
        votes = [each.get(at) for each in digests]
        said = [vote for vote, each in zip(votes, report.sources, strict=True) if each.knows(at)]
        right, _ = most(said)
        first = max(at << RANGE_BITS, report.compared_from)
        last = min(((at + 1) << RANGE_BITS) - 1, report.compared_to)
        for index, vote in enumerate(votes):
            if vote != right and report.sources[index].knows(at):
                spans = found.setdefault(index, [])
                if spans and spans[-1][1] + 1 == first:
                    spans[-1] = spans[-1][0], last
                else:
                    spans.append((first, last))
    return found


_WORDS: Final = (
    ("segment", "segments"),
    ("compared", "compared"),
    ("durable", "durable end"),
    ("differs", "range that is not the majority's"),
    ("hole", "missing"),
    ("unread", "not audited"),
    ("over", "overmarked: rolled back"),
)


def _legend(report: AuditReport) -> Markup:
    shown: Sequence[tuple[str, str]] = _WORDS
    entries = [
        tag("span", tag("svg", tag("rect", width="14", height="10", class_=kind), width="14", height="10"), words)
        for kind, words in shown
    ]
    mark = tag("svg", tag("path", d="M1 0H13L7 10Z", class_="finding"), width="14", height="10")
    return tag("p", entries, tag("span", mark, "finding"), class_="legend")
