"""Client: send requests to a server with an OpenAI-compatible API.

Requests go through the proxy of the environment. Transient failures (no connection,
timeout, 408, 429, 5xx) are retried with exponential backoff, after the time in
Retry-After if there is one. The completions that come back are read here, too.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from nextlong.text import Json

_FIRST_WAIT_S = 0.5
_MAX_WAIT_S = 60.0
_MAX_RETRY_AFTER_S = 600.0
_MAX_MESSAGE_CHARS = 500  # of a server's error


class UnansweredError(Exception):
    """A request failed; `status` is the HTTP status if the server refused it."""

    def __init__(self, what: str, status: int | None = None) -> None:
        super().__init__(what)
        self.status = status


class Client:
    """Send requests from any thread, at most `requests_per_minute`.

    The API key is in the environment variable `api_key_env`.
    """

    def __init__(
        self,
        api_key_env: str,
        max_attempts: int,
        timeout_s: float,
        *,
        requests_per_minute: int | None = None,
    ) -> None:
        self._attempts = max_attempts
        self._timeout_s = timeout_s
        self._headers = {"Content-Type": "application/json", "User-Agent": "nextlong"}
        key = os.environ.get(api_key_env)
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        # This opener takes the proxy from the environment.
        self._opener = urllib.request.build_opener()
        self._gap_s = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._next_s = 0.0
        self._lock = threading.Lock()

    def post(
        self,
        url: str,
        body: Json,
        tell: Callable[[str, float, int], None] = lambda *_: None,
    ) -> bytes:
        """Return the body of the response.

        `tell` receives the error, the seconds to wait and the number of attempts left.
        Raises UnansweredError if the server refuses the request or all attempts fail.
        """
        attempts = self._attempts
        failure = ""
        request = urllib.request.Request(url, json.dumps(body).encode(), self._headers)
        for attempt in range(1, attempts + 1):
            self._await_turn()
            wait_s = _backoff_s(attempt)
            try:
                with self._opener.open(request, timeout=self._timeout_s) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    message, code = _server_message(error)
                failure = f"HTTP {error.code}: {message}"
                is_transient = error.code in (408, 429) or error.code >= 500
                if not is_transient or code == "insufficient_quota":
                    raise UnansweredError(
                        f"refused with {failure}", error.code
                    ) from None
                header = error.headers.get("Retry-After")
                # The backoff is added: threads that a rate limit refuses would all come
                # back at once, and be refused again.
                wait_s += _retry_after_s(header, default=0.0)
            # Connection refused or reset, a timeout, or an incomplete response.
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                failure = f"{type(reason).__name__}: {reason}"
            if attempt < attempts:
                tell(failure, wait_s, attempts - attempt)
                time.sleep(wait_s)
        raise UnansweredError(
            f"did not answer in {attempts} attempts, the last with {failure}"
        )

    def _await_turn(self) -> None:
        """Wait until the next request may start."""
        with self._lock:
            start_s = max(self._next_s, time.monotonic())
            self._next_s = start_s + self._gap_s
        time.sleep(max(0.0, start_s - time.monotonic()))


class Completion(NamedTuple):
    """What a server generated.

    text: None where it states none
    has_reasoned: whether it states a reasoning beside the text
    finish: why the text ends, in the server's word
    tokens_read: the tokens of the prompt, None where they are not stated
    """

    text: str | None
    has_reasoned: bool
    finish: str | None
    tokens_read: int | None


def completion_in(received: bytes) -> Completion:
    """Return the completion, or chat completion, in the body of a response.

    Raises ValueError, with the beginning of the body, if there is none.
    """
    try:
        values = json.loads(received)
        choice = values["choices"][0]
        message = choice.get("message", {})
        text = message["content"] if message else choice["text"]
        read = (values.get("usage") or {}).get("prompt_tokens")
    except (ValueError, LookupError, TypeError, AttributeError):
        head = received[:200].decode("utf-8", "replace")
        raise ValueError(f"answered with no completion: {head!r}") from None
    return Completion(
        text=text if isinstance(text, str) else None,
        has_reasoned=bool(message.get("reasoning_content") or message.get("reasoning")),
        finish=choice.get("finish_reason"),
        tokens_read=read if isinstance(read, int) else None,
    )


def _backoff_s(attempt: int) -> float:
    """Return 0.5, 1, 2, 4 … seconds, times a random factor of 0.5 to 1.

    The factor keeps threads from trying again all at once.
    """
    wait_s = min(_FIRST_WAIT_S * 2.0 ** (attempt - 1), _MAX_WAIT_S)
    return wait_s * random.uniform(0.5, 1.0)


def _retry_after_s(header: str | None, *, default: float) -> float:
    """Return the seconds of a Retry-After header, which are seconds or an HTTP date.

    The default if it is missing or invalid.
    """
    try:
        wait_s = float(header or "nan")
    except ValueError:
        try:
            moment = parsedate_to_datetime(header or "")
        except ValueError:
            return default
        moment = moment.replace(tzinfo=moment.tzinfo or UTC)
        wait_s = (moment - datetime.now(UTC)).total_seconds()
    if math.isnan(wait_s):
        return default
    return min(max(wait_s, 0.0), _MAX_RETRY_AFTER_S)


def _server_message(error: urllib.error.HTTPError) -> tuple[str, str]:
    """Return the server's error message and error code ("" if there is none)."""
    try:
        body = error.read().decode("utf-8", "replace")
        content = json.loads(body)
    except (OSError, http.client.HTTPException):
        return error.reason, ""
    except ValueError:
        text = " ".join(body.split())
        return text[:_MAX_MESSAGE_CHARS] or error.reason, ""
    if isinstance(content, dict):
        content = content.get("error", content)
    if not isinstance(content, dict):
        return str(content)[:_MAX_MESSAGE_CHARS], ""
    message = str(content.get("message", content))
    code = str(content.get("code") or "")
    return message[:_MAX_MESSAGE_CHARS], code
