"""The page of an audit's report: verdict, copies, VLSN space, findings, lag and throughput, sizes, rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any, Final

import msgspec

from repl.audit.digest import Checksums
from repl.audit.findings import Finding, told
from repl.audit.page.charts import a_second, disk_use, histogram, over_time
from repl.audit.page.figures import count, short, size, size_ceiling
from repl.audit.page.markup import Children, Markup, tag
from repl.audit.page.vlsn_space import vlsn_space
from repl.audit.report import AuditReport, SourceReport

_FILES: Final = files(__package__)
RULE_TEXTS: Final = msgspec.json.decode(_FILES.joinpath("rules.json").read_bytes(), type=dict[str, dict[str, str]])
"""Each rule's sentence, usual cause and remedy, copied from docs/audit-rules.md for readers who have only the page."""
FINDINGS_SHOWN: Final = 500
"""The most rows in the page's table of findings. The JSON report has all findings."""
_FACT_CHARACTERS: Final = 240
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_ICON: Final = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 16 16'%3E"
    "%3Cpath d='M2 3h12v2H2zm0 4h12v2H2zm0 4h7v2H2z' fill='%234a7dff'/%3E%3C/svg%3E"
)


def page_of(report: AuditReport) -> bytes:
    """Returns the page, UTF-8."""
    style = _FILES.joinpath("style.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"Audit of {report.group}: {_verdict(report)[1]}"),
        Markup(f'<link rel="icon" href="{_ICON}">'),
        tag("style", Markup(style)),
    )
    body = tag("body", tag("main", [*_sections(report)]))
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n".encode()


def _sections(report: AuditReport) -> Iterable[Children]:
    yield _header(report)
    yield _section(f"Not audited ({count(len(report.not_audited))})", _left(report)) if report.partial else None
    yield _section("Copies", _copies(report))
    yield _section("VLSN space", vlsn_space(report))
    yield _section(f"Findings ({count(len(report.findings))})", _findings(report)) if report.findings else None
    yield _section("Over time", tag("div", _times(report), class_="charts"))
    yield _section("Sizes", tag("div", _sizes(report), class_="charts"))
    yield _section("Digests", _digests(report))
    yield _section("Rules", _rules(report))
    made = f"vlsnlog {report.tool}, {_made(report)}" if report.made_us else f"vlsnlog {report.tool}"
    yield tag("footer", made, class_="quiet")


def _section(title: str, *children: Children) -> Markup:
    return tag("section", tag("h2", title), children)


def _verdict(report: AuditReport) -> tuple[str, str]:
    """Returns the verdict: its CSS class and its words."""
    number = len(report.findings)
    findings = f"{count(number)} finding{'' if number == 1 else 's'}"
    if not report.compared_to:
        return "warn" if not number else "bad", f"nothing was compared{f', {findings}' if number else ''}"
    if report.partial:
        return ("bad", f"partial, {findings}") if number else ("warn", "partial: not everything was audited")
    if report.equal and not number:
        return "good", "equal"
    return "bad", f"{'equal' if report.equal else 'not equal'}, {findings}"


def _header(report: AuditReport) -> Markup:
    kind, words = _verdict(report)
    compared = (
        f"VLSN {count(report.compared_from)} to {count(report.compared_to)} of {len(report.sources)} copies"
        if report.compared_to
        else "the copies have no durable VLSN in common"
    )
    entries = max((each.entries for each in report.sources), default=0)
    numbers = (
        (count(entries), "entries in the longest copy"),
        (size(report.bytes), "read, every checksum"),
        (f"{report.seconds:.1f} s", f"{report.mb_per_s:,.0f} MB/s, {count(report.tasks)} Spark tasks"),
        (count(report.ranges_differing), "ranges of 65,536 VLSNs that differ"),
    )
    history = report.history
    told: Children = None
    if history is not None:
        told = tag(
            "p",
            f"History: {count(history.everywhere)} of {count(history.appends)} acknowledged entries are in every copy; "
            f"{count(history.findings)} are not as they were acknowledged",
        )
    return tag(
        "header",
        tag(
            "div",
            tag("h1", "Audit of ", tag("em", report.group or "a log")),
            tag("span", _made(report), class_="quiet"),
        ),
        tag("p", tag("strong", words, class_="state"), tag("span", compared), class_=f"verdict {kind}"),
        told,
        tag("div", [tag("div", tag("b", figure), tag("span", label)) for figure, label in numbers], class_="numbers"),
    )


