"""The repair of a copy from a report: its replacements, its refusals, and a clean second audit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repl.audit.outputs import write_outputs
from repl.audit.report import AuditReport
from repl.cli.main import main, vlsnlog
from tests.repl.audit.jobs import audited
from tests.repl.audit.logs import STORY, Copy, blocks
from tests.repl.audit.test_audit import PLACES
from vlsn.format.block import decode_header
from vlsn.format.seal import seal
from vlsn.format.segment import segment_name
from vlsn.format.submission import Values
from vlsn.ids import lsn_file, lsn_offset
from vlsn.real.disk import PosixDisk
from vlsn.state import node_file
from vlsn.state.node_file import NodeRecord

SIZES = {"n1": 64 << 10, "n2": 96 << 10, "n3": 1 << 20}


def written(copy: Copy, *, group: str = "g", incarnation: int = 0, term: int = 1) -> Copy:
    copy.write()
    path = str(copy.path / "node.id")
    incarnation = incarnation or sum(copy.path.name.encode())
    record = NodeRecord(group=group, node=copy.path.name, incarnation=incarnation, term=term)
    node_file.create(PosixDisk(), path, record).close()
    return copy


def copies(path: Path, *stories: Sequence[bytes], nodes: int = 3) -> list[Copy]:
    """Copies of one story, or of one each."""
    told = stories if len(stories) == nodes else [STORY] * nodes
    sizes = list(SIZES.items())[:nodes]
    return [
        written(Copy(path / node, node, segment_bytes=size).add(*story))
        for (node, size), story in zip(sizes, told, strict=True)
    ]


def report_of(path: Path, *made: Copy) -> AuditReport:
    report = audited(*made)
    write_outputs(report, [str(path / "report.json")])
    return report


def repair(copy: Copy, *options: str) -> Result:
    arguments = ["repair", str(copy.path), "--from-audit", str(copy.path.parent / "report.json"), *options]
    return CliRunner().invoke(vlsnlog, arguments, standalone_mode=False)


def status(copy: Copy, *options: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Returns the command's exit status and what it says on stderr."""
    capsys.readouterr()
    ended = main(["repair", str(copy.path), "--from-audit", str(copy.path.parent / "report.json"), *options])
    return ended, capsys.readouterr().err


def tree(path: Path) -> dict[str, bytes]:
    return {
        str(each.relative_to(path)): each.read_bytes()
        for each in sorted(path.rglob("*"))
        if each.is_file() and each.name != "LOCK"
    }


@pytest.mark.parametrize("which", [0, 1, -1], ids=["first of its segment", "second", "last of its segment"])
@pytest.mark.parametrize("place", [place for place in PLACES if PLACES[place] not in (6, -1)])
def test_a_flipped_bit_is_named_and_repaired(tmp_path: Path, place: str, which: int) -> None:
    made = copies(tmp_path)
    vlsn = sorted(first for first, at in made[0].places.items() if lsn_file(at) == 2)[which]
    good = tree(made[0].path)
    file, offset = made[0].flip(vlsn, PLACES[place])
    bad = tree(made[0].path)[file]
    report = report_of(tmp_path, *made)
    assert [(finding.file, finding.offset) for finding in report.findings] == [(file, offset)]
    done = repair(made[0])
    assert (done.return_value, done.exception) == (0, None), done.output
    assert "verify finds nothing" in done.output
    after = tree(made[0].path)
    (kept,) = set(after) - set(good)
    size = lsn_offset(made[0].places[vlsn]) + len(after[kept])
    assert after[kept] == bad[offset:size]
    assert [name for name in good if name.endswith("vlog") and not _same(after[name], good[name], offset)] == []
    assert audited(*made).exit_code == 0


