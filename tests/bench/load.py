"""Loads that several benchmarks put on a group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from repl.bench.report import Outcome, Samples
from repl.bench.works import Load
from repl.web import problem
from repl.web.types import Network

ANSWER_S = 120.0


async def call(
    network: Network, method: str, url: str, document: dict[str, Any] | None = None, *, body: bytes | None = None
) -> Any:
    """Sends a document as JSON, or a ``body`` of octets, and returns the answer's.  Raises ``VlsnLogError``."""
    kind = "application/json" if body is None else "application/octet-stream"
    sent = msgspec.json.encode(document or {}) if body is None and method in ("POST", "PUT") else body or b""
    headers = {"Content-Type": kind}
    response = await network.request(method, url, headers=headers, body=sent, timeout_s=ANSWER_S)
    if response.status not in (200, 201, 204):
        raise problem.error_of(bytes(response.body))
    return msgspec.json.decode(bytes(response.body)) if "json" in response.headers.get("Content-Type", "") else None


def plain_load(seconds: float, writers: int, *, batch: int = 1) -> Load:
    """Returns a load of entries of 100 bytes, each for a majority."""
    return Load(seconds=seconds, writers=writers, size=100, batch=batch, acks="majority", bytes_max=4 << 30)


async def paced(call: Callable[[], Awaitable[object]], *, count: int, each_s: float) -> Samples:
    """Calls one after the other at a steady pace.  A call that is late does not hold up the next one's time."""
    samples = Samples()
    start = time.perf_counter()
    for number in range(count):
        await asyncio.sleep(max(0.0, start + number * each_s - time.perf_counter()))
        began = samples.now()
        await call()
        samples.since(began)
    return samples


def median_ms(samples: Samples) -> float:
    return round(float(np.median(samples.milliseconds())), 4)


def rate(outcomes: Sequence[Outcome]) -> float:
    """Returns the entries a second of all of them together."""
    return round(sum(each.entries for each in outcomes) / max(sum(each.seconds for each in outcomes), 1e-9), 1)


def ratio(value: float, other: float) -> float:
    return round(value / max(other, 1e-9), 3)


def together(outcomes: Sequence[Outcome], more: dict[str, Any], errors_of: Sequence[Outcome] = ()) -> Outcome:
    """Joins the turns of one side; errors of the other sides' turns count, too."""
    return Outcome(
        sum(each.entries for each in outcomes),
        sum(each.bytes for each in outcomes),
        sum(each.seconds for each in outcomes),
        np.concatenate([each.latencies_ms for each in outcomes]),
        sum(each.errors for each in (*outcomes, *errors_of)),
        more,
    )
