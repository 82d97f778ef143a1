"""The live page in Chromium: each situation of a real group, with the texts that a person needs.

``SHOTS=directory`` keeps a picture of each situation, in three widths, light and dark.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from repl import connect_sync
from repl.node.status_http import _PAGE
from tests.e2e.browser import Shown, chromium, chromium_path
from tests.e2e.calls import JSON, NDJSON, call
from tests.e2e.commands import run
from tests.e2e.group import NAMES, UNTROUBLED_S, Group
from tests.e2e.test_full_disk import fill, small_disk
from tests.watch.load import Load
from tests.watch.test_situations import CONSUMERS, call_status, cdc, destination, flip
from vlsn.limits import KIB, MIB

pytestmark = pytest.mark.real
__all__ = ["small_disk"]
PAGE_BYTES_MAX = 60 * KIB
EVIL = b"<script>document.title='taken'</script><img src=x onerror=alert(1)> \xe2\x80\xaegnp.exe"

SLOW = """
() => {
  const fetched = window.fetch;
  let now = 0;
  window.asked = window.most = 0;
  window.fetch = async (...call) => {
    window.asked += 1;
    window.most = Math.max(window.most, now += 1);
    await new Promise((done) => setTimeout(done, 700));
    try { return await fetched(...call); } finally { now -= 1; }
  };
  setInterval(() => document.dispatchEvent(new Event("visibilitychange")), 50);
}
"""
"""Each call of the page takes longer, and its tab is shown again all the time."""
FIRST_TIMES = """
() => ["first-paint", `${location.origin}/v1/overview`].map((name) => performance.getEntriesByName(name)[0].startTime)
"""
"""When the page was painted first, and when it first asked for the overview, in milliseconds from its opening."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(autouse=True)
def consumers_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "consumers_of_a_watch.py").write_text(CONSUMERS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


@contextmanager
def running(directory: Path, *tables: str, **settings: str | int | float) -> Iterator[Group]:
    """Founds a group. ``tables`` are added to each node's settings."""
    chromium_path()
    group = Group(directory / "group", **settings)
    for name in NAMES:
        with group.config(name).open("a") as file:
            file.write("\n".join(["", *tables, ""]))
    try:
        group.start()
        yield group
    finally:
        group.end()


@contextmanager
def shown(browser: Browser, url: str) -> Iterator[Shown]:
    shots = os.environ.get("SHOTS")
    if shots is not None:
        Path(shots).mkdir(exist_ok=True)
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    try:
        yield Shown(context.new_page(), url, Path(shots) if shots is not None else None)
    finally:
        context.close()


def other(group: Group, *names: str) -> str:
    """Returns a node that is none of ``names`` and does not lead."""
    return next(name for name in NAMES if name not in (group.leader, *names))


def test_the_page_is_small_and_loads_nothing_else() -> None:
    assert len(_PAGE) <= PAGE_BYTES_MAX
    text = _PAGE.decode()
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "") and "https://" not in text
    assert "innerHTML" not in text and "insertAdjacent" not in text and 'style="' not in text


@pytest.mark.feature("page")
def test_a_healthy_group_and_a_lost_master(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path, cdc("lines", "Reads")) as group, Load(group, writers=2):
        destination(group, **{"from": "end"})
        with connect_sync(",".join(group.urls.values())) as log:
            consumer = log.consumer("billing", from_vlsn=1)
            next(iter(consumer))
            consumer.commit()
        first, asked = group.leader, other(group)
        with shown(browser, group.urls[asked]) as page:
            page.shows("health", "healthy")
            assert page.text("asked") == f"asked: {asked}" and page.text("leader") == first
            assert [page.page.locator("#members tr").nth(n).locator("td").first.inner_text() for n in range(3)] == list(
                NAMES
            )
            page.until(lambda: page.text("rate").replace(",", "").isdigit() and page.text("rate") != "0", "a rate")
            page.shows("consumers", "billing")
            page.shows("destinations", "jobs")
            page.shows("cdc", "lines", first)
            page.shows("lags-of", asked)
            page.check("healthy")
            group.kill(first)
            page.until(lambda: page.text("leader") not in ("none", first), "another leads")
            page.shows("health", "degraded")
            page.shows("alarms", f"{first} does not answer", "systemctl start vlsnlog")
            page.until(lambda: page.text("still").endswith((" s", " ms")), "the pause of appends")
            assert first in page.text("still-of")
            page.shows("events", "leads")
            page.page.select_option("#level", "warning")
            page.until(lambda: "leads" not in page.text("events"), "warnings alone")
            page.check("master-lost")