def _same(data: bytes, good: bytes, offset: int) -> bool:
    """A frame whose own header was lost gets a ``synced`` that may say less, and its crc."""
    loose = {*range(offset + 12, offset + 16), *range(offset + 20, offset + 24)}
    return len(data) == len(good) and all(data[at] == good[at] or at in loose for at in range(len(data)))


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 396), st.integers(0, 400)), min_size=1, max_size=30, unique=True),
    st.integers(0, 2),
)
def test_any_damage_of_one_copy_is_repaired(tmp_path: Path, flips: list[tuple[int, int]], which: int) -> None:
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    made = copies(tmp_path)
    for block, byte in flips:
        made[which].flip(1 + 5 * block, byte)
    report_of(tmp_path, *made)
    done = repair(made[which])
    assert (done.return_value, done.exception) == (0, None), done.output
    again = audited(*made)
    assert (again.exit_code, again.findings) == (0, [])
    assert len({tuple(row.digest for row in source.ranges) for source in again.sources}) == 1


def changed(story: Sequence[bytes], index: int, text: str = "changed") -> list[bytes]:
    """The story with another block of the same size at ``index``."""
    values = [f"{text} {n}".ljust(60, ".") for n in range(5)]
    (other,) = blocks(values, first_vlsn=decode_header(story[index]).first_vlsn)
    assert len(other) == len(story[index])
    return [*story[:index], other, *story[index + 1 :]]


def test_a_whole_block_that_is_not_the_majoritys_is_replaced(tmp_path: Path) -> None:
    made = copies(tmp_path, STORY, changed(STORY, 200), STORY)
    (made[1].path / "index").mkdir()
    report = report_of(tmp_path, *made)
    assert [finding.vlsn for finding in report.findings] == [1001]
    dry = repair(made[1], "--dry-run", "--json")
    before = tree(made[1].path)
    (place,) = json.loads(dry.output)["places"]
    assert (place["first"], place["last"], place["damaged"]) == (1001, 1005, False)
    assert repair(made[1]).return_value == 0
    assert not (made[1].path / "index").exists()
    (gone,) = set(before) - set(tree(made[1].path))
    assert gone.endswith(".vidx")  # its checksum was of the old blocks
    assert audited(*made).exit_code == 0
    assert b"changed 0" in (made[1].path / f"{place['file'][:-5]}.damaged-{place['offset']}").read_bytes()


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    made = copies(tmp_path)
    made[0].flip(501, 120)
    report_of(tmp_path, *made)
    before = tree(tmp_path)
    done = repair(made[0], "--dry-run")
    assert (done.return_value, "1 block of" in done.output, "would be replaced" in done.output) == (0, True, True)
    assert tree(tmp_path) == before


def test_the_copy_that_the_majority_agrees_with_is_left_alone(tmp_path: Path) -> None:
    made = copies(tmp_path)
    made[0].flip(501, 120)
    report_of(tmp_path, *made)
    done = repair(made[1])
    assert (done.return_value, "nothing to repair" in done.output) == (0, True)


def test_more_places_than_a_mending_keeps_are_all_kept_aside(tmp_path: Path) -> None:
    made = copies(tmp_path)
    for vlsn in range(1, 1000, 20):
        made[2].flip(vlsn, 120)
    report_of(tmp_path, *made)
    assert repair(made[2]).return_value == 0
    assert len(list(made[2].path.glob("*.damaged-*"))) == 50
    assert audited(*made).exit_code == 0


def test_damage_outside_of_what_was_compared_is_told_and_left(tmp_path: Path) -> None:
    made = copies(tmp_path)
    made[0].flip(1, 0)
    report_of(tmp_path, *made)
    before = tree(tmp_path)
    done = repair(made[0])
    assert (done.return_value, "left: frame-header" in done.output) == (1, True)
    assert tree(tmp_path) == before


def test_what_a_repair_does_not_mend_is_told_with_what_does(tmp_path: Path) -> None:
    """A segment's header: the log is equal to the others', and the node restores itself."""
    made = copies(tmp_path)
    made[0].flip_at(2, 100)
    made[0].flip(501, 120)
    report_of(tmp_path, *made)
    done = repair(made[0], "--json")
    told = json.loads(done.output)
    assert (done.return_value, told["replaced"], told["verified"]) == (1, True, False)
    (header,) = told["left"]
    assert (header["rule"], header["file"]) == ("segment-header", segment_name(2))
    assert header["mend"].startswith(f"vlsnlog node --name n1 --dir {made[0].path}")
    report_of(tmp_path, *made)
    again = repair(made[0])
    assert (again.return_value, "nothing to repair" in again.output) == (1, True)
    assert (
        f"left: segment-header: {segment_name(2)} offset 0 VLSN 736: segment header crc; vlsnlog node" in again.output
    )


