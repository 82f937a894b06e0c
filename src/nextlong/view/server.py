"""Server: the viewer's pages, served on 127.0.0.1 only.

In:  an opened run. Out: a Starlette application; a uvicorn server that runs until it is stopped. Requests are answered one at a
time, because the objects that read the files are not thread-safe.

A request must have the viewer's token, because other users of a shared machine can reach the same port: in the printed address,
in the cookie that this address sets, or in the header `Authorization: token …`, as in Jupyter. A page of another site cannot
read the corpus: only the host names 127.0.0.1 and localhost are accepted (DNS rebinding), cross-site requests are refused by
their headers, and so are its forms, which could otherwise post a mark.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
from collections.abc import Callable
from functools import partial
from hmac import compare_digest
from math import isfinite
from typing import Final, TypeVar
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route

from nextlong.errors import NextlongError
from nextlong.picture import html
from nextlong.runs.run import Run
from nextlong.view import documents, pages
from nextlong.view.pages import Variants, View
from nextlong.view.sequences import SORTS

_Answer = Callable[[View, Request], str | Response]
_HOST = "127.0.0.1"
_LONGEST_NOTE = 500
_LOCAL_NAMES: Final = ("127.0.0.1", "localhost")
_METHODS: Final = ("GET", "HEAD", "POST")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_NO_TOKEN: Final = "the token is missing or wrong; open the address that nextlong view printed, including ?token=…"
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers send `Origin: null` with a form
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NumberT = TypeVar("_NumberT", int, float)


def application(run: Run, *, token: str) -> Starlette:
    """Return the viewer of a run, which answers requests that have the `token`."""
    variants, lock = Variants(run), threading.Lock()
    if len(run):
        variants.get(variants.first).index.know(
            0
        )  # loads libraries now, so that the first page is quick

    def answered(request: Request, answer: _Answer) -> Response:
        view = View(variants, request.path_params.get("variant", variants.first))
        with lock:
            try:
                made = answer(view, request)
                return (
                    made
                    if isinstance(made, Response)
                    else Response(made, media_type="text/html")
                )
            except (IndexError, ValueError, NextlongError) as error:
                title = (
                    "Page not found"
                    if isinstance(error, IndexError)
                    else "This page cannot be shown"
                )
                page = pages.problem(view, str(error), title=title)
                is_wrong = isinstance(error, ValueError) or request.method == "POST"
                return Response(page, 400 if is_wrong else 404, media_type="text/html")

    def route(path: str, answer: _Answer) -> Route:
        return Route(f"/{{variant}}{path}", lambda request: answered(request, answer))

    async def mark(request: Request) -> Response:
        form = {
            name: values[0]
            for name, values in parse_qs(
                (await request.body()).decode("utf-8", "replace")
            ).items()
        }
        return await run_in_threadpool(
            answered, request, lambda view, _: _mark(view, form)
        )

    def asset(path: str, media_type: str, text: str) -> Route:
        return Route(path, lambda _: Response(text, media_type=media_type))

    return Starlette(
        routes=[
            Route(
                "/",
                lambda request: answered(
                    request, lambda view, _: _redirect(view, "sequences")
                ),
            ),
            asset("/style.css", "text/css", pages.style()),
            asset("/page.js", "text/javascript", html.script()),
            asset("/view.js", "text/javascript", html.asset(__package__, "view.js")),
            Route(
                "/favicon.ico", lambda _: Response(status_code=204)
            ),  # browsers ask for it
            Route("/{variant}/marks", mark, methods=["POST"]),
            route("", lambda view, _: _redirect(view, "sequences")),
            route("/sequences", _sequences),
            route(
                "/sequence",
                lambda view, of: _redirect(
                    view, "sequence", _number(of, "number", int) or 0
                ),
            ),
            route("/random", _random),
            route(
                "/sequence/{number:int}",
                lambda view, of: pages.sequence(
                    view, of.path_params["number"], first=_after(of), chosen=_query(of)
                ),
            ),
            route(
                "/sequence/{number:int}/pairs/{place:int}",
                lambda view, of: JSONResponse(
                    view.variant.pair(of.path_params["number"], of.path_params["place"])
                ),
            ),
            route("/documents", _documents),
            route(
                "/document/{doc:int}",
                lambda view, request: pages.document(view, request.path_params["doc"]),
            ),
            route(
                "/compare",
                lambda view, of: pages.compare(
                    view, _text(of, "with"), doc_id=_number(of, "document", int)
                ),
            ),
            route(
                "/filtered",
                lambda view, of: pages.filtered_out(
                    view, _text(of, "reason"), first=_after(of)
                ),
            ),
            route("/marks", lambda view, _: pages.marked(view)),
            route("/{rest:path}", _nothing),
        ],
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=partial(_guard, token=token))
        ],
    )


def _nothing(_: View, request: Request) -> str:
    raise IndexError(f"the viewer has no page {request.url.path}")


def _sequences(view: View, request: Request) -> str:
    given = request.query_params
    sort = given.get("sort", "")
    if (
        sort
        and sort.removeprefix("-") not in SORTS
        and not re.fullmatch(r"random-\d+", sort)
    ):
        raise ValueError(
            f"sort={sort}: give one of {', '.join(SORTS)}, with - in front for descending order"
        )
    columns = given.getlist("columns")
    return pages.sequence_list(
        view, _query(request), sort=sort, first=_after(request), columns=columns
    )


def _redirect(view: View, *parts: str | int) -> Response:
    return RedirectResponse(view.url(view.name, *parts))


def _random(view: View, _: Request) -> Response:
    count = len(view.variant.run)
    return (
        _redirect(view, "sequence", secrets.randbelow(count))
        if count
        else _redirect(view, "sequences")
    )


def _documents(view: View, request: Request) -> str:
    after = request.query_params.get("after", "0")
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9}){0,2}", after):
        raise ValueError(f"after={after}: give shard.batch.row")
    return pages.document_list(
        view, _query(request), first=documents.Place(*map(int, after.split(".")))
    )


def _mark(view: View, form: dict[str, str]) -> Response:
    """Add or remove the mark of a form."""
    plain = json.loads(form.get("mark", "{}"))
    known = (
        {name: str(plain.get(name, "")) for name in ("source", "id", "sequence")}
        if isinstance(plain, dict)
        else {}
    )
    if not known.get("source") or form.get("action") not in ("add", "remove"):
        raise ValueError("a mark needs a source and an action (add or remove)")
    mark = documents.Mark(**known, note=form.get("note", ""))
    if (kind := plain.get("kind", mark.kind if mark.id.strip() else "")) != mark.kind:
        raise ValueError(
            f"kind={kind} with id={mark.id} and sequence={mark.sequence}: give the id of a document, or mark the whole source by "
            "kind=source without an id"
        )
    if len(mark.note) > _LONGEST_NOTE:
        raise ValueError(
            f"the note has {len(mark.note):,} characters; shorten it to {_LONGEST_NOTE}"
        )
    documents.change_mark(view.variants.run_dir, mark, is_set=form["action"] == "add")
    return RedirectResponse(view.url(view.name, "marks"), 303)


def _query(request: Request) -> documents.Query:
    text, name = (_text(request, name).strip() for name in ("text", "name"))
    (source, role), document = (
        (_text(request, name) for name in ("source", "role")),
        _number(request, "document", int),
    )
    least, most = (_number(request, name, float) for name in ("least", "most"))
    return documents.Query(
        text=text,
        name=name,
        source=source,
        role=role,
        least=least,
        most=most,
        document=document,
    )


def _text(request: Request, name: str) -> str:
    return str(request.query_params.get(name, ""))


def _after(request: Request) -> int:
    return _number(request, "after", int) or 0


def _number(request: Request, name: str, kind: type[_NumberT]) -> _NumberT | None:
    """Return a number of the address, None if it is not given. Raises ValueError; a whole number must not be negative."""
    text = _text(request, name)
    try:
        value = kind(text) if text else None
        if value is not None and (
            not isfinite(value) or (kind is int and not text.isdecimal())
        ):
            raise ValueError(text)
    except (ValueError, OverflowError):
        raise ValueError(
            f"{name}={text}: give a {'whole ' if kind is int else ''}number"
        ) from None
    return value


def serve(run: Run, *, port: int, when_ready: Callable[[str], None]) -> None:
    """Serve the viewer until it is stopped; `when_ready` gets its address. Raises NextlongError if the port is taken."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
            listener.listen()
        except (OSError, OverflowError) as error:
            cure = "choose another, or 0 for any free port"
            raise NextlongError(
                f"--port {port} cannot be used on {_HOST} ({error}); {cure}"
            ) from None
        token = secrets.token_urlsafe(24)
        app = application(run, token=token)
        config = uvicorn.Config(
            app, log_level="warning", server_header=False, lifespan="off", ws="none"
        )
        when_ready(f"http://{_HOST}:{listener.getsockname()[1]}/?token={token}")
        uvicorn.Server(config).run(sockets=[listener])


