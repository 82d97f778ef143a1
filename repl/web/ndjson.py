"""Encodes and decodes entries as lines of JSON.

Lines that are read have ``{"value": "…"}`` or ``{"value_b64": "…"}``, and at most one of ``key`` and ``key_b64``. A
line is one object. Unknown, double or missing members, bad base64, a lone surrogate, or bytes that are not UTF-8 raise
a ``BadBody`` that names the line (counted from 1). An empty key counts as no key. For the command line,
``decode_printed`` reads a line that was printed as below.

Lines that are written have ``vlsn``, ``term``, ``time``, then ``key`` or ``key_b64`` if the entry has a key, then
``value`` or ``value_b64`` (base64 if the bytes are not UTF-8). ``kind`` is added if all kinds are asked for. ``txn``,
the first VLSN of the entry's transaction, is added if all kinds or transactions are asked for.

Out: ``vlsn``, ``term``, ``time``, then ``key`` or ``key_b64`` if there is one, ``value`` or ``value_b64`` (base64 when
the bytes are not UTF-8), ``kind`` when all kinds are asked for. ``txn``, the first VLSN of the entry's transaction,
comes when all kinds or transactions are asked for.

Lines are decoded by the slice, each slice in one call; a longer line is a slice of its own, which is decoded in pieces
(``long_lines.py``).  That call takes the last of two equal members, and reads an object that spans lines or two objects
on one.  So its result is taken only if every line begins with ``{`` and ends with ``}``, there are as many objects as
lines, and the quotes (escaped ones apart) are exactly four for each member found: a member given twice would make four
more.  Any other slice is read line by line.
"""

from __future__ import annotations

import binascii
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from repl.web import long_lines
from repl.web.limits import ENTRY_COST, PIECE_BYTES, PIECE_COST
from repl.web.slices import at_once
from vlsn.errors import BadBody, TooLarge
from vlsn.format.block import Entry, EntryKind
from vlsn.ids import Term, Vlsn
from vlsn.limits import BATCH_ENTRIES_MAX

CONTENT_TYPE = "application/x-ndjson"


class Line(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    value: str | UnsetType = UNSET
    value_b64: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_b64: str | UnsetType = UNSET


class Printed(Line, gc=False, forbid_unknown_fields=True):
    vlsn: int | UnsetType = UNSET
    term: int | UnsetType = UNSET
    time: int | UnsetType = UNSET
    kind: str | UnsetType = UNSET
    txn: int | UnsetType = UNSET


LINE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("value", "value_b64", "key", "key_b64")},
    "additionalProperties": False,
    "allOf": [
        {"oneOf": [{"required": ["value"]}, {"required": ["value_b64"]}]},
        {"not": {"required": ["key", "key_b64"]}},
    ],
}
"""The JSON schema of one line that is sent."""
PRINTED_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        **{name: {"type": "integer", "minimum": 1} for name in ("vlsn", "term")},
        "time": {"type": "integer", "description": "Microseconds since the epoch."},
        **LINE_SCHEMA["properties"],
        "kind": {"enum": ["DATA", "TERM", "GROUP", "COMMIT", "ABORT"], "description": "With `kinds=all`."},
        "txn": {"type": "integer", "description": "The first VLSN of the entry's transaction."},
    },
    "required": ["vlsn", "term", "time"],
    "additionalProperties": False,
}
"""The JSON schema of one line that is read."""
MESSAGE_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "vlsn": {"type": "integer", "minimum": 1},
        "attempt": {
            "type": "integer",
            "minimum": 0,
            "description": "The number of this delivery; 0 if it is shown only.",
        },
        "time": PRINTED_SCHEMA["properties"]["time"],
        **LINE_SCHEMA["properties"],
    },
    "required": ["vlsn", "attempt", "time"],
    "additionalProperties": False,
}
"""The JSON schema of one message of a destination."""


class Row(msgspec.Struct, gc=False):
    vlsn: int
    term: int
    time: int
    kind: str | UnsetType = UNSET
    txn: int | UnsetType = UNSET
    key: str | UnsetType = UNSET
    key_b64: str | UnsetType = UNSET
    value: str | UnsetType = UNSET
    value_b64: str | UnsetType = UNSET


_COUNTED_BYTES = 16 * PIECE_BYTES
"""How many bytes of lines are counted without a pause, which takes a millisecond."""
_BASE64_BYTES = PIECE_BYTES // 4 * 4
_LONG_BYTES = PIECE_BYTES // 3 * 3
"""How many bytes or characters of a long value are encoded without a pause. Base64 of this many bytes has no
padding."""
_decoder = msgspec.json.Decoder(Line)
_printed = msgspec.json.Decoder(Printed)
_rows_decoder = msgspec.json.Decoder(Row)
_encoder = msgspec.json.Encoder()
_KIND_NAMES = {int(kind): kind.name for kind in EntryKind}
_KINDS_BY_NAME = {kind.name: int(kind) for kind in EntryKind}