def refused(copy: Copy, message: str, *options: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Checks that a repair is refused, and that nothing was changed."""
    before = tree(copy.path.parent)
    ended, said = status(copy, *options, capsys=capsys)
    assert (ended, message in said) == (2, True), said
    assert tree(copy.path.parent) == before


def test_a_running_node_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = copies(tmp_path)
    made[0].flip(501, 120)
    report_of(tmp_path, *made)
    lock = PosixDisk().lock(str(made[0].path / "LOCK"))
    refused(made[0], "its node runs", capsys=capsys)
    lock.release()


def test_a_report_of_another_group_node_or_life_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = copies(tmp_path)
    made[0].flip(501, 120)
    report = report_of(tmp_path, *made)
    stranger = written(Copy(tmp_path / "n4", "n4").add(*STORY))
    refused(stranger, "is node n4", capsys=capsys)
    for change, message in (
        ({"group": "other"}, "of group other"),
        ({"sources": [msgspec.structs.replace(each, incarnation="0" * 16) for each in report.sources]}, "incarnation"),
        ({"compared_to": 0, "compared_from": 0}, "compared nothing"),
    ):
        write_outputs(msgspec.structs.replace(report, **change), [str(tmp_path / "report.json")])
        refused(made[0], message, capsys=capsys)


def test_a_copy_that_has_changed_since_the_report_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = copies(tmp_path)
    made[0].flip(501, 120)
    report_of(tmp_path, *made)
    made[0].flip(901, 120)
    refused(made[0], "has changed since", capsys=capsys)
    made[0].flip(901, 120)
    made[1].flip(1, 120)
    made[2].flip(1, 120)
    refused(made[0], "has changed since", capsys=capsys)


def test_the_next_copy_of_the_majority_is_taken_where_one_is_gone(tmp_path: Path) -> None:
    made = copies(tmp_path)
    made[2].flip(501, 120)
    report_of(tmp_path, *made)
    shutil.rmtree(made[0].path)
    done = repair(made[2], "--json")
    assert json.loads(done.output)["source"] == str(made[1].path)


def test_without_a_majority_a_person_says_who_is_right(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = copies(tmp_path, nodes=2)
    made[0].flip(501, 120)
    report_of(tmp_path, *made)
    refused(made[0], "no majority", capsys=capsys)
    refused(made[0], "is not one of the report's copies", "--right", "n9", capsys=capsys)
    refused(made[0], "that is to be repaired", "--right", "n1", capsys=capsys)
    assert repair(made[0], "--right", "n2").return_value == 0
    assert audited(*made).exit_code == 0


def test_three_copies_that_all_differ_have_no_majority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = copies(tmp_path, STORY, changed(STORY, 200), changed(STORY, 200, "otherly"))
    report_of(tmp_path, *made)
    refused(made[0], "1 of 3 copies agree", capsys=capsys)


def test_blocks_of_another_size_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (other,) = blocks(["short"] * 5, first_vlsn=1001)
    made = copies(tmp_path, STORY, [*STORY[:200], other, *STORY[201:]], STORY)
    report_of(tmp_path, *made)
    refused(made[1], "vlsnlog restore", capsys=capsys)


def test_blocks_that_the_state_sums_up_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(word: str) -> list[bytes]:
        values = Values([f"{word} {n}".encode() for n in range(5)], producer=(7, 1))
        (block,) = seal([values], term=1, first_vlsn=1001, dtvlsn=990, clock_us=5)
        return [*STORY[:200], block.data, *STORY[201:]]

    made = copies(tmp_path, told("good"), told("evil"), told("good"))
    report_of(tmp_path, *made)
    refused(made[1], "sums up", capsys=capsys)


def test_what_is_no_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = copies(tmp_path)
    (tmp_path / "report.json").write_text("{}")
    refused(made[0], "name a report", capsys=capsys)
    assert segment_name(1) in tree(made[0].path)
