"""The audit of whole copies: its proofs, and its findings.  Jobs run in this process; see ``test_spark``."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repl.audit.digest import Checksums
from repl.audit.findings import Finding
from repl.audit.source import Unreadable
from repl.cli.audit import print_report
from tests.repl.audit.forge import Forge, forged
from tests.repl.audit.jobs import Before, LocalJobs, audited
from tests.repl.audit.logs import STORY, Copy, blocks, numbered, three
from vlsn.errors import BadArgument
from vlsn.format.frame import FrameKind
from vlsn.format.segment import segment_name, sidecar_name
from vlsn.ids import Lsn, Term, Vlsn, lsn_file, lsn_offset
from vlsn.real.disk import PosixDisk
from vlsn.real.lmdb_store import LmdbStores
from vlsn.state import node_file
from vlsn.state.node_file import NodeRecord
from vlsn.state.state_store import IdleEnd, StateStore
from vlsn.verify.verify import verify

LAST = 2000
DTVLSN = LAST - 10


def only(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def test_equal_copies_in_segments_of_any_size(tmp_path: Path) -> None:
    jobs = LocalJobs()
    report = audited(*three(tmp_path), jobs=jobs)
    assert (report.equal, report.exit_code, report.findings) == (True, 0, [])
    assert (report.compared_from, report.compared_to) == (1, DTVLSN)
    assert [(one.node, one.first, one.last, one.dtvlsn) for one in report.sources] == [
        (node, 1, LAST, DTVLSN) for node in ("n1", "n2", "n3")
    ]
    assert {one.entries for one in report.sources} == {LAST}
    assert report.tasks == jobs.tasks == sum(count for _, count in jobs.log)


def test_no_entry_comes_back_from_a_task(tmp_path: Path) -> None:
    story = numbered(200, 50, 400)
    copies = [Copy(tmp_path / node, node, segment_bytes=1 << 20).add(*story).write() for node in ("n1", "n2")]
    jobs = LocalJobs()
    assert audited(*copies, jobs=jobs).equal
    assert sum(map(len, story)) > 4_000_000
    assert jobs.returned_bytes < 40_000, "digests, and no entries"


PLACES = {
    "magic": 0,
    "kind": 2,
    "flag": 3,
    "length": 4,
    "length's high byte": 6,
    "prev": 8,
    "synced": 12,
    "salt": 16,
    "crc": 20,
    "term": 24 + 8,
    "block header's crc": 24 + 60,
    "offsets": 24 + 64,
    "values": 24 + 64 + 30,
    "padding": -1,
}


@pytest.mark.parametrize("which", [0, 1, -1], ids=["first of its segment", "second", "last of its segment"])
@pytest.mark.parametrize("place", PLACES)
def test_a_flipped_bit_is_named_by_file_offset_and_vlsn(tmp_path: Path, place: str, which: int) -> None:
    story = blocks(*([f"v{n:03}", "x" * 1000, "y" * 21] for n in range(300)))
    copies = [Copy(tmp_path / node, node).add(*story).write() for node in ("n1", "n2", "n3")]
    firsts = sorted(first for first, at in copies[1].places.items() if lsn_file(at) == 2)
    vlsn = firsts[which]
    at = PLACES[place] if PLACES[place] >= 0 else 24 + (len(story[0]) + 7) // 8 * 8 - 1
    assert len(story[(vlsn - 1) // 3]) % 8
    file, offset = copies[1].flip(vlsn, at)
    report = audited(*copies)
    assert (report.equal, report.exit_code) == (False, 1)
    finding = only(report.findings)
    assert (finding.source, finding.file, finding.offset, finding.vlsn) == (str(copies[1].path), file, offset, vlsn)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(position=st.integers(0, 64 << 10), bit=st.integers(0, 7), number=st.integers(1, 3))
def test_no_flipped_bit_of_a_sealed_segment_escapes(tmp_path: Path, position: int, bit: int, number: int) -> None:
    if not (tmp_path / "n1").exists():
        three(tmp_path)
    hurt = Copy(tmp_path / "hurt", "n1")
    if hurt.path.exists():
        shutil.rmtree(hurt.path)
    shutil.copytree(tmp_path / "n1", hurt.path)
    end = max(lsn_offset(at) for at in Copy(hurt.path, "n1").add(*STORY).places.values() if lsn_file(at) == number)
    position %= end
    hurt.flip_at(number, position, 1 << bit)
    report = audited(hurt, tmp_path / "n3")
    assert report.exit_code == 1
    assert {finding.file for finding in report.findings} == {segment_name(number)}
    assert all(finding.offset <= position for finding in report.findings)


def test_bytes_past_the_end_that_the_next_header_names_are_dead(tmp_path: Path) -> None:
    copies = three(tmp_path)
    size = (copies[0].path / segment_name(1)).stat().st_size
    copies[0].flip_at(1, size - 1)
    assert audited(*copies).exit_code == 0


def test_a_damaged_segment_header_hides_no_block(tmp_path: Path) -> None:
    copies = three(tmp_path)
    copies[0].flip_at(2, 100)
    report = audited(*copies)
    finding = only(report.findings)
    first = min(first for first, at in copies[0].places.items() if lsn_file(at) == 2)
    assert (finding.rule, finding.file, finding.offset, finding.vlsn) == ("segment-header", segment_name(2), 0, first)
    assert (report.equal, report.exit_code) == (True, 1)


def test_a_damaged_record_is_a_finding_in_equal_logs(tmp_path: Path) -> None:
    one = Copy(tmp_path / "n1", "n1").add(*STORY[:100]).checkpoint(dtvlsn=480).add(*STORY[100:]).roll().write()
    two = Copy(tmp_path / "n2", "n2").add(*STORY).write()
    at = one.places[501]
    one.flip_at(lsn_file(at), lsn_offset(at) - 40)
    report = audited(one, two)
    finding = only(report.findings)
    assert (finding.rule, finding.file, finding.vlsn) == ("frame-crc", segment_name(1), 501)
    assert (report.equal, report.exit_code) == (True, 1)


# Divergence.


def test_another_value_with_right_checksums_is_shown_with_both(tmp_path: Path) -> None:
    copies = three(tmp_path)
    values = ["value 1501", "value 1502", "paid 11", "value 1504", "value 1505"]
    other = blocks(values, first_vlsn=1501)[0]
    original = ["value 1501", "value 1502", "paid 10", "value 1504", "value 1505"]
    story = [*STORY[:300], blocks(original, first_vlsn=1501)[0], *STORY[301:]]
    one = Copy(tmp_path / "one", "n1").add(*story).write()
    two = Copy(tmp_path / "two", "n2", segment_bytes=96 << 10).add(*story[:300], other, *story[301:]).write()
    report = audited(one, two)
    finding = only(report.findings)
    assert (report.equal, report.exit_code) == (False, 1)
    assert (finding.rule, finding.vlsn, finding.source) == ("divergence", 1503, str(two.path))
    at = two.places[1501]
    assert (finding.file, finding.offset) == (segment_name(lsn_file(at)), lsn_offset(at))
    assert finding.more["value"] == "paid 11"
    assert finding.more["other"]["value"] == "paid 10"
    assert finding.more["other"]["source"] == str(one.path)
    assert (finding.owner, finding.mend) == ("n2", "")  # of two nobody knows who is right
    assert copies


def test_the_copy_that_differs_from_most_is_named(tmp_path: Path) -> None:
    other = blocks([b"\xff\x01"] + [b"."] * 4, first_vlsn=6)[0]
    stories = {"n1": [STORY[0], other, *STORY[2:]], "n2": STORY, "n3": STORY}
    report = audited(*(Copy(tmp_path / node, node).add(*story).write() for node, story in stories.items()))
    finding = only(report.findings)
    assert (finding.source, finding.vlsn) == (str(tmp_path / "n1"), 6)
    assert (finding.more["value_b64"], finding.more["other"]["value"][:7]) == ("/wE=", "value 6")


def test_a_divergence_in_each_range_is_named(tmp_path: Path) -> None:
    story = numbered(150, 1000)
    changed = [*story]
    for index in (3, 70, 140):
        changed[index] = blocks([f"other {n}" for n in range(1000)], first_vlsn=index * 1000 + 1)[0]
    one = Copy(tmp_path / "n1", "n1", segment_bytes=1 << 20).add(*story).write()
    two = Copy(tmp_path / "n2", "n2", segment_bytes=1 << 20).add(*changed).write()
    report = audited(one, two)
    assert [finding.vlsn for finding in report.findings] == [3001, 70_001, 140_001]
    assert report.ranges_differing == 3


def test_one_log_cut_into_other_blocks_is_a_divergence(tmp_path: Path) -> None:
    values = [f"value {n}" for n in range(1, 11)]
    one = Copy(tmp_path / "n1", "n1").add(*blocks(values, ["x"], ["y"], ["z"])).write()
    two = Copy(tmp_path / "n2", "n2").add(*blocks(values[:5], values[5:], ["x"], ["y"], ["z"])).write()
    report = audited(one, two)
    assert (report.equal, report.exit_code) == (False, 1)
    assert {finding.rule for finding in report.findings} == {"divergence"}


def test_copies_that_begin_inside_one_anothers_blocks_are_not_equal(tmp_path: Path) -> None:
    tail = numbered(50, first_vlsn=11)
    one = Copy(tmp_path / "n1", "n1").add(*blocks([f"value {n}" for n in range(1, 11)]), *tail).write()
    two = Copy(tmp_path / "n2", "n2").add(*numbered(5, first_vlsn=6), *tail).write()
    report = audited(one, two)
    assert (report.equal, report.exit_code, only(report.findings).rule) == (False, 1, "divergence")


def test_a_difference_above_the_common_dtvlsn_is_none(tmp_path: Path) -> None:
    """Those entries were never reported durable; a rollback may be due."""
    other = blocks(["other"] * 5, first_vlsn=LAST - 4, term=2)[0]
    one = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    two = Copy(tmp_path / "n2", "n2").add(*STORY[:-1], other).write()
    assert audited(one, two).exit_code == 0


def test_a_divergence_shows_where_two_values_differ_and_when_they_were_sealed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Long values that begin alike: the first 200 bytes would be the same text twice."""
    story = numbered(20, 2, 1000)
    copies = [Copy(tmp_path / node, node).add(*story).write() for node in ("n1", "n2", "n3")]
    forge = Forge(copies[2].path)
    frame = forge.block(21)
    forge.body(frame, len(frame.payload) - 300, b"paid to somebody")
    report = audited(*copies, report="somewhere/report.json")
    finding = only(report.findings)
    more = finding.more
    assert (finding.vlsn, finding.owner, more["value_differs_at"]) == (22, "n3", 700)
    assert (more["value_from"], more["value_bytes"]) == (660, 1000)
    assert more["value"] == "." * 40 + "paid to somebody" + "." * 144
    assert more["other"]["value"] == "." * 200
    assert finding.mend == f"vlsnlog repair {copies[2].path} --from-audit somewhere/report.json"
    print_report(report)
    said = capsys.readouterr().out
    assert "differ in value from byte 700 on" in said
    assert said.count("time 2023-11-14T22:13:20.000021Z") == 2
    assert f"\n  mend: {finding.mend}\n" in said


