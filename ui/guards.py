"""Who may talk to the page: only pages this server served itself, under the names of this machine.

Gradio alone answers any Host (DNS rebinding) and executes cross-site uploads and posts.
`TrustedHostMiddleware` refuses foreign names, `OriginGuard` what another site's page asks a browser to
send here.
"""

from __future__ import annotations

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL_HOSTS = ["127.0.0.1", "localhost"]
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class OriginGuard:
    """Answers 403 to requests that another site's page makes. Plain ASGI, so that streaming stays intact.

    Origin is compared with the Host header, not with a fixed port, so that an SSH port forward works. A link
    from elsewhere may still open the page: that is a navigation, and safe.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and _refused(scope):
            await PlainTextResponse("This page answers only itself.", 403)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _refused(scope: Scope) -> bool:
    headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
    unsafe = scope.get("method", "POST") not in SAFE_METHODS
    origin = headers.get(b"origin")
    if unsafe and origin is not None and origin.split("://")[-1] != headers.get(b"host"):
        return True
    foreign = headers.get(b"sec-fetch-site", "none") in ("cross-site", "same-site")
    return foreign and (unsafe or headers.get(b"sec-fetch-mode") != "navigate")
