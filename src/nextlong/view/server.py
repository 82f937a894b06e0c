"""Server: the viewer's pages, served on 127.0.0.1 only.

In:  an opened run. Out: a Starlette application; a uvicorn server that runs until it is
stopped. Requests are answered one at a time, because the objects that read the files
are not thread-safe.

A request must have the viewer's token, because other users of a shared machine can
reach the same port: in the printed address, in the cookie that this address sets, or in
the header `Authorization: token …`, as in Jupyter. A page of another site cannot read
the corpus: only the host names 127.0.0.1 and localhost are accepted (DNS rebinding),
cross-site requests are refused by their headers, and so are its forms, which could
otherwise post a mark.
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
from nextlong.view.index import SORTS
from nextlong.view.pages import View
from nextlong.view.variants import Variants

_Answer = Callable[[View, Request], str | Response]

_HOST: Final = "127.0.0.1"
_MAX_NOTE_CHARS: Final = 500
_LOCAL_NAMES: Final = ("127.0.0.1", "localhost")
_METHODS: Final = ("GET", "HEAD", "POST")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_NO_TOKEN: Final = (
    "the token is missing or wrong; open the address that nextlong view printed, "
    "including ?token=…"
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    # With no-referrer, browsers send `Origin: null` with a form.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_NumberT = TypeVar("_NumberT", int, float)


def application(run: Run, *, token: str) -> Starlette:
    """Return the viewer of a run, which answers requests that have the `token`."""
    variants = Variants(run)
    lock = threading.Lock()
    if len(run):
        # Loads libraries now, so that the first page is quick.
        variants.get(variants.first).index.know(0)

    def answered(request: Request, answer: _Answer) -> Response:
        view = View(variants, request.path_params.get("variant", variants.first))
        with lock:
            try:
                answered_with = answer(view, request)
            except (IndexError, ValueError, NextlongError) as error:
                return _refused(view, error, is_post=request.method == "POST")
        if isinstance(answered_with, Response):
            return answered_with
        return Response(answered_with, media_type="text/html")

    def route(path: str, answer: _Answer) -> Route:
        return Route(f"/{{variant}}{path}", lambda request: answered(request, answer))

    async def mark(request: Request) -> Response:
        body = (await request.body()).decode("utf-8", "replace")
        form = {name: values[0] for name, values in parse_qs(body).items()}
        return await run_in_threadpool(
            answered, request, lambda view, _: _mark(view, form)
        )

    def asset(path: str, media_type: str, text: str) -> Route:
        return Route(path, lambda _: Response(text, media_type=media_type))

    guard = Middleware(BaseHTTPMiddleware, dispatch=partial(_guard, token=token))
    return Starlette(
        routes=[
            Route("/", lambda request: answered(request, _first)),
            asset("/style.css", "text/css", pages.style()),
            asset("/page.js", "text/javascript", html.script()),
            asset("/view.js", "text/javascript", html.asset(__package__, "view.js")),
            # Browsers ask for it.
            Route("/favicon.ico", lambda _: Response(status_code=204)),
            Route("/{variant}/marks", mark, methods=["POST"]),
            route("", _first),
            route("/sequences", _sequences),
            route("/sequence", _numbered),
            route("/random", _random),
            route("/sequence/{number:int}", _sequence),
            route("/sequence/{number:int}/pairs/{place:int}", _pair),
            route("/documents", _documents),
            route("/document/{doc:int}", _document),
            route("/compare", _compare),
            route("/filtered", _filtered),
            route("/marks", lambda view, _: pages.marked(view)),
            route("/{rest:path}", _nothing),
        ],
        middleware=[guard],
    )


def _refused(view: View, error: Exception, *, is_post: bool) -> Response:
    """Return the page of an error: 404 for what is missing, 400 for a wrong value."""
    title = "This page cannot be shown"
    if isinstance(error, IndexError):
        title = "Page not found"
    page = pages.problem(view, str(error), title=title)
    is_wrong = isinstance(error, ValueError) or is_post
    return Response(page, 400 if is_wrong else 404, media_type="text/html")


def _first(view: View, _: Request) -> Response:
    return _redirect(view, "sequences")


def _numbered(view: View, request: Request) -> Response:
    number = _number(request, "number", int) or 0
    return _redirect(view, "sequence", number)


def _sequence(view: View, request: Request) -> str:
    number = request.path_params["number"]
    return pages.sequence(
        view,
        number,
        first=_after(request),
        chosen=_query(request),
    )


def _pair(view: View, request: Request) -> Response:
    path = request.path_params
    return JSONResponse(view.variant.pair(path["number"], path["place"]))


def _document(view: View, request: Request) -> str:
    return pages.document(view, request.path_params["doc"])


def _compare(view: View, request: Request) -> str:
    doc_id = _number(request, "document", int)
    return pages.compare(view, _text(request, "with"), doc_id=doc_id)


def _filtered(view: View, request: Request) -> str:
    reason = _text(request, "reason")
    return pages.filtered_out(view, reason, first=_after(request))


def _nothing(_: View, request: Request) -> str:
    raise IndexError(f"the viewer has no page {request.url.path}")


def _sequences(view: View, request: Request) -> str:
    sort = _text(request, "sort")
    is_known = sort.removeprefix("-") in ("", *SORTS)
    if not is_known and not re.fullmatch(r"random-\d+", sort):
        sorts = ", ".join(SORTS)
        raise ValueError(
            f"sort={sort}: give one of {sorts}, with - in front for descending order"
        )
    columns = request.query_params.getlist("columns")
    return pages.sequence_list(
        view,
        _query(request),
        sort=sort,
        first=_after(request),
        columns=columns,
    )


def _redirect(view: View, *parts: str | int) -> Response:
    return RedirectResponse(view.url(view.name, *parts))


def _random(view: View, request: Request) -> Response:
    count = len(view.variant.run)
    if not count:
        return _first(view, request)
    return _redirect(view, "sequence", secrets.randbelow(count))


def _documents(view: View, request: Request) -> str:
    after = request.query_params.get("after", "0")
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9}){0,2}", after):
        raise ValueError(f"after={after}: give shard.batch.row")
    numbers = [int(number) for number in after.split(".")]
    first = documents.Place(*numbers)
    return pages.document_list(view, _query(request), first=first)


def _mark(view: View, form: dict[str, str]) -> Response:
    """Add or remove the mark of a form."""
    given = json.loads(form.get("mark", "{}"))
    if not isinstance(given, dict):
        given = {}
    known = {name: str(given.get(name, "")) for name in ("source", "id", "sequence")}
    if not known["source"] or form.get("action") not in ("add", "remove"):
        raise ValueError("a mark needs a source and an action (add or remove)")
    mark = documents.Mark(**known, note=form.get("note", ""))
    # A blank id would mark the whole source, which must be asked for.
    kind = given.get("kind", mark.kind if mark.id.strip() else "")
    if kind != mark.kind:
        raise ValueError(
            f"kind={kind} with id={mark.id} and sequence={mark.sequence}: give the id "
            "of a document, or mark the whole source by kind=source without an id"
        )
    if len(mark.note) > _MAX_NOTE_CHARS:
        raise ValueError(
            f"the note has {len(mark.note):,} characters; shorten it to "
            f"{_MAX_NOTE_CHARS}"
        )
    documents.change_mark(view.variants.run_dir, mark, is_set=form["action"] == "add")
    return RedirectResponse(view.url(view.name, "marks"), 303)


def _query(request: Request) -> documents.Query:
    return documents.Query(
        text=_text(request, "text").strip(),
        name=_text(request, "name").strip(),
        source=_text(request, "source"),
        role=_text(request, "role"),
        least=_number(request, "least", float),
        most=_number(request, "most", float),
        document=_number(request, "document", int),
    )


def _text(request: Request, name: str) -> str:
    return str(request.query_params.get(name, ""))


def _after(request: Request) -> int:
    return _number(request, "after", int) or 0


def _number(request: Request, name: str, kind: type[_NumberT]) -> _NumberT | None:
    """Return a number of the address, None if it is not given.

    Raises ValueError; a whole number must not be negative.
    """
    text = _text(request, name)
    if not text:
        return None
    try:
        value = kind(text)
        is_number = isfinite(value) and (kind is float or text.isdecimal())
    except (ValueError, OverflowError):
        is_number = False
    if not is_number:
        whole = "whole " if kind is int else ""
        raise ValueError(f"{name}={text}: give a {whole}number")
    return value


def serve(run: Run, *, port: int, when_ready: Callable[[str], None]) -> None:
    """Serve the viewer until it is stopped; `when_ready` gets its address.

    Raises NextlongError if the port is taken.
    """
    with socket.socket() as listener:
        # A viewer that has just been stopped must not block its port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((_HOST, port))
            listener.listen()
        except (OSError, OverflowError) as error:
            raise NextlongError(
                where=f"--port {port}",
                problem=f"it cannot be used on {_HOST} ({error})",
                fix="choose another, or 0 for any free port",
            ) from None
        # 192 random bits, new at each start.
        token = secrets.token_urlsafe(24)
        config = uvicorn.Config(
            application(run, token=token),
            log_level="warning",
            server_header=False,
            lifespan="off",
            ws="none",
        )
        _, own_port = listener.getsockname()
        when_ready(f"http://{_HOST}:{own_port}/?token={token}")
        uvicorn.Server(config).run(sockets=[listener])


async def _guard(
    request: Request, call_next: RequestResponseEndpoint, *, token: str
) -> Response:
    """Answer requests with the token from the viewer's own pages or the address bar.

    All others are refused.
    """
    given = request.query_params.get("token", "")
    # Cookies are of a host, so the name holds the port.
    _, _, port = request.headers.get("host", "").rpartition(":")
    cookie = f"nextlong-view-{port}"
    bearer = request.headers.get("authorization", "").removeprefix("token ")
    words = (given, request.cookies.get(cookie, ""), bearer)
    is_known = any(_is_token(word, token) for word in words)
    refusal = _refusal(request.method, request.headers)
    if refusal is None and not is_known:
        refusal = PlainTextResponse(_NO_TOKEN, 403)
    response = refusal or await call_next(request)
    response.headers.update(_HEADERS)
    # From then on, the cookie is enough.
    if given and is_known:
        response.headers["Set-Cookie"] = (
            f"{cookie}={token}; HttpOnly; SameSite=Strict; Path=/"
        )
    return response


def _is_token(word: str, token: str) -> bool:
    # In constant time, so that how long it takes says nothing of the token.
    return compare_digest(word.encode(), token.encode())


def _refusal(method: str, headers: Headers) -> PlainTextResponse | None:
    """Return why a request is refused whatever its token is; None if it is not."""
    hosts = headers.getlist("host")
    origin = headers.get("origin")
    # A name of another site may lead to this address (DNS rebinding).
    if len(hosts) != 1 or not _is_local(hosts[0]):
        return PlainTextResponse(
            "this viewer answers only to the hosts 127.0.0.1 and localhost", 421
        )
    # Browsers name the site that a request comes from; tools name none.
    is_own_origin = origin in (None, f"http://{hosts[0]}")
    is_own_site = headers.get("sec-fetch-site", "none") in ("none", "same-origin")
    if not is_own_origin or not is_own_site:
        return PlainTextResponse("cross-site requests are refused", 403)
    # A browser sends an origin with every form; a tool has the token in a header.
    if method == "POST" and origin is None and not headers.get("authorization"):
        return PlainTextResponse("a form must be posted with an Origin header", 403)
    if method not in _METHODS:
        return PlainTextResponse(
            "the viewer answers GET, HEAD and POST",
            405,
            headers={"Allow": ", ".join(_METHODS)},
        )
    return None


def _is_local(host: str) -> bool:
    """Return whether a host is a local name, with or without a port."""
    name, _, _ = host.rpartition(":")
    return name in _LOCAL_NAMES or host in _LOCAL_NAMES
