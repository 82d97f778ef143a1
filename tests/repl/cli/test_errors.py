"""How commands print errors: one line, a problem document with ``--json``, and a guess at what was meant."""

from __future__ import annotations

import json

import pytest

from tests.repl.cli.shell import NOWHERE, Shell


@pytest.mark.parametrize(
    ("words", "slug", "status", "detail"),
    [
        (["status", "--json", "--url", "ftp://x"], "bad-argument", 2, "ftp://x"),
        (["read", "--json", "--from", "none"], "bad-argument", 2, "`vlsnlog read --help`"),
        (["append", "x", "--json", "--url", NOWHERE, "--timeout", "0.1"], "unreachable", 2, NOWHERE),
        (["stauts", "--json"], "bad-argument", 2, "Did you mean 'status'? See `vlsnlog --help`"),
        (["verify", "--json", "nowhere"], "bad-argument", 2, "nowhere"),
    ],
)
def test_with_json_an_error_is_a_problem_document(
    shell: Shell, words: list[str], slug: str, status: int, detail: str
) -> None:
    result = shell(*words)
    document = json.loads(result.err)
    assert (result.status, result.out) == (status, b"")
    assert (document["type"], document["exit_status"], document["help"]) == (slug, status, f"`vlsnlog explain {slug}`")
    assert detail in document["detail"] and document["title"]
    assert shell(*document["help"].strip("`").split()[1:]).status == 0


def test_a_value_that_reads_json_is_no_flag(shell: Shell) -> None:
    result = shell("append", "--url", "ftp://x", "--", "--json")
    assert result.status == 2 and result.err.startswith("vlsnlog: ")


@pytest.mark.parametrize(
    ("words", "near"), [(["stauts"], "status"), (["group", "shwo"], "show"), (["debug-bundel"], "debug-bundle")]
)
def test_a_command_that_is_misspelt_is_guessed(shell: Shell, words: list[str], near: str) -> None:
    result = shell(*words)
    assert result.status == 2 and f"Did you mean '{near}'? See `vlsnlog" in result.err
