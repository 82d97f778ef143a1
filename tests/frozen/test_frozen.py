"""Everything frozen is the same in every process, and a change of it is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from repl.client.connect import Client
from tests.frozen import findings, histories, signatures

ROOT = Path(__file__).parents[2]


def frozen(*arguments: str, hashes: int) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process that iterates over sets of strings in an order of its own."""
    return subprocess.run(
        [sys.executable, "-m", "tests.frozen", *arguments, "--workers", "1"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": str(hashes)},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@pytest.mark.long
def test_another_process_finds_all_equal_and_names_what_was_changed(tmp_path: Path) -> None:
    made = frozen("freeze", str(tmp_path), "--seeds", "1", "--directories", "10", hashes=1)
    assert made.returncode == 0, made.stderr
    names = [line.split("  ")[1] for line in made.stdout.splitlines()]
    assert {"histories/00001.txt", "findings/00009.txt", "signatures/repl.txt"} <= set(names)
    assert frozen("freeze", str(tmp_path), hashes=1).returncode == 2, "it holds something"
    same = frozen("compare", str(tmp_path), hashes=2)
    assert same.returncode == 0, same.stdout
    for kind, count in (("histories", 1), ("findings", 10), ("audits", 12), ("signatures", 2)):
        assert f"{kind}: {count} of {count} equal\n" in same.stdout
    changed = tmp_path / "findings/00004.txt"
    changed.write_text(changed.read_text().replace('"status"', '"state"'))
    (tmp_path / "histories/00001.txt").unlink()
    (tmp_path / "signatures/gone.txt").write_text("Client.gone()\n")
    told = frozen("compare", str(tmp_path), hashes=1)
    assert told.returncode == 1
    assert "findings/00004.txt: line" in told.stdout and "findings: 9 of 10 equal\n" in told.stdout
    assert "signatures/gone.txt: line 1\n    - Client.gone()\n    + (no line)\n" in told.stdout
    assert frozen("compare", str(tmp_path / "nothing"), hashes=1).returncode == 2


def test_sentences_are_kept_apart_from_facts(tmp_path: Path) -> None:
    made = [findings.frozen(seed, tmp_path) for seed in (0, 1, 4)]
    assert all('"rule"' in each.facts and '"detail"' not in each.facts for each in made)
    assert all(each.words.strip() and str(tmp_path) not in each.words for each in made)
    history = histories.frozen(1, faults_s=5.0)
    assert "no member leads" in history.words and "no member leads" not in history.facts
    assert " feed.stopped master=None why=…" in history.facts
    assert "VLSN 5: " in history.facts and "n1 /n1/state: " in history.facts


def test_a_call_with_another_argument_is_another_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    def facts() -> str:
        return next(each.facts for each in signatures.frozen() if each.name == "repl")

    before = facts()
    for name in ("Client.append(", "SyncClient.append(", "SyncMessage.ack(", "Consumer.commit(", "connect_sync("):
        assert f"\n{name}" in before

    async def delete(self: Client, everything: bool = False) -> None: ...

    monkeypatch.setattr(Client, "close", delete)
    delete.__module__ = Client.__module__
    assert set(facts().splitlines()) - set(before.splitlines()) == {
        "Client.close(self: 'Client', everything: 'bool' = False) -> 'None'"
    }
