"""One server and one browser for all tests of the page; every tab's errors and requests are watched."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.ui.serving import Server

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 180_000
NEEDS_BROWSER = "the page is tested in Chromium, and /usr/bin/chromium is missing: apt-get install chromium"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(NEEDS_BROWSER)
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("page")
    running = Server(folder / "outputs", folder / "app.log")
    yield running
    try:
        running.cancel_all()
        status, _ = running.interrupt()
        assert status == 0, f"Ctrl+C gave {status}:\n{running.log.read_text()}"
    finally:
        running.kill()


class Tabs:
    """Opens tabs of one context, and notes what must not happen in any of them."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.context = context
        self.address = address
        self.errors: list[str] = []
        self.outside: list[str] = []

    def open(self) -> Page:
        """A tab with the page, ready to be used."""
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", lambda request: self._note(request.url))
        page.goto(self.address, wait_until="domcontentloaded")
        ready(page)
        return page

    def _note(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("data", "blob") and parts.hostname != "127.0.0.1":
            self.outside.append(url)


def ready(page: Page) -> None:
    """The form is restored and the server has answered once."""
    page.locator("body[data-form=ready][data-ready=yes]").wait_for(timeout=PATIENCE_MS)


@pytest.fixture
def tabs(browser: Browser, server: Server, request: pytest.FixtureRequest) -> Iterator[Callable[..., Tabs]]:
    """`tabs(locale=…, …)`: a fresh browser profile with the given settings."""
    made: list[Tabs] = []

    def make(address: str = server.address, **settings: Any) -> Tabs:
        context = browser.new_context(
            **{"locale": "en-US", "viewport": {"width": 1440, "height": 1000}} | settings
        )
        made.append(Tabs(context, address))
        return made[-1]

    failures = request.session.testsfailed
    yield make
    if request.session.testsfailed > failures:
        _photograph(made, request.node.name)
    for each in made:
        each.context.close()
    if server.process.poll() is None:
        server.cancel_all()
    for each in made:
        assert each.errors == []
        assert each.outside == []


@pytest.fixture
def page(tabs: Callable[..., Tabs]) -> Page:
    """The page in a fresh profile, in English."""
    return tabs().open()


def _photograph(made: list[Tabs], name: str) -> None:
    folder = os.environ.get("FIRSTLOOK_TEST_SHOTS")
    if not folder:
        return
    for number, tab in enumerate(page for each in made for page in each.context.pages):
        tab.screenshot(path=Path(folder) / f"{name}-{number}.png")
