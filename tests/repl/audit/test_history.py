"""A client's history in the audit: its lines, and what is said of appends that are not there."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from repl.audit import run_audit
from repl.audit.digest import RANGE_BITS, entry_digest
from repl.audit.history import (
    APPEND,
    DIGESTS_A_VLSN,
    LINE_BYTES_MAX,
    by_range,
    merged_appends,
    parts_of,
    read_lines,
)
from repl.audit.report import AuditReport
from repl.audit.source import Unreadable
from tests.repl.audit.jobs import LocalJobs, audited
from tests.repl.audit.logs import Copy, blocks, numbered
from vlsn.errors import BadArgument
from vlsn.format.checksum import crc
from vlsn.format.segment import segment_name

KEYS = [b"alice", None, b"\xff\x00"]
VALUES = [[f"value {n} {m}" for m in range(1 + n % 7)] for n in range(60)]
FLAT = [value.encode() for group in VALUES for value in group]
STORY = blocks(*VALUES, keys=KEYS)
LAST = len(FLAT)
DTVLSN = LAST - sum(len(group) for group in VALUES[-2:])
"""The DTVLSN that the copies' blocks say."""


def key_of(vlsn: int) -> bytes | None:
    """Returns the key that ``blocks`` gave to the first entry of a block, and so on; played again here."""
    return KEYS_BY_VLSN[vlsn]


def _keys() -> dict[int, bytes | None]:
    found, first = {}, 1
    for group in VALUES:
        for number in range(len(group)):
            found[first + number] = KEYS[(first + number) % len(KEYS)]
        first += len(group)
    return found


KEYS_BY_VLSN = _keys()


def line(vlsn: int, value: bytes | None = None) -> dict[str, Any]:
    return {"vlsn": vlsn, "digest": entry_digest(FLAT[vlsn - 1] if value is None else value, key_of(vlsn))}


