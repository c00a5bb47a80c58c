"""What the form answers: bad values at their fields, missing files, Chinese, small screens, contrast."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.ui.conftest import ready
from tests.ui.serving import Server

BAD = {"width": "5", "frames": "1000000", "seed": "99999999999999999999"}
LEAST_CONTRAST = 4.5
TEXTS = (
    "#rail label span, .fl-chip, .fl-quiet, .fl-brand p, .fl-described, .fl-view .lead, .fl-steps span, "
    ".fl-primary, #preview, #render, .fl-start span"
)
CONTRAST = """selector => {
  const parse = (css) => {
    const probe = Object.assign(document.createElement('canvas'), { width: 1, height: 1 }).getContext('2d');
    probe.fillStyle = css;
    probe.fillRect(0, 0, 1, 1);
    return [...probe.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return [255, 255, 255];
  };
  const seen = (node) => node.offsetParent && node.textContent.trim();
  const shown = [...document.querySelectorAll(selector)].filter(seen);
  return shown.map((node) => {
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    return [node.textContent.trim().slice(0, 30), (a + 0.05) / (b + 0.05)];
  });
}"""


def test_every_bad_value_is_named_at_its_field(page: Page, server: Server) -> None:
    known = len(server.jobs())
    for name, value in BAD.items():
        page.locator(f"#{name} input").fill(value)
    page.locator("#preview").click()
    expect(page.locator("#prompt div.validation-error")).to_have_text(
        "The prompt is empty: say what the video should show."
    )
    expect(page.locator("#width div.validation-error")).to_contain_text("from 32 to 2048")
    expect(page.locator("#frames div.validation-error")).to_contain_text("from 1 to 345")
    expect(page.locator("#seed div.validation-error")).to_contain_text("64 bits")
    expect(page.locator("#prompt textarea")).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#prompt textarea")).to_be_focused()
    for name, value in BAD.items():
        expect(page.locator(f"#{name} input")).to_have_value(value)
    assert len(server.jobs()) == known


def test_a_size_off_the_grid_says_what_is_made(page: Page) -> None:
    page.locator("#width input").fill("190")
    expect(page.locator("#estimate")).to_contain_text("cropped to 190×224.")


def test_missing_files_are_listed_with_their_places(page: Page) -> None:
    page.locator("#preset input").click()
    page.get_by_role("option", name="MiniMax-H3").click()
    listed = page.locator(".fl-missing")
    expect(listed).to_contain_text("transformer/minimax-h3-q6.gguf")
    expect(listed).to_contain_text("models/minimax-h3")
    page.locator("#more > button").click()
    expect(page.locator("#keep")).to_be_visible()
    expect(page.locator("#guidance")).to_be_hidden()
    expect(page.locator("#negative-prompt")).to_be_hidden()
    page.locator("#prompt textarea").fill("a shiba inu in the rain")
    page.locator("#preview").click()
    expect(page.locator("#preset div.validation-error")).to_contain_text("missing")


def test_chinese_throughout_and_back(tabs: Callable[..., Any]) -> None:
    page = tabs(locale="zh-CN").open()
    expect(page.locator("html")).to_have_attribute("lang", re.compile("^zh"))
    expect(page.locator("#prompt label span").first).to_contain_text("提示词")
    expect(page.locator("#preview")).to_have_text("预览")
    expect(page.locator(".fl-brand p")).to_have_text("先看一眼，再渲染。")
    expect(page.locator("#preset input")).to_have_value("萤火虫")
    page.locator("#width input").fill("5")
    page.locator("#render").click()
    expect(page.locator("#prompt div.validation-error")).to_contain_text("提示词是空的")
    expect(page.locator("#width div.validation-error")).to_contain_text("宽度应为 32 到 2048")
    page.locator("#prompt textarea").fill("一只狗")
    with page.expect_navigation(wait_until="domcontentloaded"):
        page.locator("#language").click()
    ready(page)
    expect(page.locator("html")).to_have_attribute("lang", "en")
    expect(page.locator("#preview")).to_have_text("Preview")
    expect(page.locator("#prompt textarea")).to_have_value("一只狗")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(tabs: Callable[..., Any], scheme: str) -> None:
    page = tabs(color_scheme=scheme).open()
    assert page.evaluate("document.body.classList.contains('dark')") == (scheme == "dark")
    measured = page.evaluate(CONTRAST, TEXTS)
    assert len(measured) > 10
    assert [entry for entry in measured if entry[1] < LEAST_CONTRAST] == []


def test_a_chosen_theme_outlives_a_reload(page: Page) -> None:
    page.locator("#theme").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    page.reload(wait_until="domcontentloaded")
    ready(page)
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("document.body.classList.contains('dark')")


def test_a_phone_scrolls_only_down_and_keeps_its_buttons(tabs: Callable[..., Any]) -> None:
    page = tabs(viewport={"width": 390, "height": 844}).open()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.evaluate("window.scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.locator("#preview")).to_be_in_viewport()
