"""The payloads of local frames, and the values of the log's own entries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.vlsn.strategies import names, u64
from vlsn.errors import BadBody
from vlsn.format.records import (
    MEMBERS_MAX,
    VALUE_BYTES_MAX,
    CheckpointEnd,
    CheckpointFlag,
    CheckpointStart,
    GroupEntry,
    Member,
    RollbackEnd,
    RollbackStart,
    TermEntry,
)

Local = CheckpointStart | CheckpointEnd | RollbackStart | RollbackEnd
LOCAL = (CheckpointStart, CheckpointEnd, RollbackStart, RollbackEnd)
hexes = u64.map(lambda number: f"{number:016x}")


@st.composite
def ranges(draw: st.DrawFn) -> tuple[int, int, int]:
    last = draw(u64)
    first = draw(st.integers(1, last)) if last else 0
    return first, last, draw(st.integers(0, last))


@st.composite
def local_records(draw: st.DrawFn) -> Local:
    first, last, dtvlsn = draw(ranges())
    match draw(st.sampled_from(LOCAL)).__name__:
        case "CheckpointStart":
            return CheckpointStart(draw(u64), first, last, dtvlsn, draw(u64))
        case "CheckpointEnd":
            return CheckpointEnd(draw(u64), draw(u64), draw(st.integers(0, 1)), first, last, dtvlsn, draw(u64))
        case "RollbackStart":
            one, two, three = sorted([draw(st.integers(1, 2**64 - 1)) for _ in range(3)])
            return RollbackStart(first, one if first else 0, two, three, last, draw(u64))
        case _:
            return RollbackEnd(draw(u64), draw(u64))


@given(local_records())
def test_local_record_round_trip(record: Local) -> None:
    assert type(record).decode(record.encode()) == record
    assert type(record).decode(memoryview(record.encode())) == record


@pytest.mark.parametrize("kind", LOCAL)
@pytest.mark.parametrize("by", [-1, 1])
def test_another_size_is_refused(kind: type[Local], by: int) -> None:
    kind.decode(bytes(kind.LAYOUT.size))
    with pytest.raises(BadBody):
        kind.decode(bytes(kind.LAYOUT.size + by))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (CheckpointStart, (1, 0, 5, 0, 0)),
        (CheckpointStart, (1, 6, 5, 0, 0)),
        (CheckpointStart, (1, 1, 5, 6, 0)),
        (CheckpointEnd, (1, 0, 2, 1, 5, 0, 0)),
        (CheckpointEnd, (1, 0, 0, 1, 0, 0, 0)),
        (RollbackStart, (6, 1, 1, 1, 5, 0)),
        (RollbackStart, (5, 0, 1, 1, 9, 0)),
        (RollbackStart, (0, 1, 1, 1, 9, 0)),
        (RollbackStart, (5, 3, 2, 4, 9, 0)),
        (RollbackStart, (5, 3, 4, 3, 9, 0)),
    ],
)
def test_fields_that_cannot_be_together_are_refused(kind: type[Local], fields: tuple[int, ...]) -> None:
    with pytest.raises(BadBody):
        kind.decode(kind.LAYOUT.pack(*fields))
    with pytest.raises(AssertionError):
        kind(*fields).encode()


def test_checkpoint_end_padding_is_checked_and_its_flag_read() -> None:
    clean = CheckpointEnd(1, 2, CheckpointFlag.CLEAN, 1, 5, 4, 9)
    assert clean.clean
    assert not CheckpointEnd(1, 2, 0, 1, 5, 4, 9).clean
    data = bytearray(clean.encode())
    data[20] = 1
    with pytest.raises(BadBody, match="padding"):
        CheckpointEnd.decode(data)


@given(st.builds(TermEntry, st.integers(1, 2**63 - 1), names, hexes))
def test_term_entry_round_trip(entry: TermEntry) -> None:
    assert TermEntry.decode(entry.encode()) == entry


members = st.lists(
    st.builds(Member, names, st.just("http://127.0.0.1:7701"), hexes, st.booleans()),
    min_size=1,
    max_size=5,
    unique_by=lambda member: member.name,
)


@given(st.builds(GroupEntry, names, members, st.integers(0, 2**63 - 1)))
def test_group_entry_round_trip(entry: GroupEntry) -> None:
    assert GroupEntry.decode(entry.encode()) == entry


TERM = {"term": 1, "master": "n1", "incarnation": "0" * 16}
MEMBER = {"name": "n1", "url": "http://h:1", "incarnation": "0" * 16, "electable": True}
GROUP: dict[str, Any] = {"group": "g", "members": [MEMBER], "previous": 0}


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert TermEntry.decode(json.dumps(TERM | {"later": 1}).encode()) == TermEntry(1, "n1", "0" * 16)
    assert GroupEntry.decode(json.dumps(GROUP | {"later": []}).encode()).members[0].name == "n1"


@pytest.mark.parametrize(
    "changed",
    [
        {"term": 0},
        {"term": -1},
        {"term": "1"},
        {"term": 1.5},
        {"master": ""},
        {"master": "a b"},
        {"master": None},
        {"incarnation": "0" * 15},
        {"incarnation": "G" * 16},
        {"incarnation": "0" * 16 + "\n"},
    ],
    ids=str,
)
def test_a_term_value_out_of_its_rules_is_refused(changed: dict[str, Any]) -> None:
    TermEntry.decode(json.dumps(TERM).encode())
    with pytest.raises(BadBody):
        TermEntry.decode(json.dumps(TERM | changed).encode())


@pytest.mark.parametrize(
    "changed",
    [
        {"group": "a/b"},
        {"previous": -1},
        {"members": []},
        {"members": [MEMBER, MEMBER]},
        {"members": [MEMBER | {"name": f"n{number}"} for number in range(MEMBERS_MAX + 1)]},
        {"members": [MEMBER | {"url": "ftp://h"}]},
        {"members": [MEMBER | {"url": "http://h\n"}]},
        {"members": [MEMBER | {"incarnation": ""}]},
        {"members": [MEMBER | {"electable": 1}]},
        {"members": {}},
        {"members": None},
    ],
    ids=str,
)
def test_a_group_value_out_of_its_rules_is_refused(changed: dict[str, Any]) -> None:
    GroupEntry.decode(json.dumps(GROUP).encode())
    with pytest.raises(BadBody):
        GroupEntry.decode(json.dumps(GROUP | changed).encode())


def test_a_value_over_its_limit_is_refused() -> None:
    value = json.dumps(TERM).encode()
    TermEntry.decode(value.ljust(VALUE_BYTES_MAX))
    with pytest.raises(BadBody):
        TermEntry.decode(value.ljust(VALUE_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"null",
        b"{",
        b"{}",
        b"\xff",
        b'"\\ud800"',
        b'{"term":1,"master":"\xff","incarnation":"0000000000000000"}',
        b"[" * 5000,
    ],
    ids=repr,
)
def test_a_value_that_is_no_such_json_is_refused(value: bytes) -> None:
    for kind in (TermEntry, GroupEntry):
        with pytest.raises(BadBody):
            kind.decode(value)