def test_a_command_that_mends_can_be_typed(tmp_path: Path) -> None:
    """Names that a shell would take apart, and a report that was not written."""
    root = tmp_path / "it's here"
    copies = [Copy(root / node, node).add(*STORY).write() for node in ("n1", "n2")]
    copies[0].flip(501, 120)
    command = only(audited(*copies).findings).mend
    one, two = (str(copy.path) for copy in copies)
    audit, repair = command.split("; ")
    assert shlex.split(audit) == ["vlsnlog", "audit", one, two, "--out", "report.json"]
    assert shlex.split(repair) == ["vlsnlog", "repair", one, "--from-audit", "report.json", "--right", "n2"]
    copies[1].flip(501, 120)
    assert [finding.mend for finding in audited(*copies).findings] == ["", ""]  # no copy has it


def test_a_segment_of_another_node_cut_elsewhere_is_one_finding(tmp_path: Path) -> None:
    """Its ends, and the next one's header, say of each other what is not of one log."""
    for number, first in ((1, 1), (2, 736)):
        copies = three(tmp_path / str(number))
        node_file.create(
            PosixDisk(), f"{copies[0].path}/node.id", NodeRecord(group="g", node="n1", incarnation=1, term=1)
        ).close()
        shutil.copyfile(copies[1].path / segment_name(number), copies[0].path / segment_name(number))
        finding = only(audited(*copies).findings)
        assert (finding.rule, finding.source, finding.vlsn) == ("segment-header", str(copies[0].path), first)
        assert (finding.file, finding.owner, finding.more["of_node"]) == (segment_name(number), "n1", "n2")
        assert {"contiguity", "sidecar"} <= set(finding.more["also"])
        alone = verify(PosixDisk(), LmdbStores(), str(copies[0].path)).findings[0]
        assert (alone.rule, alone.file) == ("segment-header", segment_name(number))


