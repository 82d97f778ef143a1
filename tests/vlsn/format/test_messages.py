"""The rule of which entries are a destination's messages, by columns, one by one, and before they are logged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.repl.destinations.test_window import sealed
from vlsn.format import batch
from vlsn.format.block import EntryKind
from vlsn.format.messages import MessageFilter, dead_letter
from vlsn.format.rows import EntryRows
from vlsn.format.submission import Values

NAMES = st.sampled_from(["orders", "orders-2", "o"])
KEYS = st.sampled_from([b"", b"dead", b"dead-2", b"d", b"x"])
LETTERS = st.builds(dead_letter, NAMES, st.integers(1, 1 << 40), st.integers(1, 9), st.text(max_size=9))
VALUES = st.one_of(LETTERS, LETTERS.map(lambda letter: letter[:-9]), st.binary(max_size=40))


@given(
    st.lists(st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=9), min_size=1, max_size=4),
    NAMES,
    st.sampled_from([b"", b"d", b"dead", b"dead-2", b"y"]),
    st.sampled_from([b"", b"dead", b"x"]),
)
def test_a_message_is_the_same_by_columns_one_by_one_and_before_it_is_logged(
    blocks: list[list[tuple[bytes, bytes]]], name: str, prefix: bytes, letters: bytes
) -> None:
    def is_message(key: bytes, value: bytes) -> bool:
        own = letters != b"" and key == letters and value.startswith(b'{"destination":"%s",' % name.encode())
        return key.startswith(prefix) and not own

    wanted = MessageFilter(name, prefix, letters)
    data, entries = sealed(blocks)
    expected = [each.kind == EntryKind.DATA and is_message(each.key or b"", bytes(each.value)) for each in entries]
    assert wanted.mask(EntryRows.joined([*data])).tolist() == expected
    for of in blocks:
        keys, values = [key for key, _ in of], [value for _, value in of]
        each = [is_message(key, value) for key, value in of]
        assert [wanted.has(key or None, value) for key, value in of] == each
        sizes = [len(key) + len(value) for key, value in of]
        for part in (Values(values, keys), batch.decode(memoryview(batch.encode(values, keys)))):
            found, mask = wanted.of_part(part)
            assert (found.tolist(), mask.tolist()) == (sizes, each)
