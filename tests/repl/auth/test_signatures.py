"""Signatures against golden bytes, and against any change of what they sign."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repl.auth.group_key import Key
from repl.auth.signatures import (
    FEED_HEADERS,
    N_MAX,
    Signer,
    digest,
    feed_values,
    is_answer,
    read_call,
    sign_answer,
    sign_call,
)
from tests.golden.hex import golden
from vlsn.errors import Unauthorized

KEY = Key("k3f9", bytes(range(32)))
SIGNER = Signer(sender="n2", to="n1", process="00000000000000ab", session="5c" * 16, n=17)
CALL: dict[str, Any] = {"group": "demo", "method": "POST", "target": "/v1/peer/hello", "body": digest(b"{}")}
GOLDEN = msgspec.json.decode(golden("auth.json"))
HELLO = {"vlsnlog-version": "1-5", "vlsnlog-group": "demo", "vlsnlog-node": "n2", "vlsnlog-term": "7"}


def test_a_call_is_signed_as_the_golden_one() -> None:
    signature = sign_call(KEY, SIGNER, **CALL)
    assert signature.header() == GOLDEN["call"]
    assert read_call(GOLDEN["call"]) == signature


def test_a_feed_is_signed_as_the_golden_one() -> None:
    class Fields(dict[str, str]):
        def get(self, name: str, other: Any = None) -> Any:
            return super().get(name.lower(), other)

    feed = {**CALL, "method": "GET", "target": "/v1/feed", "body": digest(b"")}
    assert sign_call(KEY, SIGNER, **feed, feed=feed_values(Fields(HELLO))).header() == GOLDEN["feed"]


def test_an_answer_is_signed_as_the_golden_one() -> None:
    call = read_call(GOLDEN["call"]).mac
    assert sign_answer(KEY, call, 200, digest(b'{"name":"n1"}')) == GOLDEN["answer"]
    assert is_answer(KEY, GOLDEN["answer"], call, 200, digest(b'{"name":"n1"}'))


def test_the_golden_signatures_are_those_of_another_hand() -> None:
    """The layout, written again without the product's code."""

    def mac(*parts: bytes) -> str:
        message = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.new(bytes(range(32)), message, hashlib.sha256).hexdigest()

    by = (b"n2", b"n1", b"00000000000000ab", b"5c" * 16, b"17")
    call = mac(b"request", b"demo", b"POST", b"/v1/peer/hello", *by, hashlib.sha256(b"{}").digest())
    feed = mac(
        *(b"request", b"demo", b"GET", b"/v1/feed", *by, hashlib.sha256(b"").digest()),
        *(b"1-5", b"demo", b"n2", b"", b"", b"", b"7", b""),
    )
    answer = mac(b"answer", bytes.fromhex(call), b"200", hashlib.sha256(b'{"name":"n1"}').digest())
    assert [GOLDEN[name].rpartition("=")[2] for name in ("call", "feed", "answer")] == [call, feed, answer]


text = st.text(max_size=20)


@given(text, text, text, st.binary(max_size=32), st.data())
def test_a_signature_changes_with_every_field(group: str, method: str, target: str, body: bytes, data: Any) -> None:
    """Moving a byte from one field to its neighbour changes it, too: each part is preceded by its length."""
    call: dict[str, Any] = {"group": group, "method": method, "target": target, "body": body}
    before = sign_call(KEY, SIGNER, **call).mac
    field = data.draw(st.sampled_from(["group", "method", "target"]))
    changed = data.draw(text.filter(lambda other: other != call[field]))
    assert sign_call(KEY, SIGNER, **{**call, field: changed}).mac != before
    joined: dict[str, Any] = {"group": group + method, "method": "", "target": target, "body": body}
    assert joined == call or sign_call(KEY, SIGNER, **joined).mac != before


@pytest.mark.parametrize(
    "change", [{"sender": "n3"}, {"to": "n3"}, {"process": "0" * 16}, {"session": "0" * 32}, {"n": 18}]
)
def test_a_signature_is_of_its_sender_receiver_session_and_number(change: dict[str, Any]) -> None:
    assert sign_call(KEY, replace(SIGNER, **change), **CALL).mac != sign_call(KEY, SIGNER, **CALL).mac
    assert sign_call(Key("k3f9", bytes(32)), SIGNER, **CALL).mac != sign_call(KEY, SIGNER, **CALL).mac


@pytest.mark.parametrize("name", FEED_HEADERS)
def test_a_feed_is_signed_with_each_of_its_headers(name: str) -> None:
    before = sign_call(KEY, SIGNER, **CALL, feed=feed_values({}))
    assert sign_call(KEY, SIGNER, **CALL, feed=feed_values({name: "1"})).mac != before.mac
    assert sign_call(KEY, SIGNER, **CALL).mac != before.mac


def test_an_answer_is_of_one_call_status_and_body() -> None:
    call, other = (sign_call(KEY, replace(SIGNER, n=n), **CALL).mac for n in (1, 2))
    header = sign_answer(KEY, call, 200, digest(b"yes"))
    assert is_answer(KEY, header, call, 200, digest(b"yes"))
    assert not is_answer(KEY, header, other, 200, digest(b"yes"))
    assert not is_answer(KEY, header, call, 409, digest(b"yes"))
    assert not is_answer(KEY, header, call, 200, digest(b"no"))
    assert not is_answer(Key("other", KEY.secret), header, call, 200, digest(b"yes"))
    assert not is_answer(Key("k3f9", bytes(32)), header, call, 200, digest(b"yes"))
    assert not is_answer(KEY, sign_call(KEY, SIGNER, **CALL).header(), call, 200, digest(b"yes"))


@given(st.text(max_size=300) | st.text("v1 key=from topcsn0a9-", max_size=300))
def test_any_other_header_is_unauthorized(header: str) -> None:
    with pytest.raises(Unauthorized):
        read_call(header)


@given(st.integers(1, N_MAX - 1))
def test_a_header_is_read_as_it_was_written(n: int) -> None:
    signature = sign_call(KEY, replace(SIGNER, n=n), **CALL)
    assert read_call(signature.header()) == signature
    for wrong in (signature.header() + " ", signature.header().replace(" n=", " n=0"), signature.header().upper()):
        with pytest.raises(Unauthorized):
            read_call(wrong)
