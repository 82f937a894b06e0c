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
from math import isfinite
from urllib.parse import parse_qs

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from nextlong.errors import NextlongError
from nextlong.picture import html
from nextlong.runs.run import Run
from nextlong.view import documents, marks, pages
from nextlong.view.guard import Guard
from nextlong.view.marks import Mark
from nextlong.view.pages import ChunkFilter, View
from nextlong.view.sequences import SORTS, Query
from nextlong.view.variants import Variants

Answer = Callable[[View, Request], str | Response]
HOST = "127.0.0.1"
_LONGEST_NOTE = 500


def application(run: Run, *, token: str) -> Starlette:
    """Return the viewer of a run, which answers requests that hold `token`."""
    variants, lock = Variants(run), threading.Lock()
    if len(run):
        variants.get(variants.first).index.know(0)  # loads libraries now, so that the first page is quick

    def view_of(request: Request) -> View:
        return View(variants, request.path_params.get("variant", variants.first))

    def problem(request: Request, error: Exception, *, status: int = 404) -> Response:
        title = "There is no such page" if isinstance(error, IndexError) else "This page cannot be shown"
        return Response(pages.problem(view_of(request), str(error), title=title), status, media_type="text/html")

    def route(path: str, answer: Answer) -> Route:
        def answered(request: Request) -> Response:
            with lock:
                try:
                    made = answer(view_of(request), request)
                    return made if isinstance(made, Response) else Response(made, media_type="text/html")
                except (IndexError, NextlongError) as error:
                    return problem(request, error)
                except ValueError as error:
                    return problem(request, error, status=400)

        return Route(f"/{{variant}}{path}", answered)

    async def mark(request: Request) -> Response:
        form = {name: values[0] for name, values in parse_qs((await request.body()).decode("utf-8", "replace")).items()}

        def write() -> Response:
            with lock:
                try:
                    _mark(variants, form)
                except (ValueError, NextlongError) as error:
                    return problem(request, error, status=400)
            return RedirectResponse(view_of(request).url(request.path_params["variant"], "marks"), 303)

        return await run_in_threadpool(write)

    def to_list(request: Request) -> Response:
        view = view_of(request)
        return RedirectResponse(view.url(view.name, "sequences"))

    return Starlette(
        routes=[
            Route("/", to_list),
            _asset("/style.css", "text/css", html.style() + html.asset(__package__, "view.css")),
            _asset("/page.js", "text/javascript", html.script()),
            _asset("/view.js", "text/javascript", html.asset(__package__, "view.js")),
            Route("/favicon.ico", lambda _: Response(status_code=204)),  # browsers ask for it
            Route("/{variant}/marks", mark, methods=["POST"]),
            Route("/{variant}", to_list),
            route("/sequences", _sequences),
            route("/sequence", _jump),
            route("/random", _random),
            route("/sequence/{number:int}", _sequence),
            route("/sequence/{number:int}/pairs/{place:int}", _pair),
            route("/documents", _documents),
            route("/document/{doc:int}", lambda view, request: pages.document(view, request.path_params["doc"])),
            route("/compare", _compare),
            route("/filtered", _filtered),
            route("/marks", lambda view, _: pages.marked(view)),
            route("/{rest:path}", _nothing),
        ],
        middleware=[Middleware(Guard, token=token)],
    )


def _asset(path: str, media_type: str, text: str) -> Route:
    return Route(path, lambda _: Response(text, media_type=media_type))


def _nothing(_: View, request: Request) -> str:
    raise IndexError(f"{request.url.path} is not a page of the viewer")


def _sequences(view: View, request: Request) -> str:
    given = request.query_params
    sort = given.get("sort", "")
    if sort and sort.removeprefix("-") not in SORTS and not (sort.startswith("random") and sort[7:].isdecimal()):
        raise ValueError(f"sort={sort}: give one of {', '.join(SORTS)}, with - in front for descending order")
    query = Query(
        text=given.get("text", "").strip(),
        name=given.get("name", ""),
        source=given.get("source", ""),
        least=_float(request, "least"),
        most=_float(request, "most"),
        document=_whole(request, "document"),
    )
    first = _whole(request, "after") or 0
    return pages.sequence_list(view, query, sort=sort, first=first, columns=given.getlist("columns"))


def _jump(view: View, request: Request) -> Response:
    number = _number("number", request.query_params.get("number", ""))
    return RedirectResponse(view.url(view.name, "sequence", number))


def _random(view: View, _: Request) -> Response:
    count = len(view.variant.run)
    of_one = ("sequence", secrets.randbelow(count)) if count else ("sequences",)
    return RedirectResponse(view.url(view.name, *of_one))


def _sequence(view: View, request: Request) -> str:
    given = request.query_params
    least, most = _float(request, "least"), _float(request, "most")
    chosen = ChunkFilter(given.get("role", ""), given.get("name", ""), least, most)
    return pages.sequence(view, request.path_params["number"], first=_whole(request, "after") or 0, chosen=chosen)


def _pair(view: View, request: Request) -> Response:
    pair = view.variant.pair(request.path_params["number"], request.path_params["place"])
    return Response(json.dumps(pair), media_type="application/json")


def _documents(view: View, request: Request) -> str:
    given = request.query_params
    query = documents.DocumentQuery(**{name: given.get(name, "").strip() for name in ("text", "name", "source")})
    after = [_number("after", part) for part in given.get("after", "0").split(".")]
    if len(after) > len(documents.Place._fields):
        raise ValueError(f"after={given['after']}: give shard.batch.row")
    return pages.document_list(view, query, first=documents.Place(*after))


def _compare(view: View, request: Request) -> str:
    return pages.compare(view, request.query_params.get("with", ""), doc_id=_whole(request, "document"))


def _filtered(view: View, request: Request) -> str:
    return pages.filtered_out(view, request.query_params.get("reason", ""), first=_whole(request, "after") or 0)


def _mark(variants: Variants, form: dict[str, str]) -> None:
    """Add or remove the mark of a form."""
    plain = json.loads(form.get("mark", "{}"))
    known = {name: str(plain.get(name, "")) for name in ("source", "id", "sequence")} if isinstance(plain, dict) else {}
    if not known.get("source") or form.get("action") not in ("add", "remove"):
        raise ValueError("a mark needs a source, and an action: add or remove")
    mark = Mark(**known, note=form.get("note", ""))
    if (kind := plain.get("kind", mark.kind if mark.id.strip() else "")) != mark.kind:
        raise ValueError(
            f"kind={kind} with id={mark.id} and sequence={mark.sequence}: give the id of a document, or mark the whole source by "
            "kind=source without an id"
        )
    if len(mark.note) > _LONGEST_NOTE:
        raise ValueError(f"the note has {len(mark.note):,} characters; shorten it to {_LONGEST_NOTE}")
    change = marks.add if form["action"] == "add" else marks.remove
    change(variants.run_dir, mark)


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
    """Serve the viewer until it is stopped; `when_ready` gets its address. Raises NextlongError if the port is taken."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
            listener.listen()
        except (OSError, OverflowError) as error:
            raise NextlongError(
                f"--port {port} cannot be used on {HOST} ({error}); choose another, or 0 for any free port"
            ) from None
        token = secrets.token_urlsafe(24)
        config = uvicorn.Config(
            application(run, token=token), log_level="warning", server_header=False, lifespan="off", ws="none"
        )
        when_ready(f"http://{HOST}:{listener.getsockname()[1]}/?token={token}")
        uvicorn.Server(config).run(sockets=[listener])
