"""OpenAI: chunks → unit vectors, by any server that speaks the OpenAI embeddings API (vLLM, TEI, llama.cpp, vendors).

In:  texts. Out: float32 (n, dimensions), unit rows, in the order of the texts.
Standard library only: batches go out in threads, each as a request of its own, through the proxy that the environment names. What
may pass (429, 5xx, timeouts, dropped connections) is tried again with exponential backoff and jitter, or after what the server's
Retry-After says; the log of Python tells of it, once in a while and not for every request, because the waits add up to
minutes. What comes back is checked for count, order and width before it is trusted: a server that drops one input would
shift all vectors behind it.
"""

from __future__ import annotations

import http.client
import json
import logging
import math
import os
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from nextlong import recipe
from nextlong.engine.executor import Resources
from nextlong.errors import EncoderError
from nextlong.recipe.keys import MayBePrivate, Operational, Positive, Section
from nextlong.retrieval.encoders.base import EncoderKind, Speed
from nextlong.text import Json

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 60.0
_LONGEST_RETRY_AFTER_S: Final = 600.0
_USUAL_DIMENSIONS: Final = 1536  # of the usual models
_SILENCE_S: Final = 600.0  # between two words about a server in trouble

_log = logging.getLogger(__name__)


class OpenAIOptions(Section):
    """Options of `encoder.model: openai:<model>`: any server that speaks the OpenAI embeddings API."""

    base_url: Annotated[str, MayBePrivate()] = Field(
        "https://api.openai.com/v1", description="up to and without /embeddings"
    )
    api_key_env: Annotated[str, Operational()] = Field(
        "OPENAI_API_KEY", description="the environment variable that holds the key; none is sent if unset"
    )
    batch_size: Annotated[Positive, Operational()] = Field(64, description="chunks in a request")
    dimensions: Positive | None = Field(
        None, description="requested from the server, where the model can shorten its vectors"
    )
    concurrency: Annotated[Positive, Operational()] = Field(8, description="requests under way at once")
    requests_per_minute: Annotated[Positive | None, Operational()] = Field(
        None, description="never send more; default: as the server allows"
    )
    max_attempts: Annotated[Positive, Operational()] = Field(
        8, description="tries of a request before the run stops; what is embedded is kept"
    )
    timeout_s: Annotated[Annotated[float, Field(gt=0)], Operational()] = Field(
        120.0, description="seconds to wait for an answer"
    )


