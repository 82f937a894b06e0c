"""Guard: who may ask the viewer, and what its answers may do.

In:  requests. Out: refusals; or the answer, with headers that let a page load nothing but its own style and script.
A page of another site cannot read the corpus: its name for this machine is not in the list (DNS rebinding), its requests say
where they come from, and nothing here can be changed by any request.
"""

from __future__ import annotations

from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCAL_NAMES: Final = ("127.0.0.1", "localhost")
_METHODS: Final = ("GET", "HEAD")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI: answers requests of this machine's own pages and address bar, and no others."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refused = _refusal(scope["method"], Headers(scope=scope))
        await (refused or self._app)(scope, receive, send_guarded)


def _refusal(method: str, headers: Headers) -> PlainTextResponse | None:
    hosts = headers.getlist("host")
    if len(hosts) != 1 or (hosts[0].rpartition(":")[0] not in _LOCAL_NAMES and hosts[0] not in _LOCAL_NAMES):
        return PlainTextResponse("this viewer answers to 127.0.0.1 and localhost only", 421)
    origin = headers.get("origin")
    if origin is not None and origin != f"http://{hosts[0]}":
        return PlainTextResponse("another site's page may not read this", 403)
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return PlainTextResponse("another site's page may not read this", 403)
    if method not in _METHODS:
        return PlainTextResponse("the viewer only reads", 405, headers={"Allow": ", ".join(_METHODS)})
    return None