def _made(report: AuditReport) -> str:
    try:
        made = datetime.fromtimestamp(report.made_us / 1e6, UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return made.strftime("%Y-%m-%d %H:%M:%S UTC") if report.made_us else ""


def _copies(report: AuditReport) -> Markup:
    found = Counter(finding.source for finding in report.findings)
    furthest = max((each.last for each in report.sources), default=0)
    columns = ("node", "VLSNs", "durable", "behind", "entries", "blocks", "bytes", "segments", "findings", "source")
    return _table(columns, [_copy(each, found[each.source], furthest) for each in report.sources], words={0, 9})


def _copy(copy: SourceReport, findings: int, furthest: int) -> list[Children]:
    state = "live" if copy.live else "stopped"
    if copy.torn_tail:
        state += ", a torn tail"
    return [
        tag("b", copy.node),
        f"{count(copy.first)} – {count(copy.last)}" if copy.last else "none",
        count(copy.dtvlsn),
        count(furthest - copy.last),
        count(copy.entries),
        count(copy.blocks),
        size(copy.bytes),
        count(len(copy.segments)),
        tag("a", count(findings), href="#findings", class_="bad") if findings else "0",
        [copy.source, tag("small", f" {state}", class_="quiet")],
    ]


def _table(columns: Iterable[str], rows: Iterable[Iterable[Children]], *, words: set[int], id: str = "") -> Markup:
    """Makes a table. The columns in ``words`` are aligned left; all other columns, which hold numbers, are aligned
    right."""
    names = list(columns)
    kinds = ["words" if index in words else "figure" for index in range(len(names))]
    described = list(zip(names, kinds, strict=True))
    head = tag("tr", [tag("th", name, class_=kind) for name, kind in described])
    body = [
        tag(
            "tr",
            [
                tag("td", tag("div", cell), class_=kind, data_name=name)
                for cell, (name, kind) in zip(row, described, strict=True)
            ],
        )
        for row in rows
    ]
    return tag("div", tag("table", tag("thead", head), tag("tbody", body)), class_="scroll", id=id or None)


def _findings(report: AuditReport) -> Children:
    counts = Counter(str(finding.rule) for finding in report.findings)
    chips = [
        tag("a", rule, tag("b", count(number)), href=f"#rule-{rule}", class_="chip")
        for rule, number in counts.most_common()
    ]
    columns = ("rule", "VLSN", "copy", "where", "what")
    nodes = {each.source: each.node for each in report.sources}
    rows = [_finding(each, nodes) for each in report.findings[:FINDINGS_SHOWN]]
    left = len(report.findings) - FINDINGS_SHOWN
    more = tag("p", f"and {count(left)} more, in the JSON and the Parquet report", class_="quiet") if left > 0 else None
    return tag("p", chips, class_="chips"), _table(columns, rows, words={0, 2, 3, 4}, id="findings"), more


def _left(report: AuditReport) -> Children:
    """Makes the table of the parts that were not audited."""
    nodes = {each.source: each.node for each in report.sources}
    words = "This audit proves nothing of these parts. What was found elsewhere stands; what was not may be there."
    rows: list[list[Children]] = [
        [
            each.what,
            tag("span", nodes.get(each.source, each.source) or "–", title=each.source),
            [each.file or "–", tag("small", f" {count(each.segments)} files", class_="quiet")]
            if each.segments > 1
            else each.file or "–",
            f"{count(each.first)} – {count(each.last)}" if each.last else "–",
            each.why,
        ]
        for each in report.not_audited[:FINDINGS_SHOWN]
    ]
    left = len(report.not_audited) - FINDINGS_SHOWN
    more = tag("p", f"and {count(left)} more, in the JSON and the Parquet report", class_="quiet") if left > 0 else None
    table = _table(("what", "copy", "from", "VLSNs", "why"), rows, words={0, 1, 2, 4})
    return tag("p", words, class_="quiet"), table, more


def _finding(finding: Finding, nodes: Mapping[str, str]) -> list[Children]:
    rule = str(finding.rule)
    facts = [*_facts(finding.more)]
    listed = tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in facts]) if facts else None
    where = [finding.file, tag("small", f" at {count(finding.offset)}", class_="quiet")] if finding.file else "–"
    return [
        tag("a", rule, href=f"#rule-{rule}"),
        count(finding.vlsn) if finding.vlsn else "–",
        tag("span", nodes.get(finding.source, finding.source), title=finding.source),
        where,
        [finding.detail, listed, tag("p", "Mend: ", tag("code", finding.mend)) if finding.mend else None],
    ]


