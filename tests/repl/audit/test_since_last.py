"""An audit that goes on from an earlier one: it reads less, reports the same, and finds changes of the past."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from repl.audit import run_audit
from repl.audit.digest import Checksums
from repl.audit.report import AuditReport
from repl.audit.since import Since, read_since
from tests.repl.audit.forge import Forge
from tests.repl.audit.jobs import audited
from tests.repl.audit.logs import Copy, numbered
from vlsn.errors import BadArgument
from vlsn.format.segment import segment_name

STORY = numbered(600, 50, 60)
"""VLSN 1 to 30 000."""
SIZES = {"n1": 64 << 10, "n2": 96 << 10, "n3": 128 << 10}


class Days:
    """Three copies that grow, and the reports of their audits."""

    def __init__(self, path: Path, story: Sequence[bytes] = STORY) -> None:
        self.path = path
        self.story = story
        self.copies = [Copy(path / node, node, segment_bytes=size) for node, size in SIZES.items()]
        self.done = 0
        self.report = path / "report.json"

    def grow(self, count: int) -> None:
        """Adds blocks; files that do not change keep their times, as of a node that goes on."""
        for copy in self.copies:
            before = {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in copy.path.glob("*.vlog")}
            copy.add(*self.story[self.done : self.done + count]).write()
            for file, (data, time_ns) in before.items():
                if file.read_bytes() == data:
                    os.utime(file, ns=(time_ns, time_ns))
        self.done += count

    def full(self, checksums: Checksums = Checksums.SHA256) -> AuditReport:
        return self.kept(audited(*self.copies, checksums=checksums))

    def since(self, *, deep: bool = False, checksums: Checksums = Checksums.SHA256) -> AuditReport:
        since = read_since(str(self.report), deep=deep, checksums=checksums)
        return audited(*self.copies, since=since, checksums=checksums)

    def kept(self, report: AuditReport) -> AuditReport:
        """Keeps it as the one to go on from."""
        self.report.write_text(report.to_json())
        return report


@pytest.fixture
def days(tmp_path: Path) -> Days:
    made = Days(tmp_path)
    made.grow(400)
    made.full()
    return made


def as_told(report: AuditReport) -> list[object]:
    """Returns what both kinds of audit say of the log; times and series are their own."""
    copies = [
        (
            each.node,
            each.first,
            each.last,
            each.bytes,
            each.blocks,
            each.entries,
            each.ranges,
            each.segments,
            each.holes,
        )
        for each in report.sources
    ]
    return [report.equal, report.compared_from, report.compared_to, report.findings, copies]


@pytest.mark.parametrize("seed", range(4))
def test_it_says_what_a_full_audit_says_and_reads_the_days_log_alone(tmp_path: Path, seed: int) -> None:
    rng, checksums = Random(seed), list(Checksums)[seed % 2]
    story = numbered(600, 50, 60, first_vlsn=56_001)  # the first range of digests ends in one of the days
    days = Days(tmp_path, story)
    days.grow(rng.randrange(150, 300))
    days.full(checksums)
    for _ in range(3):
        days.grow(rng.randrange(1, 90))
        report = days.since(checksums=checksums)
        assert as_told(report) == as_told(audited(*days.copies, checksums=checksums))
        assert report.checksums is checksums
        assert report.since is not None
        assert report.since.segments_kept >= 5
        most = sum(SIZES.values()) + 3 * 90 * len(STORY[0]) * 1.2
        assert report.bytes - report.since.bytes_kept < most
        days.kept(report)


def test_nothing_new_is_equal_still(days: Days) -> None:
    report = days.since()
    assert (report.equal, report.findings, report.exit_code) == (True, [], 0)
    assert report.compared_to == json.loads(days.report.read_text())["compared_to"]


def test_what_is_new_is_compared(days: Days) -> None:
    days.grow(100)
    forge = Forge(days.copies[1].path)
    frame = forge.block(22_000)
    forge.body(frame, len(frame.payload) - 5, b"other")
    report = days.since()
    assert (report.equal, report.exit_code) == (False, 1)
    (finding,) = report.findings
    assert (finding.rule, finding.source, finding.vlsn) == ("divergence", str(days.copies[1].path), frame.last)


def changed(days: Days, node: int, vlsn: int = 3_000, *, hidden: bool) -> int:
    """Changes a value of the past under right checksums; ``hidden``: with the file's time put back."""
    forge = Forge(days.copies[node].path)
    frame = forge.block(vlsn)
    file = forge.files[frame.number]
    time_ns = file.stat().st_mtime_ns
    forge.body(frame, len(frame.payload) - 5, b"other")
    if hidden:
        os.utime(file, ns=(time_ns, time_ns))
    else:
        os.utime(file, ns=(time_ns + 10**9, time_ns + 10**9))
    return next(frame.first for frame in forge.frames(frame.number) if frame.visible)


