"""The server around the page: who may talk to it, a port in use, Ctrl+C, and coming back after it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.ui.serving import ROOT, Server, command, environment

STOP_SECONDS = 5.0
REFUSED_SECONDS = 10.0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 400),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ({}, 200),
    ],
)
def test_only_this_page_reads(server: Server, headers: dict[str, str], status: int) -> None:
    assert server.get("/api/state", headers)[0] == status


@pytest.mark.parametrize("origin", ["http://evil.example", "http://127.0.0.1:9", "null"])
@pytest.mark.parametrize(
    "path",
    [
        "/api/jobs/any/cancel",
        "/api/plan",
        "/gradio_api/upload",
        "/gradio_api/queue/join",
        "/gradio_api/run/predict",
    ],
)
def test_no_other_page_writes(server: Server, origin: str, path: str) -> None:
    assert server.get(path, {"Origin": origin, "Content-Type": "text/plain"}, b"{}")[0] == 403


def test_its_own_origin_may_write(server: Server) -> None:
    headers = {"Origin": server.address, "Content-Type": "application/json"}
    status, body = server.get("/api/plan", headers, json.dumps({"preset": "nothing"}).encode())
    assert status == 200
    assert "problem" in json.loads(body)


@pytest.mark.parametrize(
    "path",
    [
        "/api/jobs/..",
        "/api/jobs/%2e%2e%2f%2e%2e%2fetc",
        "/api/jobs/..%2f..%2fapp.py/clip.mp4",
        "/api/jobs/.cache/frames.zip",
        "/api/jobs/nothing/frame/1.png",
        "/firstlook/../server.py",
        "/firstlook/%2e%2e/server.py",
        "/firstlook/..%2fserver.py",
        "/openapi.json",
        "/docs",
    ],
)
def test_nothing_outside_is_served(server: Server, path: str) -> None:
    assert server.get(path)[0] in (404, 422)


@pytest.mark.parametrize("path", ["/gradio_api/file=/etc/passwd", f"/gradio_api/file={ROOT}/app.py"])
def test_gradio_serves_no_files_of_ours(server: Server, path: str) -> None:
    assert server.get(path)[0] in (403, 404)


def test_a_port_in_use_is_said_at_once(server: Server, tmp_path: Path) -> None:
    began = time.monotonic()
    run = subprocess.run(
        command(server.port, tmp_path),
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert time.monotonic() - began < REFUSED_SECONDS
    last = run.stderr.strip().splitlines()[-1]
    assert last.startswith(f"Port {server.port} cannot be used")
    assert "--port" in last
    assert "Traceback" not in run.stderr


def test_ctrl_c_and_back_without_a_reload(tabs: Callable[..., Any], tmp_path: Path) -> None:
    """Ctrl+C amid a render ends well; the tab waits, goes on after a new start, and can resume the render."""
    own = Server(tmp_path / "outputs", tmp_path / "first.log")
    again = None
    try:
        page = tabs(own.address).open()
        page.locator("#prompt textarea").fill("a rocket flies up in space")
        page.locator("#preset input").click()
        page.get_by_role("option", name="Quick").click()
        page.locator("#steps input").fill("200")
        page.locator("#render").click()
        expect(page.locator(".fl-clock")).to_contain_text("block")
        status, seconds = own.interrupt()
        assert status == 0, own.log.read_text()
        assert seconds < STOP_SECONDS
        assert "Traceback" not in own.log.read_text()
        expect(page.locator(".fl-offline")).to_be_visible()
        again = Server(tmp_path / "outputs", tmp_path / "second.log", own.port)
        expect(page.locator(".fl-offline")).to_be_hidden()
        expect(page.locator("#prompt textarea")).to_have_value("a rocket flies up in space")
        expect(page.locator(".fl-title")).to_have_text("Interrupted")
        page.locator("#stage").get_by_role("button", name="Resume").click()
        page.locator(".fl-light.running.render").wait_for()
        page.locator("#prompt textarea").fill("a ufo flies up in space")
        page.locator("#cancel").click()
        expect(page.locator(".fl-title")).to_have_text("Cancelled")
        assert again.interrupt()[0] == 0
    finally:
        own.kill()
        if again:
            again.kill()