def test_entries_are_browsed_and_nothing_of_them_is_run(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as group:
        with connect_sync(",".join(group.urls.values())) as log:
            vlsns = [log.append(json.dumps({"order": n}).encode(), key=b"order-%d" % n) for n in range(120)]
            evil = log.append(EVIL, key=b"<b>key</b>")
            binary = log.append(bytes(range(256)), key=b"\xff\xfe")
            large = log.append(b"y" * MIB)
            group.settle()
        with shown(browser, group.urls[other(group)]) as page:
            page.shows("health", "healthy")
            page.page.click("#browse button:has-text('Show')")
            page.shows("entries-said", f" to {large:,}")
            page.page.click(f"#entries summary:has-text('{evil:,}')")
            assert page.page.locator("#entries details[open] pre").inner_text() == EVIL.decode().replace(
                "\u202e", "\\u202e"
            )
            assert page.page.locator("#entries script, #entries b, #entries img").count() == 0
            page.page.select_option("#format", "hex")
            page.until(lambda: not page.page.locator("#entries details[open]").count(), "the entries are shown anew")
            page.page.click(f"#entries summary:has-text('{binary:,}')")
            assert "00000010  10 11 12" in page.page.locator("#entries details[open] pre").inner_text()
            page.page.select_option("#format", "JSON")
            page.page.fill("#sought", str(vlsns[0]))
            page.page.press("#sought", "Enter")
            page.shows("entries-said", f"{vlsns[0]:,} to ")
            page.page.click("#entries summary:has-text('order-0')")
            assert page.page.locator("#entries details[open] pre").inner_text() == '{\n  "order": 0\n}'
            first = page.text("entries-said")
            page.page.click("#later")
            page.until(lambda: page.text("entries-said") not in (first, "asking…"), "the next page")
            page.page.click("#earlier")
            page.shows("entries-said", first)
            page.page.select_option("#by", "key")
            page.page.fill("#sought", "order-77")
            page.page.press("#sought", "Enter")
            page.shows("entries-said", f"{vlsns[77]:,} to {vlsns[77]:,}")
            assert "#entries?key=order-77" in page.page.url
            page.page.reload()
            page.shows("entries-said", f"{vlsns[77]:,} to {vlsns[77]:,}")
            page.page.select_option("#by", "from")
            page.page.fill("#sought", "nonsense")
            page.page.press("#sought", "Enter")
            page.shows("entries-said", "bad-argument: ")
            page.check("entries")


def test_no_majority_and_then_no_node(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as group:
        stays = other(group)
        gone = [name for name in NAMES if name != stays]
        with shown(browser, group.urls[stays]) as page:
            page.shows("health", "healthy")
            group.kill(*gone)
            page.shows(
                "alarms",
                "No majority: appends are refused",
                f"{gone[0]} and {gone[1]} do not answer",
                "systemctl start vlsnlog",
            )
            page.shows("health", "needs a person")
            assert page.text("leader") == "none"
            page.check("no-majority")
            group.kill(stays)
            page.shows(
                "alarms", f"{stays} does not answer; what follows is old", f"open another member: {gone[0]}, {gone[1]}"
            )
            assert page.page.locator("#alarms a").first.get_attribute("href") == group.urls[gone[0]] + "/"
            page.check("no-node")
            group.start()
            page.shows("health", "healthy")


def test_a_silent_replica(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as group, Load(group):
        silent = other(group)
        with shown(browser, group.urls[group.leader]) as page:
            page.shows("health", "healthy")
            group.send(silent, signal.SIGSTOP)
            page.shows("alarms", f"{silent} does not answer", "within 1 s")
            page.until(lambda: page.page.locator("#members .bad").count() == 1, "its line says so")
            page.check("silent-replica")
            group.send(silent, signal.SIGCONT)
            page.shows("health", "healthy")


def test_a_restore(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as group:
        group.append(*[b"." * (MIB - 1024)] * 200)
        group.settle()
        restored = other(group)
        with shown(browser, group.urls[group.leader]) as page:
            page.shows("health", "healthy")
            assert call("POST", f"{group.urls[restored]}/v1/admin/restore").status < 300
            page.shows("alarms", f"{restored} ", "restore", "vlsnlog status --url")
            page.shows("health", "healthy")


def test_damage(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path, segment_bytes=4 * MIB, scrub_period_s=1.0) as group:
        group.lead("n1")
        vlsns = group.append(*[b"%d" % number * 1000 for number in range(5)])
        group.settle()
        call("POST", f"{group.urls['n3']}/v1/admin/rotate").ok()
        group.append(b"behind it")
        group.settle()
        group.stop(*NAMES)
        flip(group, "n3", vlsns[2])
        group.launch("n3")
        group.until(lambda: call_status(f"{group.urls['n3']}/v1/entries/{vlsns[2]}") == 500, "n3 meets the damage")
        with shown(browser, group.urls["n3"]) as page:
            page.shows("alarms", "n3: damage in ", f"VLSN {vlsns[2]:,}", f"vlsnlog restore --url {group.urls['n3']}")
            page.check("damage")


def test_a_full_disk(browser: Browser, tmp_path: Path, small_disk: Path) -> None:
    settings = {"segment_bytes": MIB, "election_timeout_s": UNTROUBLED_S}
    with (
        running(small_disk, **settings) as group,
        Load(group, value_bytes=100_000),
        shown(browser, group.urls[group.leader]) as page,
    ):
        page.shows("health", "healthy")
        fill(small_disk, 8 * MIB)
        page.shows("alarms", ": no space, appends are refused, reads continue", "vlsnlog clean --url http://")
        page.shows("health", "needs a person")
        page.check("disk-full")


def test_a_full_destination_and_dead_messages(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as group:
        path = destination(group, max_messages=2, full_policy="fail", attempts_max=1)
        group.until(lambda: call("GET", path).ok()["depth"]["counted"], "its depth is counted")
        line = b'{"value":"a","key":"order-1"}\n'
        with shown(browser, group.urls[other(group)]) as page:
            page.shows("health", "healthy")
            call("POST", f"{group.master}/v1/entries", headers=NDJSON, body=line * 2).ok()
            assert call("POST", f"{group.master}/v1/entries", headers=NDJSON, body=line).status != 200
            page.shows(
                "alarms",
                "destination jobs is full: appends to it are refused",
                f"vlsnlog dest show jobs --url {group.master}",
            )
            page.check("destination-full")
            vlsns = [each["vlsn"] for each in call("GET", f"{path}/messages?wait=5&max=100").lines()]
            refused = json.dumps({"vlsns": vlsns, "reason": "no stock"}).encode()
            assert call("POST", f"{path}/nack", headers=JSON, body=refused).status == 200
            page.shows("alarms", "destination jobs has 2 dead messages", "vlsnlog dest retry-dead jobs")


def test_a_parked_consumer(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path, cdc("orders", "Fails", "retries_max = 0")) as group:
        group.append(b"x")
        with shown(browser, group.urls[other(group)]) as page:
            page.shows("alarms", "consumer orders is parked", f"vlsnlog cdc resume orders --url {group.master}")
            page.shows("cdc", "orders", group.leader, "parked")
            page.check("parked")


def test_the_first_frame_is_small_and_waits_for_no_script(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as group:
        without = browser.new_context(java_script_enabled=False)
        page = without.new_page()
        page.goto(group.urls["n1"])
        assert page.locator("h1").is_visible() and page.locator("#leader").is_visible()
        assert not page.locator("#members, #rates, #browse, #events, footer").filter(visible=True).count()
        without.close()
        with shown(browser, group.urls["n1"]) as whole:
            whole.shows("health", "healthy")
            painted, asked = whole.page.evaluate(FIRST_TIMES)
            assert 0 < painted <= asked


def test_polls_of_a_page_do_not_overlap(browser: Browser, tmp_path: Path) -> None:
    with running(tmp_path) as group, shown(browser, group.urls["n1"]) as page:
        page.shows("health", "healthy")
        page.page.evaluate(SLOW)
        page.page.wait_for_timeout(4000)
        asked, most = page.page.evaluate("[window.asked, window.most]")
        assert asked >= 2 and most == 1


def token_of(group: Group, roles: str) -> str:
    made: list[str] = []

    def create() -> bool:
        key: list[str | Path] = ["--group-key", group.directory / "group.key"]
        ended = run("token", "create", "--roles", roles, "--url", group.urls["n1"], *key)
        made[:] = re.findall(r"vlt_[\w-]+", ended.out.decode())
        return bool(made)

    group.until(create, "the group makes a token")
    return made[0]


def test_a_stranger_signs_in(browser: Browser, tmp_path: Path) -> None:
    group = Group(tmp_path / "group", anonymous="none")
    try:
        group.launch()
        token = token_of(group, "metrics")
        with shown(browser, group.urls["n2"]) as page:
            page.until(lambda: page.page.locator("#sign-in").is_visible(), "it asks for a token")
            assert page.text("beat") == "asks for a token"
            page.check("unauthorised")
            page.page.fill("#token", "vlt_k3f9a1c8_" + "A" * 43)
            page.page.press("#token", "Enter")
            page.until(lambda: page.text("refused") != "", "it is refused")
            page.page.fill("#token", token)
            page.page.press("#token", "Enter")
            page.shows("health", "healthy")
            assert not page.page.locator("#sign-in").is_visible()
            page.page.click("#browse button:has-text('Show')")
            page.shows("entries-said", "entries need a token with the role read")
            page.check("signed-in")
            page.page.context.clear_cookies()
            page.shows("health", "signed out")
            assert page.page.locator("#sign-in").is_visible() and page.text("beat") == "asks for a token"
            reads = token_of(group, "metrics,read")
            page.page.fill("#token", reads)
            page.page.press("#token", "Enter")
            page.shows("health", "healthy")
            page.page.evaluate("location.hash = '#entries?from=1&limit=5&kinds=all'")
            page.shows("entries-said", "1 to ")
            page.page.reload()
            page.shows("entries-said", "entries need a token with the role read")
            page.until(lambda: page.page.locator("#sign-in").is_visible(), "it asks for the token of entries")
            page.page.fill("#token", reads)
            page.page.press("#token", "Enter")
            page.shows("entries-said", "1 to ")
            assert not page.page.locator("#sign-in").is_visible()
    finally:
        group.end()
