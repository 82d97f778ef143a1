"""The site that ``make docs`` builds: it has every page, it shows what the repository shows, and needs no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Final

import pytest
from markdown_it import MarkdownIt

ROOT: Final = Path(__file__).parents[2]
CONFIG: Final = "docs/site/mkdocs.yml"
OUTSIDE: Final = {"README.md": "about", "CONTRIBUTING.md": "contributing", "CHANGELOG.md": "changelog"}
SHOWN: Final = ("h1", "h2", "h3", "h4", "li", "ol", "ul", "table", "tr", "td", "th", "pre", "code", "strong", "em")
pytestmark = pytest.mark.long


def _build(to: Path, config: Path = ROOT / CONFIG) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(to)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    to = tmp_path_factory.mktemp("site")
    built = _build(to)
    assert built.returncode == 0 and "WARNING" not in built.stderr, built.stderr
    return to


def _pages() -> Iterator[tuple[Path, str]]:
    """Yields each page of the repository with its path in the site."""
    yield from ((ROOT / page, f"{name}.html") for page, name in OUTSIDE.items())
    for page in sorted((ROOT / "docs").rglob("*.md")):
        yield page, str(page.relative_to(ROOT / "docs").with_suffix(".html")).replace("README", "index")


def _article(site: Path, name: str) -> str:
    article = (site / name).read_text().split("<article", 1)[1].split("</article>", 1)[0]
    return re.sub(r'<a class="headerlink".*?</a>', "", article)


def _tags(html: str) -> Counter[str]:
    found = Counter(re.findall(r"<(\w+)[ >]", html))
    return Counter({name: found[name] for name in SHOWN if name != "pre"} | {"pre": len(re.findall("<pre>", html))})


def test_each_page_shows_in_the_site_what_it_shows_in_the_repository(site: Path) -> None:
    """The repository's host reads CommonMark, whose rules for lists differ from the site's."""
    host = MarkdownIt("commonmark").enable("table")
    differing = {}
    for page, name in _pages():
        there, here = _tags(host.render(page.read_text())), _tags(_article(site, name))
        if there != here:
            differing[name] = {tag: (there[tag], here[tag]) for tag in SHOWN if there[tag] != here[tag]}
    assert differing == {}


def test_bars_in_tables_are_shown_without_a_backslash(site: Path) -> None:
    assert "N|start|end|TIME" in _article(site, "reference/cli.html")
    assert [name for _, name in _pages() if re.search(r"<td>[^\n]*\\\|", _article(site, name))] == []


def test_no_page_fetches_anything_from_another_server(site: Path) -> None:
    fetching = re.compile(r"<(?:script|img|iframe|link)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    assert [(page.name, tag) for page in pages for tag in fetching.findall(page.read_text())] == []
    styles = [style.read_text() for style in site.rglob("*.css")]
    assert styles and not any(re.search(r"url\([\"']?https?:|@import", style) for style in styles)


def test_links_to_code_lead_to_pages_with_that_code(site: Path) -> None:
    tour = _article(site, "tour.html")
    links = set(re.findall(r'href="(source/[^"#]+)"', tour))
    assert len(links) > 50
    for link in links:
        path = link.removeprefix("source/").removesuffix(".html")
        shown = unescape(re.sub(r"<[^>]+>", "", _article(site, link)))
        assert (ROOT / path).read_text().strip() in shown


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[gone](gone.md)", "gone.md"),
        ("[gone](../vlsn/gone.py)", "vlsn/gone.py"),
        ("[gone](design.md#gone)", "#gone"),
        ("[gone](#gone)", "#gone"),
        ("[gone](https:///path)", "https:///path"),
        ("[gone](/design.md)", "/design.md"),
        ("alone", "not included in the"),
    ],
)
def test_a_fault_in_a_page_fails_the_build(tmp_path: Path, text: str, fault: str) -> None:
    docs = tmp_path / "docs"
    (docs / "site").mkdir(parents=True)
    (docs / "decisions").mkdir()
    for name in ("hook.py", "extra.css", "worker.js"):
        (docs / "site" / name).write_bytes((ROOT / "docs/site" / name).read_bytes())
    for name in OUTSIDE:
        (tmp_path / name).write_text("# A page\n")
    (docs / "README.md").write_text(f"# Pages\n\n{text if text != 'alone' else '[alone](alone.md)'}\n")
    (docs / "design.md").write_text("# Design\n")
    if text == "alone":
        (docs / "alone.md").write_text("# Alone\n")
    config = (ROOT / CONFIG).read_text().split("\nnav:\n")[0]
    pages = ["README.md", "design.md", *(f"{name}.md" for name in OUTSIDE.values()), "decisions/index.md"]
    (docs / "site/mkdocs.yml").write_text(config + "\nnav:\n" + "".join(f"  - {page}\n" for page in pages))
    built = _build(tmp_path / "site", docs / "site/mkdocs.yml")
    assert built.returncode == 1 and fault in built.stderr, built.stderr