def decode_printed(line: bytes, number: int) -> tuple[bytes, bytes | None]:
    """Decodes the value and key of a line that ``encode`` made, or of a line for ``decode``. The other members describe
    the log that the line came from, and are ignored. Raises ``BadBody``, also for entries that are not DATA."""
    try:
        row = _printed.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBody(f"line {number}: {_why(line, error)}") from None
    numbers = sum(number is not UNSET for number in (row.vlsn, row.term, row.time, row.txn))
    if _quotes(line) != 4 * (_members(row) + (row.kind is not UNSET)) + 2 * numbers:
        raise BadBody(f"line {number}: a member is given twice")
    if row.kind not in (UNSET, EntryKind.DATA.name):
        raise BadBody(f"line {number}: a {row.kind} entry is the log's own; read without --all-kinds")
    return _value(row, number), _key(row, number)


Decoded = tuple[list[bytes], list[bytes | None] | None]
"""``(values, keys)``; ``keys`` is None if no entry has a key."""


def decode(body: bytes) -> Decoded:
    """Decodes a whole body in one call. This takes about 1 µs for each line."""
    return at_once(decode_in_steps(body))


def decode_in_steps(body: bytes) -> Generator[int, None, Decoded]:
    """Decodes like ``decode``, about ``PIECE_BYTES`` of lines in each step. Yields each step's bytes before the step,
    so that the caller can do other work."""
    if not body:
        raise BadBody("the body is empty: it needs one line of JSON an entry")
    count = 0 if body.endswith(b"\n") else 1
    for at in range(0, len(body), _COUNTED_BYTES):
        yield PIECE_BYTES
        count += body.count(b"\n", at, at + _COUNTED_BYTES)
    if count > BATCH_ENTRIES_MAX:
        raise TooLarge(f"a body of {count} lines; at most {BATCH_ENTRIES_MAX}")
    values: list[bytes] = []
    keys: list[bytes | None] = []
    keyed = False
    for lines in _slices(body):
        yield len(lines) if len(lines) <= PIECE_BYTES else PIECE_COST
        if len(lines) <= PIECE_BYTES:
            more, their_keys = _decode_lines(lines, len(values) + 1)
        else:
            more, their_keys = yield from _decode_long(lines.removesuffix(b"\n"), len(values) + 1)
        values += more
        keys += their_keys
        keyed = keyed or any(their_keys)
    return values, keys if keyed else None


def _slices(body: bytes) -> Iterator[bytes]:
    """Yields the body in slices of whole lines."""
    start = 0
    while start < len(body):
        end = start + PIECE_BYTES
        end = (body.rfind(b"\n", start, end) + 1) or (body.find(b"\n", end) + 1) or len(body)
        yield body[start:end]
        start = end


def _decode_lines(body: bytes, first: int) -> tuple[list[bytes], list[bytes | None]]:
    """Decodes whole lines, which are numbered from ``first`` on."""
    count = body.count(b"\n") + (not body.endswith(b"\n"))
    rows = _decode_all(body, count)
    if rows is None:
        rows = [_decode_line(line, number) for number, line in enumerate(body.split(b"\n")[:count], first)]
    values = [
        row.value.encode() if row.value is not UNSET and row.value_b64 is UNSET else _value(row, number)
        for number, row in enumerate(rows, first)
    ]
    keys = [
        None if row.key is UNSET and row.key_b64 is UNSET else _key(row, number)
        for number, row in enumerate(rows, first)
    ]
    return values, keys


