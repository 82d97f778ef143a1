"""Wrong uses, one a line: a type checker refuses each where it says so, and only there.

Nothing here is run.
"""

from __future__ import annotations

from typing import Any

from vlsn import Log, LogTransaction
from vlsnlog import (
    Client,
    SyncClient,
    SyncTransaction,
    Transaction,
    connect,
    connect_sync,
    read_arrow,  # pyright: ignore[reportUnknownVariableType]  # of PyArrow no types are told
)


def connects() -> None:
    connect("http://h:1", codec="text")  # type: ignore[call-overload]
    connect_sync("http://h:1", codec="text")  # type: ignore[call-overload]
    connect("http://h:1", acks=2)  # type: ignore[call-overload]


async def appends(log: Client, texts: Client[str]) -> None:
    await log.append("text")  # type: ignore[call-overload]
    await log.append(b"value", key="key")  # type: ignore[call-overload]
    await log.append(b"value", keys=[b"key"])  # type: ignore[call-overload]
    await log.append_many([b"value"], key=b"key")  # type: ignore[call-overload]
    await log.append_many([b"value"], keys=["key"])  # type: ignore[list-item]
    await log.append_batch(["text"])  # type: ignore[list-item]
    await log.append("text", key=7, codec="utf8")  # type: ignore[call-overload]
    await log.submit([b"value"], producer=7, sequence=0, born=0, keys=["key"])  # type: ignore[list-item]
    await texts.append(b"value")  # type: ignore[call-overload]
    await texts.append("text", key=7)  # type: ignore[call-overload]
    await texts.append("text", codec="text")  # type: ignore[call-overload]


async def commits(log: Client, txn: Transaction, texts: Transaction[str]) -> None:
    await txn.append("text")  # type: ignore[call-overload]
    await txn.append(b"value", key="key")  # type: ignore[call-overload]
    await txn.append_many([b"value"], keys=["key"])  # type: ignore[list-item]
    await texts.append(b"value")  # type: ignore[call-overload]
    await txn.commit_position("billing")  # type: ignore[arg-type]
    print(txn.appended.first)  # type: ignore[union-attr]
    async with log.transaction() as begun:
        await begun.append(7)  # type: ignore[call-overload]


async def reads(log: Client, texts: Client[str], consistency: str) -> None:
    log.read(consistency="strong")  # type: ignore[arg-type]
    log.read(consistency=consistency)  # type: ignore[arg-type]
    log.read_pages(consistency="strong")  # type: ignore[arg-type]
    log.block_pages(consistency="strong")  # type: ignore[arg-type]
    read_arrow("http://h:1", consistency="strong")  # type: ignore[arg-type]
    log.read(at_least=b"7")  # type: ignore[arg-type]
    log.read(lag_max_s="2")  # type: ignore[arg-type]
    log.tail(lag_max_s="2")  # type: ignore[arg-type]
    log.consumer("billing", at_least=None)  # type: ignore[arg-type]
    log.read(from_vlsn="middle")  # type: ignore[arg-type]
    log.read(key="key")  # type: ignore[arg-type]
    texts.tail(key=7)  # type: ignore[arg-type]
    log.tail(key_prefix="key")  # type: ignore[arg-type]
    for _ in log.tail():  # type: ignore[attr-defined]
        pass
    log.consumer("billing", from_vlsn="middle")  # type: ignore[arg-type]


def blocking(log: SyncClient, texts: SyncTransaction[str], objects: SyncClient[Any]) -> None:
    log.append("text")  # type: ignore[call-overload]
    log.append_many([b"value"], keys=["key"])  # type: ignore[list-item]
    log.read(consistency="strong")  # type: ignore[arg-type]
    log.read(key="key")  # type: ignore[arg-type]
    texts.append(b"value")  # type: ignore[call-overload]
    texts.append_many(["text"], keys=[7])  # type: ignore[list-item]
    objects.append_many({"a": 1}, codec="text")  # type: ignore[call-overload]


def embedded(log: Log, txn: LogTransaction) -> None:
    log.append(7)  # type: ignore[call-overload]
    log.append(b"value", key="key")  # type: ignore[call-overload]
    log.append([b"value"], key=b"key")  # type: ignore[call-overload]
    log.append([b"value"], keys=["key"])  # type: ignore[list-item]
    txn.append([b"value"], key=b"key")  # type: ignore[call-overload]
