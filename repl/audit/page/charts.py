"""Draws charts over time, bars of sizes, and histograms. A chart is inline SVG that stretches, with HTML text beside
it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

from repl.audit.page.figures import ceiling, count, duration, moment, size
from repl.audit.page.markup import Children, Markup, tag
from repl.audit.report import Histogram, Series, SourceReport

_WIDTH, _HEIGHT = 1000, 100
_UNLIKE = 50
"""Copies are drawn as one line if at most one in ``_UNLIKE`` buckets differs. The last bucket of a copy that ends
before the others always differs."""
COLOURS = 6
"""The most lines in a chart; they differ by colour and dash. If more copies differ, the page says how many are not
drawn."""


def over_time(
    title: str,
    words: str,
    copies: Sequence[SourceReport],
    values: Callable[[Series], Sequence[float]],
    unit: Callable[[float], str],
    top_of: Callable[[float], float] = ceiling,
) -> Markup | None:
    """Draws the values of each copy's series over time. Copies with the same values are one line."""
    lines = _alike([(copy.node, copy.series, tuple(values(copy.series))) for copy in copies if copy.series.at_us])
    if not lines:
        return None
    width = lines[0][1].width_us
    begun = min(series.at_us[0] for _, series, _ in lines)
    ended = max(series.at_us[-1] for _, series, _ in lines) + width
    highest = max(max(drawn) for _, _, drawn in lines)
    top = top_of(highest)
    shapes: list[Children] = [
        tag("line", x1=0, x2=_WIDTH, y1=_HEIGHT * part / 4, y2=_HEIGHT * part / 4) for part in range(4)
    ]
    for index, (_, series, drawn) in enumerate(lines[:COLOURS]):
        path = _steps(series, drawn, begun, ended, top)
        closed = f"{path}V{_HEIGHT}H{_x(series.at_us[0], begun, ended):.2f}Z"
        shapes.append(tag("path", d=closed, class_=f"area c{index}"))
        shapes.append(tag("path", d=path, class_=f"line c{index}"))
    picture = tag(
        "svg",
        shapes,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=f"{title}, at most {unit(highest)}",
    )
    scale = [tag("span", unit(top * (4 - part) / 4), style=f"top:{25 * part}%") for part in (0, 2, 4)]
    span = ended - begun
    times = tag("div", [tag("span", moment(begun + span * part // 2, span)) for part in range(3)], class_="scale")
    named = [
        tag("span", tag("i", class_=f"c{index}"), ", ".join(names))
        for index, (names, _, _) in enumerate(lines[:COLOURS])
    ]
    more = tag("span", f"and {len(lines) - COLOURS} more") if len(lines) > COLOURS else None
    return tag(
        "figure",
        tag("figcaption", tag("b", title), tag("span", f"{words}; in buckets of {duration(width)}", class_="quiet")),
        tag("div", tag("div", picture, tag("div", scale, class_="rule"), class_="plot"), times, class_="chart"),
        tag("p", named, more, class_="legend"),
    )


Line = tuple[list[str], Series, tuple[float, ...]]


def _alike(found: Iterable[tuple[str, Series, tuple[float, ...]]]) -> list[Line]:
    """Returns one line for each group of copies that have the same values during their common time. The longest copy of
    a group is drawn."""
    lines: list[Line] = []
    for name, series, drawn in sorted(found, key=lambda each: -each[1].at_us[-1]):
        same = next((line for line in lines if _differ(line, series, drawn) <= 1 + len(drawn) // _UNLIKE), None)
        if same is not None:
            same[0].append(name)
        else:
            lines.append(([name], series, drawn))
    return [(sorted(names), series, drawn) for names, series, drawn in lines]


def _differ(line: Line, series: Series, drawn: Sequence[float]) -> int:
    """Counts the buckets in which a copy's values differ from those of a line."""
    told = dict(zip(line[1].at_us, line[2], strict=True))
    return sum(told.get(at) != value for at, value in zip(series.at_us, drawn, strict=True))


def _x(at: int, begun: int, ended: int) -> float:
    return _WIDTH * (at - begun) / (ended - begun)


def _steps(series: Series, drawn: Sequence[float], begun: int, ended: int, top: float) -> str:
    """Returns a path of steps, one for each bucket. The path falls to zero where there is no bucket."""

    def y(value: float) -> str:
        return f"{_HEIGHT * (1 - value / top):.2f}"

    width = series.width_us
    path = f"M{_x(series.at_us[0], begun, ended):.2f} {y(drawn[0])}"
    for (at, _), (following, value) in pairwise(zip(series.at_us, drawn, strict=True)):
        path += f"H{_x(at + width, begun, ended):.2f}"
        if following > at + width:
            path += f"V{_HEIGHT}H{_x(following, begun, ended):.2f}"
        path += f"V{y(value)}"
    return path + f"H{_x(series.at_us[-1] + width, begun, ended):.2f}"


def a_second(series: Series, column: Sequence[int]) -> list[float]:
    """Converts a column of sums per bucket into rates per second."""
    return [value * 1e6 / series.width_us for value in column]


KINDS = ("segments", "index", "state", "sidecars", "aside")


def disk_use(copies: Sequence[SourceReport]) -> Markup | None:
    """Draws the disk space of each kind of file, one bar for each copy."""
    totals = [sum(max(0, getattr(copy.sizes, kind)) for kind in KINDS) for copy in copies]
    if not any(totals):
        return None
    rows = []
    for copy, total in zip(copies, totals, strict=True):
        bars, left = [], 0.0
        for index, kind in enumerate(KINDS):
            taken = max(0, getattr(copy.sizes, kind))
            wide = 100 * taken / max(totals)
            words = tag("title", f"{kind}: {size(taken)}")
            bars.append(tag("rect", words, x=f"{left:.3f}%", width=f"{wide:.3f}%", height="16", class_=f"c{index}"))
            left += wide
        picture = tag("svg", bars, height="16", role="img", aria_label=f"{copy.node}: {size(total)}")
        rows.append(
            tag(
                "div",
                tag("b", copy.node),
                tag("div", picture, class_="drawn"),
                tag("span", size(total), class_="quiet"),
                class_="lane",
            )
        )
    told = [kind for kind in KINDS if any(getattr(copy.sizes, kind) > 0 for copy in copies)]
    legend = [tag("span", tag("i", class_=f"c{KINDS.index(kind)}"), kind) for kind in told]
    caption = tag(
        "figcaption",
        tag("b", "On disk"),
        tag("span", "what each copy's files take; a node tells only its segments over HTTP", class_="quiet"),
    )
    return tag("figure", caption, tag("div", rows, class_="lanes"), tag("p", legend, class_="legend"), class_="wide")


def histogram(title: str, words: str, found: Histogram) -> Markup | None:
    """Draws counts by powers of two, from the smallest to the largest size that occurs."""
    used = [index for index, number in enumerate(found.counts) if number]
    if not used:
        return None
    low, high = used[0], used[-1]
    most = max(found.counts)
    step = 100 / (high - low + 1)
    bars = [
        tag(
            "rect",
            tag("title", f"{_bounds(index)}: {count(found.counts[index])} ({found.counts[index] / found.sampled:.1%})"),
            x=f"{(index - low) * step + step * 0.08:.3f}%",
            width=f"{step * 0.84:.3f}%",
            y=f"{100 - 100 * found.counts[index] / most:.3f}%",
            height=f"{100 * found.counts[index] / most:.3f}%",
            class_="c0",
        )
        for index in range(low, high + 1)
        if found.counts[index]
    ]
    shown = sorted({low, (low + high) // 2, high})
    labels = [tag("span", _bounds(index)) for index in shown]
    if len(shown) == 1:
        labels = [tag("span", ""), *labels, tag("span", "")]
    picture = tag("svg", bars, role="img", aria_label=f"{title}: mean {size(found.mean)}")
    told = f"{words}; mean {size(found.mean)}"
    return tag(
        "figure",
        tag("figcaption", tag("b", title), tag("span", told, class_="quiet")),
        tag("div", tag("div", picture, class_="plot bars"), tag("div", labels, class_="scale"), class_="chart"),
    )


def _bounds(index: int) -> str:
    if index < 2:
        return ("empty", "1 B")[index]
    return (
        f"{size(2 ** (index - 1))} – {size(2**index - 1)}"
        if index < 11
        else f"{size(2 ** (index - 1))} – {size(2**index)}"
    )