def written(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


def copies(path: Path) -> list[Copy]:
    sizes = {"n1": 6 << 10, "n2": 9 << 10, "n3": 1 << 20}
    return [Copy(path / node, node, segment_bytes=size).add(*STORY).write() for node, size in sizes.items()]


def held(path: Path, lines: Iterable[Mapping[str, Any]], *made: Copy, part_bytes: int = 1000) -> AuditReport:
    file = written(path / "history.ndjson", lines)
    return audited(*(made or copies(path)), history=parts_of(str(file), part_bytes))


def test_every_acknowledged_entry_is_in_every_copy(tmp_path: Path) -> None:
    lines = [line(vlsn) for vlsn in range(1, DTVLSN + 1)]
    Random(3).shuffle(lines)
    report = held(tmp_path, lines)
    assert report.findings == []
    assert report.exit_code == 0
    assert report.as_dict()["history"] == {
        "file": str(tmp_path / "history.ndjson"),
        "appends": DTVLSN,
        "everywhere": DTVLSN,
        "cleaned": 0,
        "once": 0,
        "reads": 0,
        "findings": 0,
    }


def test_a_digest_is_both_checksums_of_key_and_value() -> None:
    for value, key in ((b"", None), (b"paid", b"alice"), (b"paid", b""), (b"\x00" * 5000, b"k" * 300)):
        said = len(key or b"").to_bytes(4, "little") + (key or b"") + value
        assert entry_digest(value, key) == f"{crc(said):08x}{crc32(said):08x}"
    assert entry_digest(b"b", b"a") != entry_digest(b"ab") != entry_digest(b"", b"ab")


def test_the_entries_themselves_are_a_history(tmp_path: Path) -> None:
    """The lines are those of ``vlsnlog read --json``, other fields and all."""
    lines = []
    for vlsn in range(1, DTVLSN + 1):
        key = key_of(vlsn)
        said: dict[str, Any] = {"vlsn": vlsn, "term": 1, "time": 17, "value": FLAT[vlsn - 1].decode()}
        if key == b"\xff\x00":
            said = {"vlsn": vlsn, "key_b64": b64encode(key).decode(), "value_b64": b64encode(FLAT[vlsn - 1]).decode()}
        elif key:
            said["key"] = key.decode()
        lines.append(said)
        if vlsn % 5 == 0:
            lines.append(line(vlsn))  # a digest may say it again
    report = held(tmp_path, lines)
    assert report.findings == []
    assert report.history is not None
    assert (report.history.appends, report.history.everywhere) == (DTVLSN, DTVLSN)


def test_an_append_that_is_another_one_or_not_there_is_named(tmp_path: Path) -> None:
    lines = [line(vlsn) for vlsn in range(1, 40)]
    lines[9] = line(10, b"another value")
    report = held(tmp_path, lines)
    assert [(each.rule, each.vlsn) for each in report.findings] == [("history-differs", 10)] * 3
    assert {each.source for each in report.findings} == {str(tmp_path / node) for node in ("n1", "n2", "n3")}
    assert report.findings[0].more == {"digest": lines[9]["digest"], "digest_there": line(10)["digest"]}
    assert report.history is not None
    assert (report.exit_code, report.equal, report.history.everywhere, report.history.findings) == (1, True, 38, 3)


def test_an_append_that_no_copy_has_is_lost_however_high(tmp_path: Path) -> None:
    report = held(tmp_path, [line(1), {"vlsn": LAST + 1, "digest": "00000000000000ff"}])
    (finding,) = report.findings
    assert (finding.rule, finding.vlsn, finding.detail[-14:]) == ("history-missing", LAST + 1, "no copy has it")
    far = held(tmp_path, [{"vlsn": 9 << RANGE_BITS, "digest": "00000000000000ff"}])
    assert [(each.rule, each.vlsn) for each in far.findings] == [("history-missing", 9 << RANGE_BITS)]


def test_a_copy_that_lags_or_has_cleaned_owes_nothing_there(tmp_path: Path) -> None:
    whole = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    lags = Copy(tmp_path / "n2", "n2").add(*STORY[:30]).write()
    first = sum(len(group) for group in VALUES[:10]) + 1
    cleaned = Copy(tmp_path / "n3", "n3").add(*STORY[10:]).write()
    report = held(tmp_path, [line(vlsn) for vlsn in range(1, LAST + 1)], whole, lags, cleaned)
    assert report.findings == []
    assert report.history is not None
    end = sum(len(group) for group in VALUES[:30])
    history = report.history
    assert (history.appends, history.everywhere, history.cleaned) == (LAST, end - first + 1, first - 1)


def test_what_a_copy_may_yet_roll_back_is_no_finding_while_another_has_it(tmp_path: Path) -> None:
    whole = Copy(tmp_path / "n1", "n1").add(*STORY).write()
    at = sum(len(group) for group in VALUES[:30]) + 1
    stray = blocks(["divergent"], first_vlsn=at, term=2)
    other = Copy(tmp_path / "n2", "n2").add(*STORY[:30], *stray).write()
    assert held(tmp_path, [line(at)], whole, other).findings == []
    alone = Copy(tmp_path / "n3", "n3").add(*STORY[:30]).write()
    report = held(tmp_path, [line(at)], other, alone)
    assert [(each.rule, each.source, each.file) for each in report.findings] == [
        ("history-differs", str(other.path), segment_name(1))
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.tuples(st.integers(1, LAST + 4), st.booleans()), min_size=1, max_size=30, unique_by=lambda each: each[0]
    ),
    ends=st.tuples(st.integers(31, 60), st.integers(31, 60)),
    begins=st.tuples(st.integers(0, 25), st.integers(0, 25)),
    part_bytes=st.integers(40, 900),
)
def test_what_is_said_is_what_a_plain_look_at_the_copies_says(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[int, bool]],
    ends: tuple[int, int],
    begins: tuple[int, int],
    part_bytes: int,
) -> None:
    """Copies that begin and end where they like; lines that are right or not, some of them above every end."""
    path = tmp_path_factory.mktemp("copies")
    sums = [0, *accumulate(map(len, VALUES))]
    held_by = {str(path / f"n{at}"): (sums[begins[at]] + 1, sums[ends[at] - 2], sums[ends[at]]) for at in range(2)}
    made = [Copy(path / f"n{at}", f"n{at}").add(*STORY[begins[at] : ends[at]]).write() for at in range(2)]
    said = [line(vlsn) if good and vlsn <= LAST else {"vlsn": vlsn, "digest": "0" * 16} for vlsn, good in lines]
    report = held(path, said, *made, part_bytes=part_bytes)
    expected = []
    everywhere = cleaned = 0
    for vlsn, good in lines:
        right = [good and first <= vlsn <= last for first, _, last in held_by.values()]
        owed = [first <= vlsn <= durable for first, durable, _ in held_by.values()]
        below = [vlsn < first for first, _, _ in held_by.values()]
        everywhere += all(right)
        cleaned += any(below)
        expected += [(vlsn, name) for name, fine, due in zip(held_by, right, owed, strict=True) if due and not fine]
        if not any(right) and not any(owed) and not all(below):
            furthest = max(held_by, key=lambda name: held_by[name][2])
            expected.append((vlsn, furthest))
    assert [(each.vlsn, each.source) for each in report.findings] == sorted(expected)
    assert report.history is not None
    counts = (report.history.appends, report.history.everywhere, report.history.cleaned, report.history.findings)
    assert counts == (len(lines), everywhere, cleaned, len(expected))


