"""A Prometheus server with the files of ``docs/watch``: an alert fires, its page says what to do, and that ends it."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from tests.watch.rules import PAGE, RULES
from vlsnlog.testing import Group

pytestmark = [pytest.mark.real, pytest.mark.long]
SETTINGS = RULES.parent / "prometheus.yml"
NO_MASTER = "VlsnlogNoMaster"
WAIT_S = 180.0
"""The alert waits for a minute, and a busy machine for its scrapes."""


@pytest.fixture
def prometheus() -> str:
    found = shutil.which("prometheus")
    if found is None:
        pytest.skip("prometheus is not installed (Debian, Ubuntu: apt-get install prometheus)")
    return found


def test_an_alert_fires_and_what_its_page_says_ends_it(prometheus: str, tmp_path: Path) -> None:
    with Group(3) as group, served(prometheus, group, tmp_path) as alerts:
        master = group.master()
        until(lambda: alerts() == {}, "nothing is pending any more")  # the nodes' first scrapes come one by one
        lost = [name for name in group.names if name != master]
        group.kill(*lost)
        until(lambda: alerts().get(NO_MASTER, {}).get("state") == "firing", f"{NO_MASTER} fires")
        fired = alerts()[NO_MASTER]
        assert fired["labels"]["severity"] == "critical" and fired["labels"]["job"] == "orders"
        page, _, heading = fired["annotations"]["runbook_url"].partition("#")
        assert page == f"docs/{PAGE.name}"
        section = PAGE.read_text().partition(f"### {NO_MASTER}\n")[2].partition("\n### ")[0]
        assert heading == NO_MASTER.lower() and "Start members until a majority runs" in section
        group.start(lost[0])
        until(lambda: NO_MASTER not in alerts(), f"{NO_MASTER} ends")


@contextmanager
def served(program: str, group: Group, directory: Path) -> Iterator[Callable[[], dict[str, dict[str, Any]]]]:
    """Runs a server that scrapes the group each second, and yields what returns its alerts by name, those that are
    pending too."""
    settings = yaml.safe_load(SETTINGS.read_text())
    (job,) = settings["scrape_configs"]
    job["scrape_interval"] = "1s"
    job["static_configs"] = [{"targets": [url.removeprefix("http://") for url in group.urls.values()]}]
    settings["global"] = {"evaluation_interval": "1s"}
    settings["rule_files"] = [str(RULES)]
    (directory / "prometheus.yml").write_text(yaml.safe_dump(settings))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    api = f"http://127.0.0.1:{port}/api/v1"
    with (directory / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            [
                program,
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        until(lambda: scraped(api) == {url.removeprefix("http://") for url in group.urls.values()}, "all are scraped")
        yield lambda: {each["labels"]["alertname"]: each for each in asked(f"{api}/alerts")["alerts"]}
    finally:
        server.terminate()
        server.wait()


def scraped(api: str) -> set[str]:
    """Returns the nodes that answer scrapes. A server that does not answer yet has none."""
    try:
        found = asked(f"{api}/targets")["activeTargets"]
    except OSError:
        return set()
    return {each["labels"]["instance"] for each in found if each["health"] == "up"}


def asked(url: str) -> dict[str, Any]:
    with urlopen(url, timeout=10) as answer:
        found: dict[str, Any] = json.load(answer)["data"]
    return found


def until(met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not met():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)
