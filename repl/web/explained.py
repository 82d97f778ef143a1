"""The entry of each error slug: the cause, the remedy, and the facts of its classes.

The text of the entries is in ``errors.md`` beside this module. The HTTP statuses and the flags come from the code, so
that no page can disagree with it. Three readers get the same entries:

    docs/errors.md          ``python -m repl.web.explained > docs/errors.md`` (a test compares them)
    a terminal              ``vlsnlog explain SLUG``
    any caller of a node    ``GET /errors/SLUG``, the path that ``help`` of a problem document names
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Final

from repl.web import problem
from vlsn.errors import NotFound, classes

_MADE: Final = "<!-- Made from repl/web/errors.md by `python -m repl.web.explained`: change that file. -->"
_HEADING: Final = re.compile(r"^## ([a-z-]+)\n", re.MULTILINE)
_LINK: Final = re.compile(r"\]\(([\w-]+\.md)")
_COLUMNS: Final = ("class", "HTTP", "exit", "retry_safe", "transient")


def slugs() -> list[str]:
    """Returns all slugs in the order of the page."""
    return list(_texts())


def entry(slug: str) -> str:
    """Returns the entry of a slug, as Markdown whose links are paths of the source tree. The name of an error class
    is accepted in place of its slug. Raises ``NotFound``."""
    kind = classes().get(slug)
    return _LINK.sub(r"](docs/\1", _entry(slug if kind is None else kind.slug))


def page() -> str:
    """Returns the text of ``docs/errors.md``."""
    rows = [(f"[{slug}](#{slug})", problem.title_of(slug), str(problem.status_of(slug))) for slug in _texts()]
    parts = (_MADE, _preface(), "## All slugs", _table(("slug", "meaning", "HTTP"), rows), *map(_entry, _texts()))
    return "\n\n".join(parts) + "\n"


def _entry(slug: str) -> str:
    text = _texts().get(slug)
    if text is None:
        raise NotFound(f"no error has the slug {slug[:40]!r}; `vlsnlog explain` lists all slugs")
    return f"## {slug}\n\n{problem.title_of(slug)}.\n\n{_facts(slug)}\n\n{text}"


def _facts(slug: str) -> str:
    """Returns the table of the classes that have the slug."""
    rows = [
        (
            f"`{name}`",
            str(problem.status_of_class(kind)),
            "1" if kind.finding else "2",
            "yes" if kind.retry_safe else "no",
            "yes" if kind.transient else "no",
        )
        for name, kind in classes().items()
        if kind.slug == slug
    ]
    return _table(_COLUMNS, rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    head, *lines = (" | ".join(map(str.ljust, row, widths)) for row in (columns, *rows))
    rule = "-|-".join("-" * width for width in widths)
    return "\n".join((f"| {head} |", f"|-{rule}-|", *(f"| {line} |" for line in lines)))


@cache
def _parts() -> list[str]:
    """Returns the preface, then slug and text of each entry in turn."""
    return _HEADING.split(files("repl.web").joinpath("errors.md").read_text("utf-8"))


def _preface() -> str:
    return _parts()[0].strip()


@cache
def _texts() -> dict[str, str]:
    """Returns the text of each slug."""
    parts = _parts()
    return {slug: text.strip() for slug, text in zip(parts[1::2], parts[2::2], strict=True)}


if __name__ == "__main__":
    print(page(), end="")
