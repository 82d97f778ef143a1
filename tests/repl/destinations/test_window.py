"""Windows of messages, held against the entries that they were made of."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from repl.destinations.message_batch import decode
from repl.destinations.message_columns import MessageColumns, encode
from repl.destinations.window import NO_KEY, Window
from vlsn.format import block
from vlsn.format.block import Entry, EntryKind
from vlsn.format.messages import MessageFilter
from vlsn.format.seal import seal
from vlsn.format.submission import Values

KEY = st.sampled_from([b"", b"", b"o", b"o1", b"o22", b"p", b"o" + b"x" * 40, b"o" + b"x" * 39 + b"y", b"x" * 41])
BLOCKS = st.lists(st.lists(st.tuples(KEY, st.binary(max_size=9)), min_size=1, max_size=6), min_size=1, max_size=4)
FIRST = 7


def sealed(blocks: list[list[tuple[bytes, bytes]]]) -> tuple[list[bytes], list[Entry]]:
    found: list[bytes] = []
    entries: list[Entry] = []
    vlsn = FIRST
    for number, pairs in enumerate(blocks):
        keys = [key for key, _ in pairs]
        part = Values([value for _, value in pairs], keys if any(keys) else None)
        (one,) = seal([part], term=1, first_vlsn=vlsn, dtvlsn=1, clock_us=1_000 + number)
        data = bytes(one.data)
        found.append(data)
        header = block.decode_header(data)
        entries += block.entries(data, header, from_vlsn=0, kinds=None)
        vlsn += len(pairs)
    return found, entries


def said(messages: MessageColumns) -> list[tuple[int, int, bytes | None, bytes]]:
    return [(each.vlsn, each.time, each.key, each.value) for each in messages.entries()]


def of(entries: list[Entry]) -> list[tuple[int, int, bytes | None, bytes]]:
    return [(each.vlsn, each.time, each.key, each.value) for each in entries]


ALL = MessageFilter("orders", b"", b"")


@given(BLOCKS, st.sampled_from([b"", b"o", b"o1"]), st.sampled_from([None, b"o22"]), st.randoms())
def test_a_window_has_what_is_wanted_and_cuts_it_out(
    blocks: list[list[tuple[bytes, bytes]]], prefix: bytes, dead: bytes | None, rng: object
) -> None:
    data, entries = sealed(blocks)
    wanted = [each for each in entries if each.kind == EntryKind.DATA and (each.key or b"").startswith(prefix)]
    window = Window.of_blocks(data, MessageFilter("orders", prefix, dead or b""))
    assert (window.first, window.end) == (FIRST, FIRST + len(entries))
    assert window.vlsns.tolist() == [each.vlsn for each in wanted]
    whole = window.columns(slice(0, len(wanted)))
    assert said(whole) == of(wanted)
    some = np.flatnonzero([rng.random() < 0.5 for _ in wanted])  # type: ignore[attr-defined]
    assert said(window.columns(some)) == of([wanted[row] for row in some])
    again = Window.of_messages(MessageColumns.of(wanted), FIRST, FIRST + len(entries))
    assert said(again.columns(some)) == of([wanted[row] for row in some])
    halves = [window.columns(slice(0, len(wanted) // 2)), window.columns(slice(len(wanted) // 2, len(wanted)))]
    joined = MessageColumns.joined([each for each in halves if len(each)])
    assert said(joined) == of(wanted)
    rows = decode(encode(joined, {})).rows()
    assert [(row[0], row[2], row[3], row[4]) for row in rows] == of(wanted)


@given(BLOCKS)
def test_equal_keys_have_equal_hashes_and_no_key_has_none(blocks: list[list[tuple[bytes, bytes]]]) -> None:
    data, entries = sealed(blocks)
    for window in (
        Window.of_blocks(data, ALL),
        Window.of_messages(MessageColumns.of(entries), FIRST, FIRST + len(entries)),
    ):
        hashes = window.key_hashes(slice(0, len(entries)))
        keys = [each.key for each in entries]
        if hashes is None:
            assert not any(keys)
            continue
        assert (hashes == NO_KEY).tolist() == [key is None for key in keys]
        known = dict(zip(keys, hashes.tolist(), strict=True))
        assert [known[key] for key in keys] == hashes.tolist()
        assert len(set(known.values())) == len(known), "the keys here differ at an end, or in length"


@given(BLOCKS, st.integers(1, 5), st.integers(0, 30))
def test_an_answer_is_cut_where_it_is_full(blocks: list[list[tuple[bytes, bytes]]], most: int, bytes_max: int) -> None:
    data, entries = sealed(blocks)
    window = Window.of_blocks(data, ALL)
    for start in range(len(entries) + 1):
        taken: list[Entry] = []
        for each in entries[start : start + most]:
            size = sum(len(one.key or b"") + len(one.value) for one in [*taken, each])
            if taken and size > bytes_max:
                break
            taken.append(each)
        assert window.fitting(slice(start, start + most), bytes_max) == len(taken)
