"""Every mutant still applies, and one of them is found out: the slice of ``make mutants`` that the suite runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.__main__ import Mutant, apply, apply_patch, copy_tree, failing, judge, mutants
from tests.mutants.record.__main__ import Bug, bugs


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a copy that nothing is written to."""
    path = tmp_path_factory.mktemp("tree")
    copy_tree(path)
    return path


@pytest.mark.parametrize("mutant", mutants(), ids=lambda mutant: mutant.name)
def test_it_applies_and_its_test_is_there(mutant: Mutant, tree: Path) -> None:
    assert apply(mutant, tree, dry_run=True) is None
    path, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}" in (tree / path).read_text()


@pytest.mark.parametrize("bug", bugs(), ids=lambda bug: bug.name)
def test_a_bug_of_the_track_record_applies(bug: Bug, tree: Path) -> None:
    assert apply_patch(bug.patch, tree, dry_run=True) is None


def test_a_mutant_is_killed_by_its_test(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    mutant = mutants(["half-of-the-group-is-a-majority"])[0]
    assert failing([mutant.test], tmp_path) == []
    assert judge(mutant, tmp_path).killed
    assert failing([mutant.test], tmp_path) == []  # it is taken out again


def test_a_mutant_that_changes_nothing_survives(tmp_path: Path) -> None:
    """The harness can tell: a patch to a comment is not found out."""
    copy_tree(tmp_path / "tree")
    patch = tmp_path / "nothing.patch"
    patch.write_text(
        "defence: none\ntest: tests/repl/lead/test_acks.py\n\n--- a/repl/lead/acks.py\n+++ b/repl/lead/acks.py\n"
        "@@ -1,1 +1,1 @@\n"
        '-"""Computes the durable end (DTVLSN) from acknowledgements, and which appends may be answered.\n'
        '+"""Counts the durable end (DTVLSN) from acknowledgements, and which appends may be answered.\n'
    )
    outcome = judge(Mutant("nothing", "none", "tests/repl/lead/test_acks.py", patch), tmp_path / "tree")
    assert (outcome.killed, outcome.what) == (False, "SURVIVED")


def test_a_mutant_that_does_not_apply_is_no_success(tmp_path: Path) -> None:
    copy_tree(tmp_path / "tree")
    patch = tmp_path / "gone.patch"
    patch.write_text("--- a/repl/lead/acks.py\n+++ b/repl/lead/acks.py\n@@ -1,1 +1,1 @@\n-no such line\n+another\n")
    outcome = judge(Mutant("gone", "none", "tests/repl/lead/test_acks.py", patch), tmp_path / "tree")
    assert not outcome.killed
    assert outcome.what.startswith("does not apply")
