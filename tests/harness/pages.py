"""A headless browser for tests of the web pages. Tests skip with a reason if there is none.

axe-core checks the drawn page for people with little or no sight.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest

from scripts.clients.install import FOLDER

pytest.importorskip("playwright.sync_api", reason="playwright is not installed: see the dev group")

from playwright.sync_api import Browser as Browser
from playwright.sync_api import Page, sync_playwright

WIDTH, HEIGHT = 1280, 760


class Opened:
    """A web page of the node at `address` in the browser, with its errors and its requests to other
    hosts."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.address = address
        self.complaints: list[str] = []
        self.foreign: list[str] = []
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self._heard(said.type, said.text))
        page.on("request", lambda request: self._asked(request.url))

    def assert_fits(self, width: int) -> None:
        """Check the width of the page: at most `width` pixels. A table redrawn at a new window size
        takes its place a frame later."""
        self.page.wait_for_function(
            "width => document.documentElement.scrollWidth <= width", arg=width
        )

    def show(self, view: str) -> None:
        self.page.click(f"#tab-{view}")

    def number(self, selector: str) -> int:
        """Return the number in data-value of the only element matching the selector."""
        value = self.page.get_attribute(selector, "data-value")
        assert value is not None
        return int(value)

    def text(self, selector: str) -> str:
        return self.page.inner_text(selector)

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _asked(self, url: str) -> None:
        if not url.startswith(f"http://{self.address}/"):
            self.foreign.append(url)


@contextmanager
def launched() -> Iterator[Browser]:
    """Yield a browser for any number of pages, because its start takes longer than most pages."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed: install Debian's chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(
    browser: Browser, address: str, path: str = "/", scheme: str = "light"
) -> Iterator[Opened]:
    """Yield the web page at HOST:PORT, without browser storage of an earlier page. scheme: light or
    dark."""
    page = browser.new_page(
        viewport={"width": WIDTH, "height": HEIGHT},
        color_scheme="dark" if scheme == "dark" else "light",
    )
    try:
        seen = Opened(page, address)
        page.goto(f"http://{address}{path}")
        yield seen
    finally:
        page.close()


SCRIPT = FOLDER / "axe" / "node_modules" / "axe-core" / "axe.min.js"
GRAVE = ("serious", "critical")
_RUN = """axe.run(document, {resultTypes: ["violations"]}).then(found => found.violations.map(
  one => [one.impact, one.id, one.nodes.map(node => node.html.slice(0, 160)).slice(0, 4)]))"""


@cache
def _source() -> str:
    if not SCRIPT.exists():
        pytest.skip("axe-core is not installed: python -m scripts.clients.install axe")
    return SCRIPT.read_text(encoding="utf-8")


def grave_findings(seen: Opened) -> list[str]:
    """Return axe-core's findings of impact serious or critical, each with some of its elements."""
    seen.page.evaluate(_source())
    found: list[list[Any]] = seen.page.evaluate(_RUN)
    return [json.dumps(one) for one in found if one[0] in GRAVE]
