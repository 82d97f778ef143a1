"""Messages as columns: encoded messages come back, and other bytes are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.destinations import message_batch, message_columns
from repl.web import ndjson
from repl.web.slices import at_once
from vlsn.errors import BadBody
from vlsn.format.block import Entry, EntryKind
from vlsn.ids import Term, Vlsn

MESSAGES = st.lists(st.tuples(st.none() | st.binary(min_size=1, max_size=5), st.binary(max_size=9)), max_size=8)


def entries_of(messages: list[tuple[bytes | None, bytes]]) -> list[Entry]:
    return [
        Entry(Vlsn(7 + 3 * number), Term(1), 1_000 + number, EntryKind.DATA, 0, key, value)
        for number, (key, value) in enumerate(messages)
    ]


@given(MESSAGES, st.dictionaries(st.sampled_from([7, 10, 13]), st.integers(2, 9)))
def test_columns_say_what_lines_say(messages: list[tuple[bytes | None, bytes]], attempts: dict[int, int]) -> None:
    entries = entries_of(messages)
    told = message_batch.decode(message_columns.encode(message_columns.MessageColumns.of(entries), attempts)).rows()
    assert told == ndjson.decode_messages(at_once(ndjson.encode_messages(entries, attempts)))


@given(st.binary(max_size=60))
def test_other_bytes_are_refused(data: bytes) -> None:
    if data:
        with pytest.raises(BadBody):
            message_batch.decode(data)


def test_a_torn_answer_is_refused() -> None:
    whole = message_columns.encode(message_columns.MessageColumns.of(entries_of([(b"k", b"a"), (None, b"b")])), {10: 3})
    for end in range(1, len(whole)):
        with pytest.raises(BadBody):
            message_batch.decode(whole[:end])
