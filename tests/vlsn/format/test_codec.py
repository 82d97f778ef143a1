"""Values as text and as JSON: what goes in comes out, and nothing is guessed."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlsn.format.block import Entry
from vlsn.format.codec import decode_json, encode_json, encode_text
from vlsn.ids import Term, Vlsn

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


def entry(value: bytes) -> Entry:
    return Entry(Vlsn(7), Term(1), 0, 0, 0, None, value)


@given(TEXT)
def test_text_comes_back(text: str) -> None:
    assert entry(encode_text(text)).text() == text


@given(JSON)
def test_json_comes_back(value: Any) -> None:
    encoded = encode_json(value)
    assert entry(encoded).json() == value
    assert encode_json(decode_json(encoded)) == encoded


@pytest.mark.parametrize(
    ("value", "refusal"),
    [
        (b"bytes", TypeError),
        (bytearray(b"bytes"), TypeError),
        ({"at": b"bytes"}, TypeError),
        (object(), TypeError),
        ({1, 2}, TypeError),
        (math.nan, ValueError),
        ([math.inf], ValueError),
        ("\ud800", ValueError),
    ],
)
def test_json_has_no_word_for_it(value: object, refusal: type[Exception]) -> None:
    with pytest.raises(refusal):
        encode_json(value)


@pytest.mark.parametrize("value", [b"bytes", None, 5, bytearray(b"a"), ["a"]])
def test_text_is_str_and_nothing_else(value: object) -> None:
    with pytest.raises(TypeError, match="value is str, not"):
        encode_text(value)


@pytest.mark.parametrize("data", [b"", b"NaN", b"[Infinity]", b"{", b"\xff", b"1 2", b"[" * 100_000])
def test_an_entry_that_is_no_json_is_named(data: bytes) -> None:
    with pytest.raises(ValueError, match="VLSN 7 is not JSON"):
        entry(data).json()


def test_an_entry_that_is_no_text_is_named() -> None:
    with pytest.raises(ValueError, match="VLSN 7 is not text"):
        entry(b"\xff").text()
