"""Tokens: their text, their records, and their place in the small state."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.auth.roles import TOKEN_ROLES
from repl.auth.tokens import TokenRecord, check_level, key_of, new_secret, parse, record_of, records_in
from tests.fakes.random import SeededRandom as Rolls
from vlsn.errors import BadArgument, WrongVersion
from vlsn.ids import Vlsn
from vlsn.levels import LEVELS
from vlsn.state.small_state import Kept, SmallState

HASH = hashlib.sha256(b"a").hexdigest()


def kept(record: TokenRecord, vlsn: int = 4) -> Kept:
    return Kept(Vlsn(vlsn), msgspec.json.encode(record))


@given(seed=st.integers(0, 1 << 62))
def test_a_token_is_read_as_it_was_written(seed: int) -> None:
    secret = new_secret(Rolls(seed))
    assert parse(secret.text) == secret and len(secret.text) == 4 + 8 + 1 + 43
    assert secret.secret not in repr(secret)
    record = TokenRecord(("read",), secret.sha256)
    record.check()
    assert secret.opens(record) and not new_secret(Rolls(seed + 1)).opens(record)


@given(text=st.text(max_size=60) | st.from_regex(r"vlt_[a-z0-9]{7,9}_[A-Za-z0-9_-]{42,44}", fullmatch=True))
def test_any_other_text_is_no_token(text: str) -> None:
    read = parse(text)
    assert read is None or read.text == text
    assert parse(text + "\n") is None


@pytest.mark.parametrize(
    ("record", "names"),
    [
        (TokenRecord((), HASH), "roles"),
        (TokenRecord(("key",), HASH), "roles"),
        (TokenRecord(("open",), HASH), "roles"),
        (TokenRecord(("read", "read"), HASH), "roles"),
        (TokenRecord(("read",)), "sha256, uri"),
        (TokenRecord(("read",), HASH, "spiffe://a/b"), "sha256, uri"),
        (TokenRecord(("read",), "a" * 63), "sha256"),
        (TokenRecord(("read",), HASH.upper()), "sha256"),
        (TokenRecord(("read",), uri="no uri"), "uri"),
        (TokenRecord(("read",), HASH, keys="k" * 513), "keys"),
        (TokenRecord(("read",), HASH, names="n" * 129), "names"),
        (TokenRecord(("read",), HASH, title="t" * 257), "title"),
    ],
)
def test_a_record_that_no_token_can_have_is_refused_and_gives_nothing(record: TokenRecord, names: str) -> None:
    with pytest.raises(BadArgument, match=f"^{names}"):
        record.check()
    assert record_of(kept(record)) is None


@pytest.mark.parametrize("value", [b"", b"1", b"{", b"{}", b'{"roles":["read"],"more":1}', b"\xff", b"null"])
def test_a_value_that_cannot_be_read_gives_nothing(value: bytes) -> None:
    assert record_of(Kept(Vlsn(4), value)) is None
    assert record_of(None) is None


def test_tokens_are_found_among_other_names() -> None:
    small = SmallState()
    record = TokenRecord(TOKEN_ROLES, HASH, keys="order-", expires_us=9)
    small.note(Vlsn(4), {key_of("abcdefgh"): msgspec.json.encode(record), "dest/a": b"{}", "token/abcdefg1": b"{}"})
    assert records_in(small) == {"abcdefgh": record}
    assert not record.expired(8) and record.expired(9) and not TokenRecord(("read",), HASH).expired(1 << 60)
    assert not record_of(kept(TokenRecord(("read",), uri="spiffe://a/b"))).expired(1)  # type: ignore[union-attr]


@pytest.mark.parametrize("id", ["", "abc", "ABCDEFGH", "abcdefghi", "abcdefg/", "abcdefgh\n"])
def test_an_id_is_eight_letters(id: str) -> None:
    with pytest.raises(BadArgument):
        key_of(id)


def test_a_group_below_the_level_has_no_tokens() -> None:
    check_level(LEVELS.max)
    with pytest.raises(WrongVersion, match="group upgrade"):
        check_level(LEVELS.max - 1)
