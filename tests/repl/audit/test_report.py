"""The report's document: its facts about each copy, reading it back, and files that are no report."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.audit.digest import NO_CHAIN, RangeDigest, chained
from repl.audit.findings import Finding
from repl.audit.outputs import check_outputs, write_outputs
from repl.audit.report import AuditReport, Histogram, SourceReport, Span, decode_report, range_rows, read_report
from tests.repl.audit.jobs import audited
from tests.repl.audit.logs import CLOCK_US, STORY, Copy, blocks, three
from vlsn.errors import BadArgument

HASHES = st.binary(min_size=32, max_size=32)
DIGESTS = st.builds(RangeDigest, st.integers(0, 2**47), st.integers(1, 65536), st.integers(1, 65536), HASHES)


def test_a_report_is_read_as_it_was_written(tmp_path: Path) -> None:
    copies = three(tmp_path)
    copies[1].flip(501, 120)
    report = audited(*copies)
    out = tmp_path / "report.json"
    write_outputs(report, [str(out)])
    again = read_report(str(out))
    assert again == msgspec.structs.replace(report, seconds=again.seconds)
    assert again.findings[0].rule == "frame-crc"
    assert sorted(out.parent.glob("report*")) == [out]


def test_the_short_form_is_a_part_of_the_document(tmp_path: Path) -> None:
    report = audited(*three(tmp_path))
    document = json.loads(report.to_json())
    for name, value in report.as_dict().items():
        if name == "sources":
            assert all(short.items() <= whole.items() for short, whole in zip(value, document[name], strict=True))
        else:
            assert document[name] == value
    assert (document["version"], document["group"]) == (2, "g")
    assert document["made_us"] > CLOCK_US


def test_what_a_copy_holds_is_in_its_report(tmp_path: Path) -> None:
    copies = three(tmp_path)
    for copy, source in zip(copies, audited(*copies).sources, strict=True):
        assert {row.number: row.bytes for row in source.segments} == copy.ends
        assert (source.segments[0].first, source.segments[-1].last) == (1, 2000)
        assert all(one.last + 1 == two.first for one, two in zip(source.segments, source.segments[1:], strict=False))
        assert sum(row.entries for row in source.segments) == source.entries == sum(source.series.entries)
        assert sum(source.series.blocks) == source.blocks == source.block_sizes.sampled
        assert source.entry_sizes == Histogram(
            counts=[0] * 6 + [source.entry_sizes.sampled], sampled=source.entry_sizes.sampled, mean=60
        )
        assert (source.path, source.incarnation) == (str(copy.path), f"{sum(copy.path.name.encode()):016x}")
        assert [row.range for row in source.ranges] == [0]
        assert source.sizes.segments >= sum(copy.ends.values())
    assert not any(source.overmarks or source.holes for source in audited(*copies).sources)


def test_rolled_back_blocks_and_holes_are_listed(tmp_path: Path) -> None:
    copies = three(tmp_path)
    gone = Copy(tmp_path / "n4", "n4", segment_bytes=64 << 10)
    gone.add(*STORY, *blocks(["a", "b"], ["c"], first_vlsn=2001)).rollback(2000).write()
    copies[0].flip(501, 120)
    hurt, _, _, back = audited(*copies, gone).sources
    assert hurt.holes == [Span(first=501, last=505)]
    assert any(row.damaged for row in hurt.segments)
    (marks,) = back.overmarks
    assert (marks.first, marks.last) == (2001, 2003)
    assert marks.offset < marks.last_offset
    assert back.segments[-1].overmarked == 2


def test_a_missing_segment_is_a_hole(tmp_path: Path) -> None:
    copies = three(tmp_path)
    first, second, third = audited(*copies).sources[0].segments[:3]
    (copies[0].path / second.file).unlink()
    hurt = audited(*copies).sources[0]
    assert hurt.holes == [Span(first=second.first, last=second.last)]
    assert (first.last + 1, third.first - 1) == (second.first, second.last)


@given(st.lists(DIGESTS, min_size=2, max_size=6), st.data())
def test_a_chain_tells_of_every_change_before_it(digests: list[RangeDigest], data: st.DataObject) -> None:
    rows = range_rows(digests)
    assert [row.sum for row in rows] == digests
    assert range_rows(digests[1:], bytes.fromhex(rows[0].chain)) == rows[1:]
    at = data.draw(st.integers(0, len(digests) - 1))
    other = data.draw(DIGESTS.filter(lambda each: each != digests[at]))
    changed = range_rows([*digests[:at], other, *digests[at + 1 :]])
    assert changed[:at] == rows[:at]
    assert all(one.chain != two.chain for one, two in zip(changed[at:], rows[at:], strict=True))


def test_two_digests_in_another_order_are_another_chain() -> None:
    one, two = RangeDigest(1, 2, 3, bytes(32)), RangeDigest(1, 2, 3, b"2" * 32)
    assert chained(chained(NO_CHAIN, one), two) != chained(chained(NO_CHAIN, two), one)


FINDING = Finding(rule="gap", source="n1", file="", offset=0, vlsn=1, more={"other": {"file": "x"}, "entries": 3})


def report_of(*, equal: bool = True, compared_to: int = 2, findings: Sequence[Finding] = (FINDING,)) -> AuditReport:
    source = SourceReport(
        source="n1",
        node="n1",
        first=1,
        last=2,
        dtvlsn=2,
        bytes=3,
        blocks=1,
        entries=2,
        live=False,
        torn_tail=False,
        ranges=range_rows([RangeDigest(0, 2, 1, b"7" * 32)]),
    )
    return AuditReport(
        equal=equal,
        compared_from=min(1, compared_to),
        compared_to=compared_to,
        sources=[source],
        findings=list(findings),
        ranges_differing=0,
        tasks=1,
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("equal", "compared_to", "findings", "status"),
    [
        (True, 8, [], 0),
        (True, 8, [FINDING], 1),
        (False, 8, [], 1),
        (False, 8, [FINDING], 1),
        (False, 0, [], 2),
        (False, 0, [FINDING], 1),
    ],
)
def test_exit_code(equal: bool, compared_to: int, findings: list[Finding], status: int) -> None:
    assert report_of(equal=equal, compared_to=compared_to, findings=findings).exit_code == status


def written(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    report = report_of()
    assert decode_report(report.to_json().encode()) == report
    fields = json.loads(report.to_json())
    assert fields["findings"] == [
        {"rule": "gap", "source": "n1", "file": "", "offset": 0, "vlsn": 1, "other": {"file": "x"}, "entries": 3}
    ]
    change(fields)
    file = path / "report.json"
    file.write_text(json.dumps(fields))
    return str(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda fields: fields.update(version=3), "version 3"),
        (lambda fields: fields.update(version=1), "version 1, and its digests are sums of 64 bits"),
        (lambda fields: fields.update(checksums="md5"), "checksums"),
        (lambda fields: fields.pop("version"), "no report"),
        (lambda fields: fields.pop("sources"), "sources"),
        (lambda fields: fields.update(compared_to="x"), "compared_to"),
        (lambda fields: fields["findings"].append(7), "findings"),
        (lambda fields: fields["findings"][0].pop("rule"), "rule"),
        (lambda fields: fields["sources"][0]["ranges"][0].update(digest="no"), "64 hex digits"),
        (lambda fields: fields["sources"][0]["ranges"][0].update(chain="-" + "0" * 63), "64 hex digits"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        read_report(written(tmp_path, change))


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'"x"', b"\xff\xfe", b'{"version": 1}'])
def test_bytes_that_are_no_report_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "report.json").write_bytes(data)
    with pytest.raises(BadArgument, match="name a report"):
        read_report(str(tmp_path / "report.json"))


def test_a_report_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="No such file"):
        read_report(str(tmp_path / "gone.json"))


def test_outputs_that_cannot_be_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    source, inside = tmp_path / "n1", tmp_path / "n1" / "x.json"
    source.mkdir()
    (tmp_path / "link").symlink_to(source)
    (tmp_path / "dir.json").mkdir()
    good = str(tmp_path / "report.json")
    for paths, message in (
        ([good, str(tmp_path / "report.yaml")], "one of .json"),
        ([str(tmp_path / "report")], "one of .json"),
        ([str(inside)], "is audited"),
        ([str(tmp_path / "link" / "x.json")], "is audited"),
        ([good, str(tmp_path / "." / "report.json")], "twice"),
        ([str(tmp_path / "dir.json")], "is a directory"),
        ([str(tmp_path / "gone" / "x.json")], "no directory"),
    ):
        with pytest.raises(BadArgument, match=message):
            check_outputs(paths, [str(source), "http://127.0.0.1:1"])
    check_outputs([good], [str(source)])


def test_a_report_that_cannot_be_renamed_leaves_what_was_there(tmp_path: Path) -> None:
    report = audited(*three(tmp_path))
    out = tmp_path / "report.json"
    (out / "old").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_outputs(report, [str(out)])
    assert sorted(tmp_path.glob("report*")) == [out]
    assert (out / "old").is_dir()