def test_a_forged_value_passes_the_fast_way_alone_and_the_report_says_which_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """24 bytes of one copy, whose two checksums of different polynomials are what they were."""
    copies = three(tmp_path)
    forge = Forge(copies[1].path)
    frame = forge.block(1001)
    forge.write(frame, forged(frame.payload, len(frame.payload) - 50, b"paid to somebody"), checksums="none")
    report = audited(*copies)
    finding = only(report.findings)
    assert (finding.rule, finding.source, finding.vlsn) == ("divergence", str(copies[1].path), 1005)
    print_report(report)
    assert "compared by SHA-256" in capsys.readouterr().out
    fast = audited(*copies, checksums=Checksums.CRC)
    assert (fast.equal, fast.findings, fast.as_dict()["checksums"]) == (True, [], "crc")
    print_report(fast)
    assert "compared by CRC: no proof against a forger" in capsys.readouterr().out
    copies[1].flip(501, 120)
    assert only(audited(*copies, checksums=Checksums.CRC).findings).vlsn == 501


# Lengths, gaps, order.


def test_copies_of_different_lengths_are_compared_as_far_as_all_go(tmp_path: Path) -> None:
    one = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    two = Copy(tmp_path / "n2", "n2").add(*STORY[:150]).write()
    report = audited(one, two)
    assert (report.equal, report.compared_from, report.compared_to) == (True, 1, 150 * 5 - 10)


