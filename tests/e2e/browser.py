"""Pages of a node in headless Chromium, as a person sees them: texts, faults, what is cut, and contrast."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 60.0
WIDTHS = (1200, 480, 360)
CONTRAST_MIN = 4.5
"""The least contrast of text, by WCAG 2 (AA)."""
NO_ANSWER = re.compile(r"Failed to load resource")
"""The browser logs this of a call without an answer, or with the status of an error."""
_CUT = """
() => [...document.querySelectorAll("main *")].filter((each) => {
  const box = each.getBoundingClientRect();
  const clipped = each.closest("thead") && innerWidth < 740 || each.closest("svg, summary, pre");
  return !clipped && box.width && (box.right > innerWidth + 1 || box.left < -1);
}).map((each) => `${each.tagName} ${each.id} ${each.textContent.slice(0, 60)}`)
"""
_FAINT = """
(least) => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((each) => each / 255)
    .map((each) => (each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4))
    .reduce((sum, each, n) => sum + each * [0.2126, 0.7152, 0.0722][n], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const color = parse(getComputedStyle(node).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const says = (node) => [...node.childNodes].some((part) => part.nodeType === 3 && part.textContent.trim());
  const all = [...document.querySelectorAll("main *")];
  const seen = all.filter((each) => each.getClientRects().length && !each.disabled);
  return seen.filter(says).map((each) => {
    const one = light(parse(getComputedStyle(each).color)), other = light(ground(each));
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    return ratio < least ? `${ratio.toFixed(2)} ${each.tagName} ${each.textContent.slice(0, 60)}` : "";
  }).filter(Boolean);
}
"""


def chromium_path() -> str:
    """Returns the path of Chromium. Skips the test if there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        pytest.skip("Chromium is not installed (Debian, Ubuntu: apt-get install chromium; or set CHROMIUM=/path/to/it)")
    return found


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Shown:
    """One page of a node. ``faults`` are errors of its scripts and refusals of its policy."""

    def __init__(self, page: Page, url: str, shots: Path | None = None) -> None:
        self.page = page
        self.faults: list[str] = []
        self._shots = shots
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._logged)
        page.goto(url)

    def _logged(self, message: Any) -> None:
        if message.type in ("error", "warning") and not NO_ANSWER.search(message.text):
            self.faults.append(message.text)

    def text(self, id: str) -> str:
        return self.page.locator(f"#{id}").inner_text()

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until ``holds``. A failure shows the whole page as text."""
        deadline = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {WAIT_S} s: {what}\n{self.page.locator('main').inner_text()}")
            self.page.wait_for_timeout(50)

    def shows(self, id: str, *texts: str) -> str:
        """Waits until the part ``id`` shows all of ``texts``. Returns what it shows."""
        self.until(lambda: all(each in self.text(id) for each in texts), f"#{id} shows {texts}")
        return self.text(id)

    def check(self, name: str) -> None:
        """Checks the page in each width and in both colour schemes, and takes a picture of each."""
        for width in WIDTHS:
            self.page.set_viewport_size({"width": width, "height": 900})
            for scheme in ("light", "dark"):
                self.page.emulate_media(color_scheme=scheme)
                assert self.page.evaluate(_CUT) == [], f"cut at {width} px"
                assert self.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), (
                    f"wider than {width} px"
                )
                faint = [] if self.page.locator(".stale").count() else self.page.evaluate(_FAINT, CONTRAST_MIN)
                assert faint == [], f"faint: {scheme}"
                if self._shots is not None:
                    self.page.screenshot(path=self._shots / f"{name}-{width}-{scheme}.png", full_page=True)
        self.page.set_viewport_size({"width": WIDTHS[0], "height": 900})
        self.page.emulate_media(color_scheme="light")
        assert self.faults == []