def test_a_past_that_was_changed_is_found_where_its_file_shows_it(days: Days) -> None:
    days.grow(10)
    vlsn = changed(days, 2, hidden=False)
    report = days.since()
    (finding,) = report.findings
    assert (finding.rule, finding.source, finding.vlsn) == ("changed-past", str(days.copies[2].path), vlsn)
    assert report.equal is False
    assert finding.more["digest"] != finding.more["digest_then"]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("number", [1, 3, 5])
def test_a_segment_whose_name_was_given_again_is_named_with_its_times(days: Days, number: int, deep: bool) -> None:
    days.grow(10)
    forge = Forge(days.copies[2].path)
    file, salt = forge.files[number], forge.salt(number)
    then = file.stat().st_mtime_ns
    frames = [frame for frame in forge.frames(number) if frame.visible]
    forge.salted(number, salt + 1)  # the same blocks: a person has made it again
    assert days.since(deep=deep).findings == []
    forge.body(frames[1], len(frames[1].payload) - 5, b"other")
    os.utime(file, ns=(then, then + 5 * 10**9))
    first, *others = days.since(deep=deep).findings
    assert (first.rule, first.source, first.vlsn) == ("name-reused", str(days.copies[2].path), frames[0].first)
    assert first.file == segment_name(number)
    more = first.more
    assert (more["segment"], more["salt_then"], more["salt"]) == (number, salt, salt + 1)
    assert more["modified_us"] == more["modified_us_then"] + 5_000_000
    assert more["digest"] != more["digest_then"]
    assert {each.rule for each in others} <= {"divergence"}


def test_a_past_that_was_changed_alike_in_all_copies_is_found_by_reading_it(days: Days) -> None:
    days.grow(10)
    firsts = {str(days.copies[node].path): changed(days, node, hidden=True) for node in range(3)}
    assert audited(*days.copies).findings == []  # they are equal
    assert days.since().findings == []  # nothing shows it, and nothing of it was read
    report = days.since(deep=True)
    assert {finding.rule for finding in report.findings} == {"changed-past"}
    assert {finding.source: finding.vlsn for finding in report.findings} == firsts
    assert (report.equal, report.exit_code) == (False, 1)


def test_deep_names_the_copy_and_the_vlsn_where_one_was_changed(days: Days) -> None:
    changed(days, 0, hidden=True)
    report = days.since(deep=True)
    rules = {finding.rule: (finding.source, finding.vlsn) for finding in report.findings}
    assert rules["divergence"] == (str(days.copies[0].path), 3_000)
    assert rules["changed-past"][0] == str(days.copies[0].path)


def test_deep_damage_of_the_past_is_named_where_it_is(days: Days) -> None:
    forge = Forge(days.copies[0].path)
    frame = forge.block(3_000)
    forge.flip(frame.number, frame.offset + 200)
    report = days.since(deep=True)
    assert [(each.rule, each.vlsn) for each in report.findings[:1]] == [("frame-crc", frame.first)]


def test_a_segment_of_the_past_that_is_gone_is_named(days: Days) -> None:
    days.grow(10)
    forge = Forge(days.copies[0].path)
    first = next(frame.first for frame in forge.frames(3) if frame.visible)
    forge.files[3].unlink()
    report = days.since()
    assert ("gap", first) in [(each.rule, each.vlsn) for each in report.findings]