def test_what_is_there_once_is_nowhere_else_and_what_was_refused_nowhere(tmp_path: Path) -> None:
    lines = [line(vlsn) | {"once": True} for vlsn in range(1, DTVLSN + 1)]
    lines += [{"digest": entry_digest(b"refused %d" % number), "once": True} for number in range(50)]
    Random(5).shuffle(lines)
    jobs = LocalJobs()
    file = written(tmp_path / "history", lines)
    report = audited(*copies(tmp_path), jobs=jobs, history=parts_of(str(file), 900))
    assert report.findings == []
    assert report.history is not None
    assert (report.history.appends, report.history.everywhere, report.history.once) == (DTVLSN, DTVLSN, DTVLSN + 50)
    assert "once" in [what for what, _ in jobs.log]


def test_an_append_that_is_there_twice_or_though_it_was_refused_is_named(tmp_path: Path) -> None:
    story = blocks([b"paid 1", b"paid 2"], [b"paid 1"], [b"no"], [b"end"], [b"end"])
    made = [Copy(tmp_path / node, node).add(*story).write() for node in ("n1", "n2")]
    paid = {"vlsn": 1, "value": "paid 1"}
    assert held(tmp_path, [paid], *made).findings == []
    report = held(tmp_path, [paid | {"once": True}, {"value": "no", "once": True}, {"value": "end"} | paid], *made)
    said = [(each.rule, each.vlsn, each.detail, each.more) for each in report.findings]
    assert said == [
        ("history-twice", 3, "it was acknowledged at VLSN 1, once, and is here", {"digest": entry_digest(b"paid 1")}),
        ("history-refused", 4, "its append was refused, and is here", {"digest": entry_digest(b"no")}),
    ]
    assert report.history is not None
    assert (report.exit_code, report.equal, report.history.findings) == (1, True, 2)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    there=st.lists(st.integers(0, 12), min_size=1, max_size=25),
    lines=st.lists(st.tuples(st.integers(0, 28), st.integers(0, 14), st.booleans()), min_size=1, max_size=25),
    part_bytes=st.integers(40, 900),
)
def test_whatever_a_history_says_of_once_a_plain_look_says_it_too(
    tmp_path_factory: pytest.TempPathFactory,
    there: list[int],
    lines: list[tuple[int, int, bool]],
    part_bytes: int,
) -> None:
    """Values come again; lines name one of them, at a VLSN or nowhere (0), to be there once or not."""
    path = tmp_path_factory.mktemp("copies")
    story = blocks(*([b"%d" % value] for value in there), [b"end"], [b"end"])
    made = [Copy(path / node, node).add(*story).write() for node in ("n1", "n2")]
    said = []
    for vlsn, value, once in lines:
        named: dict[str, Any] = {"vlsn": vlsn} if vlsn else {}
        said.append({**named, "value": str(value), "once": once or not vlsn})
    report = held(path, said, *made, part_bytes=part_bytes)
    allowed: dict[int, set[int]] = {}
    for vlsn, value, once in lines:
        if once or not vlsn:
            allowed.setdefault(value, set()).add(vlsn)
    expected = []
    for vlsn, value in enumerate(there, 1):
        if value in allowed and vlsn not in allowed[value]:
            expected.append((vlsn, "history-twice" if any(allowed[value]) else "history-refused"))
    found = [(each.vlsn, each.rule) for each in report.findings if each.rule in ("history-twice", "history-refused")]
    assert found == expected
    assert report.history is not None
    assert report.history.once == sum(once or not vlsn for vlsn, _, once in lines)


def test_a_damaged_block_does_not_count_as_there(tmp_path: Path) -> None:
    made = copies(tmp_path)
    made[1].flip(2, 80)
    report = held(tmp_path, [line(vlsn) for vlsn in (1, 2, 3, 4)], *made)
    assert {each.source for each in report.findings} == {str(made[1].path)}
    assert sorted((each.rule, each.vlsn) for each in report.findings) == [
        ("frame-crc", 2),
        ("history-missing", 2),
        ("history-missing", 3),
    ]


