"""Who may ask, without a server: the guard alone, called as a server calls it."""

import asyncio
from functools import partial

import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse

from nextlong.view.server import _HEADERS, _guard

pytestmark = pytest.mark.browser


TOKEN = "secret"


def ask(method="GET", *, query=b"token=secret", **headers):
    """Return status and headers of the answer."""
    sent = []

    async def send(message):
        sent.append(message)

    raw = [
        (name.replace("_", "-").encode(), value.encode())
        for name, value in headers.items()
    ]
    scope = {
        "type": "http",
        "method": method,
        "headers": raw,
        "path": "/",
        "query_string": query,
    }
    guard = BaseHTTPMiddleware(
        PlainTextResponse("the corpus"), dispatch=partial(_guard, token=TOKEN)
    )
    asyncio.run(guard(scope, None, send))
    answer = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return (
        sent[0]["status"],
        answer,
        b"".join(message.get("body", b"") for message in sent[1:]),
    )


OWN = "127.0.0.1:8000"


@pytest.mark.parametrize("host", [OWN, "localhost:1", "localhost"])
def test_this_machine_is_answered_and_may_load_nothing_else(host):
    status, headers, body = ask(host=host)
    assert (status, body) == (200, b"the corpus")
    assert {name: headers[name.lower()] for name in _HEADERS} == _HEADERS


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({}, 421),
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example:80"}, 421),
        ({"host": OWN, "origin": "http://evil.example"}, 403),
        ({"host": OWN, "origin": "http://localhost:8000"}, 403),
        ({"host": OWN, "sec_fetch_site": "cross-site"}, 403),
        ({"host": OWN, "method": "POST"}, 403),  # a form of nobody knows whose page
        ({"host": OWN, "method": "POST", "origin": "http://evil.example"}, 403),
        ({"host": OWN, "method": "POST", "origin": "null"}, 403),
        ({"host": OWN, "method": "DELETE"}, 405),
    ],
)
def test_all_others_are_refused_and_see_nothing(asked, status):
    answered, headers, body = ask(**asked)
    assert answered == status
    assert b"corpus" not in body
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_its_own_pages_may_say_where_they_come_from():
    assert ask("POST", host=OWN, origin=f"http://{OWN}")[0] == 200
    assert ask(host=OWN, origin=f"http://{OWN}", sec_fetch_site="same-origin")[0] == 200


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [
        (b"", {}, 403),
        (b"token=", {}, 403),
        (b"token=secre", {}, 403),
        (b"", {"cookie": "nextlong-view-8001=secret"}, 403),  # another viewer's
        (b"", {"cookie": "a=b; nextlong-view-8000=secret"}, 200),
        (b"", {"authorization": "token secret"}, 200),
        (b"a=b&token=secret", {}, 200),
    ],
)
def test_a_request_must_hold_the_token(query, headers, status):
    answered, sent, body = ask(query=query, host=OWN, **headers)
    assert answered == status
    assert (b"corpus" in body) is (status == 200)
    assert ("set-cookie" in sent) is (status == 200 and bool(query))
