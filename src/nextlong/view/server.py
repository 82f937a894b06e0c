"""Server: the viewer's pages at an address of this machine alone.

In:  an opened run. Out: an ASGI application of starlette's; a server of uvicorn's that runs until it is stopped.
One request is answered at a time: the files are read through objects that no two threads may share.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Callable
from importlib import resources
from math import isfinite

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from nextlong.errors import NextlongError
from nextlong.picture import strip
from nextlong.runs.opened import Run
from nextlong.view import document_pages, documents, listing, pages, sequence_pages
from nextlong.view.guard import Guard
from nextlong.view.variants import Variants

Answer = Callable[[Request], Response]
HOST = "127.0.0.1"


def application(run: Run, *, token: str) -> Starlette:
    """Return the viewer of a run, which answers requests that hold `token`."""
    variants, lock = Variants(run), threading.Lock()
    if len(run):
        variants.get(variants.first).listing.summary(
            0
        )  # what a first look loads of libraries, the first page need not wait for

    def answering(answer: Callable[[Variants, Request], str]) -> Answer:
        def endpoint(request: Request) -> Response:
            with lock:
                return _answered(variants, request, answer)

        return endpoint

    def pair(request: Request) -> Response:
        with lock:
            return _answered(variants, request, _pair, media_type="application/json")

    routes = [
        Route("/", lambda _: RedirectResponse(pages.url(variants.first, "sequences"))),
        Route("/style.css", lambda _: Response(_style(), media_type="text/css")),
        Route("/strip.js", lambda _: Response(strip.asset("strip.js"), media_type="text/javascript")),
        Route("/view.js", lambda _: Response(_asset("view.js"), media_type="text/javascript")),
        Route("/favicon.ico", lambda _: Response(status_code=204)),  # browsers ask for it unasked
        Route("/{variant}", lambda request: RedirectResponse(pages.url(request.path_params["variant"], "sequences"))),
        Route("/{variant}/sequences", answering(_sequences)),
        Route("/{variant}/sequence", _jump),
        Route("/{variant}/sequence/{number:int}", answering(_sequence)),
        Route("/{variant}/sequence/{number:int}/pairs/{place:int}", pair),
        Route("/{variant}/documents", answering(_documents)),
        Route(
            "/{variant}/document/{doc:int}", answering(lambda of, asked: document_pages.one(of, *_of_document(asked)))
        ),
        Route(
            "/{variant}/document/{doc:int}/beside",
            answering(lambda of, asked: document_pages.beside(of, *_of_document(asked))),
        ),
        Route("/{variant}/document/{doc:int}/beside/{of}", answering(_beside)),
        Route("/{variant}/left-out", answering(_left_out)),
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token)])


def _answered(
    variants: Variants, request: Request, answer: Callable[[Variants, Request], str], *, media_type: str = "text/html"
) -> Response:
    try:
        return Response(answer(variants, request), media_type=media_type)
    except (IndexError, NextlongError) as error:
        return PlainTextResponse(f"{error}\n", 404)
    except ValueError as error:
        return PlainTextResponse(f"{error}\n", 400)


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def _style() -> str:
    page = resources.files("nextlong.report.page").joinpath("style.css").read_text("utf-8")
    return page + strip.asset("strip.css") + _asset("view.css")


def _jump(request: Request) -> Response:
    try:
        number = _number("number", request.query_params.get("number", ""))
    except ValueError as error:
        return PlainTextResponse(f"{error}\n", 400)
    return RedirectResponse(pages.url(request.path_params["variant"], "sequence", number))


def _sequences(variants: Variants, request: Request) -> str:
    asked = request.query_params
    wanted = listing.Wanted(
        least=_float(request, "least"),
        most=_float(request, "most"),
        source=asked.get("source", ""),
        name=asked.get("name", ""),
        document=_whole(request, "document"),
    )
    first, variant = _whole(request, "after") or 0, request.path_params["variant"]
    return sequence_pages.listed(variants, variant, wanted, first=first, is_part="part" in asked)


def _sequence(variants: Variants, request: Request) -> str:
    asked = request.query_params
    chosen = sequence_pages.ChunkFilter(
        asked.get("role", ""), asked.get("name", ""), _float(request, "least"), _float(request, "most")
    )
    variant, number = request.path_params["variant"], request.path_params["number"]
    return sequence_pages.one(variants, variant, number, first=_whole(request, "after") or 0, chosen=chosen)


def _pair(variants: Variants, request: Request) -> str:
    asked = request.path_params
    return json.dumps(variants.get(asked["variant"]).pair(asked["number"], asked["place"]))


def _documents(variants: Variants, request: Request) -> str:
    asked = request.query_params
    wanted = documents.Wanted(**{name: asked.get(name, "") for name in ("text", "name", "source")})
    after = [_number("after", part) for part in asked.get("after", "0").split(".")]
    if len(after) > len(documents.Place._fields):
        raise ValueError(f"after={asked['after']}: give shard.batch.row")
    first, variant = documents.Place(*after), request.path_params["variant"]
    return document_pages.listed(variants, variant, wanted, first=first, is_part="part" in asked)


def _of_document(request: Request) -> tuple[str, int]:
    return request.path_params["variant"], request.path_params["doc"]


def _beside(variants: Variants, request: Request) -> str:
    after = _whole(request, "after") or 0
    return document_pages.beside_one(variants, *_of_document(request), request.path_params["of"], after=after)


def _left_out(variants: Variants, request: Request) -> str:
    asked, variant = request.query_params, request.path_params["variant"]
    first = _whole(request, "after") or 0
    return document_pages.left(variants, variant, asked.get("reason", ""), first=first, is_part="part" in asked)


def _whole(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    return _number(name, text) if text else None


def _number(name: str, text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{name}={text}: give a whole number")
    return int(text)


def _float(request: Request, name: str) -> float | None:
    text = request.query_params.get(name, "")
    try:
        value = float(text) if text else None
    except ValueError:
        value = float("nan")
    if value is not None and not isfinite(value):
        raise ValueError(f"{name}={text}: give a number")
    return value


def serve(run: Run, *, port: int, when_ready: Callable[[str], None]) -> None:
    """Serve the viewer until it is stopped; `when_ready` is told its address. Raises NextlongError if the port is taken."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen()
        except (OSError, OverflowError) as error:
            raise NextlongError(
                f"--port {port} cannot be used on {HOST} ({error}); name another, or 0 for any"
            ) from None
        token = secrets.token_urlsafe(24)
        served = application(run, token=token)
        config = uvicorn.Config(served, log_level="warning", server_header=False, lifespan="off", ws="none")
        when_ready(f"http://{HOST}:{listener.getsockname()[1]}/?token={token}")
        uvicorn.Server(config).run(sockets=[listener])
