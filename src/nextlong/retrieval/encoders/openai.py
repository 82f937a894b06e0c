"""The OpenAI encoder: any server with the OpenAI embeddings API.

Such as vLLM, TEI, llama.cpp and commercial providers.

In:  texts. Out: float32 (n, dimensions), unit rows, in the order of the texts.

Each batch is one request; threads send several at a time. Retries (`client.py`) are
logged, but rarely, as waits may add up to minutes. Responses are checked for count,
order and width: a server that drops an input would shift all vectors after it.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Annotated, Final

import numpy as np
from pydantic import Field

from nextlong import recipe
from nextlong.arrays import Floats
from nextlong.client import Client, UnansweredError
from nextlong.engine.executor import Resources
from nextlong.errors import EncoderError
from nextlong.recipe.keys import Operational, Positive, Section, Url
from nextlong.retrieval.encoders.base import EncoderKind, Speed, unit_rows
from nextlong.text import Json

_USUAL_DIMENSIONS: Final = 1536  # of common models; an assumption for plans
_SILENCE_S: Final = 600.0  # between two log messages about a failing server

_log = logging.getLogger(__name__)


class OpenAIOptions(Section):
    """Options of `encoder.model: openai:<model>`.

    It is any server that speaks the OpenAI embeddings API.
    """

    base_url: Url = Field(
        "https://api.openai.com/v1", description="without /embeddings"
    )
    api_key_env: Annotated[str, Operational()] = Field(
        "OPENAI_API_KEY",
        description=(
            "environment variable with the API key; no key is sent if it is unset"
        ),
    )
    batch_size: Annotated[Positive, Operational()] = Field(
        64, description="chunks per request"
    )
    dimensions: Positive | None = Field(
        None, description="width to request, from models that can shorten vectors"
    )
    concurrency: Annotated[Positive, Operational()] = Field(
        8, description="maximum number of concurrent requests"
    )
    requests_per_minute: Annotated[Positive | None, Operational()] = Field(
        None, description="maximum; default: none"
    )
    max_attempts: Annotated[Positive, Operational()] = Field(
        8, description="per request, before the run stops"
    )
    timeout_s: Annotated[float, Field(gt=0), Operational()] = Field(
        120.0, description="seconds to wait for a response"
    )


class OpenAIEncoder:
    """A model on a server."""

    def __init__(self, model: str, options: OpenAIOptions) -> None:
        """Read the API key from the environment, without sending anything."""
        self._model = model
        self._options = options
        self._url = f"{options.base_url.rstrip('/')}/embeddings"
        self._client = Client(
            options.api_key_env,
            options.max_attempts,
            options.timeout_s,
            requests_per_minute=options.requests_per_minute,
        )
        self._quiet_until_s = -math.inf
        self._quiet_lock = threading.Lock()

    @cached_property
    def dimensions(self) -> int:
        """Width of the vectors.

        Requested from the server once if the recipe does not set it.
        """
        return self._options.dimensions or self.encode(["dimensions"]).shape[1]

    def encode(self, texts: Sequence[str]) -> Floats:
        """Return the vectors, shape (n, dimensions), at unit length.

        Raises EncoderError for a missing or invalid response.
        """
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        size = self._options.batch_size
        batches = [texts[first : first + size] for first in range(0, len(texts), size)]
        with ThreadPoolExecutor(min(self._options.concurrency, len(batches))) as pool:
            parts = list(pool.map(self._embed, batches))
        widths = sorted({part.shape[1] for part in parts})
        if len(widths) > 1:
            raise self._error(f"returned vectors of different widths, {widths}")
        return unit_rows(np.concatenate(parts))

    def _log_retry(self, trouble: str, wait_s: float, left: int) -> None:
        with self._quiet_lock:
            if time.monotonic() < self._quiet_until_s:
                return
            self._quiet_until_s = time.monotonic() + _SILENCE_S
        # The line may show a progress bar.
        line_start = "\n" if sys.stderr.isatty() else ""
        _log.warning(
            "%sencoder.model=openai:%s: %s did not answer: %s; retrying in %.1f s, up "
            "to %d more times per request, with growing waits and "
            "encoder.openai.timeout_s=%g",
            line_start,
            self._model,
            self._url,
            trouble,
            wait_s,
            left,
            self._options.timeout_s,
        )

    def _embed(self, batch: Sequence[str]) -> Floats:
        """Send one request and return the vectors of its texts, (texts, width).

        In the order of the texts.
        """
        body: Json = {
            "model": self._model,
            "input": list(batch),
            "encoding_format": "float",
        }
        if self._options.dimensions is not None:
            body["dimensions"] = self._options.dimensions
        try:
            answer = self._client.post(self._url, body, self._log_retry)
        except UnansweredError as error:
            raise self._error(str(error), self._fix_of(error.status)) from None
        try:
            data = json.loads(answer)["data"]
            indices = [item["index"] for item in data]
            vectors = np.array([item["embedding"] for item in data], dtype=np.float32)
        except (ValueError, KeyError, TypeError) as error:
            start = answer[:200].decode("utf-8", "replace")
            raise self._error(
                f"returned no list of embeddings ({type(error).__name__}: {error}): "
                f"{start!r}"
            ) from None
        self._check(indices, vectors, len(batch))
        return vectors[np.argsort(indices)]

    def _check(self, indices: list[int], vectors: Floats, texts: int) -> None:
        """Raise EncoderError unless each text has a vector of the requested width."""
        if sorted(indices) != list(range(texts)):
            raise self._error(
                f"was sent {texts} texts and returned {len(indices)} vectors, indices "
                f"{sorted(indices)[:8]} ..."
            )
        width = self._options.dimensions
        is_other_width = width is not None and vectors.shape[1:] != (width,)
        if vectors.ndim != 2 or is_other_width:
            raise self._error(
                f"returned vectors of shape {vectors.shape[1:]}, not "
                f"encoder.openai.dimensions={width}",
                "leave it out if the model cannot shorten its vectors",
            )

    def _fix_of(self, status: int | None) -> str:
        """Return what to do about an HTTP status; None if there was no answer."""
        variable = self._options.api_key_env
        fixes = {
            None: "check the server, lower encoder.openai.concurrency or "
            "requests_per_minute, or raise max_attempts or timeout_s",
            401: f"set the environment variable {variable} to a valid key, or name "
            "another one in encoder.openai.api_key_env",
            403: f"the key in {variable} may not use this model",
            404: "check encoder.openai.base_url and the model's name",
            413: "lower encoder.openai.batch_size",
            429: "the quota is exhausted; raise it, or use another server",
        }
        other = (
            "if a text is too long for the model, lower chunk.max_chars; if a batch "
            "is, encoder.openai.batch_size"
        )
        return fixes.get(status, other)

    def _error(self, what: str, fix: str | None = None) -> EncoderError:
        return EncoderError(
            where="encoder.model",
            value=f"openai:{self._model}",
            problem=f"fails: {self._url} {what}",
            fix=fix or _OpenAIKind.fix,
        )


class _OpenAIKind(EncoderKind):
    """Servers: nothing to prepare.

    A single process sends all requests, in threads, so that it can keep the rate limit.
    """

    Options = OpenAIOptions
    usage = "openai:<model>"
    fix = "check the server's log, or use another model"
    not_repeatable = (
        "is a server, which may return other vectors later and charge for requests"
    )

    def load(self, config: recipe.Encoder, *_: object) -> OpenAIEncoder:
        return OpenAIEncoder(config.name, config.options_as(OpenAIOptions))

    def resources(self, config: recipe.Encoder) -> Resources:
        return Resources(at_once=1)

    def measure(self, config: recipe.Encoder, chunks: Sequence[str]) -> Speed:
        dimensions = config.options_as(OpenAIOptions).dimensions
        return Speed(
            unknown="the endpoint's", dimensions=dimensions or _USUAL_DIMENSIONS
        )


ENCODER = _OpenAIKind()