def test_a_trimmed_copy_is_compared_from_where_it_begins(tmp_path: Path) -> None:
    copies = three(tmp_path)
    (copies[0].path / segment_name(1)).unlink()
    report = audited(*copies)
    first = min(first for first, at in copies[0].places.items() if lsn_file(at) == 2)
    assert (report.exit_code, report.compared_from, report.compared_to) == (0, first, DTVLSN)


@pytest.mark.parametrize("roll", [False, True], ids=["inside a segment", "between segments"])
@pytest.mark.parametrize(
    ("cut", "rule", "vlsn"), [(slice(21, None), "contiguity", 101), (slice(19, None), "contiguity", 96)]
)
def test_vlsns_that_skip_or_repeat_are_named(tmp_path: Path, roll: bool, cut: slice, rule: str, vlsn: int) -> None:
    one = Copy(tmp_path / "n1", "n1", segment_bytes=1 << 20).add(*STORY[:20])
    one = (one.roll() if roll else one).add(*STORY[cut]).write()
    report = audited(one, Copy(tmp_path / "n2", "n2").add(*STORY).write())
    finding = next(finding for finding in report.findings if finding.rule == rule)
    assert (finding.source, finding.vlsn, report.exit_code) == (str(one.path), min(vlsn, 101), 1)


# Overmarks.


def test_overmarked_blocks_are_ignored(tmp_path: Path) -> None:
    old, new = numbered(300, term=1, durable=100), numbered(300, first_vlsn=101, term=2)
    one = Copy(tmp_path / "n1", "n1").add(*old).rollback(100).add(*new[:50]).rollback(148).add(*new[48:]).write()
    two = Copy(tmp_path / "n2", "n2").add(*old[:100], *new).write()
    report = audited(one, two)
    assert (report.equal, report.findings, report.compared_to) == (True, [], 398)
    assert {source.last for source in report.sources} == {400}