class OpenAIEncoder:
    """One model on one server."""

    def __init__(self, model: str, options: OpenAIOptions) -> None:
        """Take the key from the environment; nothing is sent yet. Raises EncoderError for a URL that is none."""
        if not options.base_url.startswith(("http://", "https://")):
            raise EncoderError(f"encoder.openai.base_url={options.base_url!r}; it must start with http:// or https://")
        self._model = model
        self._options = options
        self._url = f"{options.base_url.rstrip('/')}/embeddings"
        self._headers = {"Content-Type": "application/json", "User-Agent": "nextlong"}
        if key := os.environ.get(options.api_key_env):
            self._headers["Authorization"] = f"Bearer {key}"
        self._opener = urllib.request.build_opener()  # asks the environment for the proxy
        self._pace = _Pace(options.requests_per_minute)
        self._quiet_until_s = -math.inf
        self._quiet_lock = threading.Lock()

    @cached_property
    def dimensions(self) -> int:
        """Width of the vectors; where the recipe does not set it, the server is asked with one request."""
        return self._options.dimensions or self.encode(["dimensions"]).shape[1]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the vectors, shape (n, dimensions), unit length.

        Raises EncoderError when the server refuses, gives up after `max_attempts`, or answers with the wrong count,
        indices or width.
        """
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        size = self._options.batch_size
        batches = [texts[first : first + size] for first in range(0, len(texts), size)]
        with ThreadPoolExecutor(min(self._options.concurrency, len(batches))) as pool:
            parts = list(pool.map(self._embed, batches))
        widths = {part.shape[1] for part in parts}
        if len(widths) > 1:
            raise self._error(f"answered with vectors of different widths, {sorted(widths)}")
        vectors = np.concatenate(parts)
        # A zero vector stays zero: the stage reports it, with the chunk's id.
        unit: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return unit

    def _embed(self, batch: Sequence[str]) -> NDArray[np.float32]:
        body: Json = {"model": self._model, "input": list(batch), "encoding_format": "float"}
        if self._options.dimensions is not None:
            body["dimensions"] = self._options.dimensions
        return self._check(self._post(json.dumps(body).encode()), count=len(batch))

    def _post(self, body: bytes) -> bytes:
        """Send one request until it is answered, refused or `max_attempts` are used up; returns the answer's body."""
        attempts = self._options.max_attempts
        for attempt in range(1, attempts + 1):
            self._pace.wait()
            retry_after_s = None
            try:
                request = urllib.request.Request(self._url, body, self._headers)
                with self._opener.open(request, timeout=self._options.timeout_s) as answer:
                    received: bytes = answer.read()
                    return received
            except urllib.error.HTTPError as error:
                trouble, code = _server_message(error.read(), reason=error.reason)
                retry_after_s = _retry_after_s(error.headers.get("Retry-After"))
                if not (error.code in (408, 429) or error.code >= 500) or code == "insufficient_quota":
                    raise self._refused(error.code, trouble) from None
                trouble = f"HTTP {error.code}: {trouble}"
            except (
                OSError,
                http.client.HTTPException,
            ) as error:  # refused, reset, a timeout, an answer that breaks off
                reason = getattr(error, "reason", error)
                trouble = f"{type(reason).__name__}: {reason}"
            if attempt < attempts:
                wait_s = _backoff_s(attempt) if retry_after_s is None else retry_after_s
                self._tell(trouble, left=attempts - attempt, wait_s=wait_s)
                time.sleep(wait_s)
        raise self._error(
            f"did not answer in {attempts} attempts, the last with {trouble}; look at the server, "
            "lower encoder.openai.concurrency or requests_per_minute, or raise max_attempts or timeout_s"
        )

    def _tell(self, trouble: str, *, left: int, wait_s: float) -> None:
        with self._quiet_lock:
            if time.monotonic() < self._quiet_until_s:
                return
            self._quiet_until_s = time.monotonic() + _SILENCE_S
        _log.warning(
            "%sencoder.model=openai:%s: %s did not answer: %s; trying again in %.1f s, up to %d more times a request, each time "
            "after a longer wait and with encoder.openai.timeout_s=%g for the answer",
            "\n" if sys.stderr.isatty() else "",  # a progress bar stands on this line
            self._model, self._url, trouble, wait_s, left, self._options.timeout_s,
        )  # fmt: skip

    def _check(self, answer: bytes, *, count: int) -> NDArray[np.float32]:
        """Return the vectors in the order of their indices, shape (count, width)."""
        try:
            data = json.loads(answer)["data"]
            places = [item["index"] for item in data]
            vectors = np.array([item["embedding"] for item in data], dtype=np.float32)
        except (ValueError, KeyError, TypeError) as error:
            start = answer[:200].decode("utf-8", "replace")
            raise self._error(
                f"answered with no list of embeddings ({type(error).__name__}: {error}): {start!r}"
            ) from None
        if sorted(places) != list(range(count)):
            raise self._error(
                f"was sent {count} texts and answered with {len(places)} vectors, indices {sorted(places)[:8]} ..."
            )
        wanted = self._options.dimensions
        if vectors.ndim != 2 or (wanted is not None and vectors.shape[1] != wanted):
            raise self._error(
                f"answered with vectors of shape {vectors.shape[1:]}, not encoder.openai.dimensions={wanted}; "
                "leave it out if the model cannot shorten its vectors"
            )
        ordered = np.empty_like(vectors)
        ordered[places] = vectors
        return ordered

    def _refused(self, status: int, message: str) -> EncoderError:
        variable = self._options.api_key_env
        cure = {
            401: f"set the environment variable {variable} to a valid key"
            if "Authorization" in self._headers
            else f"set the environment variable {variable}, or name another in encoder.openai.api_key_env",
            403: f"the key in {variable} may not use this model",
            404: "check encoder.openai.base_url and the model's name",
            413: "lower encoder.openai.batch_size",
            429: "the quota is used up",
        }.get(
            status,
            "if a text is too long for the model, lower chunk.max_chars; if a batch is, encoder.openai.batch_size",
        )
        return self._error(f"refused with HTTP {status}: {message}; {cure}")

    def _error(self, what: str) -> EncoderError:
        return EncoderError(f"encoder.model=openai:{self._model}: {self._url} {what}")


