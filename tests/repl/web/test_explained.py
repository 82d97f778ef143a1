"""The entries of errors: one for each slug, right about the classes, and served to everybody who gets the slug."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from repl.cli import main
from repl.node.gateway import Gateway
from repl.web import explained, problem
from tests.repl.web.calls import JSON, NDJSON, OCTETS, call, json, refused
from tests.repl.web.one_node import masterless, started
from vlsn.errors import VlsnLogError, classes

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "errors.md"
_SLUG = re.compile(r"^ +slug(?:: ClassVar\[str\])? = \"([a-z-]+)\"$", re.MULTILINE)
_ROW = re.compile(r"^\| `(\w+)` +\| (\d+) +\| (\d) +\| (yes|no) +\| (yes|no) +\|$", re.MULTILINE)
_FACTS = {"first": 1, "vlsn": 2, "term": 3, "found": 4, "matchpoint": 5, "durable": 6}


def sections() -> dict[str, str]:
    """Returns the entry of each slug on the page of the documentation."""
    parts = re.split(r"^## ([a-z-]+)\n", PAGE.read_text(), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_slug_of_the_code_has_an_entry_and_each_entry_a_slug() -> None:
    modules = (path for room in ("vlsn", "feeder", "replica", "repl") for path in (ROOT / room).rglob("*.py"))
    used = {slug for path in modules for slug in _SLUG.findall(path.read_text())}
    assert len(used) > 40
    assert used == set(explained.slugs()) == set(sections()) == set(problem._KINDS)
    assert len(explained.slugs()) == len(set(explained.slugs()))


def test_the_page_is_made_from_the_entries() -> None:
    assert PAGE.read_text() == explained.page(), "run: python -m repl.web.explained > docs/errors.md"


def test_each_entry_says_what_happened_what_to_do_and_where() -> None:
    for slug, text in sections().items():
        labels = re.findall(r"^\*\*([A-Z][a-z ]+)[.]?\*\*", text, re.MULTILINE)
        assert labels[:3] == ["What happened", "What to do", "Where"], slug


def made(kind: type[VlsnLogError]) -> VlsnLogError:
    """Makes an error of a class, with values for the facts that the class requires."""
    code = kind.__init__.__code__ if "__init__" in kind.__dict__ else None
    names = code.co_varnames[code.co_argcount :][: code.co_kwonlyargcount] if code is not None else ()
    defaults = kind.__init__.__kwdefaults__ or {} if code is not None else {}
    return kind("why", **{name: _FACTS[name] for name in names if name not in defaults})


def test_the_page_states_what_each_class_does() -> None:
    """The page's words against errors that are raised, answered over HTTP, and end a command."""
    rows = {row[0]: (slug, *row[1:]) for slug, text in sections().items() for row in _ROW.findall(text)}
    assert rows.keys() == classes().keys()
    for name, kind in classes().items():
        error = made(kind)
        document = msgspec.json.decode(problem.document(error))
        flags = ("yes" if flag else "no" for flag in (error.retry_safe, error.transient))
        assert rows[name] == (document["type"], str(document["status"]), str(main.status_of(error)), *flags)


def test_findings_are_the_errors_that_found_something_out() -> None:
    found = {slug for slug, text in sections().items() if any(row[2] == "1" for row in _ROW.findall(text))}
    assert found == {"outcome-unknown", "damaged", "integrity-fault"}


async def test_help_of_each_problem_leads_to_its_entry_without_a_token() -> None:
    gateway = Gateway((await started(keyed=True, anonymous="none")).services)
    refused(await call(gateway, "GET", "/v1/entries"), 401, "unauthorized")
    for kind in classes().values():
        path = msgspec.json.decode(problem.document(made(kind)))["help"]
        answer = await call(gateway, "GET", path)
        assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; charset=utf-8")
        assert bytes(answer.body).decode() == explained.entry(kind.slug)
        assert bytes(answer.body).startswith(f"## {kind.slug}\n".encode())
    assert (await call(gateway, "HEAD", "/errors/no-master")).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "slug"),
    [
        ("GET", "/errors/no-such-slug", 404, "not-found"),
        ("GET", "/errors/", 404, "not-found"),
        ("GET", "/errors", 404, "not-found"),
        ("GET", "/errors/no-master/x", 404, "not-found"),
        ("GET", "/errors/no-master?x=1", 400, "bad-argument"),
        ("POST", "/errors/no-master", 405, "not-allowed"),
    ],
)
async def test_entries_that_there_are_not(method: str, path: str, status: int, slug: str) -> None:
    assert refused(await call(await started(), method, path), status, slug)["help"] == f"/errors/{slug}"


async def test_readyz_names_its_entry_too() -> None:
    answer = await call(await masterless(), "GET", "/readyz")
    assert (answer.status, json(answer)["help"]) == (503, "/errors/not-ready")


@pytest.mark.parametrize(
    ("method", "path", "headers", "body"),
    [
        ("POST", "/v1/entries", {"Content-Type": "application/x-www-form-urlencoded"}, b"x"),
        ("POST", "/v1/entries", NDJSON, b'{"value":5}'),
        ("POST", "/v1/entries", OCTETS, bytes(1_100_000)),
        ("GET", "/v1/entries?from=0", {}, b""),
        ("GET", "/v1/entries/1", {}, b""),
        ("GET", "/v1/nothing", {}, b""),
        ("PUT", "/v1/status", {}, b""),
        ("GET", "/v1/status", {"Host": "other.example"}, b""),
        ("GET", "/v1/status", {"Origin": "http://evil.example"}, b""),
        ("POST", "/v1/entries?producer=00000000000000aa&sequence=5", OCTETS, b"v"),
    ],
)
async def test_examples_of_entries_are_what_nodes_answer(
    method: str, path: str, headers: dict[str, str], body: bytes
) -> None:
    node = await started()
    document = json(await call(node, method, path, headers, body))
    assert f"\n```\n{document['detail']}\n```" in explained.entry(document["type"])


async def test_a_node_without_a_master_answers_the_example_of_no_master() -> None:
    document = json(await call(await masterless(), "POST", "/v1/transactions", JSON))
    assert f"\n```\n{document['detail']}\n```" in explained.entry("no-master")


def test_explain_prints_an_entry_or_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["explain", "trimmed"]) == 0
    assert capsys.readouterr().out == explained.entry("trimmed") + "\n"
    assert main.main(["explain", "TooFarBehind"]) == 0
    assert capsys.readouterr().out == explained.entry("lagging") + "\n"
    assert main.main(["explain"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == explained.slugs()
    assert main.main(["explain", "no-such"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1) and "no error has the slug 'no-such'" in err
