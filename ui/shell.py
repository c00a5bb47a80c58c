"""Gradio's index page, with our language, style and scripts in its head before anything runs.

Gradio adds what it is given as `head` only after its own start, which is too late to choose a language or to
avoid a flash of the wrong theme. Its sharing tags, which name outside hosts, go.
"""

from __future__ import annotations

import json
import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ui.words import language_of, sentences

SHARING_TAG = re.compile(r"<meta\s+(?:property=\"og:|name=\"twitter:)[^>]*>\s*")
MANIFEST = re.compile(r"<link rel=\"manifest\"[^>]*>\s*")
HTML_LANG = re.compile(r"(<html\s[^>]*?lang=)\"[^\"]*\"")
HEAD = """<head>
<title>Firstlook</title>
<link rel="icon" href="/firstlook/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/firstlook/tokens.css">
<link rel="stylesheet" href="/firstlook/page.css">
<link rel="stylesheet" href="/firstlook/views.css">
<link rel="stylesheet" href="/firstlook/stage.css">
<link rel="stylesheet" href="/firstlook/inspector.css">
<link rel="stylesheet" href="/firstlook/shelf.css">
<script type="application/json" id="firstlook-sentences">{sentences}</script>
<script src="/firstlook/boot.js"></script>
<script type="module" src="/firstlook/main.js"></script>
"""


class Shell:
    """ASGI middleware that rewrites the page at `/` and lets everything else through untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in ("", "/") or scope["method"] != "GET":
            await self.app(scope, receive, send)
            return
        language = language_of(Headers(scope=scope))
        plain = [(name, value) for name, value in scope["headers"] if name != b"accept-encoding"]
        await self.app({**scope, "headers": plain}, receive, _Rewriter(language, send))


class _Rewriter:
    """A `send` that holds the page back until it is whole."""

    def __init__(self, language: str, send: Send) -> None:
        self.language = language
        self.send = send
        self.start: Message | None = None
        self.body = b""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.start = message
            return
        if self.start is None or message["type"] != "http.response.body":
            await self.send(message)
            return
        self.body += message.get("body", b"")
        if message.get("more_body"):
            return
        headers = MutableHeaders(scope=self.start)
        if headers.get("content-type", "").startswith("text/html"):
            self.body = dress(self.body.decode("utf-8"), self.language).encode("utf-8")
            headers["content-length"] = str(len(self.body))
            headers["cache-control"] = "no-store"
        await self.send(self.start)
        await self.send({"type": "http.response.body", "body": self.body})


def dress(page: str, language: str) -> str:
    """The page in `language`, with our head and without tags that name outside hosts."""
    words = json.dumps(sentences(language), ensure_ascii=False).replace("</", "<\\/")
    page = MANIFEST.sub("", SHARING_TAG.sub("", page))
    page = HTML_LANG.sub(rf'\1"{language}"', page, count=1)
    return page.replace("<head>", HEAD.replace("{sentences}", words), 1)