def test_a_rollback_cut_short_by_a_crash_is_normal(tmp_path: Path) -> None:
    one = Copy(tmp_path / "n1", "n1").add(*numbered(50, durable=40)).rollback(40, flags=False, end=False).write()
    two = Copy(tmp_path / "n2", "n2").add(*numbered(40), *numbered(10, first_vlsn=41, term=2)).write()
    assert audited(one, two).exit_code == 0
    for at in (41, 42, 45):  # some of its flags, in whatever order they reached the disk
        half = Copy(tmp_path / f"half{at}", "n1").add(*numbered(50, durable=40))
        place = half.places[at]
        half.rollback(40, flags=False, end=False).write()
        half.flip_at(lsn_file(place), lsn_offset(place) + 3, 0xA5)
        assert audited(half, two).findings == []
        half.flip_at(lsn_file(place), 4096 + 3, 0xA5)  # and one below its matchpoint, which no record explains
        assert audited(half, two).findings[0].vlsn == 1


# Tails.


def test_a_torn_tail_is_normal(tmp_path: Path) -> None:
    copies = three(tmp_path)
    copies[0].flip(LAST - 4, 100)
    report = audited(*copies)
    assert (report.exit_code, report.findings) == (0, [])
    assert [source.torn_tail for source in report.sources] == [True, False, False]
    assert report.sources[0].last == LAST - 5


def save_idle_end(copy: Copy, end: Lsn) -> None:
    store = LmdbStores().open(str(copy.path / "state"), map_bytes=1 << 20)
    try:
        StateStore(store).save(idle_end=IdleEnd(lsn=end, term=Term(1), vlsn=Vlsn(LAST)))
    finally:
        store.close()


def test_the_same_tail_is_damage_when_it_had_been_synced(tmp_path: Path) -> None:
    copies = three(tmp_path)
    file, offset = copies[0].flip(LAST - 4, 100)
    save_idle_end(copies[0], Lsn(copies[0].places[LAST - 4] + 500))
    report = audited(*copies)
    finding = report.findings[0]
    assert (finding.file, finding.offset, finding.vlsn, report.exit_code) == (file, offset, LAST - 4, 1)


def test_a_segment_that_is_cut_short_is_damage_where_it_ends(tmp_path: Path) -> None:
    copies = three(tmp_path)
    path = copies[0].path / segment_name(2)
    path.write_bytes(path.read_bytes()[: 32 << 10])
    report = audited(*copies)
    finding = only(report.findings)
    assert (finding.rule, finding.file, report.exit_code) == ("frame-header", segment_name(2), 1)
    assert (24 << 10) < finding.offset <= (32 << 10)


def test_a_running_node_is_read_up_to_what_it_states_as_synced(tmp_path: Path) -> None:
    copies = three(tmp_path)
    copies[0].flip(LAST - 4, 100)
    lock = PosixDisk().lock(str(copies[0].path / "LOCK"))
    try:
        report = audited(*copies)
    finally:
        lock.release()
    assert report.exit_code == 0
    assert [source.live for source in report.sources] == [True, False, False]
    assert not any(source.torn_tail for source in report.sources)
    assert DTVLSN - 20 <= report.compared_to < DTVLSN


def test_a_running_node_that_went_quiet_is_read_to_its_idle_end(tmp_path: Path) -> None:
    copies = three(tmp_path)
    length = (24 + len(STORY[-1]) + 7) // 8 * 8
    save_idle_end(copies[0], Lsn(copies[0].places[LAST - 4] + length))
    before = {path: path.read_bytes() for path in copies[0].path.rglob("*") if path.is_file()}
    lock = PosixDisk().lock(str(copies[0].path / "LOCK"))
    try:
        report = audited(*copies)
    finally:
        lock.release()
    (copies[0].path / "LOCK").unlink()
    assert (report.exit_code, report.sources[0].live, report.sources[0].last) == (0, True, LAST)
    assert report.compared_to == DTVLSN
    assert {path: path.read_bytes() for path in copies[0].path.rglob("*") if path.is_file()} == before