def _facts(more: Mapping[str, Any], under: str = "") -> Iterable[tuple[str, str]]:
    for name, value in more.items():
        if isinstance(value, Mapping):
            yield from _facts(value, f"{under}{name} ")
    for name, said in told({name: value for name, value in more.items() if not isinstance(value, Mapping)}):
        yield under + name, said if len(said) <= _FACT_CHARACTERS else said[:_FACT_CHARACTERS] + " …"


def _times(report: AuditReport) -> Children:
    copies = report.sources
    drawn = (
        over_time("Entries", "appended a second", copies, lambda one: a_second(one, one.entries), short),
        over_time("Bytes", "of log a second", copies, lambda one: a_second(one, one.bytes), size, size_ceiling),
        over_time(
            "Durable lag",
            "VLSNs not yet known durable, mean",
            copies,
            lambda one: one.lag_mean,
            short,
        ),
        over_time("Durable lag, worst", "the most", copies, lambda one: one.lag_max, short),
    )
    return drawn if any(drawn) else tag("p", "No visible block, no time.", class_="quiet")


def _sizes(report: AuditReport) -> Children:
    most = max(report.sources, key=lambda each: each.entries, default=None)
    if most is None:
        return None
    sampled = f"key and value, {count(most.entry_sizes.sampled)} of {most.node}"
    return (
        disk_use(report.sources),
        histogram("Entries", sampled, most.entry_sizes),
        histogram("Blocks", f"with their frames, all of {most.node}", most.block_sizes),
    )


def _digests(report: AuditReport) -> Children:
    rows: list[list[Children]] = []
    for each in report.sources:
        last = each.ranges[-1] if each.ranges else None
        rows.append(
            [
                tag("b", each.node),
                count(len(each.ranges)),
                tag("code", last.digest if last else "–"),
                tag("code", (last.chain or "not known") if last else "–"),
                tag("code", each.incarnation or "–"),
            ]
        )
    words = "The chain speaks for everything compared: copies with one chain hold the same blocks."
    if report.checksums is Checksums.CRC:
        words = "Blocks were compared by their CRCs: that finds faults, and no forger."
    table = _table(("node", "ranges", "last range's digest", "chain", "incarnation"), rows, words={0, 2, 3, 4})
    return tag("p", words, class_="quiet"), table


def _rules(report: AuditReport) -> Children:
    seen = {str(finding.rule) for finding in report.findings}
    named = {rule: RULE_TEXTS.get(rule, {}) for rule in [*RULE_TEXTS, *sorted(seen - RULE_TEXTS.keys())]}
    first = [_rule(rule, named[rule]) for rule in named if rule in seen]
    others = [_rule(rule, texts) for rule, texts in named.items() if rule not in seen]
    summary = "every rule of the audit" if not first else "the rules without a finding"
    return first, tag("details", tag("summary", summary), others)


def _rule(rule: str, texts: Mapping[str, str]) -> Markup:
    says, cause, do = (texts.get(name, "") for name in ("says", "cause", "do"))
    more = [tag("p", tag("b", name), " ", said) for name, said in (("Cause.", cause), ("Do.", do)) if said]
    return tag("article", tag("h3", tag("code", rule)), tag("p", says) if says else None, more, id=f"rule-{rule}")
