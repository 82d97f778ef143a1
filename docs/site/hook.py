"""Makes a site of the pages, of the pages outside ``docs/``, and of the files that they link.

The pages are written for the repository, where each link is a path. The site keeps these links: the README and its
neighbours become pages, and each linked file of code becomes a page with the file's text. MkDocs calls the functions
``on_…`` in the order in which they are here. A warning fails the build (``make docs``).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Final
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[2]
OUTSIDE: Final = {"README.md": "about.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""The pages beside ``docs/``, and their paths in the site."""
DECISIONS: Final = "decisions/index.md"
SOURCE: Final = "source/"

_FENCED: Final = re.compile(r"^( *)(```+|~~~+).*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[((?:`[^`\n]*`|[^\[\]`])*)\]\(([^()\s]+)\)")
_ITEM: Final = re.compile(r" *(?:[*+-]|\d{1,3}\.) ")
_INNER: Final = re.compile(r" {2,3}(?=\S)")
_CELL: Final = re.compile(r"<td>.*?</td>", re.DOTALL)
_SHIM: Final = "https://unpkg.com/iframe-worker/shim"
_log = logging.getLogger("mkdocs.hooks.site")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Adds the pages that have no file in ``docs/``."""
    for path, uri in OUTSIDE.items():
        files.append(File.generated(config, uri, content=(ROOT / path).read_text()))
    files.append(File.generated(config, DECISIONS, content=_decisions(Path(config.docs_dir) / "decisions")))
    linked = {path for each in files.documentation_pages() for path, _ in _targets(each)}
    for path in sorted(linked):
        if (ROOT / path).is_file() and _uri(path) is None:
            files.append(File.generated(config, f"{SOURCE}{path}.md", content=_source(path)))


def _decisions(directory: Path) -> str:
    titles = {page.name: page.read_text().partition("\n")[0].removeprefix("# ") for page in directory.glob("0*.md")}
    rows = [f"* [{title}]({name})" for name, title in sorted(titles.items())]
    return "\n".join(
        ["# Decisions", "", "Each page has one decision: its context, its reasons, its consequences.", "", *rows]
    )


def _source(path: str) -> str:
    kind = {".py": "python", ".toml": "toml", ".yml": "yaml"}.get(PurePosixPath(path).suffix, "text")
    head = f"---\nsearch: {{ exclude: true }}\ntitle: {PurePosixPath(path).name}\n---\n# `{path}`\n\n"
    return f"{head}~~~~~~ {{ .{kind} }}\n{(ROOT / path).read_text()}\n~~~~~~\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turns paths of the repository into paths of the site."""
    if page.file.src_uri.startswith(SOURCE):
        return markdown
    return _outside_code(markdown, lambda text: _lists(_LINK.sub(lambda link: _linked(link, page, files), text)))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Removes the backslash before a bar in a table's code, as the repository's host does."""
    return _CELL.sub(lambda cell: cell[0].replace("\\|", "|"), html)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Replaces the one script that the theme fetches from another server."""
    here = relpath("site/worker.js", PurePosixPath(page.file.dest_uri).parent)
    return output.replace(_SHIM, here)


def on_post_template(output: str, template_name: str, config: MkDocsConfig) -> str:
    return output.replace(_SHIM, "/site/worker.js")


def _linked(link: re.Match[str], page: Page, files: Files) -> str:
    """Returns one link as it must be in the site."""
    text, target = link.groups()
    if urlsplit(target).scheme or target.startswith("//"):
        if not _is_web(target):
            _log.warning("%s: the link %r is no URL of the web", page.file.src_uri, target)
        return link[0]
    path, _, section = target.partition("#")
    if not path:
        return link[0]
    path = _resolved(page.file, path)
    uri = _uri(path)
    if uri is None and (ROOT / path).is_file():
        uri, section = f"{SOURCE}{path}.md", ""
    if uri is None:
        if not (ROOT / path).exists():
            _log.warning("%s: the link %r leads nowhere", page.file.src_uri, target)
        return text if "`" in text else f"{text} (`{path}`)"
    here = relpath(uri, PurePosixPath(page.file.src_uri).parent)
    return f"[{text}]({here}{'#' if section else ''}{section})"


def _is_web(target: str) -> bool:
    try:
        parts = urlsplit(target)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _targets(file: File) -> Iterator[tuple[str, str]]:
    """Yields the paths, from the repository's root on, that a page links, each with its section."""
    for _, target in _LINK.findall(_FENCED.sub("", file.content_string)):
        path, _, section = target.partition("#")
        if path and not urlsplit(path).scheme:
            yield _resolved(file, path), section


def _resolved(file: File, path: str) -> str:
    places = {uri: outside for outside, uri in OUTSIDE.items()}
    place = places.get(file.src_uri, f"docs/{file.src_uri}")
    return normpath(str(PurePosixPath(place).parent / path))


def _uri(path: str) -> str | None:
    """Returns the site's path of a page of the repository, or None for any other file."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path == "docs/decisions":
        return DECISIONS
    return path.removeprefix("docs/") if path.startswith("docs/") and not path.endswith(".py") else None


def _outside_code(markdown: str, change: Callable[[str], str]) -> str:
    parts, end = [], 0
    for fenced in _FENCED.finditer(markdown):
        parts += [change(markdown[end : fenced.start()]), fenced[0]]
        end = fenced.end()
    return "".join([*parts, change(markdown[end:])])


def _lists(text: str) -> str:
    """Spaces lists as Python-Markdown needs them: an empty line before a list, four spaces before text in an item."""
    lines: list[str] = []
    for line in text.split("\n"):
        before = lines[-1] if lines else ""
        item_after_text = _ITEM.match(line) and before.strip() and not _ITEM.match(before)
        if item_after_text and not (before.startswith(" ") and (line.startswith(" ") or not before.startswith("    "))):
            lines.append("")
        inner = _INNER.match(line)
        if inner and (_ITEM.match(line) or not before.strip()):
            line = f"    {line.lstrip()}"
        lines.append(line)
    return "\n".join(lines)