def test_a_copy_that_was_cleaned_goes_on(days: Days) -> None:
    days.grow(60)
    for number in (1, 2):
        (days.copies[0].path / segment_name(number)).unlink()
    report = days.since()
    assert (report.equal, report.findings) == (True, [])
    assert report.compared_from == Forge(days.copies[0].path).blocks()[0].first
    assert days.since(deep=True).findings == []


def test_a_copy_that_was_restored_is_read_whole_and_held_against_the_digests(days: Days) -> None:
    days.grow(60)
    days.copies[1] = Copy(days.path / "anew", "n2", segment_bytes=200 << 10).add(*STORY[: days.done]).write()
    report = days.since()
    assert (report.equal, report.findings) == (True, [])
    forge = Forge(days.copies[1].path)
    frame = forge.block(3_000)
    forge.body(frame, len(frame.payload) - 5, b"other")
    (finding,) = days.since().findings
    assert (finding.rule, finding.source, finding.more.get("range")) == ("changed-past", str(days.copies[1].path), 0)


def test_a_copy_that_has_lost_what_was_compared_is_named(days: Days) -> None:
    copy = days.copies[1]
    shutil.rmtree(copy.path)
    days.copies[1] = Copy(days.path / "n2", "n2", segment_bytes=SIZES["n2"]).add(*STORY[:300]).write()
    report = days.since()
    assert [(each.rule, each.vlsn) for each in report.findings if each.rule == "shorter-than-claimed"] == [
        ("shorter-than-claimed", 15_001)
    ]


def _edited(change: Callable[[dict[str, Any]], object]) -> Callable[[Days], None]:
    def edit(days: Days) -> None:
        report = json.loads(days.report.read_text())
        change(report)
        days.report.write_text(json.dumps(report))

    return edit


def _drops_digests(report: dict[str, Any]) -> None:
    for source in report["sources"]:
        for row in source["segments"]:
            del row["digest"]


BAD: dict[str, tuple[Callable[[Days], object], str]] = {
    "none": (lambda days: days.report.unlink(), "No such file"),
    "no JSON": (lambda days: days.report.write_text("<html>"), "name a report"),
    "another JSON": (lambda days: days.report.write_text('{"vlsn": 1}'), "no report"),
    "an earlier version": (_edited(lambda report: report.update(version=1)), "sums of 64 bits.*audit again"),
    "of other checksums": (_edited(lambda report: report.update(checksums="crc")), "say --checksums crc"),
    "with another end": (
        _edited(lambda report: report["sources"][0]["open"].update(pieces=["AAAA"])),
        "last range",
    ),
    "a later version": (_edited(lambda report: report.update(version=99)), "version 99"),
    "of another group": (_edited(lambda report: report.update(group="other")), "group other"),
    "that found something": (
        _edited(
            lambda report: report["findings"].append({"rule": "gap", "source": "", "file": "", "offset": 0, "vlsn": 1})
        ),
        "found something",
    ),
    "not equal": (_edited(lambda report: report.update(equal=False)), "did not find"),
    "edited": (_edited(lambda report: report["sources"][0]["ranges"][0].update(blocks=1)), "its chain"),
    "without digests of segments": (_edited(_drops_digests), "no digests of segments"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_report_that_nothing_can_go_on_from_is_refused(days: Days, name: str) -> None:
    edit, message = BAD[name]
    edit(days)
    with pytest.raises(BadArgument, match=message):
        days.since()


def test_a_log_that_was_cleaned_past_it_is_refused(days: Days) -> None:
    days.grow(200)
    copy = days.copies[0]
    last = max(copy.ends)
    for number in range(1, last):
        (copy.path / segment_name(number)).unlink()
    with pytest.raises(BadArgument, match="cleaned away since"):
        days.since()


def test_flags_that_do_not_go_together_are_refused_before_spark_starts(days: Days) -> None:
    paths = [str(copy.path) for copy in days.copies]
    with pytest.raises(BadArgument, match="--since-last"):
        run_audit(paths, deep=True)
    with pytest.raises(BadArgument, match="--deep"):
        run_audit(paths, since_last=str(days.report), history=str(days.report))
    assert isinstance(read_since(str(days.report), deep=True), Since)
