"""The HTML report: well formed, nothing from outside, nothing hostile in it, and bounded whatever it shows."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repl.audit.digest import RangeDigest
from repl.audit.findings import Finding
from repl.audit.page import page_of
from repl.audit.page.figures import ceiling, moment, size_ceiling
from repl.audit.page.markup import tag
from repl.audit.page.vlsn_space import BINS, Axis, _binned
from repl.audit.report import (
    AuditReport,
    Histogram,
    HistoryReport,
    OvermarkRow,
    SegmentRow,
    Series,
    SourceReport,
    Span,
    range_rows,
)
from tests.repl.audit.jobs import audited
from tests.repl.audit.logs import three

TAGS = {
    *("html", "head", "meta", "title", "link", "style", "body", "main", "header", "section", "footer", "div", "p"),
    *("h1", "h2", "h3", "em", "b", "i", "a", "span", "strong", "small", "code", "table", "thead", "tbody", "tr", "th"),
    *("td", "dl", "dt", "dd", "figure", "figcaption", "article", "details", "summary", "svg", "rect", "path", "line"),
}
VOID = {"meta", "link"}


class Page(HTMLParser):
    """A page as a browser reads it: its elements, and its text by element."""

    def __init__(self, data: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(data.decode())
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)

    def count(self, tag: str, **attributes: str) -> int:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return sum(name == tag and wanted.items() <= found.items() for name, found in self.elements)


def harmless(page: Page) -> None:
    """Checks that a browser runs nothing of it and asks nobody for anything."""
    assert {tag for tag, _ in page.elements} <= TAGS
    for tag_, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "srcdoc", "action")]
        target = attributes.get("href") or "#"
        assert target.startswith("#") or (tag_ == "link" and target.startswith("data:image/svg+xml,"))
    assert page.count("meta", http_equiv="x") == 0
    policies = [found["content"] for _, found in page.elements if found.get("http-equiv") == "Content-Security-Policy"]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_the_page_of_an_audit_shows_what_was_found(tmp_path: Path) -> None:
    copies = three(tmp_path)
    copies[0].flip(501, 120)
    report = audited(*copies)
    page = Page(page_of(report))
    harmless(page)
    assert "not equal, 1 finding" in page.text
    assert "the frame's crc, or its padding, is wrong" in page.text
    ids = {found["id"] for _, found in page.elements if "id" in found}
    links = {(found["href"] or "")[1:] for tag, found in page.elements if tag == "a"}
    assert links == {"findings", "rule-frame-crc"} <= ids
    assert page.count("path", class_="finding") == 2  # one in the legend
    assert page.count("rect", class_="hole") == 2
    assert page.count("rect", class_="differs") == 3  # in the whole log, and at its end
    segments = page.count("rect", class_="segment") + page.count("rect", class_="segment odd")
    listed = [row for source in report.sources for row in source.segments if row.last]
    ending = [row for row in listed if row.last >= report.compared_to]  # these are drawn again at the end
    assert len(listed) + len(ending) + 1 == segments


def test_the_page_of_equal_copies_says_so(tmp_path: Path) -> None:
    page = Page(page_of(audited(*three(tmp_path))))
    harmless(page)
    assert "equal" in page.words and "not equal" not in page.text
    assert "Findings" not in page.text


EVIL = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</title></style><script>",
    "' onmouseover='x",
    "&lt;b&gt;",
    "javascript:alert(1)",
    "a\u202eb\x00c\ud800",
    "{}:*;}</svg>",
]
WORDS = st.one_of(st.sampled_from(EVIL), st.text(max_size=20))
VALUES: Any = st.recursive(WORDS | st.integers() | st.none(), lambda inner: st.dictionaries(WORDS, inner, max_size=3))
FACTS: Any = st.dictionaries(WORDS, VALUES, max_size=4)
NUMBERS = st.integers(0, 2**63)


@st.composite
def reports(draw: st.DrawFn) -> AuditReport:
    names = draw(st.lists(WORDS, min_size=1, max_size=4))
    sources = []
    for name in names:
        first = draw(st.integers(0, 2**62))
        last = first + draw(st.integers(0, 2**40))
        inside = st.integers(first, last)
        times = sorted(draw(st.sets(st.integers(0, 480), max_size=5)))
        columns = [draw(st.lists(st.integers(0, 2**40), min_size=len(times), max_size=len(times))) for _ in range(5)]
        width = 1_000_000
        sources.append(
            SourceReport(
                source=name,
                node=draw(WORDS),
                path=draw(WORDS),
                incarnation=draw(WORDS),
                first=first,
                last=last,
                dtvlsn=draw(NUMBERS),
                bytes=draw(NUMBERS),
                blocks=draw(NUMBERS),
                entries=draw(NUMBERS),
                live=draw(st.booleans()),
                torn_tail=draw(st.booleans()),
                ranges=range_rows([RangeDigest(first >> 16, 1, 1, draw(st.binary(min_size=32, max_size=32)))]),
                segments=[SegmentRow(number=1, file=draw(WORDS), bytes=9, first=draw(inside), last=last)],
                overmarks=[OvermarkRow(file=draw(WORDS), offset=1, last_offset=2, first=draw(inside), last=last + 9)],
                holes=[Span(first=draw(inside), last=last)],
                series=Series(
                    width_us=width,
                    at_us=[at * width for at in times],
                    entries=columns[0],
                    bytes=columns[1],
                    blocks=columns[2],
                    lag_mean=[float(each) for each in columns[3]],
                    lag_max=columns[4],
                ),
                entry_sizes=Histogram(counts=[0, 1, 5], sampled=6, mean=2.0),
            )
        )
    findings = [
        Finding(
            rule=draw(WORDS),
            source=draw(st.sampled_from([*names, *EVIL])),
            file=draw(WORDS),
            offset=draw(NUMBERS),
            vlsn=draw(NUMBERS),
            detail=draw(WORDS),
            more=draw(FACTS),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    history = HistoryReport(file=draw(WORDS), appends=3, everywhere=2, cleaned=0, once=0, findings=1)
    return AuditReport(
        equal=draw(st.booleans()),
        compared_from=draw(NUMBERS),
        compared_to=draw(NUMBERS),
        sources=sources,
        findings=findings,
        ranges_differing=draw(NUMBERS),
        tasks=draw(NUMBERS),
        seconds=draw(st.floats(0, 1e9)),
        history=draw(st.none() | st.just(history)),
        group=draw(WORDS),
        tool=draw(WORDS),
        made_us=draw(NUMBERS),
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(reports())
def test_no_name_key_or_value_is_ever_more_than_text(report: AuditReport) -> None:
    harmless(Page(page_of(report)))


@given(st.sampled_from(EVIL) | st.text())
def test_text_is_escaped_where_it_is_put_in(words: str) -> None:
    page = Page(tag("p", words, title=words).encode())
    ((name, attributes),) = page.elements
    assert (name, attributes["title"] or "") == ("p", page.text)
    if words.isprintable():
        assert page.text == words


def test_a_hundred_thousand_segments_make_a_page_of_bounded_size(tmp_path: Path) -> None:
    (source, *_) = audited(*three(tmp_path)).sources
    every, blocks = 100_000, 1000
    segments = [
        SegmentRow(number=n, file=f"{n:08}.vlog", bytes=1, first=1 + (n - 1) * blocks, last=n * blocks)
        for n in range(1, every + 1)
    ]
    marks = [OvermarkRow(file="x", offset=1, last_offset=2, first=at, last=at + 3) for at in range(1, 10**8, 10**3)]
    holes = [Span(first=at, last=at) for at in range(7, 10**8, 10**4)]
    large = msgspec.structs.replace(
        source, segments=segments, overmarks=marks, holes=holes, first=1, last=every * blocks, dtvlsn=every * blocks
    )
    finding = Finding(rule="frame-crc", source=large.source, file="x", offset=1, vlsn=5)
    report = AuditReport(
        equal=False,
        compared_from=1,
        compared_to=every * blocks,
        sources=[large, msgspec.structs.replace(large, source="b", node="b")],
        findings=[_at(finding, at) for at in range(1, 10**7, 10**3)],
        ranges_differing=1,
        tasks=1,
        seconds=1.0,
    )
    data = page_of(report)
    assert len(data) < 1_000_000
    assert len(Page(data).elements) < 4 * 4 * BINS + 500 * 12 + 1000
    assert "and 9,500 more" in Page(data).text


def _at(finding: Finding, vlsn: int) -> Finding:
    return Finding(rule=finding.rule, source=finding.source, file=finding.file, offset=finding.offset, vlsn=vlsn)


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 3000)), max_size=30))
def test_bins_hold_every_span_and_nothing_else(pairs: list[tuple[int, int]]) -> None:
    axis = Axis(1, 10_000)
    spans = [(first, min(first + more, 10_000)) for first, more in pairs]
    covered = {at for low, high, _ in _binned(axis, spans) for at in range(low, high)}
    assert covered == {at for first, last in spans for at in range(axis.bin(first), axis.bin(last) + 1)}
    assert sum(number for _, _, number in _binned(axis, spans)) == len(spans)


@given(st.floats(0, 1e15))
def test_an_axis_reaches_over_its_values_and_not_far(highest: float) -> None:
    for top_of in (ceiling, size_ceiling):
        top = top_of(highest)
        assert top >= highest * 0.999999
        assert top <= max(1.0, highest * 2.6)


@given(st.integers(-(2**63), 2**63), st.integers(0, 2**62))
def test_any_time_can_be_told(us: int, span: int) -> None:
    assert moment(us, span)


def test_rules_have_their_texts() -> None:
    page = Path(__file__).parents[3] / "docs" / "audit-rules.md"
    texts = json.loads((Path(page_of.__code__.co_filename).parent / "rules.json").read_text())
    assert all(each["says"] and each["do"] for each in texts.values())
    if page.exists():
        told = page.read_text()
        for rule, each in texts.items():
            section = told.partition(f"### `{rule}`\n\n")[2].partition("\n## ")[0].partition("\n### ")[0] + "\n"
            assert section.startswith(f"{each['says']}\n"), rule
            assert f"* **Cause.** {each['cause']}\n" in section, rule
            assert f"* **Do.** {each['do']}\n" in section, rule