async def _guard(
    request: Request, call_next: RequestResponseEndpoint, *, token: str
) -> Response:
    """Answer requests with the token from the viewer's own pages or the address bar; refuse all others."""
    given = request.query_params.get("token", "")
    # Cookies are of a host, so the name holds the port.
    cookie = f"nextlong-view-{request.headers.get('host', '').rpartition(':')[2]}"
    bearer = request.headers.get("authorization", "").removeprefix("token ")
    words = (given, request.cookies.get(cookie, ""), bearer)
    is_known = any(compare_digest(word.encode(), token.encode()) for word in words)
    refused = _refusal(request.method, request.headers) or (
        None if is_known else PlainTextResponse(_NO_TOKEN, 403)
    )
    response = refused or await call_next(request)
    response.headers.update(_HEADERS)
    if given and is_known:
        response.headers["Set-Cookie"] = (
            f"{cookie}={token}; HttpOnly; SameSite=Strict; Path=/"
        )
    return response


def _refusal(method: str, headers: Headers) -> PlainTextResponse | None:
    hosts, origin = headers.getlist("host"), headers.get("origin")
    if len(hosts) != 1 or (
        hosts[0].rpartition(":")[0] not in _LOCAL_NAMES and hosts[0] not in _LOCAL_NAMES
    ):
        return PlainTextResponse(
            "this viewer answers only to the hosts 127.0.0.1 and localhost", 421
        )
    is_own = origin in (None, f"http://{hosts[0]}") and headers.get(
        "sec-fetch-site", "none"
    ) in ("none", "same-origin")
    if not is_own:
        return PlainTextResponse("cross-site requests are refused", 403)
    if method == "POST" and origin is None and not headers.get("authorization"):
        return PlainTextResponse("a form must be posted with an Origin header", 403)
    if method not in _METHODS:
        return PlainTextResponse(
            "the viewer answers GET, HEAD and POST",
            405,
            headers={"Allow": ", ".join(_METHODS)},
        )
    return None