def test_a_block_across_two_ranges_is_found_from_both(tmp_path: Path) -> None:
    edge = 1 << RANGE_BITS
    first = edge - 3
    story = blocks([f"value {vlsn}" for vlsn in range(first, edge + 3)], *(["end"], ["end"]), first_vlsn=first)
    made = [Copy(tmp_path / node, node).add(*story).write() for node in ("n1", "n2")]
    lines = [{"vlsn": vlsn, "value": f"value {vlsn}"} for vlsn in range(first, edge + 3)]
    report = held(tmp_path, lines, *made)
    assert report.findings == []
    assert report.history is not None
    assert report.history.everywhere == 6


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(1, 3 << RANGE_BITS), st.integers(0, 5)), max_size=40),
    st.integers(1, 400),
    st.booleans(),
)
def test_each_line_is_read_once_wherever_the_parts_are_cut(
    tmp_path: Path, appends: list[tuple[int, int]], part_bytes: int, ends: bool
) -> None:
    lines = [json.dumps({"vlsn": vlsn, "digest": f"{digest:016x}"}) for vlsn, digest in appends]
    file = tmp_path / "history"
    file.write_text("\n".join(lines) + ("\n" if ends and lines else ""))
    pieces_of: dict[int, list[bytes]] = {}
    for part in parts_of(str(file), part_bytes):
        for at, rows in by_range(read_lines(part).appends):
            pieces_of.setdefault(at, []).append(rows)
    model: dict[int, set[int]] = {}
    for vlsn, digest in appends:
        model.setdefault(vlsn, set()).add(digest)
    found: dict[int, set[int]] = {}
    for at, pieces in pieces_of.items():
        for vlsn, digest in merged_appends(pieces).tolist():
            assert vlsn >> RANGE_BITS == at
            found.setdefault(vlsn, set()).add(digest)
    assert found.keys() == model.keys()
    assert all(found[vlsn] == set(sorted(digests)[:DIGESTS_A_VLSN]) for vlsn, digests in model.items())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"vlsn": 1}', '"digest" and "value"'),
        ('{"digest": "0000000000000000"}', 'without "vlsn"'),
        ('{"vlsn": 0, "digest": "0000000000000000"}', "below 1"),
        ('{"vlsn": 1, "digest": "00"}', "16 hex digits"),
        ('{"vlsn": 1, "digest": "000000000000000G"}', "16 hex digits"),
        ('{"vlsn": 1, "digest": "00000000000000é"}', "16 hex digits"),
        ('{"vlsn": 1, "value_b64": "?"}', "no base64"),
        ('{"vlsn": "1", "value": "a"}', "vlsn"),
        ("[1, 2]", "a line is an object"),
        ("no json", "a line is an object"),
        ('{"vlsn": 7, "val', "a line is an object"),
        ('{"vlsn": 1, "value": "x"}\n{"vlsn": 2,, "value": "y"}\n{"vlsn": 3, "value": "z"}', "a line is an object"),
        ("\x00\x01", "a line is an object"),
    ],
)
def test_what_is_no_history_is_refused_with_its_place(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "history"
    file.write_text(text + "\n")
    with pytest.raises(Unreadable, match=f"{file}, from byte 0 to {len(text.encode()) + 1}") as caught:
        audited(*copies(tmp_path), history=parts_of(str(file)))
    assert why in str(caught.value)


def test_a_line_without_an_end_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_bytes(b'{"vlsn": 1, "value": "' + b"x" * (LINE_BYTES_MAX + 100))
    (part, *_) = parts_of(str(file), 100)
    with pytest.raises(Unreadable, match="a line of more than"):
        read_lines(part)


def test_a_history_without_a_line_proves_nothing(tmp_path: Path) -> None:
    made = copies(tmp_path)
    file = tmp_path / "history"
    file.write_text("")
    with pytest.raises(BadArgument, match="is empty"):
        run_audit([str(copy.path) for copy in made], history=str(file))
    file.write_text("\n\n")
    with pytest.raises(BadArgument, match="has no line"):
        audited(*made, history=parts_of(str(file)))
    with pytest.raises(Unreadable, match="No such file"):
        run_audit([str(copy.path) for copy in made], history=str(tmp_path / "absent"))


def test_nothing_of_what_is_joined_comes_back(tmp_path: Path) -> None:
    story = numbered(100, 100, 40)
    made = [Copy(tmp_path / node, node, segment_bytes=1 << 20).add(*story).write() for node in ("n1", "n2")]
    lines = [{"vlsn": vlsn, "value": (b"value %d" % vlsn).ljust(40, b".").decode()} for vlsn in range(1, 9800)]
    jobs = LocalJobs()
    file = written(tmp_path / "history", lines)
    report = audited(*made, jobs=jobs, history=parts_of(str(file), 100_000))
    assert report.history is not None
    assert (report.findings, report.history.everywhere) == ([], 9799)
    assert jobs.returned_bytes < 20_000


@pytest.mark.real
def test_a_history_is_proven_in_spark_tasks(tmp_path: Path, spark: Any) -> None:
    lines = [line(vlsn) for vlsn in range(1, DTVLSN + 1)]
    lines[20] = line(21, b"another value")
    file = written(tmp_path / "history", lines)
    tasks: dict[str, int] = {}
    report = run_audit(
        [str(copy.path) for copy in copies(tmp_path)],
        history=str(file),
        progress=lambda what, done, total: tasks.update({what: total}),
    )
    assert [(each.rule, each.vlsn) for each in report.findings] == [("history-differs", 21)] * 3
    assert report.history is not None
    assert (report.history.appends, report.history.everywhere) == (DTVLSN, DTVLSN - 1)
    assert (tasks["history"], report.tasks) == (2, sum(tasks.values()))


assert APPEND.itemsize == 16
