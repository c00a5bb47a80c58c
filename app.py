"""Serves the page: flags, wiring, launch; nothing else.

Gradio and torch take seconds to import, so first the flags and the port are looked at, and a line is said.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import socket
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

    import uvicorn

    from pipeline import Studio

HOST = "127.0.0.1"
PORTS_TRIED = 100
GRACE_SECONDS = 1
CLOSE_SECONDS = 2.0
log = logging.getLogger("firstlook")


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted; returns the exit status."""
    options = parse(arguments)
    logging.basicConfig(stream=sys.stderr, level=options.log_level.upper(), format="%(message)s")
    for noisy in ("httpx", "httpcore", "asyncio", "matplotlib"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    log.info("Firstlook is starting; this takes a few seconds ...")
    try:
        listener = listen(options.port)
    except OSError as error:
        log.error("%s", refusal(options.port, error))
        return 1
    with listener:
        return serve(listener, options)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Serve Firstlook's page on this machine.")
    parser.add_argument("--port", type=port, default=7860, help="port on 127.0.0.1 (default: %(default)s)")
    parser.add_argument(
        "--outputs",
        type=Path,
        default=Path(os.environ.get("FIRSTLOOK_OUTPUTS") or "outputs"),
        help="folder for everything that is made",
    )
    parser.add_argument("--threads", type=int, default=0, help="threads of the engine (default: choose)")
    parser.add_argument("--presets", type=Path, default=None, help="folder with your own preset files (TOML)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser.parse_args(arguments)


def port(text: str) -> int:
    """A port number, for argparse."""
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError("a port is a number from 1 to 65535")
    return number


def listen(number: int) -> socket.socket:
    """A listening socket, held from the start, so that no other program takes the port meanwhile."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((HOST, number))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener


def refusal(number: int, error: OSError) -> str:
    """Why the port cannot be had, and one that can."""
    for other in range(number + 1, min(number + PORTS_TRIED, 65536)):
        try:
            listen(other).close()
        except OSError:
            continue
        return f"Port {number} cannot be used ({error.strerror}): try --port {other}, which is free."
    return f"Port {number} cannot be used ({error.strerror}): choose another with --port."


def serve(listener: socket.socket, options: argparse.Namespace) -> int:
    """Build the page and answer on `listener` until interrupted."""
    cache = options.outputs.expanduser().resolve() / ".cache" / f"page-{options.port}"
    try:
        prepare_cache(cache)
    except OSError as error:
        log.error("The outputs folder %s cannot be written: %s.", options.outputs, error.strerror)
        return 1
    os.environ["GRADIO_TEMP_DIR"] = str(cache / "gradio")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        return run(listener, options, cache)
    except KeyboardInterrupt:
        return 0


def prepare_cache(cache: Path) -> None:
    """An empty folder for what the page itself writes; what an earlier run left in it goes."""
    shutil.rmtree(cache, ignore_errors=True)
    (cache / "gradio").mkdir(parents=True)


def run(listener: socket.socket, options: argparse.Namespace, cache: Path) -> int:
    """The slow imports, then the server."""
    import uvicorn

    from pipeline import FirstlookError, Studio, load_presets
    from ui import create_app

    presets = load_presets(options.presets)
    if not presets:
        log.error("No preset could be read: look at the folder presets beside app.py.")
        return 1
    try:
        studio = Studio(options.outputs.expanduser().resolve(), presets, options.threads)
    except FirstlookError as error:
        log.error("%s", error)
        return 1
    address = f"http://{HOST}:{options.port}"
    config = uvicorn.Config(
        create_app(studio, cache),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    log.info("Firstlook is ready: open %s (Ctrl+C stops it).", address)
    if options.open:
        webbrowser.open(address)
    answer(uvicorn.Server(config), listener, studio)
    return 0


def answer(server: uvicorn.Server, listener: socket.socket, studio: Studio) -> None:
    """Serve until Ctrl+C, and stop the studio at once with it, while the last answers still go out."""
    closing = threading.Thread(target=studio.close, name="closing", daemon=True)
    leave = server.handle_exit

    def interrupted(number: int, frame: FrameType | None) -> None:
        if closing.ident is None:
            log.info("Stopping; what is finished is kept.")
            closing.start()
        leave(number, frame)

    server.handle_exit = interrupted
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[listener])
    closing.join(CLOSE_SECONDS)


if __name__ == "__main__":
    status = main()
    # Not sys.exit: a model that is being loaded cannot be broken off, and taking torch apart lasts seconds.
    # Every finished step is on disk, so nothing is lost by leaving at once.
    logging.shutdown()
    sys.stderr.flush()
    os._exit(status)
