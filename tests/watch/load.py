"""Clients of a group that continue whatever happens to it: writers, and a worker of a destination."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable
from types import TracebackType

from tests.e2e.calls import JSON, NDJSON, call
from tests.e2e.group import NAMES, Group
from tests.watch.scrapes import Scraper

TIMEOUT_S = 2.0
PAUSE_S = 0.02


class Load:
    """Writers on threads of their own, from ``with`` to its end. Each sends to another node after an error."""

    def __init__(self, group: Group, *, writers: int = 4, key: str = "order-1", value_bytes: int = 200) -> None:
        self._urls = [group.urls[name] for name in NAMES]
        self._body = json.dumps({"key": key, "value": "x" * value_bytes}).encode()
        self.done = 0
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._write, daemon=True) for _ in range(writers)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        nodes = itertools.cycle(self._urls)
        url = next(nodes)
        while not self._ended.wait(PAUSE_S):
            try:
                answer = call(
                    "POST", f"{url}/v1/entries?timeout=1", headers=NDJSON, body=self._body, timeout_s=TIMEOUT_S
                )
                good = answer.status == 200
            except OSError:
                good = False
            self.done += good
            if not good:
                url = next(nodes)


class Worker:
    """Takes and acknowledges the messages of the destination ``jobs``, on a thread of its own."""

    def __init__(self, group: Group) -> None:
        self._urls = [group.urls[name] for name in NAMES]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Worker:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        nodes = itertools.cycle(self._urls)
        path = f"{next(nodes)}/v1/destinations/jobs"
        while not self._ended.is_set():
            try:
                taken = call("GET", f"{path}/messages?wait=1&max=1000", timeout_s=TIMEOUT_S + 1)
                good = taken.status == 200
                if good and (vlsns := [each["vlsn"] for each in taken.lines()]):
                    body = json.dumps({"vlsns": vlsns}).encode()
                    good = call("POST", f"{path}/ack", headers=JSON, body=body, timeout_s=TIMEOUT_S).status == 200
            except OSError:
                good = False
            if not good:
                path = f"{next(nodes)}/v1/destinations/jobs"
                self._ended.wait(PAUSE_S)


def until_scraped(scraper: Scraper, group: Group, sample: str, holds: Callable[[float], bool]) -> None:
    """Waits until the last scrape of a node has a value of ``sample`` (a part of a key) for which ``holds`` is true."""

    def scraped() -> bool:
        time.sleep(0.2)
        return any(
            values[-1] is not None and holds(values[-1]) for key, values in scraper.series().items() if sample in key
        )

    group.until(scraped, f"a scrape shows {sample}")