def _decode_all(body: bytes, count: int) -> list[Line] | None:
    """Decodes the ``count`` lines in one call. Returns ``None`` if the result does not prove that each line is
    correct."""
    if not body.startswith(b"{") or not body.endswith((b"}", b"}\n")) or body.count(b"}\n{") != count - 1:
        return None
    try:
        rows = _decoder.decode_lines(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    quotes = _quotes(body)
    # With four quotes for each line, either each line has only its value, or one line lacks its value and is refused
    # for that.
    proven = len(rows) == count and (quotes == 4 * count or quotes == 4 * sum(map(_members, rows)))
    return rows if proven else None


def _decode_long(line: bytes, number: int) -> Generator[int, None, tuple[list[bytes], list[bytes | None]]]:
    """Decodes one line as ``_decode_lines`` does, in steps."""
    try:
        short, strings = yield from long_lines.cut(line)
    except BadBody as error:
        raise BadBody(f"line {number}: {error}") from None
    row = _decode_line(short, number)
    value, key = _value(row, number), _key(row, number)
    if row.value is not UNSET:
        value = strings.of(row.value)
    elif row.value_b64 is not UNSET:
        value = yield from _base64_in_steps(strings.of(row.value_b64), "value_b64", number)
    if row.key is not UNSET:
        key = strings.of(row.key) or None
    elif row.key_b64 is not UNSET:
        key = (yield from _base64_in_steps(strings.of(row.key_b64), "key_b64", number)) or None
    return [value], [key]


def _decode_line(line: bytes, number: int) -> Line:
    try:
        row = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBody(f"line {number}: {_why(line, error)}") from None
    if _quotes(line) != 4 * _members(row):
        raise BadBody(f"line {number}: a member is given twice")
    return row


def _why(line: bytes, error: Exception) -> str:
    """Explains what is wrong with a line. The decoder's own message speaks of the end of its input if a line is empty,
    or if a line ends inside a surrogate pair."""
    if not line.strip():
        return "it is empty"
    if line.rstrip().endswith(b"}") and str(error) == "Input data was truncated":
        return "a surrogate without its pair, or a string without its end"
    return str(error)


def _members(row: Line) -> int:
    return (row.value is not UNSET) + (row.value_b64 is not UNSET) + (row.key is not UNSET) + (row.key_b64 is not UNSET)


def _quotes(text: bytes) -> int:
    """Counts the quotes that begin or end a string, in JSON that was read without error."""
    if b"\\" not in text:
        return text.count(b'"')
    # removes escaped backslashes, so that none of them seems to escape a quote after it
    unpaired = text.replace(b"\\\\", b"")
    return unpaired.count(b'"') - unpaired.count(b'\\"')


def _value(row: Line, number: int) -> bytes:
    if row.value_b64 is UNSET:
        if row.value is UNSET:
            raise BadBody(f"line {number}: neither value nor value_b64")
        return row.value.encode()
    if row.value is not UNSET:
        raise BadBody(f"line {number}: both value and value_b64")
    return _base64(row.value_b64, "value_b64", number)


def _key(row: Line, number: int) -> bytes | None:
    if row.key_b64 is UNSET:
        return None if row.key is UNSET else row.key.encode() or None
    if row.key is not UNSET:
        raise BadBody(f"line {number}: both key and key_b64")
    return _base64(row.key_b64, "key_b64", number) or None


def _base64(text: str, name: str, number: int) -> bytes:
    """Decodes only canonical base64: the alphabet, the padding and the unused bits must be right."""
    return at_once(_base64_in_steps(text.encode(), name, number))


def _base64_in_steps(text: bytes, name: str, number: int) -> Generator[int, None, bytes]:
    parts: list[bytes] = []
    for at in range(0, len(text), _BASE64_BYTES):
        yield _BASE64_BYTES
        piece = text[at : at + _BASE64_BYTES]
        try:
            data = binascii.a2b_base64(piece, strict_mode=True)
        except ValueError as error:
            raise BadBody(f"line {number}: {name} is not base64: {error}") from None
        if binascii.b2a_base64(data, newline=False) != piece:
            raise BadBody(f"line {number}: {name} is not canonical base64")
        if parts and len(parts[-1]) % 3:
            raise BadBody(f"line {number}: {name} is not base64: padding before its end")
        parts.append(data)
    return b"".join(parts)


def encode(entries: Sequence[Entry], *, kinds: bool, txns: bool = False) -> bytes:
    """Returns one line for each entry, each ended by a newline."""
    return _encoder.encode_lines(_rows(entries, kinds, txns)) if entries else b""


def decode_entries(body: bytes) -> list[Entry]:
    """Decodes entries that ``encode`` made. The entries have their transactions if ``encode`` wrote kinds or
    transactions. Raises ``BadBody``."""
    try:
        rows = _rows_decoder.decode_lines(body)
        return [
            Entry(
                Vlsn(row.vlsn),
                Term(row.term),
                row.time,
                _KINDS_BY_NAME[row.kind] if row.kind is not UNSET else EntryKind.DATA,
                row.txn if row.txn is not UNSET else 0,
                row.key.encode() if row.key is not UNSET else _bytes(row.key_b64) or None,
                row.value.encode() if row.value is not UNSET else _bytes(row.value_b64),
            )
            for row in rows
        ]
    except (msgspec.DecodeError, UnicodeError, KeyError, ValueError) as error:
        raise BadBody(f"no lines of entries: {error}") from None


def _bytes(text: str | UnsetType) -> bytes:
    return b"" if text is UNSET else binascii.a2b_base64(text, strict_mode=True)


def runs(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Cuts entries into runs that are encoded without a pause. A run is one entry, or entries with a cost of up to
    ``PIECE_BYTES``."""
    begin = cost = 0
    for at, entry in enumerate(entries):
        more = cost_of(entry)
        if cost + more > PIECE_BYTES and at > begin:
            yield entries[begin:at]
            begin, cost = at, 0
        cost += more
    if begin < len(entries):
        yield entries[begin:]


def cost_of(entry: Entry) -> int:
    return len(entry.value) + len(entry.key or b"") + ENTRY_COST


def is_long(entry: Entry) -> bool:
    """Says whether ``runs`` makes a run of this entry alone, because the entry is too long for a piece."""
    return cost_of(entry) > PIECE_BYTES


def encode_long(entry: Entry, *, kinds: bool, txns: bool = False) -> Generator[int, None, bytes]:
    """Encodes the object of one entry as ``encode_each`` does, in steps. Yields the cost of each step before the
    step."""
    yield PIECE_COST
    (row,) = _rows([msgspec.structs.replace(entry, value=b"")], kinds, txns)
    return (yield from _encode_long(row, entry.value))


def _encode_long(row: Row | MessageRow, value: bytes) -> Generator[int, None, bytes]:
    """Encodes a row that has everything but its value, which is the last of its members."""
    yield _LONG_BYTES
    encoded: Iterator[bytes]
    try:
        text = str(value, "utf-8")
    except UnicodeDecodeError:
        row.value, row.value_b64 = UNSET, ""
        pieces = (value[at : at + _LONG_BYTES] for at in range(0, len(value), _LONG_BYTES))
        encoded = (binascii.b2a_base64(piece, newline=False) for piece in pieces)
    else:
        row.value = ""
        encoded = (_encoder.encode(text[at : at + _LONG_BYTES])[1:-1] for at in range(0, len(text), _LONG_BYTES))
    parts = [_encoder.encode(row).removesuffix(b'"}')]
    for part in encoded:
        parts.append(part)
        yield _LONG_BYTES
    return b"".join([*parts, b'"}'])


def encode_each(entries: Sequence[Entry], *, kinds: bool, txns: bool = False) -> list[bytes]:
    """Encodes the same objects one by one, without newlines."""
    encode_one = _encoder.encode
    return [encode_one(row) for row in _rows(entries, kinds, txns)]


class MessageRow(msgspec.Struct, gc=False):
    """A message of a destination. ``attempt`` counts from 1."""

    vlsn: int
    attempt: int
    time: int
    key: str | UnsetType = UNSET
    key_b64: str | UnsetType = UNSET
    value: str | UnsetType = UNSET
    value_b64: str | UnsetType = UNSET


_messages_decoder = msgspec.json.Decoder(MessageRow)


def encode_messages(entries: Sequence[Entry], attempts: Mapping[int, int]) -> Generator[int, None, bytes]:
    """Encodes one line for each message, each ended by a newline, in steps. Yields the cost of each step before the
    step."""
    lines: list[bytes] = []
    for run in runs(entries):
        rows = [MessageRow(entry.vlsn, attempts.get(entry.vlsn, 1) if attempts else 1, entry.time) for entry in run]
        if is_long(run[0]):
            _name_key(rows[0], run[0])
            lines += (yield from _encode_long(rows[0], run[0].value)), b"\n"
            continue
        yield PIECE_COST + sum(map(cost_of, run))
        for row, entry in zip(rows, run, strict=True):
            _name(row, entry)
        lines.append(_encoder.encode_lines(rows))
    return b"".join(lines)


def decode_messages(body: bytes) -> list[tuple[int, int, int, bytes | None, bytes]]:
    """Decodes the VLSN, attempt, time, key and value of each line that ``encode_messages`` made. Raises ``BadBody``."""
    try:
        return [
            (
                row.vlsn,
                row.attempt,
                row.time,
                row.key.encode() if row.key is not UNSET else _bytes(row.key_b64) or None,
                row.value.encode() if row.value is not UNSET else _bytes(row.value_b64),
            )
            for row in _messages_decoder.decode_lines(body)
        ]
    except (msgspec.DecodeError, UnicodeError, ValueError) as error:
        raise BadBody(f"no lines of messages: {error}") from None


def _name(row: Row | MessageRow, entry: Entry) -> None:
    """Sets the key and value of a row, as base64 if they are not UTF-8."""
    try:
        row.value = str(entry.value, "utf-8")
    except UnicodeDecodeError:
        row.value_b64 = binascii.b2a_base64(entry.value, newline=False).decode()
    _name_key(row, entry)


def _name_key(row: Row | MessageRow, entry: Entry) -> None:
    key = entry.key
    if key is not None:
        try:
            row.key = str(key, "utf-8")
        except UnicodeDecodeError:
            row.key_b64 = binascii.b2a_base64(key, newline=False).decode()


def _rows(entries: Iterable[Entry], kinds: bool, txns: bool) -> list[Row]:
    rows = []
    for entry in entries:
        row = Row(entry.vlsn, entry.term, entry.time)
        _name(row, entry)
        if kinds:
            row.kind = _KIND_NAMES[entry.kind]
        if entry.txn and (kinds or txns):
            row.txn = entry.txn
        rows.append(row)
    return rows
