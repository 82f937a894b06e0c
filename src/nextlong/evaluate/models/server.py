"""A server with an OpenAI-compatible API: vLLM, SGLang, llama.cpp, or OpenAI's own.

    POST {url}/completions        {"model", "prompt", "max_tokens", "temperature": 0, "stop"}          → choices[0].text
    POST {url}/chat/completions   {"model", "messages", "max_tokens", "temperature": 0, "stop"}        → choices[0].message.content

Several requests are under way at a time. What fails in passing (no connection, 408, 429, 5xx) is tried again after growing waits.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.models.base import PromptFormat, TextTokenizer, truncate_at_stop
from nextlong.evaluate.task import JSON, Sample
from nextlong.plain_data import Json

_FIRST_WAIT_S: Final = 0.5
_LONGEST_WAIT_S: Final = 30.0
_CHAT_TOKENS: Final = 64  # kept free for a template that only the server knows
_PASSING: Final = (408, 429)


@dataclass(frozen=True)
class ServerOptions:
    """Where the server is and how it is asked."""

    url: str
    context: int | None = None
    prompt_format: PromptFormat = "completion"
    api_key_env: str = "OPENAI_API_KEY"
    concurrency: int = 8
    max_attempts: int = 8
    timeout_s: float = 600.0
    first_wait_s: float = _FIRST_WAIT_S


class Server:
    """A model behind an OpenAI-compatible server, that answers."""

    def __init__(self, name: str, options: ServerOptions) -> None:
        self.name, self.options = name, options
        if not options.url.startswith(("http://", "https://")):
            raise EvaluateError(f"--url {options.url}: give http://HOST:PORT/v1 or https://…")

    def answers(self, samples: Sequence[Sample]) -> Iterator[str]:
        """Yield the answers in order, greedy, cut at the sample's limits. Raises EvaluateError when the server gives up."""
        with ThreadPoolExecutor(self.options.concurrency) as pool:
            asked = [pool.submit(self._answer, sample) for sample in samples]
            try:
                for one in asked:
                    yield one.result()
            finally:
                for one in asked:
                    one.cancel()

    def _answer(self, sample: Sample) -> str:
        body: Json = {"model": self.name, "max_tokens": sample.max_new_tokens, "temperature": 0}
        if sample.stop is not None:
            body["stop"] = [sample.stop]
        if self.options.prompt_format == "chat":
            place = "/chat/completions"
            body["messages"] = [{"role": "user", "content": sample.text}]
        else:
            place = "/completions"
            body["prompt"] = sample.text
        received = self._post(place, json.dumps(body).encode())
        try:
            choice = json.loads(received)["choices"][0]
            text = choice["message"]["content"] if "message" in choice else choice["text"]
        except (ValueError, KeyError, TypeError, IndexError):
            raise self._error(f"answered with no completion: {received[:200].decode('utf-8', 'replace')!r}") from None
        return truncate_at_stop(text or "", sample.stop)

    def _post(self, place: str, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(self.options.api_key_env):
            headers["Authorization"] = f"Bearer {key}"
        trouble = ""
        for attempt in range(self.options.max_attempts):
            if attempt:
                time.sleep(self._wait_s(attempt))
            try:
                request = urllib.request.Request(self.options.url.rstrip("/") + place, body, headers)
                with urllib.request.urlopen(request, timeout=self.options.timeout_s) as answer:
                    received: bytes = answer.read()
                    return received
            except urllib.error.HTTPError as error:
                with error:
                    trouble = f"HTTP {error.code}: {_message(error)}"
                if error.code not in _PASSING and error.code < 500:
                    raise self._error(f"refused with {trouble}") from None
            except (OSError, http.client.HTTPException) as error:
                cause = error.reason if isinstance(error, urllib.error.URLError) else error
                trouble = f"{type(cause).__name__}: {cause}"
        raise self._error(
            f"did not answer in {self.options.max_attempts} attempts, the last with {trouble}; what is answered is "
            f"kept: mend the server "
            "and say the same command again, or lower --concurrency"
        )

    def _wait_s(self, attempt: int) -> float:
        # Half to all of it at random, so that threads do not come back all at once.
        return min(self.options.first_wait_s * 2.0 ** (attempt - 1), _LONGEST_WAIT_S) * random.uniform(0.5, 1.0)

    def _error(self, what: str) -> EvaluateError:
        return EvaluateError(f"--url {self.options.url}, model {self.name}: the server {what}")


class ServerModel(Server):
    """The same, measured; the tokenizer is the user's, for the lengths."""

    def __init__(self, name: str, tokenizer: TextTokenizer, options: ServerOptions) -> None:
        super().__init__(name, options)
        self.tokenizer = tokenizer
        self.context = options.context
        self.overhead = _CHAT_TOKENS if options.prompt_format == "chat" else 0

    def identity(self) -> dict[str, JSON]:
        """Return name, place and tokenizer, and how it is asked. Which weights the server holds, it alone knows."""
        return {
            "kind": "server",
            "name": self.name,
            "url": self.options.url,
            "context": self.context,
            "tokenizer": self.tokenizer.hash,
            "prompt_format": self.options.prompt_format,
        }

    def prompt_tokens(self, sample: Sample) -> int:
        """Return how many tokens the server is fed for a sample, its BOS included; a chat template's are not known here."""
        return len(self.tokenizer.with_prefix(self.tokenizer.encode(sample.text)))

    def batch(self, length: int) -> int:
        """Return how many requests make a batch: a few rounds of those that are under way at a time."""
        return self.options.concurrency * (4 if length <= 16_384 else 1)


def _message(error: urllib.error.HTTPError) -> str:
    try:
        body = error.read().decode("utf-8", "replace")
        reply = json.loads(body)
    except (OSError, http.client.HTTPException):
        return error.reason
    except ValueError:
        return " ".join(body.split())[:300] or error.reason
    reply = reply.get("error", reply) if isinstance(reply, dict) else reply
    return str(reply.get("message", reply) if isinstance(reply, dict) else reply)[:300]
