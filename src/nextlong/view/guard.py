"""Guard: who may ask the viewer, and what its answers may do.

In:  requests. Out: refusals; or the answer, with headers that let a page load nothing but its own style and script.
A request must hold the viewer's token, because other users of a shared machine reach the same port: in the address that was
printed, in the cookie that this address sets, or in the header `Authorization: token …`, as Jupyter takes it.
A page of another site cannot read the corpus: its name for this machine is not in the list (DNS rebinding), its requests say
where they come from, and its form cannot post a mark, which is all that can be changed here.
"""

from __future__ import annotations

from hmac import compare_digest
from typing import Final

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCAL_NAMES: Final = ("127.0.0.1", "localhost")
_METHODS: Final = ("GET", "HEAD", "POST")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_NO_TOKEN: Final = "open the address that nextlong view printed, with ?token=… at its end"
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers do not say which page a form is of
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """ASGI: answers requests of this machine's own pages and address bar that hold the token, and no others."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        headers_sent = Headers(scope=scope)
        given = QueryParams(scope.get("query_string", b"")).get("token", "")
        # Cookies are of a host, so the name holds the port.
        cookie = f"nextlong-view-{headers_sent.get('host', '').rpartition(':')[2]}"
        cookies = (pair.strip().partition("=") for pair in headers_sent.get("cookie", "").split(";"))
        is_known = any(
            compare_digest(word.encode(), self._token.encode())
            for word in (
                given,
                next((value for name, _, value in cookies if name == cookie), ""),
                headers_sent.get("authorization", "").removeprefix("token "),
            )
        )

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                if given and is_known:
                    headers["Set-Cookie"] = f"{cookie}={self._token}; HttpOnly; SameSite=Strict; Path=/"
            await send(message)

        refused = _refusal(scope["method"], headers_sent) or (None if is_known else PlainTextResponse(_NO_TOKEN, 403))
        await (refused or self._app)(scope, receive, send_guarded)


def _refusal(method: str, headers: Headers) -> PlainTextResponse | None:
    hosts, origin = headers.getlist("host"), headers.get("origin")
    if len(hosts) != 1 or (hosts[0].rpartition(":")[0] not in _LOCAL_NAMES and hosts[0] not in _LOCAL_NAMES):
        return PlainTextResponse("this viewer answers to 127.0.0.1 and localhost only", 421)
    is_own = origin in (None, f"http://{hosts[0]}") and headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    if not is_own:
        return PlainTextResponse("another site's page may not read this", 403)
    if method == "POST" and origin is None and not headers.get("authorization"):
        return PlainTextResponse("a form has to say which page it is of", 403)
    if method not in _METHODS:
        return PlainTextResponse("the viewer answers GET, HEAD and POST", 405, headers={"Allow": ", ".join(_METHODS)})
    return None
