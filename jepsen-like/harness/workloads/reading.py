"""Readers: each follows the log through its client under all faults, and notes every page.

Pages include the log's own entries, so that each page must begin exactly where the last one ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import Any

import msgspec

from harness.ops import Recorder
from harness.values import COMMIT, DEAD, DEAD_KEY, OWN, number_of
from repl.client.connect import connect
from repl.client.page import Page
from repl.web import problem
from repl.web.types import Network
from vlsn.errors import Trimmed, Unreachable, VlsnLogError
from vlsn.format.block import EntryKind

AGAIN_S = 0.2
LOOK_TIMEOUT_S = 3.0
PAGE_ENTRIES = 10_000
PAGE_TIMEOUT_S = 30.0


class Row(msgspec.Struct):
    """The checked fields of one line of ``GET /v1/entries?kinds=all``."""

    vlsn: int
    term: int
    kind: str
    key: str = ""
    value: str = ""


class Positions:
    """The position of each reader, and the nodes that it may ask."""

    def __init__(self) -> None:
        self.next: dict[str, int] = {}
        self.nodes: dict[str, list[str]] = {}

    def begins(self, process: str, nodes: Iterable[str]) -> int:
        self.nodes[process] = list(nodes)
        self.next[process] = 1
        return 1

    def behind(self, vlsn: int, members: Collection[str]) -> list[str]:
        """Returns readers of ``members`` that have not reached ``vlsn``."""
        asking = [name for name, nodes in self.nodes.items() if not set(members).isdisjoint(nodes)]
        return sorted(name for name in asking if self.next[name] <= vlsn)


async def follow(
    process: str,
    urls: Mapping[str, str],
    recorder: Recorder,
    positions: Positions,
    *,
    chance: Random,
    restless: float,
    settled: asyncio.Event,
) -> None:
    """Follows from the first VLSN until cancelled.  ``restless`` times a second it stops and begins again, at its
    position or, sometimes, before it; not any more once ``settled``."""
    at = positions.begins(process, urls)
    while True:
        recorder.record(process, "ok", "seek", {"from": at, "nodes": list(urls)})
        lasts = chance.expovariate(restless) if restless and not settled.is_set() else None
        try:
            async with asyncio.timeout(lasts), connect(",".join(urls.values())) as client:
                async for page in client.tail_pages(at, all_kinds=True):
                    _note(process, page, recorder)
                    at = positions.next[process] = page.next_vlsn
        except TimeoutError:
            if chance.random() < 0.3:
                at = chance.randint(1, at)
        except Trimmed as error:
            at = positions.next[process] = max(at, error.first)
        except VlsnLogError as error:
            recorder.record(process, "fail", "poll", {}, f"{error.slug}: {error}"[:200])
            await asyncio.sleep(AGAIN_S)


async def look(
    process: str, urls: Mapping[str, str], recorder: Recorder, positions: Positions, *, chance: Random, rate: float
) -> None:
    """Reads new entries, linearizable, about ``rate`` times a second, until cancelled; ``look`` has the last VLSN."""
    at = positions.begins(process, urls)
    recorder.record(process, "ok", "seek", {"from": at, "nodes": list(urls)})
    async with connect(",".join(urls.values()), timeout_s=LOOK_TIMEOUT_S) as client:
        while True:
            recorder.record(process, "invoke", "look", {"from": at})
            try:
                async for page in client.read_pages(at, all_kinds=True, consistency="linearizable"):
                    _note(process, page, recorder)
                    if page.entries:
                        at = positions.next[process] = page.entries[-1].vlsn + 1
            except Trimmed as error:
                recorder.record(process, "fail", "look", {}, f"{error.slug}: {error}"[:200])
                at = positions.next[process] = max(at, error.first)
                recorder.record(process, "ok", "seek", {"from": at, "nodes": list(urls)})
            except VlsnLogError as error:
                recorder.record(process, "fail", "look", {}, f"{error.slug}: {error}"[:200])
            else:
                recorder.record(process, "ok", "look", {"to": at - 1})
            await asyncio.sleep(chance.expovariate(rate))


def _note(process: str, page: Page, recorder: Recorder) -> None:
    if not page.entries:
        return
    entries = page.entries
    numbers = [_number(EntryKind(each.kind).name, each.value, each.key or b"") for each in entries]
    value = {"vlsns": [each.vlsn for each in entries], "terms": [each.term for each in entries], "numbers": numbers}
    value |= _dead(
        (each.vlsn, number, each.key or b"", each.value) for each, number in zip(entries, numbers, strict=True)
    )
    recorder.record(process, "ok", "poll", value)


async def read_all(
    node: str, url: str, to_vlsn: int, network: Network, recorder: Recorder, *, member: bool = True
) -> bool:
    """Reads the log of ``node`` alone, notes it as ``final``, and returns whether that is all. A read that does not
    reach the end is ``info``, with the entries up to there. A cleaned log begins at ``first``."""
    rows: list[Row] = []
    first = at = 1
    error = ""
    try:
        while at <= to_vlsn:
            try:
                page, after = await _page(url, at, network)
            except Trimmed as trimmed:
                rows, first = [], trimmed.first
                at = first
                continue
            rows += [row for row in page if row.vlsn <= to_vlsn]
            if after <= at:
                break
            at = after
    except (VlsnLogError, ValueError) as fault:
        error = str(fault)[:200]
    whole = at > to_vlsn
    numbers = [_number(row.kind, row.value.encode(), row.key.encode()) for row in rows]
    value: dict[str, Any] = {"node": node, "to": min(to_vlsn, at - 1)}
    value |= {"vlsns": [row.vlsn for row in rows], "terms": [row.term for row in rows], "numbers": numbers}
    value |= {} if first == 1 else {"first": first}
    value |= _dead(
        (row.vlsn, number, row.key.encode(), row.value.encode()) for row, number in zip(rows, numbers, strict=True)
    )
    value |= {} if member else {"member": False}
    recorder.record("final", "ok" if whole else "info", "final", value, error)
    return whole


_rows = msgspec.json.Decoder(Row)


async def _page(url: str, at: int, network: Network) -> tuple[list[Row], int]:
    answer = await network.request(
        "GET", f"{url}/v1/entries?from={at}&limit={PAGE_ENTRIES}&kinds=all", timeout_s=PAGE_TIMEOUT_S
    )
    if answer.status == 410:
        raise problem.error_of(bytes(answer.body))
    if answer.status != 200:
        raise Unreachable(f"{url} answered {answer.status}: {bytes(answer.body[:300])!r}")
    return _rows.decode_lines(answer.body), int(answer.headers["Vlsnlog-Next"])


def _number(kind: str, value: bytes, key: bytes) -> int:
    if kind == "DATA":
        return DEAD if key.startswith(DEAD_KEY) else number_of(value, key)
    return COMMIT if kind == "COMMIT" else OWN


class _Letter(msgspec.Struct):
    """The checked fields of a dead letter's value."""

    vlsn: int
    attempts: int
    reason: str


_letters = msgspec.json.Decoder(_Letter)


def _dead(entries: Iterable[tuple[int, int, bytes, bytes]]) -> dict[str, Any]:
    """Lists the dead letters among (VLSN, number, key, value), if there are any."""
    dead = []
    for vlsn, number, key, value in entries:
        if number == DEAD:
            letter = _letters.decode(value)
            dead.append((vlsn, key.removeprefix(DEAD_KEY).decode(), letter.vlsn, letter.attempts))
    return {"dead": dead} if dead else {}
