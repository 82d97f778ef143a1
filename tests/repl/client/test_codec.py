"""Appends of text and JSON, which need the name of a codec."""

from __future__ import annotations

from typing import Any

import pytest

from repl import Client, connect
from tests.repl.client.group import serving
from vlsn.errors import BadArgument, BadBody, TooLarge
from vlsn.limits import BATCH_ENTRIES_MAX, ENTRY_BYTES_MAX


async def test_each_codec_takes_what_is_its_own() -> None:
    async with serving() as node:
        async with connect(node.url, codec="utf8") as text:
            await text.append("é", key="schlüssel")
            await text.append_many(["a", "b"], keys=["k", None])
            await text.append_batch(iter(["c"]), keys=iter([b"bytes"]))
        async with connect(node.url, codec="json") as log:
            await log.append({"a": [1, None, "é"]}, key="k")
            await log.append_many(["text", 1.5, True])
            entries = [entry async for entry in log.read()]
    assert [(entry.key, entry.text()) for entry in entries[:4]] == [
        ("schlüssel".encode(), "é"),
        (b"k", "a"),
        (None, "b"),
        (b"bytes", "c"),
    ]
    assert entries[4].value == '{"a":[1,null,"é"]}'.encode() and entries[4].key == b"k"
    assert [entry.json() for entry in entries[4:]] == [{"a": [1, None, "é"]}, "text", 1.5, True]


async def test_a_call_may_name_another_codec_than_its_client() -> None:
    async with serving() as node:
        async with connect(node.url) as log:
            await log.append("text", key="k", codec="utf8")
            await log.append_many([{"a": 1}], keys=["k"], codec="json")
        async with connect(node.url, codec="json") as log:
            await log.append(b"\xff", codec="bytes")
            await log.append_batch([b"\x00"], codec="bytes")
        async with connect(node.url, codec="utf8", exactly_once=True) as log:
            await log.submit(["named"], producer=7, sequence=0, born=0)
            await log.submit([b"\x01"], producer=7, sequence=1, born=0, codec="bytes")
    assert node.values == [b"text", b'{"a":1}', b"\xff", b"\x00", b"named", b"\x01"]


async def test_nothing_is_guessed_and_nothing_logged() -> None:
    async with serving() as node:
        async with connect(node.url) as log:
            given: Any
            for given in ("text", 5, {"a": 1}, None):
                with pytest.raises(TypeError):
                    await log.append(given)
            with pytest.raises(TypeError, match=r"encode text first.*codec=\"utf8\""):
                await log.append("text")  # type: ignore[call-overload]
            with pytest.raises(TypeError, match=r"codec=\"utf8\""):
                await log.append_many(["a"])  # type: ignore[list-item]
            with pytest.raises(TypeError, match=r"codec=\"utf8\""):
                await log.append(b"a", key="k")  # type: ignore[call-overload]
            with pytest.raises(BadArgument, match="codec: 'text' is not one of bytes, utf8, json"):
                await log.append("a", codec="text")  # type: ignore[call-overload]
        codec: Any
        for codec in ("utf8", "json"):
            client: Client[Any] = connect(node.url, codec=codec)
            async with client as other:
                for given in (b"bytes", bytearray(b"a"), {b"a": 1}, {"at": b"a"}, object()):
                    with pytest.raises(TypeError):
                        await other.append(given)
                    with pytest.raises(TypeError):
                        await other.append_many(["fine", given])
                many: Any
                for many in ("text", b"bytes", {"a": 1}, 5):
                    with pytest.raises(TypeError):
                        await other.append_many(many)
                key: Any
                for key in (5, ["k"]):
                    with pytest.raises(TypeError):
                        await other.append("fine", key=key)
                with pytest.raises(TypeError, match="keys are a sequence"):
                    await other.append_many(["fine"], keys="k")
    assert node.values == []
    with pytest.raises(BadArgument, match="codec"):
        connect("http://127.0.0.1:7701", codec="pickle")  # type: ignore[call-overload]


async def test_limits_hold_of_what_was_encoded() -> None:
    async with serving() as node, connect(node.url, codec="utf8") as log:
        with pytest.raises(TooLarge):
            await log.append("é" * (ENTRY_BYTES_MAX // 2 + 1))
        with pytest.raises(TooLarge):
            await log.append_many("a" for _ in range(BATCH_ENTRIES_MAX + 1))
        with pytest.raises(BadBody):
            await log.append_many([])
    assert node.values == []
