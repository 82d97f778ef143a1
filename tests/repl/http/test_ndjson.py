"""Lines of JSON, in and out."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.http import ndjson
from vlsn.errors import BadBody, TooLarge
from vlsn.format.block import Entry, EntryKind
from vlsn.ids import Term, Vlsn
from vlsn.limits import BATCH_ENTRIES_MAX

GOOD = b'{"value":"good"}\n'


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"[]",
        b"null",
        b'"value"',
        b"17",
        b"{}",
        b'{"key":"k"}',
        b'{"value":null}',
        b'{"value":1}',
        b'{"value":["a"]}',
        b'{"value":{"a":"b"}}',
        b'{"value":"a","value_b64":"YQ=="}',
        b'{"value":"a","key":"k","key_b64":"aw=="}',
        b'{"value":"a","value":"b"}',
        b'{"value":"a","value":"a"}',
        b'{"value":"a","val\\u0075e":"b"}',
        b'{"value":"\\"","value":"b"}',
        b'{"value":"\\\\","value":"b"}',
        b'{"value":"\\\\\\"","value":"b"}',
        b'{"value":"\\\\","val\\u0075e":"\\\\"}',
        b'{"key":"a","value":"a","key":"b"}',
        b'{"value":"a","other":"b"}',
        b'{"Value":"a"}',
        b'{"value":"a"',
        b'{"value":"a"}}',
        b'{"value":"a"}{"value":"b"}',
        b'{"value":"a"},',
        b"{'value':'a'}",
        b'{"value":"\\ud800"}',
        b'{"value":"\\udc00\\ud800"}',
        b'{"value":"\xed\xa0\x80"}',
        b'{"value":"\xff"}',
        b'{"\xff":"a"}',
        b'{"value":"a\tb"}',
        b'{"value":"a\x00"}',
        b'\xef\xbb\xbf{"value":"a"}',
        b'{"value_b64":"YQ"}',
        b'{"value_b64":"YQ="}',
        b'{"value_b64":"YQ==="}',
        b'{"value_b64":"Y Q=="}',
        b'{"value_b64":"YQ==\\n"}',
        b'{"value_b64":"_w=="}',
        b'{"value_b64":"YR=="}',
        b'{"value_b64":"=YQ="}',
        b'{"value_b64":"\\u00e4"}',
        b'{"value":"a","key_b64":"?"}',
        b"[" * 100_000,
        b'{"value":' + b"[" * 100_000,
    ],
)
def test_decode_bad_line_is_a_bad_body_that_names_it(line: bytes) -> None:
    with pytest.raises(BadBody, match=r"^line 3: "):
        ndjson.decode(GOOD * 2 + line + b"\n" + GOOD)


@pytest.mark.parametrize(
    "body",
    [
        b'{"value":\n"a"}\n{"value":"b"}{"value":"c"}\n',
        b'{"value":"a"\n}{"value":"b"}\n',
        b'{"value":"a"}{"value":"b"}\n\n',
        b'\n{"value":"a"}{"value":"b"}\n',
        b'{"value":"a"}\n{"value":"b"}{"value":"c"}\n \n',
        b"\n",
    ],
)
def test_decode_objects_that_are_not_one_a_line_are_a_bad_body(body: bytes) -> None:
    with pytest.raises(BadBody, match=r"^line \d: "):
        ndjson.decode(body)


def test_decode_empty_body_is_a_bad_body() -> None:
    with pytest.raises(BadBody):
        ndjson.decode(b"")


def test_decode_counts_lines_before_it_reads_them() -> None:
    with pytest.raises(TooLarge):
        ndjson.decode(b"\n" * 65_537)


@pytest.mark.parametrize(
    ("line", "entry"),
    [
        (b'{"value":"a"}', (None, b"a")),
        (b' {"value" : "a" } ', (None, b"a")),
        (b'{"value":"a"}\r', (None, b"a")),
        (b'{"value":"{\\"a\\":\\"b\\"}"}', (None, b'{"a":"b"}')),
        (b'{"value":"\\ud83d\\ude00\\n\\u0000"}', (None, "😀\n\0".encode())),
        (b'{"val\\u0075e":"a"}', (None, b"a")),
        (b'{"value":"\\\\"}', (None, b"\\")),
        (b'{"value":"\\\\\\"\\\\\\\\"}', (None, b'\\"\\\\')),
        (b'{"key":"","value":"a"}', (None, b"a")),
        (b'{"key_b64":"","value_b64":""}', (None, b"")),
        (b'{"key_b64":"/w==","value":"\\""}', (b"\xff", b'"')),
    ],
)
def test_decode_reads_what_json_means(line: bytes, entry: tuple[bytes | None, bytes]) -> None:
    for body in (line, line + b"\n", line + b"\n" + GOOD):
        values, keys = ndjson.decode(body)
        assert (None if keys is None else keys[0], values[0]) == entry


@given(st.lists(st.tuples(st.none() | st.binary(min_size=1, max_size=20), st.binary(max_size=50)), min_size=1))
def test_decode_gives_back_what_encode_wrote(pairs: list[tuple[bytes | None, bytes]]) -> None:
    entries = [Entry(Vlsn(n), Term(3), 5, EntryKind.DATA, 0, key, value) for n, (key, value) in enumerate(pairs, 1)]
    lines = ndjson.encode(entries, kinds=False).splitlines()
    rows = [json.loads(line) for line in lines]
    assert [(row["vlsn"], row["term"], row["time"]) for row in rows] == [(e.vlsn, 3, 5) for e in entries]
    kept = [{name: row[name] for name in row if name[:3] in ("key", "val")} for row in rows]
    values, keys = ndjson.decode(b"\n".join(json.dumps(row).encode() for row in kept))
    assert list(zip(keys or [None] * len(values), values, strict=True)) == pairs


@given(st.binary(max_size=200) | st.text(alphabet='{}":,avlue_b64ky\\ \n\r', max_size=80).map(str.encode))
def test_decode_reads_or_refuses_anything(body: bytes) -> None:
    try:
        values, _ = ndjson.decode(body)
    except BadBody:
        return
    assert len(values) == body.count(b"\n") + (not body.endswith(b"\n"))


def test_encode_uses_base64_only_for_what_is_not_utf8() -> None:
    entry = Entry(Vlsn(1), Term(2), 3, EntryKind.DATA, 0, b"\xfe", "ä\u2028".encode())
    row = json.loads(ndjson.encode([entry], kinds=False))
    assert row == {"vlsn": 1, "term": 2, "time": 3, "key_b64": base64.b64encode(b"\xfe").decode(), "value": "ä\u2028"}


def test_encode_with_kinds_names_them() -> None:
    entry = Entry(Vlsn(1), Term(2), 3, EntryKind.TERM, 0, None, b"{}")
    assert json.loads(ndjson.encode([entry], kinds=True))["kind"] == "TERM"
    assert "kind" not in json.loads(ndjson.encode([entry], kinds=False))


def outcome(body: bytes) -> object:
    try:
        return ndjson.decode(body)
    except BadBody:
        return "refused"  # which of several wrong lines is named does not matter


LINES = st.sampled_from([b'{"value":"a"}', b'{"value":"bc","key":"k"}', b'{"value":""}', b"", b"{}", b'{"value":"a'])


@given(st.lists(LINES, max_size=12).map(b"\n".join), st.integers(1, 60))
def test_decode_of_many_slices_is_decode_of_one(body: bytes, slice_bytes: int) -> None:
    whole = outcome(body)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ndjson, "SLICE_BYTES", slice_bytes)
        assert outcome(body) == whole


def test_decode_in_steps_stops_after_each_slice() -> None:
    body = b'{"value":"v"}\n' * BATCH_ENTRIES_MAX
    steps = sum(1 for _ in ndjson.decode_in_steps(body))
    assert steps >= len(body) // ndjson.SLICE_BYTES


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (GOOD + b"\n" + GOOD, "line 2: it is empty"),
        (b" ", "line 1: it is empty"),
        (b'{"value":"\\ud800"}', "line 1: a surrogate without its pair"),
        (b'{"value":"a', "line 1: Input data was truncated"),
    ],
)
def test_a_refusal_says_what_is_wrong_with_the_line(body: bytes, says: str) -> None:
    with pytest.raises(BadBody, match=says):
        ndjson.decode(body)


def test_an_entry_of_a_transaction_says_so_where_kinds_or_transactions_are_asked_for() -> None:
    entry = Entry(Vlsn(7), Term(1), 5, EntryKind.DATA, 6, b"k", b"v")
    line = ndjson.encode([entry], kinds=True)
    assert json.loads(line) == {"vlsn": 7, "term": 1, "time": 5, "kind": "DATA", "txn": 6, "key": "k", "value": "v"}
    assert ndjson.decode_entries(line) == [entry]
    assert ndjson.decode_printed(line.rstrip(), 1) == (b"v", b"k")
    assert "txn" not in json.loads(ndjson.encode([entry], kinds=False))
    asked = ndjson.encode([entry], kinds=False, txns=True)
    assert json.loads(asked) == {"vlsn": 7, "term": 1, "time": 5, "txn": 6, "key": "k", "value": "v"}
    assert ndjson.decode_entries(asked) == [entry]
    plain = msgspec.structs.replace(entry, txn=0)
    assert ndjson.encode_each([plain], kinds=False, txns=True) == ndjson.encode_each([plain], kinds=False)
    with pytest.raises(BadBody, match="twice"):
        ndjson.decode_printed(line.rstrip()[:-1] + b',"txn":8}', 1)
