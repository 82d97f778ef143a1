"""``vlsnlog verify`` of one copy: the audit's rules that need no other one, under the same names.

The copies and the faults are those of ``test_rules``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.repl.audit.forge import PRODUCERS, ROLLBACK_START, Forge
from tests.repl.audit.life import Left
from tests.repl.audit.test_rules import SEEDED, Seeded
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.verify.inspection import Rule
from vlsn.verify.report import VerifyReport
from vlsn.verify.verify import verify

BETWEEN_COPIES = {"shorter-than-claimed: by the majority's", "name-reused: a segment's"}
ALONE = [name for name in SEEDED if name.partition(":")[0] in set(Rule) and name not in BETWEEN_COPIES]


def verified(path: Path) -> VerifyReport:
    return verify(PosixDisk(), LmdbStores(), str(path))


def found(report: VerifyReport) -> list[tuple[str, int]]:
    return [(str(each.rule), each.vlsn) for each in report.findings]


def copied(left: Left, path: Path) -> Seeded:
    for node, directory in left.paths.items():
        shutil.copytree(directory, path / node)
    return Seeded(left, path)


def test_the_copies_as_they_were_left_are_healthy(left: Left) -> None:
    for path in left.paths.values():
        assert found(verified(path)) == []
        forge = Forge(path)
        assert any(frame.get("flags") & PRODUCERS for frame in forge.blocks())
        assert len(list(path.glob("*.vidx"))) >= 2
    assert Forge(left.paths[left.deposed]).records(ROLLBACK_START)


@pytest.mark.parametrize("name", ALONE)
def test_a_seeded_fault_is_found_in_its_copy_alone(left: Left, tmp_path: Path, name: str) -> None:
    it = copied(left, tmp_path)
    where, vlsn = SEEDED[name](it)
    rule = name.partition(":")[0]
    report = verified(tmp_path / where)
    assert (rule, vlsn) in found(report)
    assert not report.ok
    if rule not in ("dtvlsn", "contiguity", "overmark", "frame-header", "frame-crc", "block-header", "block-body"):
        assert {each for each, _ in found(report)} == {rule}
    for node in left.paths.keys() - {where}:
        assert found(verified(tmp_path / node)) == []


@pytest.mark.parametrize(
    "name", [name for name in ALONE if name.partition(":")[0] in ("transaction", "dtvlsn", "producer-sequence")]
)
def test_it_is_found_in_a_segment_that_a_sidecar_proves(left: Left, tmp_path: Path, name: str) -> None:
    """Bytes that are as they were written may still say what cannot be."""
    it = copied(left, tmp_path)
    sidecars = {file: file.read_bytes() for file in (tmp_path / it.odd).glob("*.vidx")}
    where, vlsn = SEEDED[name](it)
    assert where == it.odd
    resealed = [it.forge.reseal(int(file.stem), data) for file, data in sidecars.items() if not file.exists()]
    assert (name.partition(":")[0], vlsn) in found(verified(tmp_path / where))
    assert resealed or vlsn > max(frame.last for frame in it.forge.frames(max(int(file.stem) for file in sidecars)))


def test_what_is_said_in_another_copys_name_is_not_said_of_this_one() -> None:
    """The rules that verify does not have are about several copies, an earlier audit, or a client's history."""
    assert {name.partition(":")[0] for name in SEEDED if name not in ALONE} == {
        *("shorter-than-claimed", "name-reused", "changed-past", "divergence", "history-missing", "history-differs"),
        *("history-read", "history-twice", "history-refused", "history-order"),
    }
