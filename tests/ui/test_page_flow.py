"""The whole way in a real browser, on the real model: prompt, preview, render, inspect, save."""

from __future__ import annotations

import io
import json
import re
import subprocess
import zipfile
from pathlib import Path

import imageio_ffmpeg
from PIL import Image
from playwright.sync_api import Download, Page, expect

from tests.ui.serving import Server

PROMPT = "a dog runs to the right in the rain"
SEED = "18446744073709551615"
PNG_FRAMES = 22


def choose(page: Page, preset: str) -> None:
    page.locator("#preset input").click()
    page.get_by_role("option", name=preset).click()


def fill(page: Page, **values: str) -> None:
    for name, value in values.items():
        page.locator(f"#{name} :is(textarea, input)").first.fill(value)


def test_from_a_prompt_to_saved_files(page: Page, server: Server, tmp_path: Path) -> None:
    expect(page.locator(".fl-welcome h2")).to_be_visible()
    expect(page.locator("#tabs")).to_be_hidden()
    expect(page.locator("#cancel")).to_be_hidden()

    choose(page, "Quick")
    expect(page.locator("#width input")).to_have_value("192")
    page.locator(".fl-chip").first.click()
    expect(page.locator("#prompt textarea")).not_to_have_value("")
    fill(page, prompt=PROMPT, seed=SEED)

    look(page)
    render(page)
    inspect(page)
    zipped, clip = save(page)
    check_frames(zipped, tmp_path)
    check_clip(clip, tmp_path)
    check_history(page, server)


def look(page: Page) -> None:
    """Preview: progress while it runs, then four frames, and Render is the next thing to press."""
    page.locator("#preview").click()
    running = page.locator(".fl-light.running.preview")
    expect(running.locator(".fl-cell")).to_have_count(4)
    expect(page.locator("#cancel")).to_be_visible()
    bar = page.get_by_role("progressbar")
    expect(bar).to_have_attribute("aria-valuenow", re.compile("[0-9]+"))
    expect(page.locator(".fl-light.done.preview .fl-sheet .fl-cell:not(.waiting)")).to_have_count(4)
    assert page.evaluate("document.querySelector('.fl-sheet canvas').width % 192") == 0
    expect(page.locator("#cancel")).to_be_hidden()
    expect(page.locator("body")).to_have_attribute("data-next", "render")
    expect(page.locator("#estimate")).to_contain_text("Render starts from your preview.")
    expect(page.locator("#seed input")).to_have_value(SEED)


def render(page: Page) -> None:
    """Render: three live frames while it runs, then the loop plays."""
    page.locator("#render").click()
    expect(page.locator(".fl-light.running.render .fl-cell")).to_have_count(3)
    expect(page.locator(".fl-light.done.render .fl-player")).to_be_visible()
    counter = page.locator(".fl-transport output")
    first = counter.text_content()
    expect(counter).not_to_have_text(first or "")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("button", name="mp4", exact=True).click()
    expect(page.locator(".fl-screen video")).to_be_visible()
    page.wait_for_function("document.querySelector('.fl-screen video').readyState >= 2")


def inspect(page: Page) -> None:
    """Frames 1, 8 and 16; another frame by key; their difference; a zoom that all panels share."""
    tags = page.locator(".fl-panel .fl-tag")
    expect(tags).to_have_text(["1", "8", "16"])
    before = pixels(page)
    page.locator(".fl-inspector").focus()
    page.keyboard.press("ArrowRight")
    expect(tags).to_have_text(["2", "8", "16"])
    page.keyboard.press("d")
    expect(tags).to_have_text(["2 − 8", "8 − 16", "2 − 16"])
    assert pixels(page) != before
    expect(page.locator(".fl-control.gain")).to_be_visible()
    page.keyboard.press("+")
    expect(page.locator(".fl-control.zoom output")).to_have_text("150 %")
    page.keyboard.press("0")
    page.keyboard.press("s")
    expect(tags).to_have_count(1)
    page.get_by_role("option", name="Frame 16").click()
    expect(tags).to_have_text(["16"])
    page.get_by_role("button", name="1 · 8 · 16").click()


def pixels(page: Page) -> str:
    return page.evaluate("document.querySelector('.fl-panel canvas').toDataURL()")


def save(page: Page) -> tuple[Download, Download]:
    page.get_by_role("tab", name="Export").click()
    with page.expect_download() as zipped:
        page.get_by_role("link", name="Save zip").click()
    with page.expect_download() as clip:
        page.locator("#export").get_by_role("link", name="Save mp4").click()
    return zipped.value, clip.value


def check_frames(download: Download, folder: Path) -> None:
    download.save_as(folder / "frames.zip")
    with zipfile.ZipFile(folder / "frames.zip") as archive:
        assert archive.testzip() is None
        names = sorted(Path(name).name for name in archive.namelist())
        assert names == [f"{number:04d}.png" for number in range(1, PNG_FRAMES + 1)]
        with Image.open(io.BytesIO(archive.read(archive.namelist()[0]))) as picture:
            picture.load()
            assert picture.size == (192, 112)
            text = json.dumps(picture.info)
    assert SEED in text
    assert PROMPT in text


def check_clip(download: Download, folder: Path) -> None:
    path = folder / "clip.mp4"
    download.save_as(path)
    data = path.read_bytes()
    assert data[4:8] == b"ftyp"
    assert data.index(b"moov") < data.index(b"mdat")
    probe = subprocess.run(
        [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)], capture_output=True, text=True, check=False
    )
    assert re.search(r"Video: h264.* yuv420p.* 192x112", probe.stderr), probe.stderr
    assert imageio_ffmpeg.count_frames_and_secs(str(path))[0] == PNG_FRAMES


def check_history(page: Page, server: Server) -> None:
    """The render started from the preview; opening one shows it, and its settings can be used again."""
    newest, preview = server.jobs()[:2]
    assert (newest["stage"], preview["stage"]) == ("render", "preview")
    assert newest["request"]["source"] == preview["id"]
    assert newest["request"]["seed"] == preview["request"]["seed"] == SEED
    page.get_by_role("tab", name="History").click()
    card = page.locator(f".fl-card[data-job='{preview['id']}']")
    card.locator(".fl-open").click()
    expect(page.locator(".fl-light.done.preview")).to_be_visible()
    fill(page, prompt="something else", seed="")
    card.get_by_role("button", name="Use these settings").click()
    expect(page.locator("#prompt textarea")).to_have_value(PROMPT)
    expect(page.locator("#seed input")).to_have_value(SEED)
