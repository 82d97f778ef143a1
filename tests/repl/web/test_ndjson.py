"""Lines of JSON, in and out."""

from __future__ import annotations

import base64
import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.web import long_lines, ndjson
from repl.web.limits import PIECE_BYTES
from repl.web.slices import at_once
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
        patch.setattr(ndjson, "PIECE_BYTES", slice_bytes)
        assert outcome(body) == whole


TEXTS = st.text(st.sampled_from('ab"\\\n\x01é€😀'), max_size=30)
MEMBERS = st.sampled_from(["value", "value_b64", "key", "key_b64", "other"])
CUTS = st.tuples(st.integers(0, 200), st.integers(0, 12), st.binary(max_size=3))


@st.composite
def odd_lines(draw: st.DrawFn) -> bytes:
    """Draws a line that is right, mostly, and here and there is none."""
    members = draw(st.dictionaries(MEMBERS, TEXTS, min_size=1, max_size=2))
    for name in members:
        if name.endswith("b64"):
            members[name] = base64.b64encode(members[name].encode()).decode()
    line = json.dumps(members, ensure_ascii=draw(st.booleans())).encode()
    at, size, other = draw(CUTS | st.just((0, 0, b"")))
    return line[:at] + other + line[at + size :]


def decoded_in_pieces(line: bytes, short: int, piece: int) -> object:
    """Decodes a line as one that is long, its strings over ``short`` bytes in pieces of ``piece``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_lines, "SHORT_BYTES", short)
        patch.setattr(long_lines, "_STAND_IN", short + 4)
        patch.setattr(long_lines, "PIECE_BYTES", piece)
        patch.setattr(ndjson, "_BASE64_BYTES", 8)
        try:
            return at_once(ndjson._decode_long(line, 1))
        except BadBody:
            return "refused"


def decoded_at_once(line: bytes) -> object:
    try:
        return ndjson._decode_lines(line, 1)
    except BadBody:
        return "refused"


@given(odd_lines(), st.sampled_from([12, 40]), st.integers(24, 60))
def test_a_line_in_pieces_is_the_same_line(line: bytes, short: int, piece: int) -> None:
    if b"\n" not in line:
        assert decoded_in_pieces(line, short, piece) == decoded_at_once(line)


@pytest.mark.parametrize("text", ["😀", "é", "€\\", '"', "a\n", "\x01😀", "\\u00e9", "a"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_no_character_is_lost_or_split_wherever_a_piece_ends(text: str, ascii_only: bool) -> None:
    for before in range(14):
        value = "x" * before + text * 40
        line = json.dumps({"value": value}, ensure_ascii=ascii_only).encode()
        assert decoded_in_pieces(line, 12, 24) == ([value.encode()], [None])


@pytest.mark.parametrize("value", ["0", "0000", "0" * 12, "0" * 16, "0" * 17])
def test_no_string_passes_for_what_stands_in_for_another(value: str) -> None:
    key = "k" * 50
    line = json.dumps({"key": key, "value": value}).encode()
    assert decoded_in_pieces(line, 12, 24) == ([value.encode()], [key.encode()])


@pytest.mark.parametrize(
    "wrong",
    [b"\\ud83d", b"\\ude00", b"\\ud83d\\ud83d", b"\\u00g0", b"\\x", b"\x01", b'\\"', b"\xff", b"\x80" * 50, b'"'],
)
def test_a_wrong_character_is_met_wherever_a_piece_ends(wrong: bytes) -> None:
    for before in range(14):
        for after in (b'"}', b"y" * 40 + b'"}', b""):
            line = b'{"value":"' + b"x" * (40 + before) + wrong + after
            if after or wrong != b'"':
                assert decoded_in_pieces(line, 12, 24) == decoded_at_once(line)


def test_a_line_that_is_long_for_no_string_of_it_is_refused() -> None:
    for wrong in (b" " * PIECE_BYTES, b'"a":"b",' * PIECE_BYTES, b"[" * PIECE_BYTES, b'"' * PIECE_BYTES):
        with pytest.raises(BadBody, match=r"^line 2: "):
            ndjson.decode(GOOD + b'{"value":"a",' + wrong + b"}\n" + GOOD)


def test_a_long_line_of_base64_is_decoded_in_steps_and_checked_to_its_end() -> None:
    text = base64.b64encode(bytes(range(256)) * 1_000)
    assert len(text) > 4 * PIECE_BYTES
    assert ndjson.decode(b'{"value_b64":"%b"}' % text) == ([bytes(range(256)) * 1_000], None)
    for wrong in (text[:-1], text + b"A", text[:PIECE_BYTES] + b"YQ==" + text[PIECE_BYTES:], b"_" + text[1:]):
        with pytest.raises(BadBody, match=r"^line 1: value_b64"):
            ndjson.decode(b'{"value_b64":"%b"}' % wrong)


ENTRIES = st.builds(
    Entry,
    st.integers(1, 9).map(Vlsn),
    st.integers(1, 9).map(Term),
    st.integers(0, 9),
    st.sampled_from([EntryKind.DATA, EntryKind.TERM]),
    st.integers(0, 2),
    st.none() | st.binary(max_size=9),
    st.binary(max_size=30) | TEXTS.map(str.encode),
)


@given(st.lists(ENTRIES, max_size=20), st.booleans(), st.booleans(), st.integers(1, 2_000))
def test_entries_in_pieces_are_the_same_lines(entries: list[Entry], kinds: bool, txns: bool, piece: int) -> None:
    whole = ndjson.encode_each(entries, kinds=kinds, txns=txns)
    messages = at_once(ndjson.encode_messages(entries, {3: 2}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ndjson, "_LONG_BYTES", 6)
        patch.setattr(ndjson, "PIECE_BYTES", piece)
        assert [at_once(ndjson.encode_long(entry, kinds=kinds, txns=txns)) for entry in entries] == whole
        assert [entry for run in ndjson.runs(entries) for entry in run] == entries
        assert at_once(ndjson.encode_messages(entries, {3: 2})) == messages


def test_decode_in_steps_stops_after_each_slice() -> None:
    body = b'{"value":"v"}\n' * BATCH_ENTRIES_MAX
    steps = sum(1 for _ in ndjson.decode_in_steps(body))
    assert steps >= len(body) // PIECE_BYTES


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