class _Pace:
    """Lets threads start requests no faster than so many a minute."""

    def __init__(self, requests_per_minute: int | None) -> None:
        self._gap_s = 60.0 / requests_per_minute if requests_per_minute else 0.0
        self._next_s = 0.0
        self._lock = threading.Lock()

    def wait(self) -> None:
        with self._lock:
            start_s = max(self._next_s, time.monotonic())
            self._next_s = start_s + self._gap_s
        time.sleep(max(0.0, start_s - time.monotonic()))


def _backoff_s(attempt: int) -> float:
    """Return half to all of 0.5, 1, 2, 4 ... seconds; the jitter keeps threads from coming back all at once."""
    return min(_FIRST_WAIT_S * 2.0 ** (attempt - 1), _LONGEST_WAIT_S) * random.uniform(0.5, 1.0)


def _retry_after_s(header: str | None) -> float | None:
    """Read a Retry-After header, seconds or an HTTP date; None where it is missing or neither."""
    if header is None:
        return None
    try:
        wait_s = float(header)
    except ValueError:
        try:
            moment = parsedate_to_datetime(header)
        except ValueError:
            return None
        wait_s = (moment.replace(tzinfo=moment.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return None if math.isnan(wait_s) else min(max(wait_s, 0.0), _LONGEST_RETRY_AFTER_S)


def _server_message(received: bytes, *, reason: str) -> tuple[str, str]:
    """Return what the server says about a refusal, and its error code ("" where it names none)."""
    body = received.decode("utf-8", "replace")
    try:
        said = json.loads(body)
    except ValueError:
        return " ".join(body.split())[:500] or reason, ""
    said = said.get("error", said) if isinstance(said, dict) else said
    if isinstance(said, dict):
        return str(said.get("message", said))[:500], str(said.get("code") or "")
    return str(said)[:500], ""


class OpenAIKind(EncoderKind):
    """Servers; nothing is prepared. One process keeps to the rate limit: its requests run in threads."""

    Options = OpenAIOptions
    usage = "openai:<model>"
    cure = "look at the server's log, or try another model"
    not_repeatable = "is a server, which may give other vectors today and ask a price"

    def load(
        self, config: recipe.Encoder, *, fitted: Path | None, dtype: str | None, threads: int | None
    ) -> OpenAIEncoder:
        """Return the client."""
        del fitted, dtype, threads
        return OpenAIEncoder(config.name, config.options_as(OpenAIOptions))

    def resources(self, config: recipe.Encoder) -> Resources:
        """Return that one task runs at a time."""
        del config
        return Resources(at_once=1)

    def measure(self, config: recipe.Encoder, chunks: Sequence[str]) -> Speed:
        """Return that the server is not asked."""
        del chunks
        return Speed(
            unknown="the endpoint's", dimensions=config.options_as(OpenAIOptions).dimensions or _USUAL_DIMENSIONS
        )


ENCODER = OpenAIKind()