def test_a_rollback_that_a_running_node_begins_meanwhile_is_no_finding(tmp_path: Path) -> None:
    story = numbered(60, 50)  # durable up to VLSN 2900: two blocks may still go
    for flagged in (0, 1, 2):
        one = Copy(tmp_path / f"{flagged}n1", "n1", segment_bytes=24 << 10).add(*story).checkpoint(2900)
        two = Copy(tmp_path / f"{flagged}n2", "n2").add(*story).write()
        gone = [one.places[2901], one.places[2951]]
        one.rollback(2900, flags=False, end=False).write()
        for at in gone[:flagged]:
            one.flip_at(at >> 32, (at & 0xFFFF_FFFF) + 3, 0xA5)
        lock = PosixDisk().lock(str(one.path / "LOCK"))
        try:
            report = audited(one, two)
            one.flip_at(1, 4096 + 3, 0xA5)  # and a mark that no record explains
            harmed = audited(one, two)
        finally:
            lock.release()
        assert (report.findings, report.exit_code, report.equal) == ([], 0, True), flagged
        assert report.compared_to == 2900
        assert (1, "overmark") in [(finding.vlsn, finding.rule) for finding in harmed.findings]


# Sidecars.


@pytest.mark.parametrize("at", [12, 30, 56, -1])
def test_a_wrong_sidecar_is_named(tmp_path: Path, at: int) -> None:
    copies = three(tmp_path)
    path = copies[0].path / sidecar_name(2)
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    report = audited(*copies)
    finding = only(report.findings)
    assert (finding.rule, finding.file) == ("sidecar", sidecar_name(2))
    assert (report.equal, report.exit_code) == (True, 1)


@pytest.mark.parametrize("runs", [True, False])
def test_a_segment_that_is_closed_while_it_is_audited_is_no_finding(tmp_path: Path, runs: bool) -> None:
    """Its sidecar speaks of what was appended since the survey, by a node that ran then or was started since."""
    one, two = (Copy(tmp_path / node, node).add(*numbered(100, 5, 60)).write() for node in ("n1", "n2"))

    def closed() -> None:
        two.add(*numbered(2, 5, 60, first_vlsn=501)).roll().add(*numbered(1, 5, 60, first_vlsn=511)).write()

    lock = PosixDisk().lock(str(two.path / "LOCK")) if runs else None
    try:
        report = audited(one, two, jobs=Before("read", closed))
    finally:
        if lock is not None:
            lock.release()
    assert (two.path / sidecar_name(1)).exists()
    assert (report.findings, report.partial, report.exit_code) == ([], False, 0)


# Nothing to compare, and what cannot be run.


def test_comparing_nothing_is_no_success(tmp_path: Path) -> None:
    one = Copy(tmp_path / "n1", "n1").add(*numbered(1)).write()
    two = Copy(tmp_path / "n2", "n2").add(*numbered(1)).write()
    report = audited(one, two)  # one block each, and nothing says that it was durable
    assert (report.equal, report.compared_from, report.compared_to, report.exit_code) == (False, 0, 0, 2)
    assert audited(one, Copy(tmp_path / "n3", "n3").write()).exit_code == 2


def test_what_cannot_be_audited_says_why(tmp_path: Path) -> None:
    one = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    (tmp_path / "empty").mkdir()
    for path, message in ((tmp_path / "gone", "No such file"), (tmp_path / "empty", "name a node's directory")):
        with pytest.raises(Unreadable, match=message):
            audited(one, path)
    half = Copy(tmp_path / "half", "n2").add(*STORY).write()
    (half.path / "restore.marker").write_bytes(b"anything")
    with pytest.raises(Unreadable, match="a network restore of"):
        audited(one, half)
    with pytest.raises(BadArgument, match="different groups"):
        audited(one, Copy(tmp_path / "other", "n1", group="other").add(*STORY).write())
    with pytest.raises(BadArgument, match="http"):
        audited(one, "ftp://n1")


def test_kinds_of_frames_that_are_no_blocks_are_counted_as_none(tmp_path: Path) -> None:
    one = Copy(tmp_path / "n1", "n1").add(*STORY[:10]).checkpoint(dtvlsn=50).write()
    assert one.frame(FrameKind.CHECKPOINT_START, bytes(40)) > Lsn(0)
    report = audited(one, Copy(tmp_path / "n2", "n2").add(*STORY[:10]).checkpoint(dtvlsn=50).write())
    assert (report.compared_to, report.exit_code) == (50, 0)
    assert [source.blocks for source in report.sources] == [10, 10]
