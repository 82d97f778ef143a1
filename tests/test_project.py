"""The project as a whole: what the pages name exists, and what must not be imported is not."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import click
import pytest

from repl.cli.main import vlsnlog
from repl.events import ERRORS, KINDS, WARNINGS
from vlsn.levels import LEVELS

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_COMMAND = re.compile(r"`(?:\$ )?vlsnlog ([a-z][a-z-]*)|^\$ vlsnlog ([a-z][a-z-]*)", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_SECTION = re.compile(r"\]\(([^)#:\s]*)#([^)]+)\)")
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z-]*)")
_TEST = re.compile(r"\btest_\w+…?")
_MODULE = re.compile(r"\b[a-z_]+\.py\b")
EVENTS = {name for names in KINDS.values() for name in names}
_EVENT = re.compile(r"\bevent\(\s*((?:\"[a-z_.-]+\"(?:\s+if\s+[\w.]+\s+else\s+)?)+)", re.MULTILINE)
ROOMS = ("vlsn", "feeder", "replica", "repl", "jepsen-like", "tests")
_TIME_OF_DAY = re.compile(r"(?<![\d:.])(?:[01]?\d|2[0-3]):[0-5]\d(?![\d:])")
_DIARY = re.compile(
    r"\b(?:once more|yesterday|today|tomorrow|tonight|recently|lately|currently|nowadays|at last"
    r"|now(?! and then| on\b)|this (?:morning|evening|week))\b",
    re.IGNORECASE,
)
_PATH = re.compile(r"`((?:vlsn|feeder|replica|repl|jepsen-like|tests|docs)/[\w./-]*)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_only_what_there_is(page: Path) -> None:
    text = page.read_text()
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:`|^\$ )make ([a-z-]+)", text, re.MULTILINE)) <= targets
    commands = {one or two for one, two in _COMMAND.findall(text)}
    assert commands <= set(vlsnlog.list_commands(None))  # type: ignore[arg-type]
    assert [link for link in _LINK.findall(text) if not (page.parent / link).exists()] == []
    assert [path for path in _PATH.findall(text) if not (ROOT / path).exists()] == []


def test_each_feature_has_one_end_to_end_run_in_make_test() -> None:
    """A mark is a whole file's or one test's; the page names the file."""
    table = (ROOT / "docs/testing.md").read_text().split("## Two levels")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([\w ]+) \| `([\w./]+)` \|$", table, re.MULTILINE)
    marked = [
        (name, str(path.relative_to(ROOT)))
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"pytest\.mark\.feature\(\"([\w ]+)\"\)", path.read_text())
    ]
    assert sorted(rows) == sorted(marked) and len(dict(rows)) == len(rows) > 20


def test_no_timer_is_asked_when_it_is_due() -> None:
    """Under uvloop one that is due in less than a millisecond is no timer, and cannot say."""
    sources = [path for room in ("vlsn", "feeder", "replica", "repl") for path in (ROOT / room).rglob("*.py")]
    assert not [str(path) for path in sources if ".when()" in path.read_text()]


def test_decisions_are_numbered_once_each_from_one_on() -> None:
    numbers = sorted(int(page.name[:4]) for page in (ROOT / "docs/decisions").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_docstrings_open_with_a_subject_or_a_verb() -> None:
    opened = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.value[:60]}"
        for place in ROOMS
        for path in sorted((ROOT / place).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if node.value.value.startswith(("Of ", "What ", "Whose ", "Whoever "))
    ]
    assert opened == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_no_diary(page: Path) -> None:
    prose = re.sub(r"`[^`\n]*`", "", _unfenced(page))
    assert [line for line in prose.splitlines() if _TIME_OF_DAY.search(line) or _DIARY.search(line)] == []


def _unfenced(page: Path) -> str:
    """Returns a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def _sections(page: Path) -> set[str]:
    """Returns what the headings of a page are linked by."""
    plain = [
        re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", each) for each in re.findall(r"^#+ (.*)$", _unfenced(page), re.MULTILINE)
    ]
    return {re.sub(r"[^\w -]", "", each.strip().lower()).replace(" ", "-") for each in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_into_pages_lead_to_their_headings(page: Path) -> None:
    links = [
        (link, section) for link, section in _SECTION.findall(page.read_text()) if not link or link.endswith(".md")
    ]
    assert [each for each in links if each[1] not in _sections(page.parent / each[0] if each[0] else page)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_of_pages_are_whole(page: Path) -> None:
    """A row that stands alone, or has a cell too many, is shown as text with bars in it, or is cut."""
    for table in re.findall(r"(?:^\|.*\n?)+", _unfenced(page), re.MULTILINE):
        head, *rows = [re.sub(r"\\\|", "", row) for row in table.splitlines()]
        assert rows and re.fullmatch(r"\|[-| :]+\|", rows[0]), head
        assert [row for row in rows if row.count("|") != head.count("|")] == []


@cache
def _modules_and_tests() -> tuple[frozenset[str], frozenset[str]]:
    """Returns names of all files of code, and of all tests with the files that they lie in."""
    paths = [path for place in (*ROOMS, "docs") for path in (ROOT / place).rglob("*.py")]
    tests = [path for path in paths if path.name.startswith("test_")]
    named = {name for path in tests for name in (path.stem, *re.findall(r"def (test_\w+)", path.read_text()))}
    return frozenset(path.name for path in paths), frozenset(named)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_name_tests_and_modules_that_there_are(page: Path) -> None:
    text = page.read_text()
    modules, tests = _modules_and_tests()
    assert [name for name in _MODULE.findall(text) if name not in modules] == []
    named = [name for name in _TEST.findall(text) if name not in tests]
    assert [name for name in named if not (name[-1] == "…" and any(each.startswith(name[:-1]) for each in tests))] == []


def _commands(group: click.Group, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Yields every command with the words that call it."""
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        assert command is not None
        yield f"{path}{name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path}{name} ")


@cache
def _flags() -> dict[str, frozenset[str]]:
    """Returns the flags of each command."""
    return {
        name: frozenset(
            flag
            for option in command.params
            if isinstance(option, click.Option)
            for flag in (*option.opts, *option.secondary_opts)
        )
        for name, command in _commands(vlsnlog)
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_pages_have_the_flags_that_they_are_shown_with(page: Path) -> None:
    flags = _flags()
    strange = []
    for line in re.findall(r"(?:`|^\$ |\| |^)vlsnlog ([^`|#\n]*)", page.read_text(), re.MULTILINE):
        words = line.split()
        name = next((" ".join(words[:length]) for length in (2, 1) if " ".join(words[:length]) in flags), None)
        if name is not None:
            strange += [f"{name} {flag}" for flag in _FLAG.findall(line) if flag not in flags[name] | {"--help"}]
    assert strange == []


def test_speeds_in_the_comparison_are_measured_ones() -> None:
    speeds = (ROOT / "docs/comparison.md").read_text().split("## Speed")[1].split("\n## ")[0]
    figures = set(re.findall(r"\d+,\d{3}(?=/s)|\d\.\d\d ms", speeds))
    measured = (ROOT / "docs/performance.md").read_text()
    assert len(figures) > 10 and [each for each in sorted(figures) if each not in measured] == []


def test_upgrade_notes_have_a_row_for_each_level() -> None:
    notes = (ROOT / "docs/upgrade-notes.md").read_text()
    assert [int(level) for level in re.findall(r"^\| (\d+) \|", notes, re.MULTILINE)] == [*range(1, LEVELS.max + 1)]
    assert f"speaks levels {LEVELS.min} to {LEVELS.max}." in notes


def test_the_design_names_every_room() -> None:
    named = set(re.findall(r"`((?:vlsn|repl)/\w+)/`", (ROOT / "docs/design.md").read_text()))
    rooms = {f"{top}/{path.parent.name}" for top in ("vlsn", "repl") for path in (ROOT / top).glob("*/__init__.py")}
    assert rooms - named == set()


def test_operating_lists_the_events_of_each_level() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    for level, events in (("Warnings", WARNINGS), ("Errors", ERRORS)):
        (line,) = re.findall(rf"^{level}: (.*)$", page, re.MULTILINE)
        assert set(re.findall(r"`([^`]+)`", line)) - {"state"} == events


def _imports(path: Path) -> set[str]:
    """Returns what a module imports, for typing and within functions too; modules and names alike."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, path
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize(
    "package", ["vlsn", "feeder", "replica", "repl/group", "repl/lead", "repl/repair", "repl/node"]
)
def test_no_imports_go_round_in_a_circle(package: str) -> None:
    paths = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts): path
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    }
    graph = {name: _imports(path) & (paths.keys() - {name}) for name, path in paths.items()}
    assert any(graph.values())
    TopologicalSorter(graph).prepare()  # raises ``CycleError``, which names them


def test_a_node_loads_neither_spark_nor_arrow() -> None:
    look = """import sys, repl.node.process
print([name for name in ("pyspark", "pyarrow", "py4j", "pandas") if name in sys.modules])"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_lock_file_names_only_the_public_index() -> None:
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    registries = {package["source"]["registry"] for package in lock["package"] if "registry" in package["source"]}
    assert registries == {"https://pypi.org/simple"}
    files = [
        file["url"]
        for package in lock["package"]
        for file in [package.get("sdist"), *package.get("wheels", [])]
        if file
    ]
    assert [url for url in files if not url.startswith("https://files.pythonhosted.org/")] == []


def test_the_lock_file_holds_what_pyproject_asks_for() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lock = tomllib.loads((ROOT / "uv.lock").read_text())
    (ours,) = [package for package in lock["package"] if package["name"] == project["name"]]
    extras = project["optional-dependencies"]
    asked = {("", each) for each in project["dependencies"]}
    asked |= {(f"extra == '{extra}'", each) for extra, wanted in extras.items() for each in wanted}
    assert {each["name"] for each in ours["dependencies"]} == {_name(each) for each in project["dependencies"]}
    assert {extra: {each["name"] for each in held} for extra, held in ours["optional-dependencies"].items()} == {
        extra: {_name(each) for each in wanted} for extra, wanted in extras.items()
    }
    held = {
        (each.get("marker", ""), each["name"] + _extras(each.get("extras")) + each.get("specifier", ""))
        for each in ours["metadata"]["requires-dist"]
    }
    assert held == asked


def _name(requirement: str) -> str:
    return re.split(r"[<>=!~ \[]", requirement, maxsplit=1)[0]


def _extras(names: list[str] | None) -> str:
    return f"[{','.join(names)}]" if names else ""


def test_code_notes_the_listed_events_and_no_others() -> None:
    noted: set[str] = set()
    for path in (ROOT / "repl").rglob("*.py"):
        for call in _EVENT.findall(path.read_text()):
            noted.update(re.findall(r"\"([a-z_.-]+)\"", call))
    assert noted == EVENTS


def test_operating_says_what_each_event_means() -> None:
    page = (ROOT / "docs" / "monitoring.md").read_text()
    table = page.split("## Events", 1)[1].split("\n## ", 1)[0]
    told = [
        name for row in re.findall(r"^\| (`[^|]*) \|", table, re.MULTILINE) for name in re.findall(r"`([^`]+)`", row)
    ]
    assert sorted(told) == sorted(EVENTS)
