"""Client: send requests to a server with an OpenAI-compatible API, through the proxy of the environment.

Transient failures (no connection, timeout, 408, 429, 5xx) are retried with exponential backoff, or after the time in Retry-After.
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

from nextlong.text import Json

_FIRST_WAIT_S, _LONGEST_WAIT_S, _LONGEST_RETRY_AFTER_S = 0.5, 60.0, 600.0


class UnansweredError(Exception):
    """A request failed; `status` is the HTTP status if the server refused it."""

    def __init__(self, what: str, status: int | None = None) -> None:
        super().__init__(what)
        self.status = status


class Client:
    """Send requests from any thread, at most `requests_per_minute`; the API key is in the variable `api_key_env`."""

    def __init__(
        self,
        api_key_env: str,
        max_attempts: int,
        timeout_s: float,
        *,
        requests_per_minute: int | None = None,
    ) -> None:
        self._attempts, self._timeout_s = max_attempts, timeout_s
        self._headers = {"Content-Type": "application/json", "User-Agent": "nextlong"}
        if key := os.environ.get(api_key_env):
            self._headers["Authorization"] = f"Bearer {key}"
        self._opener = (
            urllib.request.build_opener()
        )  # takes the proxy from the environment
        self._gap_s, self._next_s = (
            60.0 / requests_per_minute if requests_per_minute else 0.0,
            0.0,
        )
        self._lock = threading.Lock()

    def post(
        self,
        url: str,
        body: Json,
        tell: Callable[[str, float, int], None] = lambda *_: None,
    ) -> bytes:
        """Return the body of the response. Raises UnansweredError if the server refuses the request or all attempts fail.

        `tell` receives the error, the seconds to wait and the number of attempts left.
        """
        attempts, failure = self._attempts, ""
        request = urllib.request.Request(url, json.dumps(body).encode(), self._headers)
        for attempt in range(1, attempts + 1):
            with self._lock:
                start_s = max(self._next_s, time.monotonic())
                self._next_s = start_s + self._gap_s
            time.sleep(max(0.0, start_s - time.monotonic()))
            # 0.5, 1, 2, 4 … seconds, times a random factor of 0.5 to 1, so that threads do not retry all at once.
            wait_s = min(
                _FIRST_WAIT_S * 2.0 ** (attempt - 1), _LONGEST_WAIT_S
            ) * random.uniform(0.5, 1.0)
            try:
                with self._opener.open(request, timeout=self._timeout_s) as answer:
                    return bytes(answer.read())
            except urllib.error.HTTPError as error:
                with error:
                    message, code = _server_message(error)
                failure = f"HTTP {error.code}: {message}"
                if (
                    not (error.code in (408, 429) or error.code >= 500)
                    or code == "insufficient_quota"
                ):
                    raise UnansweredError(
                        f"refused with {failure}", error.code
                    ) from None
                wait_s = _retry_after_s(
                    error.headers.get("Retry-After"), default=wait_s
                )
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


def _retry_after_s(header: str | None, *, default: float) -> float:
    """Parse a Retry-After header, seconds or an HTTP date; return the default if it is missing or invalid."""
    try:
        wait_s = float(header or "nan")
    except ValueError:
        try:
            moment = parsedate_to_datetime(header or "")
        except ValueError:
            return default
        wait_s = (
            moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)
        ).total_seconds()
    return (
        default if math.isnan(wait_s) else min(max(wait_s, 0.0), _LONGEST_RETRY_AFTER_S)
    )


def _server_message(error: urllib.error.HTTPError) -> tuple[str, str]:
    """Return the server's error message and error code ("" if there is none)."""
    try:
        body = error.read().decode("utf-8", "replace")
        message = json.loads(body)
    except (OSError, http.client.HTTPException):
        return error.reason, ""
    except ValueError:
        return " ".join(body.split())[:500] or error.reason, ""
    message = message.get("error", message) if isinstance(message, dict) else message
    if isinstance(message, dict):
        return str(message.get("message", message))[:500], str(
            message.get("code") or ""
        )
    return str(message)[:500], ""
