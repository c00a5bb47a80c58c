"""Jobs and tabs: cancel within a block, refresh, a second tab, the keyboard."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, expect

from tests.ui.conftest import ready
from tests.ui.serving import Server

LONG = {"steps": "200", "width": "384", "height": "224", "keep": "0"}
CANCEL_SECONDS = 5.0


def start_long(page: Page, button: str = "#render") -> None:
    """A render that outlasts any test, in small blocks."""
    page.locator("#prompt textarea").fill("a fox runs to the left in the desert")
    for name in ("steps", "width", "height"):
        page.locator(f"#{name} input").fill(LONG[name])
    page.locator(button).click()
    page.locator(".fl-light.running").wait_for()


def test_cancel_takes_effect_within_a_block(page: Page, server: Server) -> None:
    start_long(page)
    expect(page.locator(".fl-clock")).to_contain_text(re.compile(r"block \d+/\d+"))
    began = time.monotonic()
    page.locator("#cancel").click()
    expect(page.locator(".fl-title")).to_have_text("Cancelled")
    assert time.monotonic() - began < CANCEL_SECONDS
    expect(page.locator("#cancel")).to_be_hidden()
    assert server.jobs()[0]["state"] == "cancelled"
    page.locator("#stage").get_by_role("button", name="Resume").click()
    page.locator(".fl-light.running").wait_for()


def test_escape_asks_before_it_cancels(page: Page, server: Server) -> None:
    start_long(page)
    page.keyboard.press("Escape")
    expect(page.locator("#estimate")).to_contain_text("Press Esc again to cancel.")
    assert server.json("/api/state")["job"]
    page.keyboard.press("Escape")
    expect(page.locator(".fl-title")).to_have_text("Cancelled")


def test_refresh_and_second_tab_attach_to_the_running_job(tabs: Callable[..., Any], server: Server) -> None:
    profile = tabs()
    first = profile.open()
    start_long(first)
    running = server.json("/api/state")["job"]["id"]
    first.reload(wait_until="domcontentloaded")
    ready(first)
    first.locator(".fl-light.running").wait_for()
    expect(first.locator("#prompt textarea")).to_have_value("a fox runs to the left in the desert")
    expect(first.locator("#steps input")).to_have_value(LONG["steps"])
    expect(first.locator("#cancel")).to_be_visible()
    second = profile.open()
    second.locator(".fl-light.running").wait_for()
    assert server.json("/api/state")["job"]["id"] == running
    second.locator("#cancel").click()
    for each in (second, first):
        expect(each.locator(".fl-title")).to_have_text("Cancelled")


def test_keys_preview_and_render_but_not_while_composing(page: Page, server: Server) -> None:
    page.locator("#preset input").click()
    page.get_by_role("option", name="Quick").click()
    page.locator("#prompt textarea").fill("a cat runs to the left in the park")
    known = len(server.jobs())
    page.evaluate(
        "document.querySelector('#prompt textarea').dispatchEvent(new KeyboardEvent('keydown',"
        "{ key: 'Enter', ctrlKey: true, isComposing: true, bubbles: true, cancelable: true }))"
    )
    page.locator("#prompt textarea").press("Control+Enter")
    page.locator(".fl-light.running.preview").wait_for()
    page.locator("#prompt textarea").press("Control+Shift+Enter")
    page.get_by_role("tab", name="History").click()
    expect(page.locator("#history .fl-card")).to_have_count(known + 2)
    assert [job["stage"] for job in server.jobs()[:2]] == ["render", "preview"]


def test_dice_draws_a_seed(page: Page) -> None:
    page.get_by_role("button", name="Draw a seed").click()
    expect(page.locator("#seed input")).to_have_value(re.compile(r"^\d+$"))
