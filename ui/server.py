"""The web server: guards, our routes and files, and Gradio mounted behind them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import gradio as gr
from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.middleware.trustedhost import TrustedHostMiddleware

from pipeline import Studio
from ui.guards import LOCAL_HOSTS, OriginGuard
from ui.page import build_page
from ui.routes import build_routes
from ui.shell import Shell
from ui.theme import theme
from ui.words import translations

STATIC = Path(__file__).parent / "static"


def create_app(studio: Studio, cache: Path) -> FastAPI:
    """The page over `studio` as an ASGI application, which loads the first preset's models as it starts.

    Archives are built in `cache`. Closing the studio is its owner's part.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        studio.warm(next(iter(studio.presets)))
        yield

    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Shell)
    app.add_middleware(OriginGuard)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_HOSTS)
    app.include_router(build_routes(studio, cache))
    app.mount("/firstlook", StaticFiles(directory=STATIC), name="firstlook")
    return gr.mount_gradio_app(
        app,
        build_page(studio),
        path="/",
        theme=theme(),
        i18n=translations(),
        run_history=False,
        footer_links=[],
        max_file_size="1mb",
        enable_monitoring=False,
        ssr_mode=False,
        show_error=True,
        app_kwargs={"openapi_url": None},
    )
