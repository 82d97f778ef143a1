"""The live page beside a group under load: how soon a browser paints it, and what one that stays open costs appends.

First paint: Chromium opens the page of the master anew each time, beside writers, and by turns a page of plain text of
the same node, which shows the browser's own share.  Open page: writers by turns without a
page, and beside one that asks for the overview once a second, as the page does.  The page is no browser there, whose
own work would take the processors from the group.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from contextlib import suppress
from typing import Final

from playwright.async_api import async_playwright

from repl import connect
from repl.net.client_network import ClientNetwork
from tests.bench.report import Aimed, Sections
from tests.e2e.browser import chromium_path
from vlsnlog.testing import Group

PERIOD_S: Final = 1.0
PAINTED: Final = """
() => new Promise((found) => new PerformanceObserver((list) => {
  for (const each of list.getEntriesByName("first-contentful-paint")) found(each.startTime);
}).observe({ type: "paint", buffered: true }))
"""
VALUE: Final = b"." * 100
PLAIN: Final = "/errors/no-master"
"""The page of plain text."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10, help="openings of the page, and pairs of turns")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a turn")
    parser.add_argument("--writers", type=int, default=64)


def measured(options: argparse.Namespace) -> Sections:
    path = chromium_path()
    with Group(nodes=3) as group:
        url = group.urls[group.master()]
        painted, plain = asyncio.run(_painted(group.url, url, path, options))
        yield (
            "the page's first paint beside writers",
            {
                "rounds": len(painted),
                "median_ms": Aimed(round(statistics.median(painted), 1), "≤ 200"),
                "most_ms": round(max(painted), 1),
                "plain_text_ms": round(statistics.median(plain), 1),
                "ratio": round(statistics.median(painted) / statistics.median(plain), 2),
                "load": round(os.getloadavg()[0], 1),
            },
        )
        without, beside = asyncio.run(_by_turns(group.url, url, options))
        ratios = [other / one for one, other in zip(without, beside, strict=True)]
        yield (
            "appends a second beside an open page",
            {
                "pairs": len(ratios),
                "without": round(statistics.median(without)),
                "beside": round(statistics.median(beside)),
                "ratio": Aimed(round(statistics.median(ratios), 4), "≥ 0.99"),
            },
        )


async def _write(urls: str, writers: int, until: asyncio.Event) -> float:
    """Appends until the event. Returns the appends a second."""
    done = 0

    async def one() -> None:
        nonlocal done
        while not until.is_set():
            await log.append(VALUE)
            done += 1

    async with connect(urls) as log:
        await log.append(VALUE)
        began = time.perf_counter()
        await asyncio.gather(*(one() for _ in range(writers)))
        return done / (time.perf_counter() - began)


async def _painted(urls: str, url: str, path: str, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Returns the milliseconds from each opening to the first paint: of the live page, and of plain text."""
    over, live, plain = asyncio.Event(), list[float](), list[float]()
    writing = asyncio.create_task(_write(urls, options.writers, over))
    try:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            by_turns = ((url, live), (url + PLAIN, plain))
            for number in range(options.rounds):
                for each, found in by_turns if number % 2 else reversed(by_turns):
                    context = await browser.new_context()
                    page = await context.new_page()
                    await page.goto(each)
                    found.append(float(await page.evaluate(PAINTED)))
                    await context.close()
            await browser.close()
    finally:
        over.set()
        await writing
    return live, plain


async def _by_turns(urls: str, url: str, options: argparse.Namespace) -> tuple[list[float], list[float]]:
    without, beside = list[float](), list[float]()
    for number in range(options.rounds):
        for open_page in (False, True) if number % 2 else (True, False):
            over = asyncio.Event()
            asyncio.get_running_loop().call_later(options.seconds, over.set)
            polling = asyncio.create_task(_poll(url)) if open_page else None
            rate = await _write(urls, options.writers, over)
            if polling is not None:
                polling.cancel()
                with suppress(asyncio.CancelledError):
                    await polling
            (beside if open_page else without).append(rate)
    return without, beside


async def _poll(url: str) -> None:
    network = ClientNetwork()
    try:
        while True:
            answer = await network.request("GET", f"{url}/v1/overview", timeout_s=5.0)
            assert answer.status == 200
            await asyncio.sleep(PERIOD_S)
    finally:
        await network.close()
