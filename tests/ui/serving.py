"""Starts the page as a person would, in a process of its own, and stops it with Ctrl+C."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0
STOP_SECONDS = 20.0


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """One run of app.py on `port`, with what it logs in `log`."""

    def __init__(self, outputs: Path, log: Path, port: int | None = None) -> None:
        self.port = port or free_port()
        self.outputs = outputs
        self.log = log
        self.address = f"http://127.0.0.1:{self.port}"
        self.process = self._start()
        self._wait()

    def get(
        self, path: str, headers: dict[str, str] | None = None, data: bytes | None = None
    ) -> tuple[int, bytes]:
        """Status and body of a request, whatever the status."""
        request = urllib.request.Request(self.address + path, data=data, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path: str) -> Any:
        """The JSON of a path that must exist."""
        status, body = self.get(path)
        assert status == 200, f"{path} gave {status}: {body[:200]!r}"
        return json.loads(body)

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs, newest first."""
        return self.json("/api/jobs?limit=1000")["jobs"]

    def cancel_all(self) -> None:
        """Leave nothing running for the next test."""
        deadline = time.monotonic() + STOP_SECONDS
        while job := self.json("/api/state")["job"]:
            assert time.monotonic() < deadline, f"{job['id']} does not stop"
            self.get(f"/api/jobs/{job['id']}/cancel", data=b"")
            time.sleep(0.1)

    def interrupt(self) -> tuple[int, float]:
        """Ctrl+C: the exit status, and the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        status = self.process.wait(STOP_SECONDS)
        return status, time.monotonic() - began

    def kill(self) -> None:
        """For the ends of tests that failed on the way."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command(self.port, self.outputs), cwd=ROOT, env=environment(), stderr=log, stdout=log
            )

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"app.py ended:\n{self.log.read_text()}"
            try:
                if self.get("/api/state")[0] == 200:
                    return
            except OSError:
                time.sleep(0.2)
        self.kill()
        raise AssertionError(f"app.py does not answer:\n{self.log.read_text()}")


def command(port: int, outputs: Path) -> list[str]:
    """The command line of the page."""
    return [sys.executable, "app.py", "--port", str(port), "--outputs", str(outputs)]


def environment() -> dict[str, str]:
    """As few surprises from the machine as possible: no presets of the person who tests."""
    return os.environ | {"FIRSTLOOK_PRESETS": "/nonexistent", "PYTHONUNBUFFERED": "1"}
