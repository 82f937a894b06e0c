"""The OpenAI-compatible encoder against a real server on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nextlong.errors import EncoderError
from nextlong.retrieval.encoders.openai import OpenAIEncoder, OpenAIOptions

Answer = tuple[int, dict[str, str], bytes] | None


def vector_of(text: str) -> list[float]:
    return [float(len(text)), 3.0, float(text.count("a"))]


def embed(body: dict[str, Any]) -> Answer:
    items = [
        {"index": index, "embedding": vector_of(text)}
        for index, text in enumerate(body["input"])
    ]
    return 200, {}, json.dumps({"data": items}).encode()


def refusal(
    status: int, message: str, *, code: str | None = None, **headers: str
) -> Answer:
    return (
        status,
        headers,
        json.dumps({"error": {"message": message, "code": code}}).encode(),
    )


@dataclass
class Server:
    """What it answers, and what it was asked; `script` answers come first, None drops the connection."""

    url: str = ""
    answer: Callable[[dict[str, Any]], Answer] = embed
    script: list[Answer] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    busy: int = 0
    most_busy: int = 0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    state = Server()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"  # keeps connections open

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                state.asked.append(body | {"path": self.path})
                state.headers.append(dict(self.headers))
                state.busy += 1
                state.most_busy = max(state.most_busy, state.busy)
                scripted = state.script.pop(0) if state.script else "none"
            answer = state.answer(body) if scripted == "none" else scripted
            with lock:
                state.busy -= 1
            if answer is None:
                self.close_connection = True
                return
            status, headers, content = answer
            self.send_response(status)
            for name, value in (
                headers | {"Content-Length": str(len(content))}
            ).items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{http_server.server_address[1]}/v1"
    thread = threading.Thread(
        target=http_server.serve_forever, kwargs={"poll_interval": 0.01}
    )
    thread.start()
    monkeypatch.setattr("nextlong.client._FIRST_WAIT_S", 0.01)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    yield state
    http_server.shutdown()
    thread.join()
    http_server.server_close()


def encoder(server: Server, **options: Any) -> OpenAIEncoder:
    return OpenAIEncoder(
        "m",
        OpenAIOptions(
            **{"base_url": server.url, "timeout_s": 5.0, "max_attempts": 3} | options
        ),
    )


def expected(texts: list[str]) -> np.ndarray:
    vectors = np.array([vector_of(text) for text in texts], np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_batches_come_back_in_order_and_unit_length(server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret")
    texts = [f"{'a' * number} text" for number in range(23)]

    others_are_asked = threading.Barrier(2, timeout=60)

    def first_last(body: dict[str, Any]) -> Answer:
        if body["input"][0] in (
            texts[0],
            texts[20],
        ):  # the first batch, and the last, which four threads come to at last
            others_are_asked.wait()
        status, headers, content = embed(body) or (0, {}, b"")
        return (
            status,
            headers,
            json.dumps({"data": json.loads(content)["data"][::-1]}).encode(),
        )

    server.answer = first_last
    vectors = encoder(
        server, batch_size=5, concurrency=4, timeout_s=60, api_key_env="MY_KEY"
    ).encode(texts)
    np.testing.assert_allclose(vectors, expected(texts), rtol=1e-6)
    assert vectors.dtype == np.float32
    assert sorted(len(body["input"]) for body in server.asked) == [3, 5, 5, 5, 5]
    assert {body["path"] for body in server.asked} == {"/v1/embeddings"}
    assert {body["model"] for body in server.asked} == {"m"}
    assert all("dimensions" not in body for body in server.asked)
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret"}


def test_requests_run_at_the_same_time_up_to_concurrency(server):
    gate = threading.Barrier(3, timeout=60)

    def together(body: dict[str, Any]) -> Answer:
        gate.wait()
        return embed(body)

    server.answer = together
    encoder(server, batch_size=1, concurrency=3).encode(["a", "b", "c", "d", "e", "f"])
    assert server.most_busy == 3


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(429, "slow down", Retry_After="0"),
        refusal(429, "slow down", Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
        refusal(429, "slow down"),
        refusal(500, "oops"),
        (503, {}, b"<html>busy</html>"),
        None,
    ],
)
def test_passing_trouble_is_tried_again(server, trouble):
    server.script = [trouble, trouble]
    texts = ["one", "two"]
    np.testing.assert_allclose(
        encoder(server).encode(texts), expected(texts), rtol=1e-6
    )
    assert len(server.asked) == 3


def test_the_first_failed_try_is_told_once_and_again_after_a_while(
    server, caplog, monkeypatch
):
    server.script = [refusal(500, "oops")] * 4
    encoder(server, batch_size=1, max_attempts=5).encode(["a", "b", "c", "d"])
    (told,) = caplog.messages
    assert told.startswith(
        f"encoder.model=openai:m: {server.url}/embeddings did not answer: HTTP 500: oops; retrying in 0.0 s"
    )
    assert "up to 4 more times per request" in told
    assert "encoder.openai.timeout_s=5" in told
    monkeypatch.setattr("nextlong.retrieval.encoders.openai._SILENCE_S", 0.0)
    server.script = [refusal(500, "oops")] * 2
    encoder(server).encode(["a"])
    assert ["up to 2 more" in line for line in caplog.messages[1:]] == [True, False]


def test_the_proxy_of_the_environment_is_used(server, monkeypatch):
    address = server.url.removeprefix("http://").removesuffix("/v1")
    monkeypatch.setenv("http_proxy", f"http://me:p%40ss@{address}")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    texts = ["one", "two"]
    vectors = encoder(server, base_url="http://embeddings.invalid/v1").encode(texts)
    np.testing.assert_allclose(vectors, expected(texts), rtol=1e-6)
    assert [body["path"] for body in server.asked] == [
        "http://embeddings.invalid/v1/embeddings"
    ]
    assert server.headers[0]["Proxy-Authorization"] == "Basic bWU6cEBzcw=="
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    encoder(server).encode(texts)
    assert server.asked[-1]["path"] == "/v1/embeddings"


def test_an_answer_at_once_is_not_told(server, caplog):
    encoder(server).encode(["a"])
    assert caplog.messages == []


def test_retry_after_is_waited_for(server, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr("nextlong.client.time.sleep", waits.append)
    server.script = [refusal(429, "slow down", Retry_After="7")]
    encoder(server).encode(["one"])
    # The backoff, of at most half a second at first, is added.
    assert 7.0 < max(waits) <= 7.5


def test_timeouts_are_tried_again(server):
    answered = threading.Event()

    def never_the_first(body: dict[str, Any]) -> Answer:
        if len(server.asked) == 1:
            answered.wait()
        return embed(body)

    server.answer = never_the_first
    asking = encoder(
        server, timeout_s=0.5, max_attempts=100
    )  # as many as a slow machine needs
    np.testing.assert_allclose(asking.encode(["one"]), expected(["one"]), rtol=1e-6)
    answered.set()


def test_gives_up_after_max_attempts_with_the_last_trouble(server):
    server.script = [refusal(500, "the disk is full")] * 3
    with pytest.raises(EncoderError, match="HTTP 500: the disk is full") as error:
        encoder(server).encode(["one"])
    assert "encoder.openai.concurrency" in error.value.fix
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("answer", "reported", "fix"),
    [
        (refusal(401, "no key given"), "HTTP 401: no key", "OPENAI_API_KEY"),
        (refusal(404, "no such model"), "HTTP 404: no such", "encoder.openai.base_url"),
        (refusal(400, "input is too long"), "HTTP 400: input", "chunk.max_chars"),
        (
            refusal(429, "no money", code="insufficient_quota"),
            "HTTP 429: no money",
            "quota",
        ),
        ((403, {}, b"go away"), "HTTP 403: go away", "OPENAI_API_KEY"),
        ((200, {}, b"<html>hello</html>"), "<html>hello", "server's log"),
        ((200, {}, b'{"data": []}'), "0 vectors", "server's log"),
        (
            (
                200,
                {},
                b'{"data": [{"index": 0, "embedding": [1, 2]}, {"index": 0, "embedding": [1, 2]}]}',
            ),
            "indices [0, 0]",
            "server's log",
        ),
        (
            (
                200,
                {},
                b'{"data": [{"index": 0, "embedding": [1, 2]}, {"index": 1, "embedding": [1]}]}',
            ),
            "embeddings",
            "server's log",
        ),
        (
            (
                200,
                {},
                b'{"data": [{"index": 0, "embedding": "AAAA"}, {"index": 1, "embedding": "AAAA"}]}',
            ),
            "embeddings",
            "server's log",
        ),
    ],
)
def test_refusals_and_wrong_answers_are_not_tried_again(server, answer, reported, fix):
    server.script = [answer]
    with pytest.raises(EncoderError) as error:
        encoder(server).encode(["one", "two"])
    assert error.value.where == "encoder.model"
    assert reported in error.value.problem
    assert fix in error.value.fix
    assert len(server.asked) == 1


def test_dimensions_are_asked_for_and_checked(server):
    asking = encoder(server, dimensions=3)
    assert asking.dimensions == 3
    assert not server.asked
    asking.encode(["one"])
    assert server.asked[0]["dimensions"] == 3
    with pytest.raises(EncoderError, match=r"encoder\.openai\.dimensions=2"):
        encoder(server, dimensions=2).encode(["one"])


def test_dimensions_come_from_the_server_when_not_set(server):
    unset = encoder(server)
    assert unset.dimensions == 3
    assert unset.encode([]).shape == (0, 3)
    assert len(server.asked) == 1


def test_widths_that_differ_between_batches_are_an_error(server):
    server.script = [(200, {}, b'{"data": [{"index": 0, "embedding": [1.0, 2.0]}]}')]
    with pytest.raises(EncoderError, match=r"different widths, \[2, 3\]"):
        encoder(server, batch_size=1, concurrency=1).encode(["one", "two"])


def test_requests_per_minute_spaces_the_requests(server, monkeypatch):
    """By a clock that stands still, each has a longer wait than the one before."""
    waits_s = []
    clock = SimpleNamespace(monotonic=lambda: 1000.0, sleep=waits_s.append)
    monkeypatch.setattr("nextlong.client.time", clock)
    encoder(server, batch_size=1, concurrency=4, requests_per_minute=1200).encode(
        ["a", "b", "c", "d", "e"]
    )
    assert sorted(waits_s) == pytest.approx([0, 0.05, 0.1, 0.15, 0.2])


def test_nobody_listening_is_an_encoder_error(server):
    with pytest.raises(EncoderError, match="ConnectionRefusedError"):
        encoder(server, base_url="http://127.0.0.1:9/v1", max_attempts=2).encode(
            ["one"]
        )
